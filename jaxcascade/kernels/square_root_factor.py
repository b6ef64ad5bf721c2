"""A square-root factor of the inverse of a design matrix, kept up to date by rank-one changes."""

import jax
import jax.numpy as jnp


def factor_init(dim: int, regularisation: jax.Array) -> jax.Array:
    """Factor S ``[d, d]`` of the inverse of ``regularisation * I``: ``S S^T = V^{-1}``.

    Args:
      dim: d, static.
      regularisation: ``[]`` > 0.
    """
    return jnp.eye(dim) / jnp.sqrt(regularisation)


def factor_update(factor: jax.Array, vector: jax.Array) -> jax.Array:
    """Factor ``[d, d]`` of ``(V + x x^T)^{-1}`` from that of ``V^{-1}``, in O(d^2); for x = 0 the same factor.

    ``f = S^T x``, ``a = 1 + f . f``, ``S - (S f) f^T / (a + sqrt(a))``. The product ``S S^T`` stays positive
    definite whatever the rounding.

    Args:
      factor: ``[d, d]`` S.
      vector: ``[d]`` x.

    Source: Potter's square-root form (Bierman, Factorization Methods for Discrete Sequential Estimation, 1977).
    """
    column, row = _change(factor, vector)
    return factor - column[:, None] * row[None, :]


def factor_update_products(
    factor: jax.Array, vector: jax.Array, columns: jax.Array, products: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``factor_update`` and the products ``S @ columns`` of the new factor from those of the old one.

    The products change by ``-(S f) / (a + sqrt(a)) (f . columns)``, at the cost of C numbers a row and not of d.

    Args:
      factor: ``[d, d]`` S.
      vector: ``[d]`` x.
      columns: ``[d, C]``.
      products: ``[d, C]`` S @ columns.

    Source: as ``factor_update``.
    """
    column, row = _change(factor, vector)
    return factor - column[:, None] * row[None, :], products - column[:, None] * (row @ columns)[None, :]


def _change(factor, vector):
    f = vector @ factor
    a = 1 + f @ f
    return (factor @ f) / (a + jnp.sqrt(a)), f


def factor_sample(mean: jax.Array, factor: jax.Array, scale: jax.Array, normal: jax.Array) -> jax.Array:
    """Draws ``[..., d]`` of a Gaussian with the given mean and covariance ``scale^2 S S^T``.

    Args:
      mean: ``[d]``.
      factor: ``[d, d]`` S.
      scale: ``[]``.
      normal: ``[..., d]`` standard normal draws.
    """
    return mean + scale * (normal @ factor.T)


def factor_norm(factor: jax.Array, vectors: jax.Array) -> jax.Array:
    """``|x|_{V^{-1}}`` of each vector, ``[...]``: ``|S^T x|``.

    Args:
      factor: ``[d, d]`` S.
      vectors: ``[..., d]``.
    """
    projected = vectors @ factor
    return jnp.sqrt(jnp.sum(projected * projected, axis=-1))
