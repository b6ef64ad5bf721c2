"""The multinomial-logit choice model with an outside option: probabilities, assortments, likelihood, estimators."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.kernels.history import rows_at_once
from jaxcascade.kernels.square_root_factor import factor_update
from jaxcascade.kernels.symmetric_solve import conjugate_gradient, solve_positive

# Up to here K largest of N are found by a network of minima and maxima, which fuses; beyond it by top_k.
_MOST_NETWORK = 64
_NEWTON_STEPS = 3
_MOST_DENSE = 64
_CONJUGATE_STEPS = 16
_IMPLICIT_STEPS = 4


def mnl_probabilities(utility: jax.Array, offered: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Probability of each item and of the outside option, ``[..., N]`` and ``[...]``.

    ``p_j = exp(u_j) / (1 + sum_{i offered} exp(u_i))`` for offered j, 0 for the others; the outside option
    has the rest. Stable for utilities of any size.

    Args:
      utility: ``[..., N]`` utilities.
      offered: ``[..., N]`` bool, the items offered; any number of them.

    Source: arXiv 2602.02061, Section 2.
    """
    masked = jnp.where(offered, utility, -jnp.inf)
    top = jnp.maximum(jnp.max(masked, axis=-1), 0)
    weight = jnp.exp(masked - top[..., None])
    outside = jnp.exp(-top)
    total = outside + jnp.sum(weight, axis=-1)
    return weight / total[..., None], outside / total


def mnl_log_likelihood(utility: jax.Array, offered: jax.Array, chosen: jax.Array) -> jax.Array:
    """Log-likelihood of each choice, ``[...]``.

    ``u_c - log(1 + sum_{i offered} exp(u_i))`` with ``u = 0`` for the outside option.

    Args:
      utility: ``[..., N]`` utilities.
      offered: ``[..., N]`` bool, the items offered.
      chosen: ``[..., N]`` bool, at most one of the offered items; none is the outside option.

    Source: arXiv 2602.02061, Section 3.
    """
    masked = jnp.where(offered, utility, -jnp.inf)
    total = jax.nn.logsumexp(jnp.concatenate([masked, jnp.zeros_like(masked[..., :1])], axis=-1), axis=-1)
    return jnp.sum(jnp.where(chosen, utility, 0), axis=-1) - total


def best_log_weight(utility: jax.Array, size: int) -> jax.Array:
    """Log-weight of the best assortment, ``[...]``: its departure rate is the logistic function of it.

    ``log sum_{j in S} exp(u_j)`` for S the ``size`` items of greatest utility; it orders assortments as their
    departure rates do and does not saturate.

    Args:
      utility: ``[..., N]`` utilities.
      size: K, static, 1..N.

    Source: arXiv 2602.02061, Algorithm 1 (the maximum over assortments).
    """
    top = _largest(utility, size)
    if size == 1:
        return top[0]
    return top[0] + jnp.log1p(sum(jnp.exp(value - top[0]) for value in top[1:]))


def best_assortment(utility: jax.Array, size: int) -> jax.Array:
    """The ``size`` items of greatest utility, ``[size]`` int32 increasing; of equal ones the lowest index.

    Args:
      utility: ``[N]`` utilities.
      size: K, static, 1..N.

    Source: arXiv 2602.02061, Algorithm 1.
    """
    number = utility.shape[-1]
    index = jnp.arange(number, dtype=jnp.int32)
    free = jnp.ones((number,), bool)
    for _ in range(size):
        free = free & (index != jnp.argmax(jnp.where(free, utility, -jnp.inf)))
    if size == 1:
        return jnp.min(jnp.where(free, number, index))[None]
    # The k-th taken index is the number of positions up to which fewer than k+1 were taken.
    taken = jnp.sum((index[None, :] <= index[:, None]) & ~free[None, :], axis=1)
    return jnp.sum(taken[None, :] <= jnp.arange(size)[:, None], axis=1, dtype=jnp.int32)


def _largest(utility, size):
    """The ``size`` largest values along the last axis, in decreasing order, each ``[...]``."""
    number = utility.shape[-1]
    if size == 1:
        return [jnp.max(utility, axis=-1)]
    if number > _MOST_NETWORK:
        return list(jnp.moveaxis(lax.top_k(utility, size)[0], -1, 0))
    top = [jnp.full(utility.shape[:-1], -jnp.inf, utility.dtype)] * size
    for item in range(number):
        value = utility[..., item]
        for place in range(size):
            top[place], value = jnp.maximum(top[place], value), jnp.minimum(top[place], value)
    return top


class ChoiceHistory(NamedTuple):
    """Choices from assortments of several items.

    Attributes:
      context: ``[d, capacity]`` contexts, 0 where no row is filled.
      code: ``[N, capacity]`` 0 for an item not offered, 1 offered, 2 chosen.
    """

    context: jax.Array
    code: jax.Array


def mnl_newton(
    theta: jax.Array,
    history: ChoiceHistory,
    rows: jax.Array,
    regularisation: jax.Array,
    factor: jax.Array,
    steps: int = _NEWTON_STEPS,
) -> jax.Array:
    """Minimiser ``[N, d]`` of the regularised negative log-likelihood of a history, by Newton steps from ``theta``.

    ``regularisation/2 sum_j |theta_j|^2 - sum_i log p_{c_i}(x_i, S_i)``, one joint problem over all items.
    Up to 64 unknowns the Hessian is formed and eliminated; beyond it the steps are found by conjugate
    gradients with ``factor`` as preconditioner, which read the history only.

    Args:
      theta: ``[N, d]`` where to start.
      history: choices; empty rows offer nothing and change nothing.
      rows: ``[]`` int, no row from here on is filled.
      regularisation: ``[]`` > 0.
      factor: ``[N, d, d]`` S_j, ``S_j S_j^T`` close to a multiple of the inverse Hessian's block of item j.
      steps: Newton steps.

    Source: arXiv 2602.02061, Appendix B.1.
    """
    number, dim = theta.shape
    block = rows_at_once(history.context.shape[1])
    blocks = (rows + block - 1) // block
    zero = jnp.zeros((), jnp.int32)
    unknowns = number * dim

    def read(position, theta):
        start = (zero, jnp.asarray(position * block, jnp.int32))
        x = lax.dynamic_slice(history.context, start, (dim, block))
        code = lax.dynamic_slice(history.code, start, (number, block))
        probability, _ = mnl_probabilities((theta @ x).T, code.T > 0)
        return x, probability.T, (code == 2) - probability.T

    def dense_step(_, theta):
        def add(position, total):
            gradient, own, cross = total
            x, p, residual = read(position, theta)
            weighted = (p[:, None] * x).reshape(unknowns, block)
            return gradient + residual @ x.T, own + weighted @ x.T, cross + weighted @ weighted.T

        zeros = (
            jnp.zeros((number, dim), theta.dtype),
            jnp.zeros((unknowns, dim), theta.dtype),
            jnp.zeros((unknowns, unknowns), theta.dtype),
        )
        gradient, own, cross = lax.fori_loop(0, blocks, add, zeros)
        same = jnp.eye(number, dtype=theta.dtype)
        blocked = (own.reshape(number, dim, 1, dim) * same[:, None, :, None]).reshape(unknowns, unknowns)
        hessian = regularisation * jnp.eye(unknowns, dtype=theta.dtype) + blocked - cross
        return theta + solve_positive(hessian, (gradient - regularisation * theta).reshape(-1)).reshape(number, dim)

    def free_step(_, theta):
        def slope(position, total):
            x, _, residual = read(position, theta)
            return total + residual @ x.T

        def times(vector):
            def add(position, total):
                x, p, _ = read(position, theta)
                q = vector @ x
                return total + (p * (q - jnp.sum(p * q, axis=0))) @ x.T

            return lax.fori_loop(0, blocks, add, regularisation * vector)

        def precondition(vector):
            return jnp.einsum("nij,nj->ni", factor, jnp.einsum("nji,nj->ni", factor, vector))

        right = lax.fori_loop(0, blocks, slope, -regularisation * theta)
        return theta + conjugate_gradient(times, right, precondition, _CONJUGATE_STEPS)

    return lax.fori_loop(0, steps, dense_step if unknowns <= _MOST_DENSE else free_step, theta)


def one_pass_step(
    theta: jax.Array, factor: jax.Array, context: jax.Array, chosen: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The one-pass estimate after one more choice, in O(d^2) per offered item and without a history.

    An implicit online Newton step: each offered item moves to the minimiser of
    ``|theta - theta_j|^2_{H_j} / 2`` minus the choice's log-likelihood, along ``H_j^{-1} x``, and then
    ``H_j += p_j (1 - p_j) x x^T`` at the new estimate. Items are coupled through the probabilities only.

    Args:
      theta: ``[K, d]`` estimates of the offered items.
      factor: ``[K, d, d]`` S_j with ``S_j S_j^T = H_j^{-1}``.
      context: ``[K, d]`` the context, once per offered item (0 for an item that is to stay as it is).
      chosen: ``[K]`` bool, the chosen item; none is the outside option.

    Returns:
      New estimates ``[K, d]`` and factors ``[K, d, d]``.

    Source: after Zhang et al., arXiv 2507.11847, and Lee and Oh, arXiv 2502.10020, with an implicit step.
    """
    projected = jnp.einsum("kij,ki->kj", factor, context)
    size = jnp.sum(projected * projected, axis=-1)
    utility = jnp.sum(theta * context, axis=-1)
    offered = size > 0
    move = jnp.zeros_like(utility)
    for _ in range(_IMPLICIT_STEPS):
        p, _ = mnl_probabilities(utility + move * size, offered)
        move = move + (chosen - p - move) / (1 + size * p * (1 - p))
    p, _ = mnl_probabilities(utility + move * size, offered)
    theta = theta + jnp.einsum("kij,kj->ki", factor, projected * move[:, None])
    weight = jnp.sqrt(p * (1 - p))
    return theta, jax.vmap(factor_update)(factor, weight[:, None] * context)
