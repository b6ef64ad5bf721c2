"""The queueing system: queries wait, the policy serves one a round with an assortment of LLMs, unhappy ones stay."""

import math
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcascade.core import Environment, is_concrete
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
    best_assortment,
    mnl_probabilities,
)
from jaxcascade.queueing.instance import LEAST_ACCEPTANCE, Instance, acceptance, has_chains, has_table, has_trace
from jaxcascade.queueing.oracle import best_departure_rate
from jaxcascade.queueing.replay_environment import replay_environment
from jaxcascade.queueing.rounds import Feedback, Observation, metrics_of, round_metrics, sojourn_edges

_SLOTS, _ORACLE_SLOTS = 64, 32
_BLOCK = 32  # rounds whose contexts are drawn together
_UNKNOWN_ACCEPTANCE = 0.3
_MOST_CANDIDATES = _BLOCK * 2 ** math.ceil(math.log2(2 / LEAST_ACCEPTANCE))
# Streams folded into a round's key: contexts, and from a block's key theta and the batches of contexts.
_BLOCK_STREAM, _THETA_STREAM, _FIRST_BATCH = 101, 102, 1000


class Model(NamedTuple):
    """What all seeds share: the instance."""

    instance: Instance


class Noise(NamedTuple):
    """Draws of one round.

    Attributes:
      arrives: ``[]`` bool A(t), whether a query joins at the end of the round, unless a trace says so.
      uniform: ``[]`` U_t in [0, 1), which decides what the user does.
      key: the stream of contexts; those of rounds ``32 k + 1 .. 32 k + 32`` are drawn together from the key
        of the first of them, so they too depend on seed and round alone. In round 1 also the seed's theta.
    """

    arrives: jax.Array
    uniform: jax.Array
    key: jax.Array


class Query(NamedTuple):
    """A query: ``context [d]``, and hidden from policies ``utility [N]`` and ``best []``, its best departure rate."""

    context: jax.Array
    utility: jax.Array
    best: jax.Array


class State(NamedTuple):
    """Two queues on the same noise and the contexts to come.

    Attributes:
      queue: the policy's queue of ``Query`` records.
      oracle: the optimal policy's queue; a record is the query's best departure rate.
      block: contexts of the current 32 rounds, ``Query`` leaves ``[32, ...]``.
      theta: ``[N, d]`` the seed's theta; ``[0, d]`` if the instance has one.
      starved: ``[]`` bool, True once a block lacked contexts that can be served; what came after is void.
      within: ``[bins]`` int32, departed queries that stayed at most so many rounds.
      departures: ``[]`` int32.
    """

    queue: Bag
    oracle: Bag
    block: Query
    theta: jax.Array
    starved: jax.Array
    within: jax.Array
    departures: jax.Array


def environment(
    instance: Instance, num_steps: int, *, slots: int = _SLOTS, oracle_slots: int = _ORACLE_SLOTS
) -> Environment:
    """The queueing system's environment, with the optimal policy's queue simulated alongside on the same noise.

    Metrics: ``regret`` sums ``max_S R(x_t, S) - R(x_t, S_t)`` over the queries served; ``queue_length`` is
    Q(t) at the start of the round, ``queue_gap`` is Q(t) - Q*(t) and ``queue_gap_sum`` its sum; ``waiting`` is
    the length after the round, so that ``arrivals = departures + waiting``; ``retrials`` counts failed
    services, ``departed_retrials`` those of departed queries; ``sojourn`` sums, in rounds, how long departed
    queries stayed, ``sojourn_p95`` is the 95th percentile (exact to 32 rounds, above rounded up by at most
    9 %); ``offers_j`` counts how often LLM j (from 1) was offered.

    The buffers of both queues start small; the runner repeats the rounds since its last stop with doubled ones
    when one was too small, on the same noise and with the same result. Where nobody does that
    (``jaxcascade.simulate``), regret and queue lengths are nan from then on: pass ``slots``.

    Contexts come by rejection, at most 131072 tries for a block of 32. At the least share of contexts that an
    instance may accept, 1/2000, that fails with probability 2e-6 a block, at 1/1000 with less than 1e-20;
    a failure raises in studies and gives nan elsewhere.

    Args:
      instance: the instance, for its static sizes and, if concrete, the share of contexts it accepts.
      num_steps: horizon T.
      slots: queries that can wait before the queue's buffer doubles.
      oracle_slots: the same for the optimal policy's queue.

    Raises:
      ValueError: if a number of slots is below 1.

    Source: arXiv 2602.02061, Section 2 and Appendix E.1 (the coupling).
    """
    for name, value in (("slots", slots), ("oracle_slots", oracle_slots)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")
    rounds = instance.arrivals.shape[-1]
    if has_trace(instance) and num_steps > rounds:
        raise ValueError(f"num_steps: expected at most {rounds}, the rounds of the arrival trace, got {num_steps}")
    up_to = 1 << (int(num_steps) - 1).bit_length()  # so that another horizon is mostly the same program
    if has_chains(instance):
        return replay_environment(up_to, int(slots), int(oracle_slots))
    if has_table(instance):
        attempts = 1
    else:
        share = acceptance(instance) if is_concrete(instance) else _UNKNOWN_ACCEPTANCE
        attempts = _attempts(max(share, LEAST_ACCEPTANCE))
    return _make(instance.num_llms, up_to, int(slots), int(oracle_slots), attempts)


def _attempts(share):
    """Tries a context to make at once, such that a block lacks one with probability 3e-5; 2^k or 3 2^k of them.

    Few different numbers, since each is a program of its own.
    """
    spread = 4 * math.sqrt(1 - share)
    least = ((spread + math.sqrt(spread**2 + 4 * _BLOCK)) / 2) ** 2 / (share * _BLOCK)
    return min(base * 2 ** max(math.ceil(math.log2(least / base)), 0) for base in (1, 3))


@lru_cache
def _make(num_llms, num_steps, slots, oracle_slots, attempts):
    edges = sojourn_edges(num_steps)

    def init(model):
        instance = model.instance
        number, dim, dtype = instance.num_llms, instance.dim, instance.theta.dtype
        one = Query(jnp.zeros((dim,), dtype), jnp.zeros((number,), dtype), jnp.zeros((), dtype))
        return State(
            bag_init(slots, one),
            bag_init(oracle_slots, one.best),
            jax.tree.map(lambda leaf: jnp.zeros((_BLOCK, *leaf.shape), dtype), one),
            jnp.zeros((number if instance.per_seed else 0, dim), dtype),
            jnp.zeros((), bool),
            jnp.zeros((len(edges),), jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def step(model, state, action, noise, t):
        return _step(edges, attempts, model.instance, state, action, noise, t)

    metrics = metrics_of(num_llms)
    return Environment(
        lambda instance, horizon: Model(instance),
        _noise,
        init,
        _observe,
        step,
        metrics,
        overflowed=_overflowed,
        grow=_grow,
    )


def _noise(key, model):
    instance = model.instance
    draw = jax.random.uniform(key, (2,), instance.theta.dtype)
    return Noise(draw[0] < instance.arrival_rate, draw[1], jax.random.fold_in(key, _BLOCK_STREAM))


def _observe(model, state, noise, t):
    queue = state.queue
    newcomer = jnp.where(bag_find(queue, t - 1).found, t - 1, FREE)
    return Observation(queue.record.context.T, queue.arrived, queue.served, queue.size, newcomer)


def _step(edges, attempts, instance, state, action, noise, t):
    size, queue, oracle = instance.assortment_size, state.queue, state.oracle
    length, oracle_length = queue.size, oracle.size
    block, theta, starved = lax.cond(
        (t - 1) % _BLOCK == 0,
        lambda old: _next_block(instance, attempts, old[1], old[2], noise.key, t),
        lambda old: old,
        (state.block, state.theta, state.starved),
    )
    arrives = instance.arrivals[t - 1] if has_trace(instance) else noise.arrives

    query = bag_first(queue, queue.record.best) if action.query is None else action.query
    place = bag_find(queue, query)
    served = place.found
    joined, tries, (context, utility, best) = bag_read(queue, place.slot)
    servers = best_assortment(utility, size) if action.servers is None else action.servers
    number = jnp.arange(instance.num_llms, dtype=jnp.int32)
    offered = jnp.any(servers[:, None] == number, axis=0)
    probability, retrial = mnl_probabilities(utility, offered)
    rate = 1 - retrial
    # Items take consecutive intervals in increasing index; past the last one the user comes back.
    upper = jnp.cumsum(probability[servers])
    leaves = served & (noise.uniform <= upper[-1])
    position = jnp.sum(noise.uniform > upper, dtype=jnp.int32)
    chosen = (jnp.arange(size) == position) & leaves
    stayed = t - joined
    queue = bag_serve(queue, place, leaves)

    ahead = bag_find(oracle, bag_first(oracle, oracle.record))
    oracle = bag_serve(oracle, ahead, noise.uniform <= bag_read(oracle, ahead.slot)[2])

    new = jax.tree.map(lambda leaf: leaf[(t - 1) % _BLOCK], block)
    queue = bag_add(queue, new, t, arrives)
    oracle = bag_add(oracle, new.best, t, arrives)

    departures = state.departures + leaves
    within = state.within + (leaves & (stayed <= edges))
    state = State(queue, oracle, block, theta, starved, within, departures)
    valid = ~(_full(state) | starved)
    excess = best - rate
    metrics = round_metrics(
        edges,
        valid,
        # The best rate and the rate round differently: a gap of a few units in the last place is none.
        regret=jnp.where(served & (excess > 4 * jnp.finfo(best.dtype).eps), excess, 0),
        length=length,
        oracle_length=oracle_length,
        arrives=arrives,
        served=served,
        leaves=leaves,
        stayed=stayed,
        tries=tries,
        within=within,
        departures=departures,
        offered=offered,
    )
    return state, Feedback(served, context, servers, chosen), metrics


def _next_block(instance, attempts, theta, starved, key, t):
    """Contexts of rounds ``t .. t + 31``, the seed's theta, and whether contexts were lacking."""
    dtype = instance.theta.dtype
    size = instance.assortment_size
    if has_table(instance):
        draw = jax.random.uniform(key, (_BLOCK,), dtype)
        count = instance.embeddings.shape[0]
        rows = jnp.minimum((draw * count).astype(jnp.int32), count - 1)
        utility = instance.utility[rows]
        return Query(instance.embeddings[rows], utility, best_departure_rate(utility, size)), theta, starved
    if instance.per_seed:
        fresh = jax.random.uniform(jax.random.fold_in(key, _THETA_STREAM), theta.shape, dtype, -1, 1)
        theta = jnp.where(t == 1, fresh, theta)
    rows_of = theta if instance.per_seed else instance.theta
    wanted = jnp.arange(1, _BLOCK + 1, dtype=jnp.int32)

    def draw_batch(batch):
        number = _FIRST_BATCH + batch * attempts + jnp.arange(attempts, dtype=jnp.int32)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, number)
        draws = jax.vmap(lambda k: jax.random.uniform(k, (_BLOCK, instance.dim), dtype, -1, 1))(keys)
        return draws.reshape(-1, instance.dim)

    # Accepted contexts in the order they were tried, so that the size of a batch does not matter.
    def try_batch(state):
        batch, found, context = state
        tried = draw_batch(batch)
        rate = best_departure_rate(tried @ rows_of.T, size)
        count = found + jnp.cumsum(rate >= instance.arrival_rate + instance.slackness, dtype=jnp.int32)
        where = jnp.minimum(jnp.searchsorted(count, wanted, method="scan_unrolled"), tried.shape[0] - 1)
        new = (wanted > found) & (wanted <= count[-1])
        return batch + 1, count[-1], jnp.where(new[:, None], tried[where], context)

    most = _MOST_CANDIDATES // (_BLOCK * attempts)
    start = (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((_BLOCK, instance.dim), dtype))
    _, found, context = lax.while_loop(lambda s: (s[1] < _BLOCK) & (s[0] < most), try_batch, start)
    utility = context @ rows_of.T
    return Query(context, utility, best_departure_rate(utility, size)), theta, starved | (found < _BLOCK)


def _full(state):
    return state.queue.full | state.oracle.full


def _overflowed(state):
    """Whether a queue's buffer was too small, ``[]`` bool; raises if contexts were lacking, which no buffer mends."""
    if is_concrete(state) and bool(jnp.any(state.starved)):
        raise ValueError(
            f"slackness: expected contexts with max_S R >= arrival_rate + slackness; fewer than {_BLOCK} in"
            f" {_MOST_CANDIDATES} uniform ones meet it for {float(jnp.mean(state.starved)):.3g} of the seeds"
        )
    return _full(state)


def _grow(state):
    """The state with twice the slots in both queues; leaves may have leading batch axes."""
    return state._replace(queue=bag_grow(state.queue), oracle=bag_grow(state.oracle))
