"""The paper's regret bounds for an instance, to plot beside measured curves.

All take a horizon and return plain floats, computed in float64 with NumPy on the host.
"""

import math
from typing import NamedTuple

import numpy as np

from jaxcascade.deferral.instance import Instance
from jaxcascade.deferral.oracle import TABLE_ROWS, oracle_table, settled_threshold


class _Numbers(NamedTuple):
    """An instance's numbers as NumPy float64, and the quantities that all bounds share."""

    accuracy: np.ndarray
    arrival: np.ndarray
    service_rate: float
    cost_error: float
    cost_expert: float
    cost_holding: float
    capacity: int
    budget: float
    kappa: float


def confidence_budget(horizon: int) -> float:
    """KL-PBD's budget ``phi = log T + log log T`` in nats, for T >= 3.

    Args:
      horizon: T, rounds.

    Raises:
      ValueError: if the horizon is below 3.

    Source: arXiv 2610.15128, Section 4.1.
    """
    if horizon < 3:
        raise ValueError(f"horizon: expected at least 3 rounds, got {horizon!r}")
    return math.log(horizon) + math.log(math.log(horizon))


def smallest_gap(instance: Instance, horizon: int) -> float:
    """Smallest nonzero distance ``gamma`` of an accuracy from an oracle threshold, at most 1; inf if all tie.

    Distances below the rounding of the default float type count as ties.

    Args:
      instance: the instance.
      horizon: T, rounds.

    Source: arXiv 2610.15128, Section 4.2.
    """
    table, _ = oracle_table(instance, instance.accuracy, min(horizon, TABLE_ROWS))
    table = np.asarray(table, np.float64)[:horizon, :-1]
    threshold = 1 - table / float(instance.cost_error)
    distance = np.abs(np.asarray(instance.accuracy, np.float64)[:, None, None] - threshold)
    distance = distance[distance > 32 * float(np.finfo(np.asarray(instance.accuracy).dtype).eps)]
    return min(1.0, float(distance.min())) if distance.size else math.inf


def gap_dependent_bound(instance: Instance, horizon: int) -> float:
    """Theorem 1: upper bound on KL-PBD's regret in terms of the smallest gap; 0 if every comparison ties.

    ``K kappa phi + 2 ce sum_j min(omega_j T, B + 4 phi / gamma) + 2 B ce (1 + 4 sum_j log(1 + omega_j T / phi))``.

    Args:
      instance: the instance.
      horizon: T, rounds.

    Source: arXiv 2610.15128, Theorem 1.
    """
    gap = smallest_gap(instance, horizon)
    if math.isinf(gap):
        return 0.0
    n = _numbers(instance, horizon)
    waits = np.minimum(n.arrival * horizon, n.capacity + 4 * n.budget / gap).sum()
    logs = np.log1p(n.arrival * horizon / n.budget).sum()
    return float(len(n.accuracy) * n.kappa * n.budget + 2 * n.cost_error * (waits + n.capacity * (1 + 4 * logs)))


def worst_case_bound(instance: Instance, horizon: int) -> float:
    """Theorem 2: upper bound on KL-PBD's regret whatever the accuracies are.

    ``K kappa phi + ce sum_j min(omega_j T, B + 2 sqrt(2 omega_j T phi))
    + B ce (1 + 2 sum_j log(1 + omega_j T / phi))``.

    Args:
      instance: the instance.
      horizon: T, rounds.

    Source: arXiv 2610.15128, Theorem 2.
    """
    n = _numbers(instance, horizon)
    mass = n.arrival * horizon
    waits = np.minimum(mass, n.capacity + 2 * np.sqrt(2 * mass * n.budget)).sum()
    logs = np.log1p(mass / n.budget).sum()
    return float(len(n.accuracy) * n.kappa * n.budget + n.cost_error * (waits + n.capacity * (1 + 2 * logs)))


def unknown_distributions_bound(instance: Instance, horizon: int, estimate_service: bool = False) -> float:
    """Theorem 7: as Theorem 2 with estimated arrivals, and estimated service if asked for.

    Args:
      instance: the instance.
      horizon: T, rounds.
      estimate_service: whether the service law is estimated too.

    Raises:
      ValueError: if the holding cost is 0, where the theorem does not apply.

    Source: arXiv 2610.15128, Theorem 7 and equation 49.
    """
    n = _numbers(instance, horizon)
    if n.cost_holding <= 0:
        raise ValueError("cost_holding: expected a cost > 0 for this bound, got 0")
    mass = n.arrival * horizon
    spread = np.minimum(mass, np.sqrt(mass)).sum()

    def slope(rate: float) -> float:
        return n.capacity * n.cost_holding / rate + max(n.cost_error - n.cost_expert, 0)

    def arrival_factor(rate: float) -> float:
        return n.cost_error * slope(rate) / n.cost_holding

    known = worst_case_bound(instance, horizon)
    if not estimate_service:
        return float(known + 4 * arrival_factor(n.service_rate) * spread)
    law = np.zeros(n.capacity + 1)
    for served, probability in enumerate(np.asarray(instance.service, np.float64)):
        law[min(served, n.capacity)] += probability
    half = n.service_rate / 2
    service_factor = slope(half) ** 2 / n.cost_holding + slope(half) + n.cost_holding * n.capacity**2 / half**2
    fluctuation = np.minimum(law * horizon, np.sqrt(law * (1 - law) * horizon)).sum()
    queries = n.arrival.sum()
    return float(
        known
        + queries * n.kappa / (4 * math.e) * (1 + 8 / n.service_rate)
        + 4 * arrival_factor(half) * spread
        + 2 * queries * service_factor * fluctuation
    )


def lower_bound_slope(instance: Instance) -> float:
    """Theorem 3: no uniformly efficient algorithm's regret grows slower than this times ``log T``.

    ``ce sum over {h_j > taubar, omega_j > 0} of (h_j - taubar) / kl(h_j, taubar)``. KL-PBD attains it when
    the expert always serves. nan if the threshold ``taubar`` is not inside (0, 1).

    Args:
      instance: the instance.

    Source: arXiv 2610.15128, Theorem 3 and Proposition 3.
    """
    threshold = float(settled_threshold(instance))
    if not 0 < threshold < 1:
        return math.nan
    accuracy = np.asarray(instance.accuracy, np.float64)
    accuracy = accuracy[(accuracy > threshold) & (np.asarray(instance.arrival)[1:] > 0)]
    divergence = [_kl(h, threshold) for h in accuracy]
    terms = [(h - threshold) / d for h, d in zip(accuracy, divergence, strict=True) if d > 0]
    return float(instance.cost_error) * float(np.sum(terms))


def minimax_bound(instance: Instance, horizon: int) -> float:
    """Theorem 4: on some accuracies, every algorithm's regret is at least this.

    ``1/256 sum_j min(mu^3 ce min(tau, 1-tau) sqrt(omega_j T), omega_j T, mu^2 chold omega_j T)``; with
    ``mu = 1`` the factor is 1/12 and the last term is dropped. nan if ``tau`` is not inside (0, 1).

    Args:
      instance: the instance.
      horizon: T, rounds.

    Source: arXiv 2610.15128, Theorem 4.
    """
    n = _numbers(instance, horizon)
    rate = n.service_rate
    threshold = 1 - (n.cost_expert + (1 - rate) * n.cost_holding / rate) / n.cost_error
    if not 0 < threshold < 1:
        return math.nan
    mass = n.arrival * horizon
    terms = [rate**3 * n.cost_error * min(threshold, 1 - threshold) * np.sqrt(mass), mass]
    if rate < 1:
        terms.append(rate**2 * n.cost_holding * mass)
    return float(np.min(terms, axis=0).sum() / (256 if rate < 1 else 12))


def _numbers(instance, horizon):
    rate = 1 - float(instance.service[0])
    error, expert, holding = (
        float(cost) for cost in (instance.cost_error, instance.cost_expert, instance.cost_holding)
    )
    capacity = int(instance.queue_capacity)
    return _Numbers(
        np.asarray(instance.accuracy, np.float64),
        np.asarray(instance.arrival, np.float64)[1:],
        rate,
        error,
        expert,
        holding,
        capacity,
        confidence_budget(horizon),
        4 * math.e * (max(error, expert) + holding * capacity / rate),
    )


def _kl(p, q):
    inner = p * math.log(p / q) if p > 0 else 0.0
    return inner + ((1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0)
