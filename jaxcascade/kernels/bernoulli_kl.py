"""Bernoulli relative entropy and the confidence bounds it gives."""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlog1py, xlogy

_NEWTON_STEPS = 5


def bernoulli_kl(p: jax.Array, q: jax.Array) -> jax.Array:
    """Bernoulli relative entropy kl(p, q), elementwise.

    ``kl(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` with ``0 log 0 = 0``; it is ``inf``
    when ``q`` is 0 or 1 and ``p`` is not the same.

    Args:
      p: probabilities in [0, 1], any shape.
      q: probabilities in [0, 1], broadcast against ``p``.

    Returns:
      kl in nats, the broadcast shape.

    Source: arXiv 2610.15128, Section 4.1.
    """
    p, q = jnp.broadcast_arrays(*_floats(p, q))
    entropy_term = xlogy(p, p) + xlog1py(1 - p, -p)
    cross = jnp.where(p > 0, -xlogy(p, q), 0) + jnp.where(p < 1, -xlog1py(1 - p, -q), 0)
    return jnp.maximum(entropy_term + cross, 0)


def kl_lower_bound(mean: jax.Array, count: jax.Array, budget: jax.Array) -> jax.Array:
    """Smallest mean that the observations do not rule out: the KL lower confidence bound.

    ``inf {q in [0, mean] : count * kl(mean, q) <= budget}``; 0 when ``count`` is 0 and exact at means 0
    and 1 (``exp(-budget / count)`` at 1). Newton in ``log q`` from a point left of the root, from where
    the convex function leads to it without overshooting; four steps reach the precision of the type (1e-11
    in float64) at any mean and budget, one more is for safety.

    Args:
      mean: ``[...]`` empirical means in [0, 1], any shape.
      count: ``[...]`` numbers of observations >= 0, broadcast against ``mean``.
      budget: ``[...]`` confidence budget in nats; a negative one counts as 0.

    Returns:
      bounds in [0, mean], the broadcast shape.

    Source: arXiv 2610.15128, Section 4.1.
    """
    mean, count, budget = jnp.broadcast_arrays(*_floats(mean, count, budget))
    level = jnp.maximum(budget, 0) / jnp.maximum(count, 1)
    inner = (mean > 0) & (mean < 1) & (level > 0)
    p, allowed = jnp.where(inner, mean, 0.5), jnp.where(inner, level, 1)
    entropy = -xlogy(p, p) - xlog1py(1 - p, -p)
    # The width p - q is carried, not q: kl is of the order of its square and would drown in rounding. Start left
    # of the root: where the lower bound (p - q)^2 / (2 p (1 - q)) on kl meets the level, which is close for small
    # levels, or where kl without its term -(1-p) log(1-q) >= 0 does, which is close for large ones.
    half = p * allowed
    width = jnp.minimum(half + jnp.sqrt(half * half + 2 * half * (1 - p)), p - jnp.exp(-(allowed + entropy) / p))
    smallest = jnp.maximum(p * jnp.finfo(p.dtype).eps, 8 * jnp.finfo(p.dtype).tiny)
    for _ in range(_NEWTON_STEPS):
        width = jnp.maximum(width, smallest / 8)  # p minus this is p
        q = jnp.maximum(p - width, smallest)
        complement = 1 - p + width  # not 1 - q, whose rounding can end in log 0 for p near 1
        excess = p * jnp.log1p(width / q) + (1 - p) * jnp.log1p(-width / complement) - allowed
        step = excess * complement / width  # in log q
        width = jnp.minimum(width - q * jnp.expm1(step), p)
    bound = jnp.where(inner, p - jnp.maximum(width, 0), mean * jnp.exp(-level))
    return jnp.where(count > 0, bound, 0)


def kl_upper_bound(mean: jax.Array, count: jax.Array, budget: jax.Array) -> jax.Array:
    """Largest mean that the observations do not rule out: the KL upper confidence bound.

    ``sup {q in [mean, 1] : count * kl(mean, q) <= budget}``, which is ``1 - kl_lower_bound(1 - mean)``;
    1 when ``count`` is 0.

    Args:
      mean: ``[...]`` empirical means in [0, 1], any shape.
      count: ``[...]`` numbers of observations >= 0, broadcast against ``mean``.
      budget: ``[...]`` confidence budget in nats; a negative one counts as 0.

    Returns:
      bounds in [mean, 1], the broadcast shape.

    Source: arXiv 2610.15128, Appendix F (KL-UCB-4P).
    """
    (mean,) = _floats(mean)
    return 1 - kl_lower_bound(1 - mean, count, budget)


def _floats(*values: jax.Array) -> tuple[jax.Array, ...]:
    dtype = jnp.result_type(float, *values)
    return tuple(jnp.asarray(value, dtype) for value in values)
