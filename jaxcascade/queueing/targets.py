"""What routers and projections are trained on: the net utility of every model's answer to every prompt."""

import numpy as np

COST_WEIGHT = 0.3  # the paper's is lost


def net_utility(performance, cost, cost_weight: float = COST_WEIGHT) -> np.ndarray:
    """``performance - cost_weight * cost / max(cost)``, ``[P, N]``, after a check of both arrays.

    Args:
      performance: ``[P, N]`` scores in [0, 1].
      cost: ``[P, N]`` costs >= 0, in any unit.
      cost_weight: performance given up for the largest cost of the table.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.2.
    """
    performance, cost = np.asarray(performance, np.float64), np.asarray(cost, np.float64)
    for name, value in (("performance", performance), ("cost", cost)):
        if value.ndim != 2 or 0 in value.shape:
            raise ValueError(f"{name}: expected a table with one row per prompt, got shape {list(value.shape)}")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name}: expected finite numbers, got {value[~np.isfinite(value)].flat[0]}")
    if cost.shape != performance.shape:
        raise ValueError(f"cost: expected shape {list(performance.shape)}, got {list(cost.shape)}")
    if np.any(cost < 0):
        raise ValueError(f"cost: expected numbers >= 0, got {cost.min():.6g}")
    if not np.isfinite(cost_weight) or cost_weight < 0:
        raise ValueError(f"cost_weight: expected a finite number >= 0, got {cost_weight!r}")
    return performance - cost_weight * normalised_cost(cost)


def normalised_cost(cost: np.ndarray) -> np.ndarray:
    """``cost / max(cost)``, 0 where nothing costs anything."""
    return cost / max(float(np.max(cost)), np.finfo(float).tiny)
