"""A first-in, first-out queue of records with a fixed capacity, for use inside jit, vmap and scan."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Fifo(NamedTuple):
    """A ring of records: the ``size`` records from ``head`` on, oldest first.

    Attributes:
      slots: pytree of arrays ``[capacity, ...]``.
      head: ``[]`` int32, slot of the oldest record.
      size: ``[]`` int32, number of records waiting.
    """

    slots: Any
    head: jax.Array
    size: jax.Array


def fifo_init(capacity: int, record: Any) -> Fifo:
    """An empty queue of ``capacity`` slots, each shaped like ``record``.

    Args:
      capacity: number of slots, static, at least 1.
      record: pytree of arrays or scalars whose shapes and types the slots take.

    Raises:
      ValueError: if ``capacity`` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1 slot, got {capacity}")
    slots = jax.tree.map(lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), jnp.result_type(leaf)), record)
    return Fifo(slots, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def fifo_push(queue: Fifo, record: Any, enabled: jax.Array) -> tuple[Fifo, jax.Array]:
    """The queue with ``record`` at its end where ``enabled``, and whether it was taken.

    A full queue refuses the record; nothing waiting is ever overwritten.

    Args:
      queue: the queue.
      record: pytree like the one the queue was made with.
      enabled: ``[]`` bool; False leaves the queue as it is.

    Returns:
      The new queue and ``[]`` bool, True if the record was stored.
    """
    capacity = _capacity(queue)
    taken = jnp.asarray(enabled, bool) & (queue.size < capacity)
    slot = (queue.head + queue.size) % capacity
    slots = jax.tree.map(
        lambda leaf, new: leaf.at[slot].set(jnp.where(taken, new, leaf[slot]).astype(leaf.dtype)),
        queue.slots,
        record,
    )
    return Fifo(slots, queue.head, queue.size + taken.astype(jnp.int32)), taken


def fifo_pop(queue: Fifo, count: jax.Array, limit: int) -> tuple[Fifo, Any, jax.Array]:
    """The queue without its oldest ``min(count, size, limit)`` records, those records, and which are real.

    Args:
      queue: the queue.
      count: ``[]`` int, how many records may leave.
      limit: static upper end of how many can leave at once.

    Returns:
      The new queue; the records, pytree of ``[limit, ...]``, oldest first; ``[limit]`` bool, True for
      the records that left (the others are meaningless).
    """
    capacity = _capacity(queue)
    leaving = jnp.clip(jnp.asarray(count, jnp.int32), 0, jnp.minimum(queue.size, limit))
    order = jnp.arange(limit, dtype=jnp.int32)
    records = jax.tree.map(lambda leaf: leaf[(queue.head + order) % capacity], queue.slots)
    rest = Fifo(queue.slots, (queue.head + leaving) % capacity, queue.size - leaving)
    return rest, records, order < leaving


def _capacity(queue: Fifo) -> int:
    return jax.tree.leaves(queue.slots)[0].shape[0]
