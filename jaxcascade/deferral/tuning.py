"""Fixed queue thresholds tuned before the run to the least expected cost, as if the scores were calibrated."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.deferral.oracle import admission_problem
from jaxcascade.kernels import bellman_fixed_point, drain_cost, drain_increments, marginal_cost

_HORIZON_BITS = 31
_MOST_CYCLES = 100


def expected_cost(view, arrival: jax.Array, thresholds: jax.Array, horizon: jax.Array) -> jax.Array:
    """Expected cost over the horizon, ``[]``, of deferring level j iff the queue is shorter than ``thresholds[j]``.

    The chain of queue lengths is homogeneous, so T rounds are the T-th power of an affine map, built by
    repeated squaring.

    Args:
      view: instance whose ``score`` stands in for the accuracies.
      arrival: ``[K]`` level probabilities 1..K.
      thresholds: ``[K]`` queue thresholds.
      horizon: ``[]`` int T, may be traced.

    Source: arXiv 2610.15128, Appendix F (fixed-threshold policies).
    """
    capacity = view.queue_capacity
    length = jnp.arange(capacity + 1)
    defers = (length[:, None] < thresholds) & (length[:, None] < capacity)
    sent = defers @ arrival
    loss = (~defers * (1 - view.score)) @ arrival
    round_cost = view.cost_holding * length + view.cost_expert * sent + view.cost_error * loss
    served = jnp.arange(view.service.shape[-1])
    moves = jnp.zeros((capacity + 1, capacity + 1), round_cost.dtype)
    for added, share in ((0, 1 - sent), (1, sent)):
        after = jnp.clip(jnp.minimum(length + added, capacity)[:, None] - served, 0)
        moves = moves.at[length[:, None], after].add(share[:, None] * view.service)

    def bit(position, state):
        value, moves, cost = state
        here = (horizon >> position) & 1
        value = jnp.where(here == 1, cost + moves @ value, value)
        return value, moves @ moves, cost + moves @ cost

    start = (drain_cost(view.service, view.cost_holding, capacity).astype(round_cost.dtype), moves, round_cost)
    return lax.fori_loop(0, _HORIZON_BITS, bit, start)[0][0]


def tune_confidence_thresholds(view, arrival: jax.Array, horizon: jax.Array) -> jax.Array:
    """Queue thresholds ``[K]``, 0 or B, of the best rule "defer iff the score is below a cut".

    Args:
      view: instance, of which neither accuracies nor arrivals are read.
      arrival: ``[K]`` level probabilities 1..K to tune for.
      horizon: ``[]`` int T.

    Source: arXiv 2610.15128, Appendix F (FCT).
    """
    cuts = jnp.append(jnp.sort(view.score), jnp.inf)
    rules = jnp.where(view.score < cuts[:, None], view.queue_capacity, 0)
    costs = jax.vmap(lambda rule: expected_cost(view, arrival, rule, horizon))(rules)
    return rules[_first_best(costs)]


def tune_queue_thresholds(view, arrival: jax.Array, horizon: jax.Array) -> jax.Array:
    """Queue thresholds ``[K]`` that coordinate descent finds best; of equal costs the lower threshold.

    Args:
      view: instance, of which neither accuracies nor arrivals are read.
      arrival: ``[K]`` level probabilities 1..K to tune for.
      horizon: ``[]`` int T.

    Source: arXiv 2610.15128, Appendix F (FQT).
    """
    levels, capacity = view.score.shape[-1], view.queue_capacity

    def cost(rule):
        return expected_cost(view, arrival, rule, horizon)

    def improve(level, rule):
        counts = jnp.arange(capacity + 1, dtype=jnp.int32)[:, None]
        options = jnp.where(jnp.arange(levels) == level, counts, rule)
        costs = jax.vmap(cost)(options)
        return options[_first_best(costs)]

    def cycle(state):
        rule, _, count = state
        new = lax.fori_loop(0, levels, improve, rule)
        return new, jnp.any(new != rule), count + 1

    def descend(start):
        state = (start, jnp.ones((), bool), jnp.zeros((), jnp.int32))
        return lax.while_loop(lambda s: s[1] & (s[2] < _MOST_CYCLES), cycle, state)[0]

    nobody = jnp.zeros((levels,), jnp.int32)
    starts = [
        nobody,
        nobody + capacity,
        _planned_thresholds(view, arrival),
        tune_confidence_thresholds(view, arrival, horizon).astype(jnp.int32),
    ]
    rules = jnp.stack([descend(start) for start in starts])
    return rules[_first_best(jax.vmap(cost)(rules))]


def _planned_thresholds(view, arrival):
    """Queue thresholds ``[K]`` of the optimal rule far from the horizon if the scores were the accuracies."""
    problem = admission_problem(view, view.score, arrival)
    start = drain_increments(problem.service, problem.cost_holding, view.queue_capacity)
    cost = marginal_cost(problem, bellman_fixed_point(problem, start.astype(view.score.dtype)).increments)
    return jnp.sum(problem.loss[:, None] > cost, axis=1, dtype=jnp.int32)


def _first_best(costs):
    """The first index whose cost is the least up to rounding."""
    slack = jnp.maximum(1e-12, 4 * jnp.finfo(costs.dtype).eps) * jnp.max(jnp.abs(costs))
    return jnp.argmax(costs <= jnp.min(costs) + slack)
