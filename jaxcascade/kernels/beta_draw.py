"""Beta draws from normal and uniform ones by a method with a fixed count, for use inside scans."""

import jax
import jax.numpy as jnp

BETA_TRIES = 8


def beta_draw(first: jax.Array, second: jax.Array, normal: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draws of Beta(first, second), ``[...]``, as ``g / (g + h)`` of two gamma draws.

    Each gamma draw is the first of eight tries that Marsaglia and Tsang's test accepts; for shapes >= 1 at
    least 95 % of tries are, so none is with probability below 3e-11, and then the last try is taken.

    Args:
      first: ``[...]`` >= 1.
      second: ``[...]`` >= 1.
      normal: ``[8, 2, ...]`` standard normal draws.
      uniform: ``[8, 2, ...]`` uniform draws in [0, 1).

    Source: Marsaglia and Tsang, A Simple Method for Generating Gamma Variables, 2000.
    """
    shape = jnp.stack([first, second])
    d = shape - 1 / 3
    v = (1 + normal / jnp.sqrt(9 * d)) ** 3
    positive = jnp.where(v > 0, v, 1)
    accepted = (v > 0) & (jnp.log1p(-uniform) < normal**2 / 2 + d * (1 - v + jnp.log(positive)))
    gamma = positive[-1]
    for attempt in reversed(range(normal.shape[0] - 1)):
        gamma = jnp.where(accepted[attempt], positive[attempt], gamma)
    gamma = d * gamma
    return gamma[0] / (gamma[0] + gamma[1])
