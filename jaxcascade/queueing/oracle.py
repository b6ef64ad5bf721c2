"""What the optimal policy of a known instance knows of a query: its best assortment and departure rate."""

import jax

from jaxcascade.kernels import best_assortment, best_log_weight


def best_departure_rate(utility: jax.Array, assortment_size: int) -> jax.Array:
    """Greatest departure rate over assortments, ``[...]``: ``max_S R(x, S)``.

    Args:
      utility: ``[..., N]`` true utilities.
      assortment_size: K, static.

    Source: arXiv 2602.02061, Section 2.
    """
    return jax.nn.sigmoid(best_log_weight(utility, assortment_size))


def optimal_assortment(utility: jax.Array, assortment_size: int) -> jax.Array:
    """The assortment with the greatest departure rate, ``[K]`` int32 increasing; ties go to the lowest index.

    Args:
      utility: ``[N]`` true utilities.
      assortment_size: K, static.

    Source: arXiv 2602.02061, Section 2.
    """
    return best_assortment(utility, assortment_size)
