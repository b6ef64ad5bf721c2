"""Every policy of the deferral system, in its environment, step by step against the loop-based reference."""

import dataclasses
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import deferral
from jaxcascade.deferral import tuning
from jaxcascade.deferral.environment import Noise
from jaxcascade.simulate import seed_keys, simulate
from tests.conftest import quick_jit
from tests.deferral_runs import bare, draw_noise, play
from tests.reference import deferral_numpy as reference

TIE = 1e-9

# name -> (policy, the reference's name and options)
RULES = {name: (make(), name, {}) for name, make in deferral.SYSTEM.policies.items()} | {
    "kl_pbd, arrival": (deferral.kl_pbd(estimate_arrival=True), "kl_pbd", {"estimate_arrival": True}),
    "kl_pbd, service": (deferral.kl_pbd(estimate_service=True), "kl_pbd", {"estimate_service": True}),
    "kl_pbd, both": (
        deferral.kl_pbd(estimate_arrival=True, estimate_service=True),
        "kl_pbd",
        {"estimate_arrival": True, "estimate_service": True},
    ),
    "kl_pbd, every 7": (deferral.kl_pbd(resolve_every=7), "kl_pbd", {"resolve_every": 7}),
    "kl_pbd_plus, both, every 3": (
        deferral.kl_pbd_plus(estimate_arrival=True, estimate_service=True, resolve_every=3),
        "kl_pbd_plus",
        {"estimate_arrival": True, "estimate_service": True, "resolve_every": 3},
    ),
    "greedy_bellman, arrival": (
        deferral.greedy_bellman(estimate_arrival=True, resolve_every=2),
        "greedy_bellman",
        {"estimate_arrival": True, "resolve_every": 2},
    ),
    "naive_bellman, arrival": (
        deferral.naive_bellman(estimate_arrival=True),
        "naive_bellman",
        {"estimate_arrival": True},
    ),
    "naive_bellman, both": (
        deferral.naive_bellman(estimate_arrival=True, estimate_service=True),
        "naive_bellman",
        {"estimate_arrival": True, "estimate_service": True},
    ),
    "fixed_confidence_threshold, arrival": (
        deferral.fixed_confidence_threshold(estimate_arrival=True),
        "fixed_confidence_threshold",
        {"estimate_arrival": True},
    ),
    "fixed_queue_threshold, arrival": (
        deferral.fixed_queue_threshold(estimate_arrival=True),
        "fixed_queue_threshold",
        {"estimate_arrival": True},
    ),
    "random, .3": (deferral.random(0.3), "random", {"probability": 0.3}),
}


# accuracy, arrival, service, cost_error, cost_expert, cost_holding, score: odd costs, so that no decision is a tie.
WORLDS = {
    "two point": ((0.61, 0.43, 0.57, 0.38), (0, 0.25, 0.25, 0.25, 0.25), (0, 1), 1, 0.4917, 0, (0.1, 0.4, 0.65, 0.9)),
    "monotone": (
        (0.12, 0.41, 0.66, 0.93),
        (0, 0.11, 0.19, 0.29, 0.41),
        (0.5, 0.5),
        2,
        0.2531,
        0.0973,
        (0, 0.3, 0.7, 1),
    ),
    "quiet": (
        (0.55, 0.81, 0.22, 0.68),
        (0.4, 0.15, 0.15, 0.15, 0.15),
        (0.8, 0.2),
        1,
        0.1129,
        0.0057,
        (0.6, 0.8, 0.4, 0.7),
    ),
    "several": (
        (0.33, 0.52, 0.71, 0.9),
        (0.17, 0.2, 0.23, 0.3, 0.1),
        (0.35, 0.3, 0.25, 0.1),
        1.3,
        0.2377,
        0.0613,
        (0.5, 0.2, 0.95, 0.7),
    ),
}
# Worlds that run in one program: queue capacity, most served in a round, names.
GROUPS = {
    "several servers": (8, 3, ("two point", "monotone", "quiet", "several")),
    "no queue": (1, 1, ("two point", "monotone", "quiet")),
    "one server": (8, 1, ("two point", "monotone", "quiet")),
    "long queue": (20, 3, ("monotone", "several")),
}
RUNS = [
    *(("several servers", rule) for rule in [*deferral.SYSTEM.policies, "kl_pbd, both", "kl_pbd, every 7"]),
    *(("no queue", rule) for rule in RULES if rule not in ("kl_pbd", "kl_pbd_plus", "greedy_bellman", "oracle")),
]
LONG_RUNS = [(group, rule) for group in (*GROUPS, "random") for rule in RULES]


def random_world(seed, capacity=4, levels=4, longest=3):
    """A world of random numbers, with zeros and ones among its probabilities and now and then no holding cost."""
    rng = np.random.default_rng(seed)
    arrival, service = (rng.dirichlet(np.full(size, 0.5)) for size in (levels + 1, longest + 1))
    for law in (arrival, service):
        law[np.argmin(law)] = 0
        law /= law.sum()
    return {
        "accuracy": np.clip(rng.uniform(-0.1, 1.1, levels), 0, 1),
        "arrival": arrival,
        "service": service,
        "cost_error": rng.uniform(0.5, 2),
        "cost_expert": rng.uniform(0.01, 0.6),
        "cost_holding": rng.choice([0, 1]) * rng.uniform(0, 0.1),
        "score": rng.random(levels),
        "queue_capacity": capacity,
    }


def worlds_of(group):
    """The group's instances, each as a dict of float64 arrays."""
    if group == "random":
        return [random_world(seed) for seed in range(12)]
    capacity, most_served, names = GROUPS[group]
    fields = ("accuracy", "arrival", "service", "cost_error", "cost_expert", "cost_holding", "score")
    worlds = []
    for name in names:
        world = {key: np.array(entry, np.float64) for key, entry in zip(fields, WORLDS[name], strict=True)}
        world["service"] = np.pad(world["service"], (0, most_served + 1 - len(world["service"])))
        worlds.append(world | {"queue_capacity": capacity})
    return worlds


def fast_step(value, matrix, loss, arrival, cost_expert, cost_holding):
    """The reference's ``_bellman_step`` without its loop over queue lengths."""
    after = matrix @ value
    marginal = cost_expert + after[1:] - after[:-1]
    extra = arrival[1:] @ np.minimum(loss[:, None], np.append(marginal, np.inf))
    return cost_holding * np.arange(len(value)) + after + extra, marginal


@pytest.fixture
def quick_reference(monkeypatch):
    monkeypatch.setattr(reference, "_bellman_step", fast_step)


def test_the_quick_step_of_the_reference_is_its_own():
    world = worlds_of("several servers")[3]
    matrix, loss = reference.service_matrix(world["service"], 8), 1.3 * (1 - world["accuracy"])
    value = reference.drain_cost(world["service"], 0.1, 8)
    for _ in range(30):
        arguments = (value, matrix, loss, world["arrival"], 0.2, 0.1)
        value, marginal = reference._bellman_step(*arguments)
        quick_value, quick_marginal = fast_step(*arguments)
        np.testing.assert_allclose(quick_value, value, rtol=1e-13)
        np.testing.assert_allclose(quick_marginal, marginal, rtol=1e-12)


@lru_cache
def stage(group, rounds):
    """The group's instances, the environment and its models, noise and keys, in float64."""
    worlds = worlds_of(group)
    rng = np.random.default_rng(7)
    noises = [draw_noise(world, rounds, rng) for world in worlds]
    instances = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(deferral.make_instance(**world) for world in worlds))
    environment = deferral.environment(instances, rounds)
    setup = quick_jit(jax.vmap(environment.setup, in_axes=(0, None)))
    models = setup(instances, np.int32(rounds))
    _, policy_keys = seed_keys(jax.random.key(3), jnp.arange(len(worlds)))
    keys = jax.vmap(lambda key: jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(1, rounds + 1)))(policy_keys)
    uniforms = np.asarray(jax.vmap(jax.vmap(jax.random.uniform))(keys))
    for draws, uniform in zip(noises, uniforms, strict=True):
        draws["policy_uniform"] = uniform
    noise = Noise(*(np.stack([draws[name] for draws in noises]) for name in Noise._fields))
    return worlds, noises, (environment, instances, models, noise, keys)


@quick_jit(static_argnames=("environment", "policy", "told"))
def play_all(environment, instances, models, noise, keys, policy, params, told):
    """Runs of one policy in every world; what it must not see is None, or nan, which would spread."""

    def one(instance, model, noise, keys):
        view = None
        if told == "nan":
            nothing = {name: jnp.full_like(getattr(instance, name), jnp.nan) for name in policy.hidden}
            view = dataclasses.replace(instance, **nothing)
        return play(environment, policy._replace(params=params), instance, model, noise, keys, view)

    return jax.vmap(one)(instances, models, noise, keys)


def first_tie(run, policy):
    """The number of rounds before a decision whose sides are equal up to rounding."""
    near = np.abs(run["margin"]) < TIE
    if policy == "salmut_sf":  # its thresholds rest at exactly 0 and the capacity, in both programs
        near &= run["margin"] != 0
    return int(np.argmax(near)) if near.any() else len(near)


def check_parity(group, rule, rounds, told="nothing"):
    policy, name, options = RULES[rule]
    worlds, noises, setting = stage(group, rounds)
    found = jax.device_get(play_all(*setting, policy._replace(params=None), policy.params, told))
    shortened = 0
    for row, (world, noise) in enumerate(zip(worlds, noises, strict=True)):
        run = reference.simulate(world, name, noise, **options)
        until = first_tie(run, name)
        shortened += until < rounds
        mine = {key: values[row][:until] for key, values in found.items() if key != "tap"}
        true = {
            key: run[key][:until] for key in ("action", "queue", "threshold", "regret", "cost", "labels", "correct")
        }
        where = f"{group} {row}, {rule}"
        np.testing.assert_array_equal(mine["deferrals"], true["action"], where)
        np.testing.assert_array_equal(mine["queue"], true["queue"], where)
        np.testing.assert_array_equal(mine["labels"], true["labels"], where)
        np.testing.assert_array_equal(mine["correct"], true["correct"], where)
        np.testing.assert_allclose(mine["regret"], true["regret"], atol=1e-9, err_msg=where)
        after = np.append(run["queue"][1:], run["final_queue"])[:until]
        np.testing.assert_array_equal(mine["queue_length"], after, where)
        np.testing.assert_array_equal(mine["queue_length_mean"], true["queue"], where)
        # The environment pays the cost of draining the queue as it grows.
        drain = reference.drain_cost(world["service"], world["cost_holding"], world["queue_capacity"])
        np.testing.assert_allclose(
            mine["cost"], true["cost"] + drain[after] - drain[true["queue"]], atol=1e-9, err_msg=where
        )
        arrives, full = noise["level"][:until] > 0, true["queue"] == world["queue_capacity"]
        accepted = arrives & (true["action"] == 0)
        np.testing.assert_array_equal(mine["arrivals"], arrives, where)
        np.testing.assert_array_equal(mine["accepted"], accepted, where)
        np.testing.assert_array_equal(mine["accepted_correct"], accepted & noise["label"][:until], where)
        np.testing.assert_array_equal(mine["full_queue"], full, where)
        threshold = true["threshold"]
        if name not in reference.PLUG_IN_POLICIES + reference.QUEUE_BLIND_POLICIES:
            threshold = np.where(full, 0.0, np.nan)
        elif "estimate_service" in options:  # nothing to plan with yet
            threshold = np.nan_to_num(threshold, nan=0.0)
        np.testing.assert_allclose(mine["threshold_mean"], threshold, atol=1e-6, err_msg=where)
    assert shortened <= 0.25 * len(worlds), f"{shortened} runs of {rule} met a tie"


@pytest.mark.parametrize(("group", "rule"), RUNS)
def test_policies_agree_with_the_reference_in_every_round(group, rule, x64, quick_reference):
    """Where there is no queue they are told nan, elsewhere nothing at all, of what is hidden from them."""
    check_parity(group, rule, 200, "nan" if group == "no queue" else "nothing")


@pytest.mark.slow
@pytest.mark.parametrize(("group", "rule"), LONG_RUNS)
def test_policies_agree_with_the_reference_in_long_runs(group, rule, x64, quick_reference):
    check_parity(group, rule, 500)


@lru_cache
def many_random_worlds():
    worlds = [random_world(seed) for seed in range(100, 124)]
    return worlds, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(deferral.make_instance(**w) for w in worlds))


def cost_of(world, thresholds, horizon):
    """The reference's expected cost of a threshold rule under h = p."""
    numbers = [world[name] for name in ("score", "arrival", "service", "cost_error", "cost_expert", "cost_holding")]
    return reference.fixed_policy_cost(thresholds, *numbers, world["queue_capacity"], horizon)


@pytest.mark.parametrize("horizon", [1, 120])
def test_thresholds_are_tuned_as_well_as_the_references(horizon, x64):
    """Their expected costs agree; the rules themselves may differ where levels never come."""
    worlds, instances = many_random_worlds()

    @quick_jit
    def tune(instances, horizon):
        tuners = (tuning.tune_confidence_thresholds, tuning.tune_queue_thresholds)
        return [jax.vmap(lambda i, tune=tune: tune(i, i.arrival[1:], horizon))(instances) for tune in tuners]

    found = jax.device_get(tune(instances, np.int32(horizon)))
    tuners = (reference.tune_confidence_thresholds, reference.tune_queue_thresholds)
    for rules, exact in zip(found, tuners, strict=True):
        for rule, world in zip(rules, worlds, strict=True):
            assert np.all((rule >= 0) & (rule <= world["queue_capacity"]))
            best = cost_of(world, exact(world, horizon), horizon)
            assert cost_of(world, rule, horizon) == pytest.approx(best, rel=1e-9)


def test_expected_costs_over_long_horizons_are_those_of_a_loop(x64):
    worlds, instances = many_random_worlds()
    rules = np.random.default_rng(0).integers(0, 5, (len(worlds), 4))
    cost = quick_jit(
        jax.vmap(lambda i, rule, horizon: tuning.expected_cost(i, i.arrival[1:], rule, horizon), (0, 0, None))
    )
    for horizon in (1, 2, 1000, 4097):
        found = cost(instances, rules, np.int32(horizon))
        exact = [cost_of(world, rule, horizon) for world, rule in zip(worlds, rules, strict=True)]
        np.testing.assert_allclose(found, exact, rtol=1e-11)


@pytest.mark.parametrize("rounds", [1, 2])
def test_the_shortest_horizons(rounds, x64):
    check_parity("no queue", "kl_pbd, arrival", rounds)


@pytest.mark.parametrize("rule", ["kl_pbd", "salmut_sf", "random, .3"])
def test_the_runner_feeds_the_environments_noise(rule, x64, quick_reference):
    """``simulate`` with every round recorded, against the reference on the noise that the environment draws."""
    policy, name, options = RULES[rule]
    world = worlds_of("no queue")[1]
    instance, rounds = deferral.make_instance(**world), 60
    environment = deferral.environment(instance, rounds)

    @quick_jit
    def program(instance, key):
        """What the runner reports, and the draws that it must have made."""
        found = simulate(instance, policy, key=key, num_steps=rounds, num_seeds=2, record=rounds)
        t, seeds = jnp.arange(1, rounds + 1), jnp.arange(2)
        model = bare(environment).setup(instance, jnp.int32(rounds))
        world_keys, policy_keys = (
            jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(keys, t) for keys in seed_keys(key, seeds)
        )
        noise = jax.vmap(jax.vmap(lambda key: environment.noise(key, model)))(world_keys)
        return found.metrics, noise, jax.vmap(jax.vmap(jax.random.uniform))(policy_keys)

    metrics, noise, uniform = jax.device_get(program(instance, jax.random.key(11)))
    for seed in range(2):
        draws = {name: values[seed] for name, values in noise._asdict().items()}
        run = reference.simulate(world, name, draws | {"policy_uniform": uniform[seed]}, **options)
        np.testing.assert_array_equal(metrics["deferrals"][seed], np.cumsum(run["action"]))
        np.testing.assert_allclose(metrics["regret"][seed], np.cumsum(run["regret"]), atol=1e-9)
        mean = np.cumsum(run["queue"]) / np.arange(1, rounds + 1)
        np.testing.assert_allclose(metrics["queue_length_mean"][seed], mean, rtol=1e-12)


# Regret at rounds 5000, 10000 and 20000 with its standard error, mean queue, deferral rate, accuracy, mean threshold:
# what an independent NumPy program measured over 40 seeds (shared/instances/README.md).
REAL_LOG = {
    "kl_pbd": ((78.1, 1.1), (114.1, 1.6), (162.5, 2.3), 0.795, 0.242, 0.891, 0.482),
    "kl_pbd_plus": ((34.0, 1.4), (44.8, 1.8), (58.3, 2.2), 0.550, 0.190, 0.876, 0.572),
    "greedy_bellman": ((76.5, 4.4), (151.5, 8.9), (302.8, 17.8), 0.249, 0.099, 0.832, 0.644),
    "naive_bellman": ((37.1, 0.4), (73.7, 0.5), (148.2, 0.9), 0.275, 0.116, 0.844, 0.644),
    "kl_ucb_4p": ((771.8, 12.7), (1371.0, 13.2), (2567.3, 14.6), 4.561, 0.333, 0.906, 0.649),
    "kl_pbd, arrival": ((78.7, 1.2), (115.0, 1.5), (163.4, 2.1), 0.796, 0.242, 0.891, 0.483),
    "kl_pbd_plus, arrival": ((33.3, 1.4), (43.5, 1.7), (54.6, 2.1), 0.544, 0.189, 0.876, 0.574),
    "greedy_bellman, arrival": ((76.2, 4.6), (150.7, 9.4), (300.3, 18.8), 0.251, 0.099, 0.832, 0.643),
    "naive_bellman, arrival": ((37.2, 0.4), (73.8, 0.5), (148.3, 0.9), 0.275, 0.116, 0.844, 0.644),
}


@pytest.mark.slow
def test_a_real_log_gives_the_measured_regrets(shared):
    instance = jc.load_instance(shared / "instances" / "deferral_date20.npz")
    policies = {
        rule: deferral.SYSTEM.policies[rule.partition(",")[0]](**{"estimate_arrival": True} if "," in rule else {})
        for rule in REAL_LOG
    }
    study = jc.compare(instance, policies, num_steps=20_000, num_seeds=40, record=[5000, 10_000, 20_000])
    for rule, (*regrets, queue, deferral_rate, accuracy, threshold) in REAL_LOG.items():
        found = study.interval(rule, "regret")
        error = np.hypot(found.sd / np.sqrt(found.n), [sd for _, sd in regrets])
        z = (found.mean - [mean for mean, _ in regrets]) / error
        print(rule, np.round(z, 2))
        assert np.all(np.abs(z) < 3.5), (rule, z)
        for metric, value in (
            ("queue_length_mean", queue),
            ("deferral_rate", deferral_rate),
            ("accuracy", accuracy),
            ("threshold_mean", threshold),
        ):
            mine = study.interval(rule, metric)
            # Rounded to three places, and with about the same spread as mine.
            slack = 3.5 * np.sqrt(2) * mine.sd[-1] / np.sqrt(mine.n) + 5e-4
            assert abs(mine.mean[-1] - value) <= slack, (rule, metric, mine.mean[-1], value)
