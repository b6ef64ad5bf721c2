"""A bag of waiting records with a fixed capacity: added one at a time, removed anywhere, order of arrival kept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

FREE = jnp.iinfo(jnp.int32).max


class Bag(NamedTuple):
    """Waiting records in slots; slots are reused, so arrival numbers and not slots tell records apart.

    Attributes:
      arrived: ``[capacity]`` int32, arrival number of the record in a slot, ``FREE`` if there is none.
      served: ``[capacity]`` int32, how often the record was served.
      record: pytree of arrays ``[capacity, ...]``; what stands in a free slot means nothing.
      full: ``[]`` bool, True once a record found no slot: what came after is not to be trusted.
    """

    arrived: jax.Array
    served: jax.Array
    record: Any
    full: jax.Array


def bag_init(capacity: int, record: Any) -> Bag:
    """An empty bag of ``capacity`` slots, each shaped like ``record``.

    Args:
      capacity: number of slots, static, at least 1.
      record: pytree of arrays whose shapes and types the slots take.

    Raises:
      ValueError: if ``capacity`` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1 slot, got {capacity}")
    slots = jax.tree.map(lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), jnp.result_type(leaf)), record)
    arrived = jnp.full((capacity,), FREE, jnp.int32)
    return Bag(arrived, jnp.zeros((capacity,), jnp.int32), slots, jnp.zeros((), bool))


def bag_find(bag: Bag, arrived: jax.Array) -> jax.Array:
    """Which slot holds the record with this arrival number, ``[capacity]`` bool; none for ``FREE``.

    Args:
      bag: the queue.
      arrived: ``[]`` int32 arrival number.
    """
    return (bag.arrived == arrived) & (bag.arrived != FREE)


def bag_size(bag: Bag) -> jax.Array:
    """Number of waiting records, ``[]`` int32.

    Args:
      bag: the queue.
    """
    return jnp.sum(bag.arrived != FREE, dtype=jnp.int32)


def bag_serve(bag: Bag, here: jax.Array, leaves: jax.Array) -> Bag:
    """The bag after the record at ``here`` was served once, and removed where ``leaves``.

    Args:
      bag: the bag.
      here: ``[capacity]`` bool, from ``bag_find``.
      leaves: ``[]`` bool.
    """
    return bag._replace(arrived=jnp.where(here & leaves, FREE, bag.arrived), served=bag.served + here.astype(jnp.int32))


def bag_add(bag: Bag, record: Any, arrived: jax.Array, enabled: jax.Array) -> Bag:
    """The bag with a record in its first free slot where ``enabled``; ``full`` is set if there is none.

    Args:
      bag: the bag.
      record: pytree like the one the bag was made with.
      arrived: ``[]`` int32, arrival number, larger than all before.
      enabled: ``[]`` bool.
    """
    capacity = bag.arrived.shape[0]
    number = jnp.arange(capacity, dtype=jnp.int32)
    slot = jnp.min(jnp.where(bag.arrived == FREE, number, capacity))
    here = (number == slot) & enabled

    def write(leaf, new):
        return jnp.where(here.reshape(-1, *(1,) * (leaf.ndim - 1)), new, leaf)

    return Bag(
        jnp.where(here, arrived, bag.arrived),
        jnp.where(here, 0, bag.served),
        jax.tree.map(write, bag.record, record),
        bag.full | (enabled & (slot == capacity)),
    )


def bag_first(bag: Bag, among: jax.Array, score: jax.Array) -> jax.Array:
    """Arrival number of the record with the greatest score, ``[]`` int32; of equal ones the oldest.

    ``FREE`` if there is none among them.

    Args:
      bag: the bag.
      among: ``[capacity]`` bool, which slots count; free ones never do.
      score: ``[capacity]``.
    """
    return first_of(bag.arrived, among & (bag.arrived != FREE), score)


def first_of(arrived: jax.Array, among: jax.Array, score: jax.Array) -> jax.Array:
    """As ``bag_first``, for ``arrived [capacity]`` where ``among`` holds no free slot."""
    lowest = -jnp.inf if jnp.issubdtype(score.dtype, jnp.floating) else jnp.iinfo(score.dtype).min
    lowest = jnp.asarray(lowest, score.dtype)

    # One reduction over pairs: a maximum that is compared with the scores afterwards may match none of them,
    # since XLA can compute them twice, rounded differently.
    def better(first, second):
        wins = (first[0] > second[0]) | ((first[0] == second[0]) & (first[1] < second[1]))
        return jnp.where(wins, first[0], second[0]), jnp.where(wins, first[1], second[1])

    pairs = (jnp.where(among, score, lowest), jnp.where(among, arrived, FREE))
    return lax.reduce(pairs, (lowest, jnp.asarray(FREE, arrived.dtype)), better, (0,))[1]


def bag_grow(bag: Bag, record_ndim: Any) -> Bag:
    """The bag with twice the slots and the same content; its leaves may have leading batch axes.

    Args:
      bag: the bag.
      record_ndim: pytree like a record, the number of axes of each leaf of one record.
    """

    def widen(leaf, ndim, fill):
        axis = leaf.ndim - 1 - ndim
        return jnp.concatenate([leaf, jnp.full_like(leaf, fill)], axis=axis)

    return Bag(
        widen(bag.arrived, 0, FREE),
        widen(bag.served, 0, 0),
        jax.tree.map(lambda leaf, ndim: widen(leaf, ndim, 0), bag.record, record_ndim),
        jnp.zeros_like(bag.full),
    )
