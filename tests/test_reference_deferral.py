"""Checks of the slow deferral reference itself: exact identities of the paper on small instances."""

import itertools
import math

import numpy as np
import pytest

from tests.reference import deferral_numpy as reference

EVERY_RULE = [(name, {}) for name in reference.POLICIES] + [
    ("kl_pbd", {"estimate_arrival": True}),
    ("kl_pbd", {"estimate_arrival": True, "estimate_service": True}),
    ("kl_pbd_plus", {"estimate_service": True, "resolve_every": 2}),
    ("naive_bellman", {"estimate_arrival": True, "estimate_service": True}),
    ("fixed_queue_threshold", {"estimate_arrival": True}),
]


def small_instance(**changes):
    instance = {
        "accuracy": np.array([0.31, 0.62, 0.87]),
        "arrival": np.array([0.1, 0.35, 0.25, 0.3]),
        "service": np.array([0.45, 0.4, 0.1, 0.05]),
        "cost_error": 1.3,
        "cost_expert": 0.237,
        "cost_holding": 0.061,
        "queue_capacity": 3,
        "score": np.array([0.2, 0.55, 0.95]),
    }
    return instance | changes


def draw_noise(instance, horizon, rng):
    level = rng.choice(len(instance["arrival"]), size=horizon, p=instance["arrival"])
    right = np.concatenate([[1.0], instance["accuracy"]])[level]
    return {
        "level": level,
        "label": (rng.random(horizon) < right).astype(int),
        "capacity": rng.choice(len(instance["service"]), size=horizon, p=instance["service"]),
        "policy_uniform": rng.random(horizon),
    }


def kernel_arguments(instance):
    names = ("accuracy", "arrival", "service", "cost_error", "cost_expert", "cost_holding", "queue_capacity")
    return tuple(instance[name] for name in names)


def total_cost(run):
    return run["cost"].sum() + run["terminal_cost"]


def test_drain_cost_of_bernoulli_service():
    mu, holding, b = 0.37, 0.3, np.arange(9)
    drain = reference.drain_cost(np.array([1 - mu, mu]), holding, 8)
    np.testing.assert_allclose(drain, holding * b * (b + 1) / (2 * mu), rtol=1e-13)


def test_drain_cost_solves_its_equation_with_a_service_longer_than_the_queue():
    service = np.array([0.3, 0.1, 0.2, 0.1, 0.2, 0.1])
    drain = reference.drain_cost(service, 0.7, 3)
    np.testing.assert_allclose(drain, 0.7 * np.arange(4) + reference.service_matrix(service, 3) @ drain)


def test_marginal_costs_are_monotone_and_start_at_the_last_round_formula():
    instance = small_instance(service=np.array([0.6, 0.4]), queue_capacity=6)
    table = reference.marginal_costs(*kernel_arguments(instance), 300)
    assert table.shape == (300, 6)
    assert np.all(np.diff(table, axis=1) > 0)
    assert np.all(np.diff(table, axis=0) > -1e-12)
    last = instance["cost_expert"] + 0.6 * instance["cost_holding"] / 0.4  # Lemma 18
    np.testing.assert_allclose(table[0, 0], last, rtol=1e-13)
    np.testing.assert_allclose(table[-1], reference.stationary_marginal_costs(*kernel_arguments(instance)), atol=1e-10)


def test_backward_induction_finds_the_best_of_all_markov_policies():
    instance = small_instance(queue_capacity=2, accuracy=np.array([0.3, 0.7]))
    instance["arrival"] = np.array([0.2, 0.5, 0.3])
    matrix = reference.service_matrix(instance["service"], 2)
    drain = reference.drain_cost(instance["service"], instance["cost_holding"], 2)

    def value(t, b, rule):
        if t == 3:
            return drain[b]
        total = instance["cost_holding"] * b
        for j, probability in enumerate(instance["arrival"]):
            defer = j > 0 and rule.get((t, b, j), 0)
            wrong = 1 - instance["accuracy"][j - 1] if j > 0 else 0.0
            now = instance["cost_expert"] if defer else instance["cost_error"] * wrong
            later = sum(matrix[b + defer, c] * value(t + 1, c, rule) for c in range(3))
            total += probability * (now + later)
        return total

    states = [(1, 0, 1), (1, 0, 2), (2, 0, 1), (2, 0, 2), (2, 1, 1), (2, 1, 2)]
    best = min(
        value(1, 0, dict(zip(states, actions, strict=True)))
        for actions in itertools.product((0, 1), repeat=len(states))
    )
    np.testing.assert_allclose(reference.optimal_value(*kernel_arguments(instance), 2)[0], best, rtol=1e-13)


@pytest.mark.parametrize(("policy", "options"), EVERY_RULE)
def test_regret_decomposition_is_exact_over_every_outcome_of_three_rounds(policy, options):
    """Lemma 2 with no sampling error: expected gaps = expected cost - U_1(0), for every policy."""
    instance = small_instance(accuracy=np.array([0.42, 0.83]), score=np.array([0.6, 0.9]), queue_capacity=2)
    instance["arrival"] = np.array([0.15, 0.5, 0.35])
    instance["service"] = np.array([0.55, 0.45])
    rounds = [(0, 1, c, 0.15 * instance["service"][c]) for c in (0, 1)]
    for j, y, c in itertools.product((1, 2), (0, 1), (0, 1)):
        right = instance["accuracy"][j - 1]
        chance = instance["arrival"][j] * (right if y else 1 - right) * instance["service"][c]
        rounds.append((j, y, c, chance))
    cost = regret = mass = 0.0
    for outcome in itertools.product(rounds, repeat=3):
        level, label, capacity, chance = zip(*outcome, strict=True)
        noise = {"level": level, "label": label, "capacity": capacity, "policy_uniform": (0.7, 0.2, 0.45)}
        run = reference.simulate(instance, policy, noise, **options)
        weight = math.prod(chance)
        mass += weight
        cost += weight * total_cost(run)
        regret += weight * run["regret"].sum()
    best = reference.optimal_value(*kernel_arguments(instance), 3)[0]
    assert mass == pytest.approx(1.0, abs=1e-12)
    assert regret == pytest.approx(cost - best, abs=1e-12)
    assert regret == 0.0 if policy == "oracle" else regret >= 0.0


@pytest.mark.parametrize("policy", ["greedy_bellman", "salmut_sf", "defer_all"])
def test_mean_gap_is_the_mean_cost_difference_to_the_oracle(policy):
    instance, rng = small_instance(), np.random.default_rng(5)
    differences = []
    for _ in range(250):
        noise = draw_noise(instance, 30, rng)
        run = reference.simulate(instance, policy, noise)
        oracle = reference.simulate(instance, "oracle", noise)
        differences.append(total_cost(run) - total_cost(oracle) - run["regret"].sum())
    error = np.std(differences, ddof=1) / math.sqrt(len(differences))
    assert abs(np.mean(differences)) < 3.5 * error


@pytest.mark.parametrize(("policy", "options"), EVERY_RULE)
def test_every_policy_meets_the_queue_recursion(policy, options):
    instance = small_instance()
    noise = draw_noise(instance, 60, np.random.default_rng(11))
    run = reference.simulate(instance, policy, noise, **options)
    queue = np.append(run["queue"], run["final_queue"])
    assert queue[0] == 0
    np.testing.assert_array_equal(queue[1:], np.maximum(queue[:-1] + run["action"] - noise["capacity"], 0))
    np.testing.assert_array_equal(run["labels"], queue[:-1] + run["action"] - queue[1:])
    infeasible = (noise["level"] == 0) | (run["queue"] == instance["queue_capacity"])
    assert not run["action"][infeasible].any()
    assert not run["regret"][infeasible].any()
    assert not run["correct"][noise["level"] == 0].any()
    has_threshold = policy in reference.PLUG_IN_POLICIES + reference.QUEUE_BLIND_POLICIES
    if not has_threshold:
        assert np.isnan(run["threshold"]).all()
    elif "estimate_service" not in options:
        assert np.all((run["threshold"] >= 0) & (run["threshold"] <= 1))
        assert not run["threshold"][run["queue"] == instance["queue_capacity"]].any()


def test_oracle_has_no_regret_and_a_threshold_that_explains_its_actions():
    instance = small_instance()
    noise = draw_noise(instance, 80, np.random.default_rng(2))
    run = reference.simulate(instance, "oracle", noise)
    assert not run["regret"].any()
    served = noise["level"] > 0
    accuracy = instance["accuracy"][noise["level"] - 1]
    np.testing.assert_array_equal(run["action"][served], (accuracy < run["threshold"])[served])


@pytest.mark.parametrize(
    "pair",
    [
        ("kl_pbd_plus", "kl_ucb_plus_4p"),
        ("naive_bellman", "fixed_confidence_threshold"),
        ("naive_bellman", "fixed_queue_threshold"),
    ],
)
def test_immediate_service_makes_queue_aware_and_queue_blind_rules_agree(pair):
    """Appendix H.3: at mu = 1 the queue stays empty and M_t(0) = cexp."""
    instance = small_instance(service=np.array([0.0, 1.0]))
    noise = draw_noise(instance, 80, np.random.default_rng(3))
    aware, other = (reference.simulate(instance, name, noise) for name in pair)
    np.testing.assert_array_equal(aware["action"], other["action"])
    np.testing.assert_array_equal(aware["regret"], other["regret"])
    assert not aware["queue"].any()
    assert 0 < aware["action"].sum() < (noise["level"] > 0).sum()


def test_labels_are_used_only_after_the_round_that_reveals_them():
    instance = small_instance(service=np.array([0.5, 0.5]), accuracy=np.array([0.9]), score=np.array([0.9]))
    instance["arrival"] = np.array([0.0, 1.0])
    noise = {"level": [1] * 5, "label": [1] * 5, "capacity": [0, 0, 1, 1, 1], "policy_uniform": [0.9] * 5}
    run = reference.simulate(instance, "greedy_bellman", noise)
    # mean 0 up to round 3 (first label at its end), then 1: nothing is deferred any more
    np.testing.assert_array_equal(run["labels"][:4], [0, 0, 1, 1])
    np.testing.assert_array_equal(run["action"], [1, 1, 1, 0, 0])
    np.testing.assert_array_equal(run["queue"], [0, 1, 2, 2, 1])


def test_resolve_every_keeps_the_recursion_and_frees_the_own_bound():
    instance = small_instance()
    noise = draw_noise(instance, 70, np.random.default_rng(8))
    frozen = reference.simulate(instance, "kl_pbd", noise, resolve_every=10**6)
    arguments = (np.zeros(3), *kernel_arguments(instance)[1:])
    table = reference.marginal_costs(*arguments, 70)
    for t in range(70):
        b = frozen["queue"][t]
        marginal = table[69 - t, b] if b < instance["queue_capacity"] else np.inf
        assert frozen["threshold"][t] == pytest.approx(max(1 - marginal / instance["cost_error"], 0.0))
    assert frozen["margin"][np.isfinite(frozen["margin"])].min() < frozen["margin"][0]
    current = reference.simulate(instance, "kl_pbd", noise)
    every = reference.simulate(instance, "kl_pbd", noise, resolve_every=1)
    np.testing.assert_array_equal(current["threshold"], every["threshold"])
    assert not np.array_equal(current["threshold"], frozen["threshold"])


def test_estimated_service_accepts_until_a_capacity_was_seen():
    instance = small_instance()
    noise = draw_noise(instance, 40, np.random.default_rng(4))
    noise["level"][:] = 1
    noise["capacity"][:5] = [0, 0, 0, 9, 1]
    run = reference.simulate(instance, "kl_pbd", noise, estimate_arrival=True, estimate_service=True)
    assert not run["action"][:4].any()
    assert np.isnan(run["threshold"][:4]).all()
    assert run["action"][4] == 1
    assert np.isfinite(run["threshold"][4:]).all()


def test_kl_bounds():
    assert reference.kl(0.0, 0.0) == reference.kl(1.0, 1.0) == 0.0
    assert reference.kl(0.3, 0.0) == reference.kl(0.3, 1.0) == reference.kl(1.0, 0.0) == math.inf
    assert reference.kl(0.0, 0.5) == pytest.approx(math.log(2))
    for bound, edge in ((reference.kl_lower, 0.0), (reference.kl_upper, 1.0)):
        assert bound(0.4, 0, 2.0) == edge
        assert bound(edge, 7, 2.0) == edge
        assert bound(0.4, 7, 0.0) == 0.4
        for mean, count, budget in ((0.4, 7, 2.0), (0.99, 300, 9.0), (1 - edge, 12, 3.0), (0.5, 90_000, 0.1)):
            q = bound(mean, count, budget)
            assert abs(q - edge) < abs(mean - edge)
            assert count * reference.kl(mean, q) == pytest.approx(budget, rel=1e-6)
            mirrored = reference.kl_upper if edge == 0.0 else reference.kl_lower
            assert 1 - mirrored(1 - mean, count, budget) == pytest.approx(q, abs=1e-10)


def test_fixed_thresholds_are_tuned_to_local_optima():
    instance = small_instance(score=np.array([0.3, 0.55, 0.7]))
    arguments = (instance["score"], *kernel_arguments(instance)[1:], 40)
    cost = {
        thresholds: reference.fixed_policy_cost(thresholds, *arguments)
        for thresholds in itertools.product(range(4), repeat=3)
    }
    queue = tuple(reference.tune_queue_thresholds(instance, 40))
    confidence = tuple(reference.tune_confidence_thresholds(instance, 40))
    cuts = [(0, 0, 0), (3, 0, 0), (3, 3, 0), (3, 3, 3)]
    assert cost[confidence] == min(cost[cut] for cut in cuts)
    for j, b in itertools.product(range(3), range(4)):
        assert cost[queue] <= cost[(*queue[:j], b, *queue[j + 1 :])] + 1e-9
    naive = tuple(reference.naive_queue_thresholds(instance))
    assert cost[queue] <= min(cost[confidence], cost[naive]) + 1e-9
    # the expected cost agrees with the simulated one
    rng = np.random.default_rng(21)
    world = instance | {"accuracy": instance["score"]}
    costs = [
        total_cost(reference.simulate(world, "fixed_queue_threshold", draw_noise(world, 40, rng))) for _ in range(300)
    ]
    assert abs(np.mean(costs) - cost[queue]) < 3.5 * np.std(costs, ddof=1) / math.sqrt(300)


def test_salmut_moves_the_threshold_of_the_arriving_level_and_forces_deferrals():
    instance = small_instance()
    noise = {"level": [1, 2, 1, 2], "label": [0] * 4, "capacity": [3] * 4, "policy_uniform": [0.99] * 4}
    run = reference.simulate(instance, "salmut_sf", noise)
    # an unlabelled level looks always wrong, so its first accepted query lifts its threshold above 0
    np.testing.assert_array_equal(run["action"], [0, 0, 1, 1])
    loss, slope = instance["cost_error"], math.exp(-0.5) / (1 + math.exp(-0.5)) ** 2
    value = 2**-0.6 * loss  # V(0) after the first critic step; V(1) = 0
    stay = instance["service"][0]
    advantage = instance["cost_expert"] - loss + (1 - stay) * value - value
    assert run["margin"][2] == pytest.approx(10 / 101 * slope * -advantage)
    noise["policy_uniform"] = [0.49] * 4
    np.testing.assert_array_equal(reference.simulate(instance, "salmut_sf", noise)["action"], [1, 1, 1, 1])


def test_random_policy_follows_its_uniforms():
    instance = small_instance(service=np.array([0.0, 0.0, 1.0]))
    noise = draw_noise(instance, 50, np.random.default_rng(6))
    run = reference.simulate(instance, "random", noise, probability=0.3)
    np.testing.assert_array_equal(run["action"], (noise["policy_uniform"] < 0.3) & (noise["level"] > 0))
