"""A bag of waiting records with a fixed capacity: added one at a time, removed anywhere.

The waiting records fill the first slots: the last one takes the place of one that leaves, so that nothing has to be
searched for a free slot or counted. The slots are the last axis of every array, along which XLA vectorises.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

FREE = jnp.iinfo(jnp.int32).max


class Bag(NamedTuple):
    """Waiting records in the first slots; records change slots, so arrival numbers and not slots tell them apart.

    Attributes:
      arrived: ``[capacity]`` int32, arrival number of the record in a slot, ``FREE`` if there is none.
      served: ``[capacity]`` int32, how often the record was served.
      record: pytree of arrays ``[..., capacity]``; what stands in a free slot means nothing.
      size: ``[]`` int32, how many records wait.
      full: ``[]`` bool, True once a record found no slot: what came after is not to be trusted.
    """

    arrived: jax.Array
    served: jax.Array
    record: Any
    size: jax.Array
    full: jax.Array


class Place(NamedTuple):
    """Where a record is.

    Attributes:
      found: ``[]`` bool, whether it is in the bag; without it the slot means nothing.
      slot: ``[]`` int32.
    """

    found: jax.Array
    slot: jax.Array


def bag_init(capacity: int, record: Any) -> Bag:
    """An empty bag of ``capacity`` slots for records like this one.

    Args:
      capacity: number of slots, static, at least 1.
      record: pytree of arrays whose shapes and types the slots take.

    Raises:
      ValueError: if ``capacity`` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"capacity: expected at least 1 slot, got {capacity}")
    slots = jax.tree.map(lambda leaf: jnp.zeros((*jnp.shape(leaf), capacity), jnp.result_type(leaf)), record)
    zeros = jnp.zeros((capacity,), jnp.int32)
    return Bag(jnp.full((capacity,), FREE, jnp.int32), zeros, slots, jnp.zeros((), jnp.int32), jnp.zeros((), bool))


def bag_find(bag: Bag, arrived: jax.Array) -> Place:
    """Where the record with this arrival number is; nowhere for ``FREE``.

    Args:
      bag: the bag.
      arrived: ``[]`` int32 arrival number.
    """
    slot = slot_of(bag.arrived == arrived)
    return Place((bag.arrived[slot] == arrived) & (arrived != FREE), slot)


def bag_read(bag: Bag, slot: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    """What is in a slot: ``arrived``, ``served`` and the record, leaves ``[...]``.

    Args:
      bag: the bag.
      slot: ``[]`` int32, within the capacity.
    """
    return read_slot((bag.arrived, bag.served, bag.record), slot)


def bag_serve(bag: Bag, place: Place, leaves: jax.Array) -> Bag:
    """The bag after the record at ``place``, if there is one, was served once, and removed where ``leaves``.

    Args:
      bag: the bag.
      place: from ``bag_find``.
      leaves: ``[]`` bool.
    """
    leaves = leaves & place.found
    number = jnp.arange(bag.arrived.shape[0], dtype=jnp.int32)
    size = bag.size - leaves
    here = number == place.slot
    last = bag_read(bag, size)
    moved = here & leaves
    arrived, served, record = jax.tree.map(
        lambda leaf, new: jnp.where(moved, new[..., None], leaf), (bag.arrived, bag.served, bag.record), last
    )
    arrived = jnp.where((number == size) & leaves, FREE, arrived)
    return Bag(arrived, served + (here & place.found & ~leaves), record, size, bag.full)


def bag_add(bag: Bag, record: Any, arrived: jax.Array, enabled: jax.Array) -> Bag:
    """The bag with one more record where ``enabled``; ``full`` is set if there is no room.

    Args:
      bag: the bag.
      record: pytree like the one the bag was made with.
      arrived: ``[]`` int32, arrival number, larger than all before.
      enabled: ``[]`` bool.
    """
    capacity = bag.arrived.shape[0]
    here = (jnp.arange(capacity, dtype=jnp.int32) == bag.size) & enabled

    def write(leaf, new):
        return jnp.where(here, jnp.asarray(new)[..., None], leaf)

    return Bag(
        write(bag.arrived, arrived),
        write(bag.served, 0),
        jax.tree.map(write, bag.record, record),
        jnp.minimum(bag.size + enabled, capacity),
        bag.full | (enabled & (bag.size == capacity)),
    )


def bag_first(bag: Bag, score: jax.Array) -> jax.Array:
    """Arrival number of the waiting record with the greatest score, ``[]`` int32; of equal ones the oldest.

    ``FREE`` if none waits.

    Args:
      bag: the bag.
      score: ``[capacity]``.
    """
    return first_of(bag.arrived, bag.arrived != FREE, score)


def bag_grow(bag: Bag) -> Bag:
    """The bag with twice the slots and the same content; its leaves may have leading batch axes.

    Args:
      bag: the bag.
    """

    def widen(leaf, fill):
        return jnp.concatenate([leaf, jnp.full_like(leaf, fill)], axis=-1)

    record = jax.tree.map(lambda leaf: widen(leaf, 0), bag.record)
    return Bag(widen(bag.arrived, FREE), widen(bag.served, 0), record, bag.size, jnp.zeros_like(bag.full))


def first_of(arrived: jax.Array, among: jax.Array, score: jax.Array) -> jax.Array:
    """As ``bag_first``, for ``arrived [capacity]`` where ``among [capacity]`` holds no free slot."""
    lowest = -jnp.inf if jnp.issubdtype(score.dtype, jnp.floating) else jnp.iinfo(score.dtype).min

    # Pairs, since a maximum that is compared with the scores afterwards may match none of them: XLA can compute
    # them twice, rounded differently.
    def better(first, second):
        wins = (first[0] > second[0]) | ((first[0] == second[0]) & (first[1] < second[1]))
        return jnp.where(wins, first[0], second[0]), jnp.where(wins, first[1], second[1])

    pairs = (jnp.where(among, score, lowest), jnp.where(among, arrived, FREE))
    return _halved(better, pairs, (lowest, FREE))[1]


def slot_of(here: jax.Array) -> jax.Array:
    """The slot of ``here [capacity]`` bool, ``[]`` int32; any slot unless exactly one is True."""
    # A dot product, which is vectorised; float32 is exact to 2^24 slots.
    number = jnp.arange(here.shape[0], dtype=jnp.float32)
    found = jnp.dot(here.astype(jnp.float32), number, precision="highest").astype(jnp.int32)
    return jnp.minimum(found, here.shape[0] - 1)


def read_slot(tree: Any, slot: jax.Array) -> Any:
    """The entries of a slot, ``[...]`` of arrays ``[..., capacity]``; those of the last slot beyond it."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, slot, axis=-1, mode="clip"), tree)


def _halved(combine: Callable, values: Any, neutral: Any) -> Any:
    """The values ``[capacity]`` of a pytree combined to one, halves at a time, filled up with ``neutral``.

    XLA's own reduction of pairs goes slot by slot and takes five times as long.
    """
    length = jax.tree.leaves(values)[0].shape[0]
    while length > 1:
        half = (length + 1) // 2
        if length % 2:
            values = jax.tree.map(lambda v, n: jnp.append(v, jnp.asarray(n, v.dtype)), values, neutral)
        values = combine(jax.tree.map(lambda v, h=half: v[:h], values), jax.tree.map(lambda v, h=half: v[h:], values))
        length = half
    return jax.tree.map(lambda v: v[0], values)
