"""The queueing system as a whole: conservation, buffers, common noise, estimates, files, bad input, references."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import jaxcascade as jc
from jaxcascade import queueing
from jaxcascade.core import hide
from jaxcascade.simulate import run_block
from tests.conftest import float64_mode
from tests.test_queueing_parity import record

EVERY = {
    "acqb": queueing.acqb(estimator="one_pass"),
    "mle": queueing.acqb(),
    "ucb": queueing.acqb(estimator="one_pass", index="ucb", scheduling="round_robin"),
    "cqb": queueing.cqb_eps(estimator="one_pass"),
    "rand": queueing.rand(),
    "rand_rout": queueing.rand_rout(),
    "optimal": queueing.optimal(),
}
ARMS = {"q_ucb": queueing.q_ucb(), "q_ths": queueing.q_ths()}


def block(instance, policy, *, num_steps, num_seeds, steps, seed=0, **slots):
    environment = queueing.environment(instance, num_steps, **slots)
    return run_block(
        environment,
        policy,
        instance,
        policy.params,
        batch=0,
        seed=seed,
        num_steps=num_steps,
        num_seeds=num_seeds,
        steps=np.asarray(steps),
    ).metrics


def played(instance, policy, num_steps=90, seed=0):
    """Metrics of every round, ``[T]``, cumulative where the runner would add them up."""
    metrics = record(instance, policy, num_steps, seed=seed, slots=128)["metrics"]
    now = {name for name, kind in queueing.environment(instance, num_steps).metrics if kind == "now"}
    return {name: values if name in now else np.cumsum(values) for name, values in metrics.items()}


def conserved(metrics, instance):
    np.testing.assert_array_equal(metrics["arrivals"], metrics["departures"] + metrics["waiting"])
    np.testing.assert_array_equal(metrics["services"], metrics["departures"] + metrics["retrials"])
    offers = sum(metrics[f"offers_{j + 1}"] for j in range(instance.num_llms))
    np.testing.assert_array_equal(offers, instance.assortment_size * metrics["services"])
    assert np.all(metrics["departed_retrials"] <= metrics["retrials"])
    assert np.all(np.diff(metrics["regret"]) >= 0)
    assert np.all(metrics["sojourn"] >= metrics["departures"])


@pytest.mark.parametrize("name", [*EVERY, *ARMS])
def test_queries_are_conserved_in_every_round(name):
    size, slack = (1, 0.0) if name in ARMS else (2, -0.3)
    instance = queueing.synthetic(3, 2, 0.8, slack, size)
    conserved(played(instance, {**EVERY, **ARMS}[name], seed=3), instance)


@pytest.mark.parametrize(("number", "size", "rate"), [(1, 1, 0.0), (1, 1, 1.0), (3, 3, 0.5)])
def test_queries_are_conserved_at_odd_sizes(number, size, rate):
    instance = queueing.synthetic(number, 2, rate, -rate, size)
    for name in ("acqb", "mle", "rand"):
        metrics = played(instance, EVERY[name], num_steps=40)
        conserved(metrics, instance)
        if rate in (0, 1):
            np.testing.assert_array_equal(metrics["arrivals"], rate * np.arange(1, 41))
        if size == number:
            np.testing.assert_allclose(metrics["regret"], 0, atol=1e-5)


def test_a_buffer_of_one_slot_that_had_to_grow_gives_the_same_numbers():
    instance = queueing.synthetic(2, 2, 1.0, -1.0, 1)
    options = {"num_steps": 8, "num_seeds": 2, "steps": [2, 4, 8]}
    small = block(instance, EVERY["rand"], slots=1, oracle_slots=1, **options)
    large = block(instance, EVERY["rand"], slots=8, oracle_slots=8, **options)
    assert small["waiting"].max() > 2
    for metric, values in large.items():
        np.testing.assert_array_equal(small[metric], values, err_msg=metric)


def test_policies_meet_the_same_noise_and_optimal_has_no_gap_and_no_regret():
    instance = queueing.synthetic(4, 3, 0.6, 0.02, 1)
    runs = {name: played(instance, (EVERY | ARMS)[name], 60) for name in ("optimal", "acqb", "rand", "q_ucb")}
    for name, metrics in runs.items():
        np.testing.assert_array_equal(metrics["arrivals"], runs["optimal"]["arrivals"], err_msg=name)
        # The gap is against the optimal policy's own run.
        gap = metrics["queue_length"] - runs["optimal"]["queue_length"]
        np.testing.assert_array_equal(metrics["queue_gap"], gap, err_msg=name)
    assert not runs["optimal"]["queue_gap_sum"].any()
    assert not runs["optimal"]["regret"].any()
    assert runs["rand"]["regret"][-1] > 1


def test_a_longer_horizon_leaves_an_anytime_run_as_it_was():
    instance = queueing.synthetic(3, 3, 0.6, 0.02, 1)
    short, long = (played(instance, EVERY["acqb"], num_steps) for num_steps in (50, 70))
    for name, values in short.items():
        np.testing.assert_array_equal(long[name][:50], values, err_msg=name)


def test_every_seed_draws_its_own_theta_and_contexts_meet_the_condition(x64):
    instance = queueing.synthetic(4, 3, 0.6, 0.05, 2)
    runs = [record(instance, queueing.rand(), 64, seed=seed) for seed in range(2)]
    thetas = [run["true_theta"] for run in runs]
    assert np.all(thetas[0] == thetas[0][0]) and not np.any(thetas[0][0] == thetas[1][0])
    assert np.all(np.abs(thetas) <= 1)
    for run in runs:
        rate = queueing.best_departure_rate(jnp.asarray(run["context"] @ run["true_theta"][0].T), 2)
        assert np.all(rate >= 0.65)
        assert len(np.unique(run["context"], axis=0)) == 64


def test_accepted_contexts_have_the_conditional_law(x64):
    instance = queueing.synthetic(3, 2, 0.6, 0.02, 1, per_seed=False, seed=4)
    found = np.concatenate([record(instance, queueing.rand(), 400, seed=s, slots=512)["context"] for s in range(3)])
    trial = np.random.default_rng(0).uniform(-1, 1, (200_000, 2))
    rate = np.asarray(queueing.best_departure_rate(jnp.asarray(trial @ np.asarray(instance.theta).T), 1))
    expected = trial[rate >= 0.62]
    assert queueing.acceptance(instance) == pytest.approx(len(expected) / len(trial), abs=0.02)
    error = expected.std(0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(0) - expected.mean(0)) < 4 * error)


@pytest.mark.parametrize("size", [1, 2])
def test_mle_is_the_optimum_of_scipy_at_any_round_of_a_long_run(size, x64):
    instance = queueing.synthetic(4, 4, 0.7, 0.0, size, per_seed=False, seed=2)
    log = record(instance, queueing.acqb(), 500, seed=1, slots=256)
    feedback = log["feedback"]
    number, rounds = instance.num_llms, np.arange(500)
    served = feedback["served"]
    offered, chosen = np.zeros((500, number)), np.zeros((500, number))
    for k in range(size):
        offered[rounds, feedback["servers"][:, k]] = served
        chosen[rounds, feedback["servers"][:, k]] = feedback["chosen"][:, k] & served
    context = np.where(served[:, None], feedback["context"], 0)
    start = np.zeros(number * 4)
    for t in (2, 5, 10, 20, 40, 80, 120, 200, 300, 400, 500):
        x, s, y = context[:t], offered[:t], chosen[:t]

        def loss(flat, x=x, s=s, y=y):
            theta = flat.reshape(number, -1)
            weight = s * np.exp(x @ theta.T)
            total = 1 + weight.sum(1)
            value = np.sum(theta**2) / 2 + np.log(total).sum() - np.sum(y * (x @ theta.T))
            return value, (theta + (weight / total[:, None] - y).T @ x).reshape(-1)

        options = {"gtol": 1e-10, "ftol": 1e-16, "maxiter": 2000, "maxfun": 20_000}
        start = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x
        np.testing.assert_allclose(log["theta"][t - 1], start.reshape(number, -1), atol=1e-5)


def test_learners_are_told_neither_theta_nor_rates():
    instance = queueing.synthetic(3, 2, 0.5, 0.0, 1, per_seed=False)
    for policy in (*EVERY.values(), *ARMS.values()):
        if policy is not queueing.optimal():
            view = hide(instance, policy.hidden)
            assert view.theta is view.arrival_rate is view.slackness is view.utility is view.embeddings is None
            assert (view.num_llms, view.dim, view.assortment_size) == (3, 2, 1)


def test_a_routing_table_becomes_acceptance_probabilities():
    rng = np.random.default_rng(0)
    performance, cost = rng.uniform(size=(6, 3)), rng.uniform(0, 5, (6, 3))
    performance[2], cost[2] = 0.5, 1.0
    instance = queueing.from_table(rng.normal(size=(6, 4)), performance, cost, cost_weight=0.4, arrival_rate=0.5)
    chance = np.asarray(jax.nn.sigmoid(instance.utility))
    raw = performance - 0.4 * cost / cost.max()
    expected = 0.1 + 0.89 * (raw - raw.min(1, keepdims=True)) / np.maximum(np.ptp(raw, 1, keepdims=True), 1e-300)
    expected[2] = 0.545  # all models tie
    np.testing.assert_allclose(chance, expected, atol=1e-5)
    metrics = played(instance, EVERY["acqb"], num_steps=50)
    conserved(metrics, instance)


def test_instance_files_are_read_and_written(shared, tmp_path):
    for name, size in (("queueing_A", 1), ("queueing_B", 2)):
        instance = jc.load_instance(shared / "instances" / f"{name}.npz")
        assert (instance.num_llms, instance.dim, instance.assortment_size, instance.per_seed) == (5, 5, size, False)
    for one in (instance, queueing.synthetic(2, 3), queueing.from_table(np.eye(3), np.eye(3), np.eye(3))):
        jc.save_instance(tmp_path / "one.npz", one)
        again = jc.load_instance(tmp_path / "one.npz")
        for entry in dataclasses.fields(one):
            np.testing.assert_array_equal(getattr(again, entry.name), getattr(one, entry.name))
    with pytest.raises(ValueError, match=r"thetta: expected one of .* \(did you mean 'theta'\?\)"):
        queueing.instance.from_arrays(
            {"theta": np.eye(2), "arrival_rate": 0.5, "slackness": 0.0, "assortment_size": 1, "thetta": 1}
        )


def test_bad_input_is_answered_in_one_line():
    cases = {
        "assortment_size: expected at most num_llms = 2, got 3": lambda: queueing.synthetic(2, 2, assortment_size=3),
        r"arrival_rate: expected a probability in \[0, 1\], got 1.2": lambda: queueing.synthetic(arrival_rate=1.2),
        "0 of 16384 uniform contexts meet it": lambda: queueing.make_instance(0.1 * np.eye(2)),
        "num_llms: expected a whole number >= 1, got 0": lambda: queueing.synthetic(0),
        "theta: expected finite numbers": lambda: queueing.make_instance([[np.nan, 1.0]]),
        "slots: expected a whole number >= 1, got 0": lambda: queueing.environment(
            queueing.synthetic(2, 2, 0.5), 10, slots=0
        ),
        r"scheduling: .*did you mean 'round_robin'": lambda: queueing.acqb(scheduling="roundrobin"),
        "exploration: expected one of": lambda: queueing.acqb(exploration="sometimes"),
        "estimator: expected one of mle, one_pass": lambda: queueing.acqb(estimator="sgd"),
        "regularisation: expected a number > 0, got 0": lambda: queueing.acqb(regularisation=0),
        "pure_rounds: expected a finite number >= 0, got -1": lambda: queueing.cqb_eps(pure_rounds=-1),
        "assortment_size: expected 1 for this policy, got 2": lambda: jc.simulate(
            queueing.synthetic(3, 2, 0.3, 0.0, 2), queueing.q_ucb(), key=jax.random.key(0), num_steps=2, num_seeds=1
        ),
        "cost: expected numbers >= 0": lambda: queueing.from_table(np.eye(2), np.eye(2), -np.eye(2)),
        "embeddings: expected a table": lambda: queueing.from_table([1.0], np.eye(2), np.eye(2)),
    }
    for message, make in cases.items():
        with pytest.raises(ValueError, match=message):
            make()


def test_simulate_marks_what_did_not_fit_as_nan():
    instance = queueing.synthetic(3, 2, 1.0, -1.0, 1)
    options = {"key": jax.random.key(0), "num_steps": 20, "num_seeds": 2, "record": [5, 20]}
    environment = queueing.environment(instance, 20, slots=6)
    found = jc.simulate(instance, queueing.rand(), environment=environment, **options).metrics
    assert np.all(np.isfinite(found["regret"][:, 0])) and np.all(np.isnan(found["regret"][:, 1]))
    found = jc.simulate(instance, queueing.rand(), **options).metrics
    assert np.all(np.isfinite(found["regret"]))


# gap(500), gap(1000), time-averaged gap, regret(500), regret(1000), each with its standard error
REFERENCE_A = {
    "rand": ([76.20, 153.39, 76.46, 124.12, 248.57], [0.88, 1.21, 0.67, 0.27, 0.37]),
    "rand_rout": ([76.08, 154.66, 76.71, 124.11, 249.79], [0.86, 1.24, 0.68, 0.29, 0.41]),
    "q_ucb": ([76.33, 153.92, 76.57, 124.43, 249.08], [0.85, 1.23, 0.68, 0.26, 0.36]),
    "q_ths": ([76.28, 153.41, 76.55, 124.60, 249.32], [0.87, 1.25, 0.69, 0.29, 0.38]),
    "cqb_eps": ([3.06, 1.01, 3.24, 35.30, 48.77], [0.32, 0.14, 0.19, 0.49, 0.75]),
    "acqb": ([3.55, 0.98, 3.39, 35.51, 48.99], [0.36, 0.16, 0.21, 0.54, 0.76]),
    "acqb scheduling=fifo": ([4.57, 1.27, 4.30, 38.50, 52.21], [0.40, 0.21, 0.24, 0.61, 0.82]),
    "acqb scheduling=round_robin": ([3.90, 1.08, 3.65, 36.32, 49.49], [0.34, 0.16, 0.20, 0.56, 0.77]),
    "acqb scheduling=random": ([4.54, 1.34, 4.14, 36.43, 49.63], [0.44, 0.25, 0.27, 0.56, 0.74]),
    "acqb exploration=fifo": ([3.71, 0.88, 3.56, 36.25, 49.75], [0.33, 0.14, 0.20, 0.49, 0.67]),
    "acqb exploration=lifo": ([3.97, 1.09, 3.79, 37.69, 52.64], [0.36, 0.17, 0.22, 0.53, 0.78]),
    "acqb exploration=round_robin": ([3.82, 1.00, 3.66, 37.76, 51.95], [0.34, 0.15, 0.19, 0.53, 0.74]),
    "acqb exploration=random": ([3.91, 1.11, 3.77, 37.02, 51.69], [0.36, 0.18, 0.21, 0.51, 0.74]),
    "cqb_eps pure_rounds=128": ([6.66, 1.21, 7.38, 48.36, 61.26], [0.50, 0.22, 0.31, 0.38, 0.65]),
}
REFERENCE_B = {
    "rand": ([8.91, 15.41, 9.35, 57.63, 117.16], [0.87, 1.30, 0.63, 0.34, 0.45]),
    "rand_rout": ([9.33, 14.90, 9.47, 58.02, 117.02], [0.88, 1.23, 0.58, 0.33, 0.43]),
    "cqb_eps": ([0.13, 0.10, 0.33, 11.26, 14.83], [0.04, 0.04, 0.02, 0.26, 0.33]),
    "acqb": ([0.10, 0.07, 0.31, 11.33, 14.91], [0.05, 0.03, 0.02, 0.20, 0.25]),
    "acqb scheduling=fifo": ([0.11, 0.15, 0.40, 11.83, 15.45], [0.08, 0.07, 0.04, 0.27, 0.31]),
    "acqb scheduling=round_robin": ([0.18, 0.14, 0.34, 11.57, 15.11], [0.05, 0.05, 0.02, 0.23, 0.25]),
    "acqb exploration=lifo": ([0.19, 0.08, 0.34, 12.42, 16.33], [0.06, 0.04, 0.03, 0.28, 0.33]),
    "acqb exploration=random": ([0.14, 0.06, 0.33, 12.13, 16.05], [0.05, 0.05, 0.03, 0.25, 0.30]),
    "cqb_eps pure_rounds=128": ([0.16, 0.07, 0.72, 18.68, 21.97], [0.06, 0.06, 0.06, 0.23, 0.28]),
}


def named_policy(text):
    name, *options = text.split()
    pairs = (option.split("=") for option in options)
    return getattr(queueing, name)(**{key: int(value) if value.isdigit() else value for key, value in pairs})


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name"), [*(("A", n) for n in REFERENCE_A), *(("B", n) for n in REFERENCE_B)])
def test_reference_numbers_are_met_within_three_joint_standard_errors(shared, file, name):
    instance = jc.load_instance(shared / "instances" / f"queueing_{file}.npz")
    count = 300 if file == "A" else 100
    metrics = block(instance, named_policy(name), num_steps=1000, num_seeds=count, seed=7, steps=[500, 1000], slots=512)
    gap, regret = metrics["queue_gap"][0], metrics["regret"][0]
    ours = np.stack([gap[:, 0], gap[:, 1], metrics["queue_gap_sum"][0][:, 1] / 1000, regret[:, 0], regret[:, 1]])
    mean, error = (REFERENCE_A if file == "A" else REFERENCE_B)[name]
    joint = np.hypot(ours.std(1, ddof=1) / np.sqrt(count), error)
    assert np.all(np.abs(ours.mean(1) - mean) < 3 * joint), (ours.mean(1), mean, joint)


def test_float64_runs_give_float64_states():
    with float64_mode():
        log = record(queueing.synthetic(2, 2, 0.5, 0.0), queueing.acqb(), 40)
    assert log["theta"].dtype == log["metrics"]["regret"].dtype == np.float64


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_made_ahead_keep_up_with_large_factors(size):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(40, 50)), rng.random((40, 3)), rng.random((40, 3))
    instance = queueing.from_table(*table, arrival_rate=0.9, assortment_size=size)
    policy = queueing.acqb(estimator="one_pass")
    at_30 = jc.simulate(instance, policy, key=jax.random.key(1), num_steps=30, num_seeds=2).state
    at_33 = jc.simulate(instance, policy, key=jax.random.key(1), num_steps=33, num_seeds=2).state
    assert int(at_30.offers.sum()) > 30
    for beliefs in (at_30, at_33):
        assert beliefs.ahead.step.shape[:3] == (2, 3, 50)
        np.testing.assert_allclose(beliefs.factor @ beliefs.ahead.normal, beliefs.ahead.step, atol=1e-4)
        assert 0.9 < float(jnp.std(beliefs.ahead.normal)) < 1.1
    assert not jnp.any(at_30.ahead.normal == at_33.ahead.normal)
