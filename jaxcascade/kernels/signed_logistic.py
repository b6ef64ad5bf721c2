"""Logistic regression on the acceptances and rejections of N items, one history each, that grow by a row."""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.kernels.history import rows_at_once
from jaxcascade.kernels.symmetric_solve import conjugate_gradient, solve_positive

_NEWTON_STEPS = 3
_CHORD_STEPS = 2
# Most that a step may change a row's logit: a longer Newton step on rows this long may overshoot and never come back.
_MOST_CHANGE = 4.0
_IMPLICIT_STEPS = 4
_CONJUGATE_STEPS = 16
_MOST_DENSE = 64
_MOST_WRITTEN_OUT = 8


def logistic_newton(
    theta: jax.Array,
    signed: jax.Array,
    index: jax.Array,
    rows: jax.Array,
    regularisation: jax.Array,
    factor: jax.Array,
    steps: int = _NEWTON_STEPS,
) -> jax.Array:
    """Minimiser ``[d]`` of the ridge logistic loss on one of N histories, by Newton steps from ``theta``.

    ``regularisation/2 |theta|^2 + sum_i log(1 + exp(-z_i . theta))`` with ``z = x`` for an acceptance and
    ``-x`` for a rejection. Empty rows are zero and change nothing. A fixed number of steps: started from the
    minimiser without the last row, three leave about 4e-8. Up to 64 dimensions the Hessian is formed and
    eliminated, beyond it the step is found by conjugate gradients, which read the history only.

    Args:
      theta: ``[d]`` where to start.
      signed: ``[N, d, capacity]`` rows z of all histories, each along the last axis, so that a pass over them is
        vectorised; fast if the capacity is a multiple of 128.
      index: ``[]`` which history.
      rows: ``[]`` int, no row from here on is filled; under vmap it must not be batched to be fast.
      regularisation: ``[]`` > 0.
      factor: ``[d, d]`` S, ``S S^T`` close to a multiple of the inverse Hessian; only used beyond 64 dimensions.
      steps: Newton steps.

    Source: arXiv 2602.02061, Appendix B.1 (K = 1, where the likelihood splits by server).
    """
    dim = theta.shape[-1]
    read, blocks = _blocks_of(signed, index, rows)
    longest = lax.fori_loop(
        0,
        blocks,
        lambda number, most: jnp.maximum(most, jnp.max(jnp.sum(read(number) ** 2, axis=0))),
        jnp.zeros((), theta.dtype),
    )
    longest = jnp.sqrt(longest)

    def dense_step(_, theta):
        gradient, hessian = _slope_and_hessian(theta, read, blocks, regularisation)
        return theta + _cut(solve_positive(hessian, gradient), longest)

    def free_step(_, theta):
        def times(vector):
            def add(number, total):
                z = read(number)
                miss = jax.nn.sigmoid(-(theta @ z))
                return total + z @ (miss * (1 - miss) * (vector @ z))

            return lax.fori_loop(0, blocks, add, regularisation * vector)

        right = _slope(theta, read, blocks, regularisation)
        step = conjugate_gradient(times, right, lambda v: factor @ (factor.T @ v), _CONJUGATE_STEPS)
        return theta + _cut(step, longest)

    return lax.fori_loop(0, steps, dense_step if dim <= _MOST_DENSE else free_step, theta)


class SignedHistory(NamedTuple):
    """Acceptances and rejections of N items that are offered alone, with what refits start from.

    Attributes:
      signed: ``[N, d, capacity]`` as in ``logistic_newton``.
      hessian: ``[N, d, d]`` of each item's loss at its last minimiser; None where Hessians are not formed.
      longest: ``[N]`` length of each item's longest row.
    """

    signed: jax.Array
    hessian: jax.Array | None
    longest: jax.Array


def signed_history(number: int, dim: int, capacity: int, regularisation: jax.Array) -> SignedHistory:
    """An empty history; with Hessians up to 64 dimensions.

    Args:
      number: N, static.
      dim: d, static.
      capacity: rows of each item, static.
      regularisation: ``[]`` > 0.
    """
    eye = jnp.eye(dim) * regularisation
    hessian = jnp.broadcast_to(eye, (number, dim, dim)) if dim <= _MOST_DENSE else None
    return SignedHistory(jnp.zeros((number, dim, capacity), eye.dtype), hessian, jnp.zeros((number,), eye.dtype))


def logistic_refit(
    theta: jax.Array,
    history: SignedHistory,
    row: jax.Array,
    index: jax.Array,
    place: jax.Array,
    rows: jax.Array,
    regularisation: jax.Array,
    factor: jax.Array,
) -> tuple[jax.Array, SignedHistory]:
    """The minimiser of ``logistic_newton`` after one more row, ``[d]``, and the history with that row.

    The new row is first met with the old Hessian (exactly, but for the old rows' loss being taken as quadratic),
    then a Newton step and two more with its Hessian follow. Contexts uniform on ``[-1, 1]^5`` leave 6e-9 at most,
    less than three Newton steps from the old minimiser at twice the cost. No step changes a logit by more than 4,
    so that rows of any length leave the estimate behind by some rounds at worst.

    Args:
      theta: ``[d]`` minimiser without the row.
      history: all rows before.
      row: ``[d]`` the row z, 0 if there is none.
      index: ``[]`` whose history.
      place: ``[]`` int, number of its rows before.
      rows: ``[]`` int, as in ``logistic_newton``.
      regularisation: ``[]`` > 0.
      factor: ``[d, d]``, as in ``logistic_newton``.

    Source: arXiv 2602.02061, Appendix B.1 (K = 1); the steps are this package's.
    """
    signed = history.signed.at[index, :, place].set(row)
    if history.hessian is None:
        theta = logistic_newton(theta, signed, index, rows, regularisation, factor)
        return theta, history._replace(signed=signed)
    longest = jnp.maximum(history.longest[index], jnp.sqrt(row @ row))
    direction = solve_positive(history.hessian[index], row)
    size, utility = row @ direction, row @ theta
    move = jnp.zeros_like(size)
    for _ in range(_IMPLICIT_STEPS):
        miss = jax.nn.sigmoid(-(utility + move * size))
        move = move - (move - miss) / (1 + size * miss * (1 - miss))
    theta = theta + move * direction
    read, blocks = _blocks_of(signed, index, rows)
    gradient, hessian = _slope_and_hessian(theta, read, blocks, regularisation)
    theta = theta + _cut(solve_positive(hessian, gradient), longest)

    def chord(_, theta):
        return theta + _cut(solve_positive(hessian, _slope(theta, read, blocks, regularisation)), longest)

    theta = lax.fori_loop(0, _CHORD_STEPS, chord, theta)
    return theta, SignedHistory(signed, history.hessian.at[index].set(hessian), history.longest.at[index].set(longest))


def _cut(step, longest):
    """The step, shortened so that the logit of no row of at most that length changes by more than 4."""
    change = longest * jnp.sqrt(step @ step)
    return step * jnp.where(change > _MOST_CHANGE, _MOST_CHANGE / jnp.where(change > _MOST_CHANGE, change, 1), 1)


def _blocks_of(signed, index, rows):
    """A function that reads a block ``[d, block]`` of a history, and how many blocks have rows."""
    dim = signed.shape[1]
    block = rows_at_once(signed.shape[2])
    zero = jnp.zeros((), jnp.int32)

    def read(number):
        start = (jnp.asarray(index, jnp.int32), zero, jnp.asarray(number * block, jnp.int32))
        return lax.dynamic_slice(signed, start, (1, dim, block))[0]

    return read, (rows + block - 1) // block


def _slope_and_hessian(theta, read, blocks, regularisation):
    """Of the ridge logistic loss: the downward gradient ``[d]`` and the Hessian ``[d, d]``, in one pass."""
    dim = theta.shape[0]

    def add(number, total):
        z = read(number)
        miss = jax.nn.sigmoid(-_few_products(theta, z))
        left = jnp.concatenate([miss * (1 - miss) * z, miss[None]])
        return total + left @ z.T

    total = lax.fori_loop(0, blocks, add, jnp.zeros((dim + 1, dim), theta.dtype))
    return total[dim] - regularisation * theta, total[:dim] + regularisation * jnp.eye(dim, dtype=theta.dtype)


def _slope(theta, read, blocks, regularisation):
    def add(number, total):
        z = read(number)
        return total + z @ jax.nn.sigmoid(-_few_products(theta, z))

    return lax.fori_loop(0, blocks, add, -regularisation * theta)


def _few_products(theta, z):
    """``theta @ z``, in few dimensions term by term, which fuses with what is made of it."""
    return reduce(add, theta[:, None] * z) if theta.shape[0] <= _MOST_WRITTEN_OUT else theta @ z
