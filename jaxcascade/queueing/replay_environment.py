"""Replay of retrial chains from a conversation log: a query comes back as often as its user did."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import Environment
from jaxcascade.kernels import (
    FREE,
    Bag,
    bag_add,
    bag_find,
    bag_first,
    bag_grow,
    bag_init,
    bag_read,
    bag_serve,
)
from jaxcascade.queueing.rounds import Feedback, Observation, metrics_of, round_metrics, sojourn_edges

STATE_FEATURES = 2  # attempts and age, the last entries of a context
_AGE_SCALE = 5.0


class Chain(NamedTuple):
    """A chain of conversations that waits for its next answer.

    Attributes:
      node: ``[]`` int32, row of the conversation that waits.
      left: ``[]`` int32, answers that it still takes, at least 1; nobody knows but the optimal policy.
      joined: ``[]`` int32, the round in which the chain began.
    """

    node: jax.Array
    left: jax.Array
    joined: jax.Array


class State(NamedTuple):
    """Two queues of chains on the same arrivals.

    Attributes:
      queue: the policy's queue of ``Chain`` records.
      oracle: the optimal policy's queue; a record is ``left``.
      begun: ``[]`` int32, chains that have begun.
      within: ``[bins]`` int32, departed chains that stayed at most so many rounds.
      departures: ``[]`` int32.
    """

    queue: Bag
    oracle: Bag
    begun: jax.Array
    within: jax.Array
    departures: jax.Array


@lru_cache
def replay_environment(num_steps: int, slots: int, oracle_slots: int) -> Environment:
    """The environment of a replay: metrics as in ``environment``, nothing random, regret 0 as nothing is routed.

    A served conversation that is the last of its chain departs; otherwise the next one of the chain joins at the
    end of the round, behind all that wait. A chain that begins in the same round joins after it. The optimal policy
    serves the chain with the fewest conversations left.

    Args:
      num_steps: horizon T.
      slots: chains that can wait before the queue's buffer doubles.
      oracle_slots: the same for the optimal policy's queue.

    Source: arXiv 2602.02061, Section 5.3 (WildChat).
    """
    edges = sojourn_edges(num_steps)

    def init(instance):
        zero = jnp.zeros((), jnp.int32)
        queue = bag_init(slots, Chain(zero, zero, zero))
        return State(queue, bag_init(oracle_slots, zero), zero, jnp.zeros((len(edges),), jnp.int32), zero)

    def step(instance, state, action, noise, t):
        return _step(edges, instance, state, action, t)

    return Environment(
        lambda instance, horizon: instance,
        lambda key, instance: (),
        init,
        _observe,
        step,
        metrics_of(1),
        overflowed=_full,
        grow=_grow,
    )


# Names of conversations in the queue: 2 t for one that came back in round t, 2 t + 1 for the first of a chain.


def _observe(instance, state, noise, t):
    queue = state.queue
    age = jnp.maximum(t - queue.record.joined, 0)
    chain_state = jnp.stack([jnp.log2(queue.served + 2.0), jnp.log1p(age.astype(float)) / _AGE_SCALE], axis=-1)
    row = instance.embeddings[queue.record.node]
    context = row.at[:, -STATE_FEATURES:].set(chain_state.astype(row.dtype))
    newcomer = jnp.where(bag_find(queue, 2 * t - 1).found, 2 * t - 1, FREE)
    return Observation(context, queue.arrived, queue.served, queue.size, newcomer, instance.tokens[queue.record.node])


def _step(edges, instance, state, action, t):
    queue, oracle = state.queue, state.oracle
    length, oracle_length = queue.size, oracle.size
    seen = _observe(instance, state, (), t)
    query = action.query
    if query is None:  # not computed in vain: a reduction of pairs that nobody reads crashes jaxlib 0.10.2
        query = bag_first(queue, -queue.record.left)
    place = bag_find(queue, query)
    served = place.found
    _, tries, chain = bag_read(queue, place.slot)
    leaves = served & (chain.left == 1)
    stayed = t - chain.joined
    context = seen.context[place.slot]

    queue, stays = _serve(queue, place, leaves, t)
    record = queue.record
    queue = queue._replace(record=Chain(record.node + stays, record.left - stays, record.joined))
    ahead = bag_find(oracle, bag_first(oracle, -oracle.record))
    oracle, stays = _serve(oracle, ahead, bag_read(oracle, ahead.slot)[2] == 1, t)
    oracle = oracle._replace(record=oracle.record - stays)

    arrives = instance.arrivals[t - 1]
    node, after = instance.chain_start[state.begun], instance.chain_start[state.begun + 1]
    queue = bag_add(queue, Chain(node, after - node, t), 2 * t + 1, arrives)
    oracle = bag_add(oracle, after - node, 2 * t + 1, arrives)

    departures = state.departures + leaves
    within = state.within + (leaves & (stayed <= edges))
    state = State(queue, oracle, state.begun + arrives, within, departures)
    metrics = round_metrics(
        edges,
        ~_full(state),
        regret=jnp.zeros((), seen.context.dtype),
        length=length,
        oracle_length=oracle_length,
        arrives=arrives,
        served=served,
        leaves=leaves,
        stayed=stayed,
        tries=tries,
        within=within,
        departures=departures,
        offered=jnp.ones((1,), bool),
    )
    return state, Feedback(served, context, jnp.zeros((1,), jnp.int32), leaves[None]), metrics


def _serve(bag, place, leaves, t):
    """The bag after the service of a chain, which leaves or comes back under a new name, and where it comes back."""
    stays = (jnp.arange(bag.arrived.shape[0]) == place.slot) & place.found & ~leaves
    bag = bag_serve(bag, place, leaves)
    return bag._replace(arrived=jnp.where(stays, 2 * t, bag.arrived)), stays


def _full(state):
    return state.queue.full | state.oracle.full


def _grow(state):
    """The state with twice the slots in both queues; leaves may have leading batch axes."""
    return state._replace(queue=bag_grow(state.queue), oracle=bag_grow(state.oracle))
