"""The paper's bounds hold on measured regret, and KL-PBD attains the lower bound where the expert always serves."""

import math

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.deferral import theory


def test_lower_bound_slope_of_the_two_point_instance():
    gap, levels = 0.08, 10
    divergence = 0.58 * math.log(0.58 / 0.5) + 0.42 * math.log(0.42 / 0.5)
    slope = theory.lower_bound_slope(jc.deferral.two_point(num_levels=levels, gap=gap))
    assert slope == pytest.approx(levels / 2 * gap / divergence, rel=1e-4)


def test_bounds_are_ordered_and_grow_with_the_horizon():
    instance = jc.deferral.monotone()
    previous = 0.0
    for horizon in (10, 1_000, 100_000):
        lower, worst = theory.minimax_bound(instance, horizon), theory.worst_case_bound(instance, horizon)
        unknown = theory.unknown_distributions_bound(instance, horizon)
        both = theory.unknown_distributions_bound(instance, horizon, estimate_service=True)
        assert 0 < lower < worst < unknown < both
        assert worst > previous
        previous = worst
        assert theory.gap_dependent_bound(instance, horizon) > 0


def test_bounds_against_hand_computed_numbers():
    # K = 1, T = 100, mu = 1, no holding cost: every term by hand.
    instance = jc.deferral.make_instance(
        [0.75], [0.0, 1.0], cost_expert=0.5, cost_holding=0.0, queue_capacity=1, score=[0.5]
    )
    budget = math.log(100) + math.log(math.log(100))
    kappa = 4 * math.e
    worst = kappa * budget + min(100, 1 + 2 * math.sqrt(200 * budget)) + 1 + 2 * math.log1p(100 / budget)
    gap_dependent = kappa * budget + 2 * min(100, 1 + 4 * budget / 0.25) + 2 * (1 + 4 * math.log1p(100 / budget))
    assert theory.worst_case_bound(instance, 100) == pytest.approx(worst, rel=1e-6)
    assert theory.smallest_gap(instance, 100) == pytest.approx(0.25, abs=1e-6)
    assert theory.gap_dependent_bound(instance, 100) == pytest.approx(gap_dependent, rel=1e-5)
    assert theory.minimax_bound(instance, 100) == pytest.approx(min(0.5 * 10, 100) / 12)


def test_no_gap_no_regret():
    instance = jc.deferral.make_instance([0.5, 0.5], [0.5, 0.5], cost_expert=0.5, cost_holding=0.0, queue_capacity=1)
    assert theory.smallest_gap(instance, 50) == math.inf
    assert theory.gap_dependent_bound(instance, 50) == 0


def test_errors():
    instance = jc.deferral.two_point()
    with pytest.raises(ValueError, match="horizon: expected at least 3"):
        theory.worst_case_bound(instance, 2)
    with pytest.raises(ValueError, match="cost_holding: expected a cost > 0"):
        theory.unknown_distributions_bound(instance, 100)
    threshold_out_of_range = jc.deferral.two_point(cost_expert=2.0)
    assert math.isnan(theory.lower_bound_slope(threshold_out_of_range))
    assert math.isnan(theory.minimax_bound(threshold_out_of_range, 100))


@pytest.mark.slow
def test_kl_pbd_attains_the_lower_bound_where_the_expert_always_serves():
    # Regret over the budget phi approaches the slope of Theorem 3 from below as the horizon grows.
    instance = jc.deferral.two_point(num_levels=10, gap=0.15)
    slope = theory.lower_bound_slope(instance)
    ratios, horizons = [], (5_000, 50_000, 500_000)
    for horizon in horizons:
        study = jc.compare(instance, {"kl-pbd": jc.deferral.kl_pbd()}, num_steps=horizon, num_seeds=100, record=1)
        interval = study.interval("kl-pbd", "regret")
        ratios.append(interval.mean[-1] / theory.confidence_budget(horizon) / slope)
        assert interval.mean[-1] < theory.gap_dependent_bound(instance, horizon)
    assert np.all(np.abs(np.array(ratios) - 1) < 0.1), ratios
