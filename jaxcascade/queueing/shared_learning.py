"""Beliefs in the shared-parameter form: features ``x_j`` in R^D for every LLM, one theta in R^D, one design matrix."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.kernels import (
    conjugate_gradient,
    factor_init,
    factor_norm,
    factor_update,
    mnl_probabilities,
    solve_positive,
)
from jaxcascade.queueing.learning import Sizes
from jaxcascade.queueing.rounds import Feedback

_BLOCK_ROWS = 64
_NEWTON_STEPS = 3
_MOST_DENSE = 64
_CONJUGATE_STEPS = 16
_IMPLICIT_STEPS = 4


class Offers(NamedTuple):
    """A history: ``features [capacity, K, D]`` of what was offered, 0 where empty, and ``chosen [capacity, K]``."""

    features: jax.Array
    chosen: jax.Array


class SharedBeliefs(NamedTuple):
    """What a learner knows: ``theta [D]``, ``factor [D, D]`` of V^{-1}, ``services []`` rounds served, ``memory``.

    The memory is the ``Offers`` of the exact estimator or the factor ``[D, D]`` of the one-pass one.
    """

    theta: jax.Array
    factor: jax.Array
    services: jax.Array
    memory: Any


def kronecker_features(num_llms: int, dim: int) -> jax.Array:
    """Feature maps ``[N, N d, d]`` that make the shared form the disjoint one: ``x_j = e_j (x) x``.

    Source: arXiv 2602.02061, Section 4.1.
    """
    blocks = jnp.eye(num_llms)[:, :, None, None] * jnp.eye(dim)
    return blocks.reshape(num_llms, num_llms * dim, dim)


def no_shared_beliefs(sizes: Sizes, features: jax.Array, regularisation: jax.Array) -> SharedBeliefs:
    """Beliefs before round 1: theta 0, ``V = lambda0 I``."""
    length = features.shape[1]
    factor = factor_init(length, regularisation)
    memory: Any = factor
    if sizes.capacity:
        shape = (sizes.capacity, sizes.assortment_size)
        memory = Offers(jnp.zeros((*shape, length), factor.dtype), jnp.zeros(shape, bool))
    return SharedBeliefs(jnp.zeros((length,), factor.dtype), factor, jnp.zeros((), jnp.int32), memory)


def learn_shared(
    sizes: Sizes,
    features: jax.Array,
    regularisation: jax.Array,
    beliefs: SharedBeliefs,
    t: jax.Array,
    feedback: Feedback,
) -> SharedBeliefs:
    """Beliefs after a round; the same ones if nothing was served.

    Args:
      sizes: static sizes.
      features: ``[N, D, d]`` feature maps.
      regularisation: ``[]`` lambda0.
      beliefs: what was known before.
      t: ``[]`` int32, the round.
      feedback: what the round showed.

    Source: arXiv 2602.02061, Algorithm 1.
    """
    context = jnp.where(feedback.served, feedback.context, 0)
    rows = features[feedback.servers] @ context
    chosen = feedback.chosen & feedback.served
    factor, theta, memory = beliefs.factor, beliefs.theta, beliefs.memory
    for k in range(sizes.assortment_size):
        factor = factor_update(factor, rows[k])
    if sizes.capacity:
        memory = Offers(memory.features.at[t - 1].set(rows), memory.chosen.at[t - 1].set(chosen))
        new = _newton(theta, memory, t, regularisation, factor)
        theta = jnp.where(feedback.served, new, theta)
    else:
        theta, memory = _one_pass(theta, memory, rows, chosen)
    return SharedBeliefs(theta, factor, beliefs.services + feedback.served, memory)


def _one_pass(theta, factor, rows, chosen):
    """As ``jaxcascade.kernels.one_pass_step``, with one parameter for all items."""
    projected = rows @ factor
    gram = projected @ projected.T
    size = jnp.diagonal(gram)
    offered = size > 0
    move = jnp.zeros_like(size)
    for _ in range(_IMPLICIT_STEPS):
        p, _ = mnl_probabilities(rows @ theta + gram @ move, offered)
        move = move + (chosen - p - move) / (1 + size * p * (1 - p))
    p, _ = mnl_probabilities(rows @ theta + gram @ move, offered)
    theta = theta + factor @ (move @ projected)
    weight = jnp.sqrt(p * (1 - p))
    for k in range(rows.shape[0]):
        factor = factor_update(factor, weight[k] * rows[k])
    return theta, factor


def _newton(theta, history, rows, regularisation, factor):
    """Minimiser ``[D]`` of the regularised negative log-likelihood, by a fixed number of Newton steps from theta."""
    capacity, size, length = history.features.shape
    block = min(_BLOCK_ROWS, capacity)
    blocks = (rows + block - 1) // block

    def read(position, theta):
        x = lax.dynamic_slice_in_dim(history.features, position * block, block)
        y = lax.dynamic_slice_in_dim(history.chosen, position * block, block)
        p, _ = mnl_probabilities(x @ theta, jnp.ones((block, size), bool))
        return x, p, y - p

    def slope(theta):
        def add(position, total):
            x, _, residual = read(position, theta)
            return total + residual.reshape(-1) @ x.reshape(-1, length)

        return lax.fori_loop(0, blocks, add, -regularisation * theta)

    def dense_step(_, theta):
        def add(position, total):
            x, p, _ = read(position, theta)
            mean = jnp.einsum("ik,ikd->id", p, x)
            flat = x.reshape(-1, length)
            return total + (p.reshape(-1, 1) * flat).T @ flat - mean.T @ mean

        hessian = lax.fori_loop(0, blocks, add, regularisation * jnp.eye(length, dtype=theta.dtype))
        return theta + solve_positive(hessian, slope(theta))

    def free_step(_, theta):
        def times(vector):
            def add(position, total):
                x, p, _ = read(position, theta)
                q = x @ vector
                weight = p * (q - jnp.sum(p * q, axis=1, keepdims=True))
                return total + weight.reshape(-1) @ x.reshape(-1, length)

            return lax.fori_loop(0, blocks, add, regularisation * vector)

        step = conjugate_gradient(times, slope(theta), lambda v: factor @ (factor.T @ v), _CONJUGATE_STEPS)
        return theta + step

    return lax.fori_loop(0, _NEWTON_STEPS, dense_step if length <= _MOST_DENSE else free_step, theta)


def shared_radius(
    sizes: Sizes, length: int, regularisation: jax.Array, scale: jax.Array, count: jax.Array
) -> jax.Array:
    """Width alpha of the confidence set, ``[]``: ``radius`` with D and the number of rounds served.

    Source: arXiv 2602.02061, Section 3.
    """
    n = jnp.maximum(count, 1).astype(regularisation.dtype)
    growth = length * jnp.log1p(sizes.assortment_size * n / (length * regularisation))
    return scale * (jnp.sqrt(growth + 4 * jnp.log(n)) / 2 + jnp.sqrt(regularisation))


def sampled_shared_utility(
    beliefs: SharedBeliefs, features: jax.Array, width: jax.Array, normal: jax.Array, context: jax.Array
) -> jax.Array:
    """Optimistic utilities ``[slots, N]``, the greatest of those under the draws ``normal [M, D]`` of theta.

    Source: arXiv 2602.02061, Algorithm 1.
    """
    samples, number = normal.shape[0], features.shape[0]
    theta = beliefs.theta + width * (normal @ beliefs.factor.T)
    rows = jnp.einsum("nDd,mD->mnd", features, theta)
    utility = context @ rows.reshape(samples * number, -1).T
    return jnp.max(utility.reshape(-1, samples, number), axis=1)


def upper_shared_utility(
    beliefs: SharedBeliefs, features: jax.Array, width: jax.Array, context: jax.Array
) -> jax.Array:
    """Upper confidence bounds of the utilities, ``[slots, N]``: ``x_j . theta + width |x_j|_{V^{-1}}``.

    Source: arXiv 2602.02061, Section 3 (the remark on UCB).
    """
    rows = jnp.einsum("nDd,sd->snD", features, context)
    return rows @ beliefs.theta + width * factor_norm(beliefs.factor, rows)


def theta_of_each(beliefs: SharedBeliefs, features: jax.Array) -> jax.Array:
    """The estimate as rows per LLM, ``[N, d]``: ``features[j].T @ theta``."""
    return jax.vmap(lambda f: f.T @ beliefs.theta)(features)
