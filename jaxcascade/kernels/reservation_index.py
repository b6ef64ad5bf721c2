"""The reservation index of Pandora's box: the value at which opening a box is worth just its cost."""

import jax
import jax.numpy as jnp
import numpy as np


def reservation_index(
    value: jax.Array, cost: jax.Array, probability: jax.Array | None = None, *, ascending: bool = False
) -> jax.Array:
    """Reservation index ``sigma [...]`` of boxes with finitely many values: ``E[(v - sigma)^+] = cost``.

    ``E[(v - sigma)^+]`` is the largest of ``S_j - sigma P_j`` over the sets of the j best values, with
    ``P_j`` their probability and ``S_j`` their contribution to the mean, so that
    ``sigma = max_j (S_j - cost) / P_j`` exactly; no search is needed. For ``cost = 0`` it is the largest value.

    Args:
      value: ``[..., M]`` values.
      cost: ``[...]`` expected cost of opening, >= 0.
      probability: ``[..., M]`` or ``[M]`` weights that sum to 1; equal ones by default.
      ascending: promise that values do not fall along the last axis; saves the sort.

    Source: Weitzman (1979); arXiv 2606.07392, Section 3.
    """
    value = jnp.asarray(value, jnp.result_type(value, 0.0))
    count = value.shape[-1]
    if probability is None:
        probability = jnp.full((count,), 1 / count, value.dtype)
    probability = jnp.broadcast_to(jnp.asarray(probability, value.dtype), value.shape)
    if not ascending:
        order = jnp.argsort(value, axis=-1)
        value, probability = (jnp.take_along_axis(a, order, axis=-1) for a in (value, probability))
    # Tails by a product with a triangular matrix: a cumulative sum costs more than the arithmetic saved.
    tail = jnp.asarray(np.tril(np.ones((count, count))), value.dtype)
    mass = jnp.matmul(probability, tail, precision="highest")
    total = jnp.matmul(probability * value, tail, precision="highest")
    ratio = (total - jnp.asarray(cost)[..., None]) / jnp.where(mass > 0, mass, 1)
    return jnp.max(jnp.where(mass > 0, ratio, -jnp.inf), axis=-1)


def bisected_reservation_index(
    excess, cost: jax.Array, low: jax.Array, high: jax.Array, *, steps: int = 40
) -> jax.Array:
    """Reservation index ``[...]`` by bisection, for laws whose expected excess is a formula.

    Args:
      excess: ``sigma [...] -> E[(v - sigma)^+] [...]``, non-increasing.
      cost: ``[...]`` expected cost, >= 0.
      low: ``[...]`` where the excess is at least the cost.
      high: ``[...]`` where it is at most the cost.
      steps: halvings of the interval, static.

    Source: arXiv 2606.07392, Section 6 (computation of the oracle indices).
    """
    shape = jnp.broadcast_shapes(jnp.shape(cost), jnp.shape(low), jnp.shape(high))
    start = tuple(jnp.broadcast_to(jnp.asarray(a, jnp.result_type(float)), shape) for a in (low, high))

    def halve(_, interval):
        middle = (interval[0] + interval[1]) / 2
        above = excess(middle) > cost
        return jnp.where(above, middle, interval[0]), jnp.where(above, interval[1], middle)

    low, high = jax.lax.fori_loop(0, steps, halve, start)
    return (low + high) / 2
