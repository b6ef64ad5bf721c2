"""Ridge logistic regression by Newton's method with a fixed number of steps."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.kernels.history import BLOCK_ROWS, fold_rows
from jaxcascade.kernels.symmetric_solve import solve_positive


def logistic_loss(linear: jax.Array, reward: jax.Array) -> jax.Array:
    """Negative log-likelihood ``log(1 + e^z) - r z`` of rewards in [0, 1], shaped like ``linear``.

    Args:
      linear: ``[...]`` z.
      reward: ``[...]`` r, in [0, 1].

    Source: arXiv 2606.07392, equation (18).
    """
    return jnp.logaddexp(0, linear) - reward * linear


def fit_logistic(
    features: jax.Array,
    reward: jax.Array,
    ridge: jax.Array,
    start: jax.Array,
    *,
    count: jax.Array | int | None = None,
    newton_steps: jax.Array | int = 8,
    halvings: int = 6,
    damped: jax.Array | bool = True,
    block: int = BLOCK_ROWS,
) -> jax.Array:
    """Ridge logistic maximum likelihood ``theta [d]``: least ``sum(logistic_loss) + ridge/2 |theta|^2``.

    Newton steps from ``start``; each is cut to the best of ``1, 1/2, ..., 2^-halvings`` and nothing. A cold
    start needs 5-6 steps with halvings, a warm one after 2 % more rows two without.

    Args:
      features: ``[N, d]``; a row of zeros counts for nothing.
      reward: ``[N]`` in [0, 1].
      ridge: ``[]`` > 0.
      start: ``[d]`` where to start.
      count: ``[]`` int, only the first so many rows are read (N must then be a multiple of ``block``).
      newton_steps: number of Newton steps; may be traced, under vmap not batched.
      halvings: most halvings of a step, at the price of one more pass, static.
      damped: ``[]`` False takes full steps all the same; may be traced, under vmap not batched.
      block: rows per block when ``count`` is given, static.

    Source: arXiv 2606.07392, equation (18).
    """
    size = features.shape[-1]
    data = (features, reward)
    scales = 0.5 ** jnp.arange(halvings + 1, dtype=start.dtype)

    def fold(body, carry):
        return body(carry, data, 0) if count is None else fold_rows(body, carry, data, jnp.asarray(count), block)

    def newton(_, theta):
        def moments(carry, rows, row):
            x, r = rows
            p = jax.nn.sigmoid(x @ theta)
            return carry[0] + (p - r) @ x, carry[1] + (x * (p * (1 - p))[:, None]).T @ x

        eye = jnp.eye(size, dtype=theta.dtype)
        slope, curvature = fold(moments, (ridge * theta, ridge * eye))
        step = solve_positive(curvature, slope)
        if not halvings:
            return theta - step
        return lax.cond(damped, cut, lambda theta, step: theta - step, theta, step)

    def cut(theta, step):
        def losses(carry, rows, row):
            x, r = rows
            here, change = x @ theta, x @ step
            candidates = here[:, None] - change[:, None] * jnp.append(scales, 0.0)
            return carry + jnp.sum(logistic_loss(candidates, r[:, None]), axis=0)

        points = theta - step * jnp.append(scales, 0.0)[:, None]
        loss = fold(losses, ridge / 2 * jnp.sum(points**2, axis=-1))
        return points[jnp.argmin(loss)]

    return lax.fori_loop(0, newton_steps, newton, start)
