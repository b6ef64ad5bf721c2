"""The M-estimator of reservation indices: convex and piecewise smooth, fitted by Newton steps.

Box a has index ``tanh(rho_a . psi)``. An opening in context psi that showed the value mu at cost c adds
``l(u) = int_0^u [c - (mu - tanh v)^+] dv`` at ``u = rho_a . psi`` to the loss.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.kernels.history import BLOCK_ROWS, fold_rows


def index_loss(linear: jax.Array, value: jax.Array, cost: jax.Array) -> jax.Array:
    """``c u - (mu q - log cosh q)`` with ``q = min(u, atanh mu)``, the loss l(u); shapes broadcast.

    Args:
      linear: ``[...]`` u.
      value: ``[...]`` mu, in [0, 1]; taken as just below 1 where it is 1.
      cost: ``[...]`` c >= 0.

    Source: arXiv 2606.07392, Section 4 (GMM loss), with Lambda = tanh.
    """
    value = jnp.minimum(value, 1 - 4 * jnp.finfo(jnp.result_type(linear, value)).eps)
    q = jnp.minimum(linear, jnp.arctanh(value))
    return cost * linear - value * q + jnp.logaddexp(q, -q) - jnp.log(2.0)


def index_moment(linear: jax.Array, value: jax.Array, cost: jax.Array) -> jax.Array:
    """``c - (mu - tanh u)^+``, the derivative of ``index_loss`` in u; shapes broadcast.

    Args:
      linear: ``[...]`` u.
      value: ``[...]`` mu.
      cost: ``[...]`` c >= 0.

    Source: arXiv 2606.07392, Section 4, with Lambda = tanh.
    """
    return cost - jnp.maximum(value - jnp.tanh(linear), 0)


def index_weight(linear: jax.Array, value: jax.Array) -> jax.Array:
    """``1{mu > tanh u} (1 - tanh(u)^2)``, the second derivative where it exists; shapes broadcast.

    Args:
      linear: ``[...]`` u.
      value: ``[...]`` mu.

    Source: arXiv 2606.07392, Section 4, with Lambda = tanh.
    """
    level = jnp.tanh(linear)
    return jnp.where(value > level, 1 - level**2, 0)


def fit_index(
    psi: jax.Array,
    value: jax.Array,
    cost: jax.Array,
    opened: jax.Array,
    ridge: jax.Array,
    start: jax.Array,
    inverse: jax.Array,
    *,
    count: jax.Array | int,
    newton_steps: jax.Array | int = 2,
    cg_steps: int = 4,
    halvings: int = 0,
    damped: jax.Array | bool = True,
    block: int = BLOCK_ROWS,
) -> jax.Array:
    """Index coefficients ``rho [A, m]`` of all boxes: least ``sum of index_loss + ridge/2 |rho|^2`` per box.

    Semismooth Newton; each linear system is solved by conjugate gradients preconditioned with the inverse
    design matrices, so that a step costs passes over the history and no factorisation. All boxes share one
    history of contexts. A box that was never opened keeps its coefficients at 0.

    Args:
      psi: ``[N, m]`` contexts, N a multiple of ``block``.
      value: ``[N, A]`` value of each output.
      cost: ``[N, A]`` cost of each output.
      opened: ``[N, A]`` 1 where the box was opened, else 0.
      ridge: ``[]`` > 0.
      start: ``[A, m]`` where to start.
      inverse: ``[A, m, m]`` inverse of ``ridge I + sum of psi psi'`` over the openings of each box.
      count: ``[]`` int, only the first so many rows are read.
      newton_steps: Newton steps; may be traced, under vmap not batched.
      cg_steps: conjugate gradient steps in each, static.
      halvings: most halvings of a Newton step (each box for itself), static; 0 takes full steps.
      damped: ``[]`` False takes full steps all the same; may be traced, under vmap not batched.
      block: rows per block, static.

    Source: arXiv 2606.07392, Section 4 (GMM estimator of the index coefficients).
    """
    count = jnp.asarray(count)
    scales = jnp.append(0.5 ** jnp.arange(halvings + 1, dtype=start.dtype), 0.0)

    def precondition(residual):
        return jnp.einsum("aij,aj->ai", inverse, residual, precision="highest")

    def newton(_, rho):
        def moments(carry, rows, row):
            slope, weights = carry
            x, v, c, o = rows
            level = jnp.tanh(x @ rho.T)
            excess = v - level
            slope = slope + (o * (c - jnp.maximum(excess, 0))).T @ x
            weight = jnp.where(excess > 0, o * (1 - level**2), 0)
            return slope, lax.dynamic_update_slice_in_dim(weights, weight, row, 0)

        blank = jnp.zeros(value.shape, rho.dtype)
        slope, weights = fold_rows(moments, (ridge * rho, blank), (psi, value, cost, opened), count, block)

        def curve(direction):
            def add(carry, rows, row):
                x, w = rows
                return carry + (w * (x @ direction.T)).T @ x

            return fold_rows(add, ridge * direction, (psi, weights), count, block)

        def conjugate(_, state):
            step, residual, direction, size = state
            image = curve(direction)
            length = _ratio(size, _dot(direction, image))
            step = step + length[:, None] * direction
            residual = residual - length[:, None] * image
            scaled = precondition(residual)
            new = _dot(residual, scaled)
            return step, residual, scaled + _ratio(new, size)[:, None] * direction, new

        scaled = precondition(slope)
        state = (jnp.zeros_like(rho), slope, scaled, _dot(slope, scaled))
        step = lax.fori_loop(0, cg_steps, conjugate, state)[0]
        if not halvings:
            return rho - step
        return lax.cond(damped, cut, lambda rho, step: rho - step, rho, step)

    def cut(rho, step):
        def losses(carry, rows, row):
            x, v, c, o = rows
            here, change = x @ rho.T, x @ step.T
            points = here - scales[:, None, None] * change
            return carry + jnp.sum(o * index_loss(points, v, c), axis=1)

        points = rho - scales[:, None, None] * step
        loss = fold_rows(losses, ridge / 2 * jnp.sum(points**2, axis=-1), (psi, value, cost, opened), count, block)
        return jnp.take_along_axis(points, jnp.argmin(loss, axis=0)[None, :, None], axis=0)[0]

    return lax.fori_loop(0, newton_steps, newton, start)


def _dot(a, b):
    return jnp.sum(a * b, axis=-1)


def _ratio(over, under):
    """``over / under``, 0 where ``under`` is not positive: the residual of a box never opened is 0."""
    return jnp.where(under > 0, over / jnp.where(under > 0, under, 1), 0)
