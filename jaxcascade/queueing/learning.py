"""What learners of the queueing system believe of theta: estimate, design matrix, and how both are kept up to date."""

import math
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.kernels import (
    ChoiceHistory,
    factor_init,
    factor_norm,
    factor_update,
    factor_update_products,
    logistic_refit,
    mnl_newton,
    one_pass_step,
    signed_history,
)
from jaxcascade.queueing.rounds import Feedback

_ROUNDING = 128
# Entries of all factors; beyond it a product with all of them is made for several rounds at once.
_MOST_AT_ONCE = 4096
_FEW_DIMENSIONS = 8
# Rounds whose posterior samples are multiplied by the factors in one go: a round alone would read all N of them.
_AHEAD = 16


class Sizes(NamedTuple):
    """Static sizes of a learner.

    Attributes:
      num_llms: N.
      dim: d.
      assortment_size: K.
      capacity: rows of a history, 0 for the one-pass estimator.
    """

    num_llms: int
    dim: int
    assortment_size: int
    capacity: int


class Ahead(NamedTuple):
    """Posterior samples of 16 rounds, kept up with the factors.

    Attributes:
      normal: ``[N, d, 16 M]`` standard normal draws, M columns a round.
      step: ``[N, d, 16 M]`` the factors times them.
    """

    normal: jax.Array
    step: jax.Array


class Beliefs(NamedTuple):
    """What a learner knows after some rounds.

    Attributes:
      theta: ``[N, d]`` estimate.
      factor: ``[N, d, d]`` S_j with ``S_j S_j^T = V_j^{-1}``, ``V_j = lambda0 I + sum x x^T`` over offers of j.
      offers: ``[N]`` int32 n_j, how often j was offered.
      memory: the estimator's own: a factor ``[N, d, d]`` of the inverse curvature (one pass), a
        ``SignedHistory`` (mle, K = 1), or a ``ChoiceHistory`` (mle, K >= 2).
      ahead: samples of the coming rounds where the factors are large, else None.
    """

    theta: jax.Array
    factor: jax.Array
    offers: jax.Array
    memory: Any
    ahead: Ahead | None


def draws_ahead(sizes: Sizes) -> bool:
    """Whether the factors are so large that the samples of several rounds are made together."""
    return sizes.num_llms * sizes.dim**2 > _MOST_AT_ONCE


def history_rows(horizon: int) -> int:
    """Rows of a history for a horizon, in whole blocks of the optimiser."""
    return math.ceil(horizon / _ROUNDING) * _ROUNDING


def no_beliefs(sizes: Sizes, regularisation: jax.Array, samples: int) -> Beliefs:
    """Beliefs before round 1: theta 0, ``V_j = lambda0 I``; ``samples`` posterior samples a round."""
    number, dim, size, capacity = sizes
    factor = jnp.broadcast_to(factor_init(dim, regularisation), (number, dim, dim))
    theta = jnp.zeros((number, dim), factor.dtype)
    memory: Any = factor
    if capacity and size == 1:
        memory = signed_history(number, dim, capacity, regularisation)
    elif capacity:
        memory = ChoiceHistory(jnp.zeros((dim, capacity), factor.dtype), jnp.zeros((number, capacity), jnp.int8))
    ahead = None
    if samples and draws_ahead(sizes):
        ahead = Ahead(*[jnp.zeros((number, dim, _AHEAD * samples), factor.dtype)] * 2)
    return Beliefs(theta, factor, jnp.zeros((number,), jnp.int32), memory, ahead)


def learn(sizes: Sizes, regularisation: jax.Array, beliefs: Beliefs, t: jax.Array, feedback: Feedback) -> Beliefs:
    """Beliefs after a round; the same ones if nothing was served.

    Args:
      sizes: static sizes.
      regularisation: ``[]`` lambda0.
      beliefs: what was known before.
      t: ``[]`` int32, the round.
      feedback: what the round showed.

    Source: arXiv 2602.02061, Algorithm 1 and Appendix B.1.
    """
    number, _, size, capacity = sizes
    servers = feedback.servers
    same = servers[:, None] == jnp.arange(number, dtype=jnp.int32)
    offered = jnp.any(same, axis=0) & feedback.served
    chosen = jnp.any(same & feedback.chosen[:, None], axis=0) & feedback.served
    context = jnp.where(feedback.served, feedback.context, 0)
    rows = jnp.broadcast_to(context, (size, context.shape[0]))

    def put(whole, part):
        return whole.at[servers].set(part)

    def take(whole):
        return whole[servers]

    ahead = beliefs.ahead
    if ahead is None:
        factor = put(beliefs.factor, jax.vmap(factor_update)(take(beliefs.factor), rows))
    else:
        update = jax.vmap(factor_update_products)
        part, step = update(take(beliefs.factor), rows, take(ahead.normal), take(ahead.step))
        factor, ahead = put(beliefs.factor, part), ahead._replace(step=put(ahead.step, step))
    theta, memory = beliefs.theta, beliefs.memory
    if not capacity:
        part, curvature = one_pass_step(take(theta), take(memory), rows, feedback.chosen)
        theta, memory = put(theta, part), put(memory, curvature)
    elif size == 1:
        server = servers[0]
        row = beliefs.offers[server]
        last = jnp.where(feedback.chosen[0], context, -context)
        bound = _most_of_all_lanes(row + 1)
        new, memory = logistic_refit(theta[server], memory, last, server, row, bound, regularisation, factor[server])
        theta = jnp.where(offered[:, None], new, theta)
    else:
        code = offered.astype(jnp.int8) + chosen.astype(jnp.int8)
        memory = ChoiceHistory(memory.context.at[:, t - 1].set(context), memory.code.at[:, t - 1].set(code))
        new = mnl_newton(theta, memory, t, regularisation, factor)
        theta = jnp.where(feedback.served, new, theta)
    return Beliefs(theta, factor, beliefs.offers + offered, memory, ahead)


@jax.custom_batching.custom_vmap
def _most_of_all_lanes(count):
    """The count itself; under vmap the greatest over all lanes, one number that bounds a loop for all of them."""
    return count


@_most_of_all_lanes.def_vmap
def _(axis_size, in_batched, count):
    del axis_size
    return _most_of_all_lanes(jnp.max(count, axis=0) if in_batched[0] else count), False


def radius(sizes: Sizes, regularisation: jax.Array, scale: jax.Array, count: jax.Array) -> jax.Array:
    """Width alpha_j of the confidence set, ``[N]``.

    ``scale (sqrt(d log(1 + K n / (d lambda0)) + 4 log n) / 2 + sqrt(lambda0))`` with ``n = max(1, n_j)``; the
    paper's kappa is part of ``scale``.

    Args:
      sizes: static sizes.
      regularisation: ``[]`` lambda0.
      scale: ``[]``.
      count: ``[N]`` int32 n_j.

    Source: arXiv 2602.02061, Appendix B.1.
    """
    n = jnp.maximum(count, 1).astype(regularisation.dtype)
    growth = sizes.dim * jnp.log1p(sizes.assortment_size * n / (sizes.dim * regularisation))
    return scale * (jnp.sqrt(growth + 4 * jnp.log(n)) / 2 + jnp.sqrt(regularisation))


def look_ahead(beliefs: Beliefs, t: jax.Array, key: jax.Array) -> Beliefs:
    """Beliefs with the samples of rounds ``t .. t + 15`` in every 16th round, from that round's key."""

    def make(ahead):
        normal = jax.random.normal(key, ahead.normal.shape, ahead.normal.dtype)
        return Ahead(normal, beliefs.factor @ normal)

    return beliefs._replace(ahead=jax.lax.cond((t - 1) % _AHEAD == 0, make, lambda ahead: ahead, beliefs.ahead))


def posterior_steps(beliefs: Beliefs, t: jax.Array, normal: jax.Array) -> jax.Array:
    """Posterior samples of theta less the estimate, at width 1, ``[M, N, d]``: ``S_j z``.

    Args:
      beliefs: what is known, with the samples of round ``t`` if they are made ahead.
      t: ``[]`` int32, the round.
      normal: ``[M * N * d]`` standard normal draws z; unused if they are made ahead.

    Source: arXiv 2602.02061, Algorithm 1.
    """
    if beliefs.ahead is None:
        # The factors on the left and as they lie in memory: any other order copies all of them every round.
        number, dim, _ = beliefs.factor.shape
        columns = jnp.moveaxis(normal.reshape(-1, number, dim), 0, -1)
        return jnp.moveaxis(beliefs.factor @ columns, -1, 0)
    number, dim, columns = beliefs.ahead.step.shape
    by_round = beliefs.ahead.step.reshape(number, dim, _AHEAD, columns // _AHEAD)
    return jnp.moveaxis(by_round[:, :, (t - 1) % _AHEAD], -1, 0)


def sampled_utility(beliefs: Beliefs, width: jax.Array, step: jax.Array, context: jax.Array) -> jax.Array:
    """Optimistic utilities ``[slots, N]``: the greatest of those under the posterior samples.

    ``max_m x . theta_j^(m)`` with ``theta_j^(m) = theta_j + width_j S_j z``, the same samples for all queries.

    Args:
      beliefs: what is known.
      width: ``[N]`` alpha.
      step: ``[M, N, d]`` of ``posterior_steps``.
      context: ``[slots, d]``.

    Source: arXiv 2602.02061, Algorithm 1 and Appendix B.1.
    """
    samples, number, _ = step.shape
    theta = beliefs.theta + width[:, None] * step
    utility = _products(context, theta.reshape(samples * number, -1))
    return jnp.max(utility.reshape(-1, samples, number), axis=1) if samples > 1 else utility


def _products(context, theta):
    """``context @ theta.T``; in few dimensions term by term, which XLA vectorises over the slots, unlike a dot."""
    if context.shape[1] > _FEW_DIMENSIONS:
        return context @ theta.T
    columns = context.T
    return reduce(add, (columns[i] * theta[:, i, None] for i in range(context.shape[1]))).T


def upper_utility(beliefs: Beliefs, width: jax.Array, context: jax.Array) -> jax.Array:
    """Upper confidence bounds of the utilities, ``[slots, N]``: ``x . theta_j + width_j |x|_{V_j^{-1}}``.

    Source: arXiv 2602.02061, Section 3 (the remark on UCB).
    """
    norm = jax.vmap(factor_norm, in_axes=(0, None))(beliefs.factor, context)
    return context @ beliefs.theta.T + (width[:, None] * norm).T
