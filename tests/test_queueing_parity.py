"""The queueing system against its loop-based NumPy reference, round by round on the same noise."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcascade import queueing
from jaxcascade.core import hide, with_float_type
from jaxcascade.kernels import FREE
from jaxcascade.kernels.beta_draw import BETA_TRIES, beta_draw
from jaxcascade.queueing.acqb import num_samples
from jaxcascade.queueing.choices import draw
from jaxcascade.simulate import seed_keys
from tests.conftest import float64_mode, quick_jit
from tests.reference import queueing_numpy as reference

RULES = ("fifo", "lifo", "round_robin", "random")
CASES = [
    *(("acqb", {"scheduling": rule}) for rule in RULES),
    *(("acqb", {"exploration": rule, "estimator": "one_pass"}) for rule in RULES),
    ("acqb", {}),
    ("acqb", {"estimator": "one_pass", "scale": 0.4, "exploration_rate": 0.5, "regularisation": 2.0}),
    ("acqb", {"index": "ucb"}),
    ("cqb_eps", {}),
    ("cqb_eps", {"pure_rounds": 40, "estimator": "one_pass"}),
    ("q_ucb", {}),
    ("q_ths", {}),
    ("rand", {}),
    ("rand_rout", {}),
    ("optimal", {}),
]


def record(instance, policy, num_steps, seed=0, slots=64):
    """Everything that happened to one seed, stacked over rounds, with the noise and the policy's draws."""
    environment = queueing.environment(instance, num_steps, slots=slots)
    instance = with_float_type(instance)
    view = hide(instance, policy.hidden)
    size = instance.assortment_size
    normals = (num_samples(size), instance.num_llms, instance.dim)

    def run(params, key):
        model = environment.setup(instance, num_steps)
        policy_model = policy.setup(params, view, num_steps)
        environment_key, policy_key = (keys[0] for keys in seed_keys(key, jnp.arange(1)))

        def one_round(carry, t):
            state, memory = carry
            before = memory
            noise = environment.noise(jax.random.fold_in(environment_key, t), model)
            seen = environment.observe(model, state, noise, t)
            key = jax.random.fold_in(policy_key, t)
            drawn = key if policy.draw is None else policy.draw(policy_model, key)
            action, memory = policy.act(policy_model, memory, drawn, t, seen)
            state, feedback, metrics = environment.step(model, state, action, noise, t)
            memory = policy.update(policy_model, memory, t, seen, action, feedback)
            draws = draw(key, instance.num_llms, math.prod(normals) if hasattr(before, "factor") else 0)
            draws = draws._replace(normal=draws.normal.reshape(-1, *normals[1:]))
            # The block that held this round's context, before the next one replaces it.
            context = state.block.context[(t - 1) % state.block.context.shape[0]]
            log = {
                "arrives": noise.arrives,
                "uniform": noise.uniform,
                "context": context,
                "draws": draws._replace(key=jax.random.key_data(key))._asdict(),
                "query": jnp.zeros((), jnp.int32) if action.query is None else action.query,
                "servers": feedback.servers,
                "feedback": feedback._asdict(),
                "metrics": metrics,
                "factor": getattr(before, "factor", jnp.zeros(())),
                "theta": getattr(memory, "theta", jnp.zeros(())),
                "true_theta": state.theta,
                "key": key,
            }
            return (state, memory), log

        start = (environment.init(model), policy.init(policy_model))
        return lax.scan(one_round, start, jnp.arange(1, num_steps + 1, dtype=jnp.int32))[1]

    arguments = (with_float_type(policy.params), jax.random.key(seed))
    log = quick_jit(run)(*arguments)
    keys = log.pop("key")
    return jax.device_get(log) | {"key": keys}


def reference_run(instance, name, log, **options):
    """The reference on the noise, draws and square roots of a recorded run."""

    def beta(t, first, second):
        # As q_ths draws them: the reference checks the rule, the kernel's law is tested apart.
        key = jax.random.fold_in(log["key"][t - 1], 1)
        shape = (BETA_TRIES, 2, len(first))
        normal, uniform = jax.random.normal(key, shape), jax.random.uniform(jax.random.fold_in(key, 1), shape)
        return np.asarray(beta_draw(jnp.asarray(first, float), jnp.asarray(second, float), normal, uniform))

    theta = log["true_theta"][-1] if instance.per_seed else np.asarray(instance.theta)
    arrays = {"theta": theta, "assortment_size": instance.assortment_size}
    noise = {name: log[name] for name in ("context", "arrives", "uniform")}
    draws = log["draws"] | {"beta": beta}
    return reference.simulate(arrays, name, noise, draws, factors=lambda t: log["factor"][t - 1], **options)


def agree(log, run, size, tolerance=1e-9):
    served = run["served"] == 1
    metrics = log["metrics"]
    np.testing.assert_array_equal(metrics["queue_length"], run["length"])
    np.testing.assert_array_equal(metrics["queue_gap"], run["length"] - run["oracle_length"])
    np.testing.assert_array_equal(metrics["waiting"], run["waiting"])
    np.testing.assert_array_equal(metrics["services"], run["served"])
    np.testing.assert_array_equal(log["servers"][served], run["assortment"][served])
    np.testing.assert_array_equal(metrics["departures"], run["departed"])
    np.testing.assert_array_equal(metrics["retrials"], run["retrial"])
    np.testing.assert_array_equal(metrics["departed_retrials"], run["departed_retrials"])
    np.testing.assert_array_equal(metrics["sojourn"], run["sojourn"])
    np.testing.assert_allclose(metrics["regret"], run["regret"], atol=tolerance)
    short = np.nan_to_num(run["sojourn_p95"]) <= 32
    np.testing.assert_array_equal(metrics["sojourn_p95"][short], run["sojourn_p95"][short])
    ratio = metrics["sojourn_p95"][~short] / run["sojourn_p95"][~short]
    assert np.all((ratio >= 1) & (ratio < 1.1))
    offers = [metrics[f"offers_{j + 1}"].sum() for j in range(len(run["offers"]))]
    np.testing.assert_array_equal(offers, run["offers"])


@pytest.mark.parametrize(("size", "case"), list(itertools.product((1, 2), range(len(CASES)))))
def test_every_policy_agrees_with_the_reference_round_by_round(size, case):
    name, options = CASES[case]
    if name in reference.ARM_POLICIES and size > 1:
        pytest.skip("for K = 1 only")
    with float64_mode():
        instance = queueing.synthetic(4, 3, 0.6, 0.02, size, per_seed=bool(case % 2), seed=3)
        log = record(instance, getattr(queueing, name)(**options), 100, seed=5)
        run = reference_run(instance, name, log, **options)
        agree(log, run, size)
        if name != "optimal":
            served = run["served"] == 1
            np.testing.assert_array_equal(log["query"][served], run["query"][served])
        if name in reference.CONTEXT_POLICIES:
            np.testing.assert_allclose(log["theta"], run["theta"], atol=1e-8)


def test_a_long_run_of_arms_that_stops_exploring_agrees_with_the_reference():
    with float64_mode():
        instance = queueing.synthetic(2, 3, 0.4, 0.02, 1, per_seed=False, seed=1)
        for name in reference.ARM_POLICIES:
            log = record(instance, getattr(queueing, name)(), 700, seed=2, slots=512)
            run = reference_run(instance, name, log)
            assert np.mean(log["draws"]["explore"] < 6 * np.log(np.arange(1, 701)) ** 2 / np.arange(1, 701)) < 0.95
            agree(log, run, 1)


def test_shapes_at_the_edge_agree_with_the_reference():
    with float64_mode():
        for number, dim, size, rate in ((1, 1, 1, 0.3), (3, 2, 3, 0.4), (2, 1, 2, 1.0), (3, 4, 2, 0.0)):
            instance = queueing.synthetic(number, dim, rate, -rate, size, per_seed=True)
            for name, options in (("acqb", {}), ("acqb", {"estimator": "one_pass"}), ("rand", {}), ("optimal", {})):
                log = record(instance, getattr(queueing, name)(**options), 70, seed=9, slots=128)
                agree(log, reference_run(instance, name, log, **options), size)
                assert log["metrics"]["arrivals"].sum() == {0.0: 0, 1.0: 70}.get(rate, log["arrives"].sum())


def test_the_observed_newcomer_is_the_query_of_the_last_round():
    with float64_mode():
        instance = queueing.synthetic(3, 2, 0.5, 0.0, 1, per_seed=False)
        log = record(instance, queueing.acqb(exploration_rate=1e9, estimator="one_pass"), 100)
        explored = log["arrives"][:-1] & (log["metrics"]["services"][1:] == 1)
        np.testing.assert_array_equal(log["query"][1:][explored], np.arange(1, 100)[explored])
        assert FREE not in log["query"][1:][explored]


@pytest.mark.parametrize("size", [1, 2])
def test_the_shared_form_on_kronecker_features_learns_what_the_disjoint_one_does(size):
    with float64_mode():
        instance = queueing.synthetic(3, 2, 0.6, 0.0, size, per_seed=False, seed=1)
        for estimator in ("mle", "one_pass"):
            # Without width the two choose alike, so that they see the same history.
            options = {"estimator": estimator, "index": "ucb", "scale": 0.0}
            runs = [record(instance, queueing.acqb(parameters=p, **options), 50) for p in ("shared", "disjoint")]
            np.testing.assert_array_equal(runs[0]["query"], runs[1]["query"])
            np.testing.assert_allclose(runs[0]["theta"].reshape(50, 3, 2), runs[1]["theta"], atol=1e-9)


def test_the_shared_form_learns_a_shared_parameter():
    with float64_mode():
        rng = np.random.default_rng(0)
        features, theta = rng.uniform(-1, 1, (4, 3, 5)), np.array([0.9, -0.7, 0.8])
        instance = queueing.shared(features, theta, 0.5, 0.0)
        np.testing.assert_allclose(instance.theta, np.einsum("nDd,D->nd", features, theta))
        for index in ("thompson", "ucb"):
            log = record(instance, queueing.acqb(parameters="shared", index=index, estimator="one_pass"), 400)
            assert np.max(np.abs(log["theta"][-1] - theta)) < 0.5
