"""Solution of small symmetric positive definite systems without LAPACK, safe under vmap on several CPU devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

_MOST_UNROLLED = 8


def solve_positive(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """Solution ``[n]`` of ``matrix x = right`` for a symmetric positive definite matrix, by elimination.

    Without pivoting, which such a matrix does not need. Up to 8 unknowns the elimination is written out
    (it fuses under vmap), beyond it is a loop of rank-one changes.

    Args:
      matrix: ``[n, n]`` symmetric positive definite.
      right: ``[n]``.
    """
    n = right.shape[0]
    if n <= _MOST_UNROLLED:
        return _unrolled(matrix, right)
    whole = jnp.concatenate([matrix, right[:, None]], axis=1)
    row_number = jnp.arange(n)

    def eliminate(k, whole):
        row = lax.dynamic_index_in_dim(whole, k, 0, keepdims=False)
        column = lax.dynamic_index_in_dim(whole, k, 1, keepdims=False)
        row = row / lax.dynamic_index_in_dim(row, k, 0, keepdims=False)
        column = jnp.where(row_number == k, 0, column)
        whole = whole - column[:, None] * row[None, :]
        return jnp.where((row_number == k)[:, None], row[None, :], whole)

    return lax.fori_loop(0, n, eliminate, whole)[:, n]


def _unrolled(matrix, right):
    n = right.shape[0]
    entry = {(i, j): matrix[i, j] for i in range(n) for j in range(i, n)}
    value = [right[i] for i in range(n)]
    for k in range(n):
        inverse = 1 / entry[k, k]
        for i in range(k + 1, n):
            ratio = entry[k, i] * inverse
            for j in range(i, n):
                entry[i, j] = entry[i, j] - ratio * entry[k, j]
            value[i] = value[i] - ratio * value[k]
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            value[i] = value[i] - entry[i, j] * value[j]
        value[i] = value[i] / entry[i, i]
    return jnp.stack(value)


def conjugate_gradient(
    times: Callable[[jax.Array], jax.Array],
    right: jax.Array,
    precondition: Callable[[jax.Array], jax.Array],
    steps: int,
) -> jax.Array:
    """Approximate solution of ``times(x) = right`` after a fixed number of preconditioned conjugate gradient steps.

    Started at 0; a residual of 0 stays where it is (no 0/0).

    Args:
      times: product of the symmetric positive definite matrix with an array shaped like ``right``.
      right: ``[...]``, any shape.
      precondition: product with an approximation of the inverse.
      steps: number of steps, static.
    """
    first = precondition(right)

    def step(_, state):
        x, residual, direction, product = state
        image = times(direction)
        curvature = jnp.sum(direction * image)
        length = jnp.where(curvature > 0, product / jnp.where(curvature > 0, curvature, 1), 0)
        x, residual = x + length * direction, residual - length * image
        z = precondition(residual)
        new = jnp.sum(residual * z)
        ratio = jnp.where(product > 0, new / jnp.where(product > 0, product, 1), 0)
        return x, residual, z + ratio * direction, new

    return lax.fori_loop(0, steps, step, (jnp.zeros_like(right), right, first, jnp.sum(right * first)))[0]
