"""Inverse design matrices by rank-one updates, without a factorisation and so without LAPACK."""

import jax
import jax.numpy as jnp


def times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """Products ``[..., m]`` of matrices ``[..., m, m]`` with one vector ``[m]``, at full precision.

    A dot product runs twice as fast on a CPU as the sum over a product of arrays.
    """
    return jnp.einsum("...ij,j->...i", matrix, vector, precision="highest")


def row_sums(array: jax.Array) -> jax.Array:
    """Sums ``[...]`` over the last axis of an array ``[..., n]``, as a product with ones.

    XLA's own reduction over an axis of some hundred entries takes ten times as long on a CPU.
    """
    return jnp.matmul(array, jnp.ones((array.shape[-1],), array.dtype), precision="highest")


def rank_one_inverse(inverse: jax.Array, image: jax.Array, vector: jax.Array, weight: jax.Array) -> jax.Array:
    """Inverse of ``V + weight v v'`` from the inverse of V (Sherman and Morrison), ``[..., m, m]``.

    ``inverse - weight k k' / (1 + weight v.k)`` with ``k = inverse v``; symmetric to the last bit if
    ``inverse`` is.

    Args:
      inverse: ``[..., m, m]`` inverse of a positive definite matrix.
      image: ``[..., m]`` the product ``inverse v``, usually at hand as the width ``sqrt(v.k)`` needs it.
      vector: ``[..., m]`` or ``[m]`` v.
      weight: ``[...]`` weight >= 0; 0 leaves the matrix as it is.
    """
    scale = weight / (1 + weight * jnp.sum(image * vector, axis=-1))
    root = jnp.sqrt(scale)[..., None] * image
    return inverse - root[..., :, None] * root[..., None, :]


def refine_inverse(matrix: jax.Array, inverse: jax.Array, steps: int = 2) -> jax.Array:
    """A nearly right inverse polished by Newton and Schulz: ``X <- X (2 I - V X)``, ``[..., m, m]``.

    The error ``|I - V X|`` is squared by every step and must start below 1; use it now and then against the
    drift of rank-one updates.

    Args:
      matrix: ``[..., m, m]`` symmetric V.
      inverse: ``[..., m, m]`` approximate inverse X.
      steps: number of steps, static.
    """
    twice = 2 * jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    for _ in range(steps):
        inverse = jnp.matmul(inverse, twice - jnp.matmul(matrix, inverse, precision="highest"), precision="highest")
    return (inverse + jnp.swapaxes(inverse, -1, -2)) / 2
