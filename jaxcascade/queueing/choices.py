"""What every policy of the queueing system chooses with: its draws of a round and rules for picking a query."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import choose
from jaxcascade.kernels import FREE
from jaxcascade.kernels.bag import first_of
from jaxcascade.queueing.rounds import Observation

_WORD_BITS = 24


class Draws(NamedTuple):
    """Random numbers of a policy in one round.

    Attributes:
      explore: ``[]`` uniform in [0, 1), whether to explore.
      word: ``[]`` uniform in [0, 1), from which every waiting query draws a ticket.
      servers: ``[N]`` uniform in [-1, 1); the K largest are a random assortment.
      normal: ``[samples * N * d]`` standard normal, of the posterior samples: flat, or drawing them would not be
        vectorised.
      key: the round's key, for draws that are made for several rounds at once.
    """

    explore: jax.Array
    word: jax.Array
    servers: jax.Array
    normal: jax.Array
    key: jax.Array


def draw(key: jax.Array, num_llms: int, normals: int = 0) -> Draws:
    """The draws of one round.

    Args:
      key: the policy's key of the round.
      num_llms: N.
      normals: number of normal draws, static.
    """
    dtype = jnp.result_type(float)
    # One call for all: the generator's cost is by the call as much as by the number.
    below = jnp.nextafter(jnp.asarray(-1, dtype), jnp.asarray(0, dtype))
    uniform = jax.random.uniform(key, (2 + num_llms + normals,), dtype, below, 1)
    normal = jnp.sqrt(jnp.asarray(2, dtype)) * jax.lax.erf_inv(uniform[2 + num_llms :])
    first = (uniform[:2] + 1) / 2
    return Draws(first[0], first[1], uniform[2 : 2 + num_llms], normal, key)


def tickets(word: jax.Array, arrived: jax.Array) -> jax.Array:
    """A random number per query, ``[slots]`` int32 >= 0, which does not depend on slots or on the other queries.

    The finaliser of MurmurHash3 on the round's word and the query's arrival number.
    """
    bits = (word * (1 << _WORD_BITS)).astype(jnp.uint32)
    h = bits * jnp.uint32(0x9E3779B1) + arrived.astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return ((h ^ (h >> 16)) >> 1).astype(jnp.int32)


def oldest(observation: Observation, word: jax.Array) -> jax.Array:
    """The query that waits longest, ``[]`` int32; ``FREE`` if none waits."""
    return jnp.min(observation.arrived)


def newest(observation: Observation, word: jax.Array) -> jax.Array:
    """The query that joined last, ``[]`` int32; -1 if none waits."""
    return jnp.max(jnp.where(observation.arrived == FREE, -1, observation.arrived))


def anyone(observation: Observation, word: jax.Array) -> jax.Array:
    """A waiting query, uniformly, ``[]`` int32; ``FREE`` if none waits."""
    arrived = observation.arrived
    return first_of(arrived, arrived != FREE, tickets(word, arrived))


def least_served(observation: Observation, word: jax.Array) -> jax.Array:
    """A query among those served least often, uniformly, ``[]`` int32; ``FREE`` if none waits."""
    arrived, waiting = observation.arrived, observation.arrived != FREE
    fewest = jnp.min(jnp.where(waiting, observation.served, FREE))
    return first_of(arrived, waiting & (observation.served == fewest), tickets(word, arrived))


def shortest(observation: Observation, word: jax.Array) -> jax.Array:
    """The query whose answer takes the fewest tokens, of equal ones the oldest, ``[]`` int32; ``FREE`` if none waits.

    Raises:
      ValueError: where token counts are not known.
    """
    if observation.tokens is None:
        raise ValueError("scheduling: expected queries with token counts (queueing.replay) for 'sjf', got none")
    return first_of(observation.arrived, observation.arrived != FREE, -observation.tokens)


PICKS = {"fifo": oldest, "lifo": newest, "round_robin": least_served, "random": anyone, "sjf": shortest}


def pick_rule(what: str, name: str, others: tuple[str, ...]) -> Callable | None:
    """The rule of that name, or None for a name among ``others``.

    Raises:
      ValueError: if there is no such rule; names the closest.
    """
    return choose(what, name, {**PICKS, **dict.fromkeys(others)})
