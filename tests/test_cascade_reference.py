"""The cascade system against a slow NumPy reference and a recorded trace, fed the same periods step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcascade import cascade
from jaxcascade.cascade.environment import Model, Noise, State
from jaxcascade.cascade.instance import Sizes
from jaxcascade.core import hide
from tests.conftest import float64_mode
from tests.reference import cascade_numpy as reference

CONVERGED = cascade.Solver(index_steps=12, cg_steps=30, reward_steps=12, halvings=8)


def replay(policy, online, calibration, sizes):
    """Plays a policy on recorded periods ``(psi, features, costs, means, uniforms)``; returns actions and state."""
    periods = [np.concatenate(pair) for pair in zip(calibration, online, strict=True)]
    psi, features, costs, means, uniforms = (jnp.asarray(a) for a in periods)
    horizon, start = len(online[0]), len(calibration[0])
    instance = hide(cascade.synthetic(context_size=2, output_size=2, feature_size=2), policy.hidden)
    view = type(instance)(**{**vars(instance), "sizes": sizes})
    environment = cascade.environment(cascade.discrete([[0.5]] * sizes.boxes, [0.1] * sizes.boxes), 1)
    single = Model(None, None, None, jnp.zeros((sizes.boxes,), bool))
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), policy.params)

    def everything(params):
        model = policy.setup(params, view, horizon)

        def period(memory, row):
            t = row + 1 - start
            noise = Noise(psi[row, 1:], features[row], means[row], costs[row], jnp.zeros(sizes.boxes), uniforms[row])
            observation = environment.observe(single, State(), noise, t)
            action, memory = policy.act(model, memory, jax.random.key(0), t, observation)
            _, feedback, metrics = environment.step(single, State(), action, noise, t)
            memory = policy.update(model, memory, t, observation, action, feedback)
            first = jnp.argmax(action.order)
            return memory, (metrics["utility"], metrics["opened"], first, jnp.argmax(feedback.deployed))

        return lax.scan(period, policy.init(model), jnp.arange(start + horizon))

    memory, out = jax.jit(everything)(params)
    names = ("utility", "opened", "first", "deployed")
    return {name: np.asarray(a)[start:] for name, a in zip(names, out, strict=True)}, memory


# The plug-in versions are the same programs at widths of 0.
@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("PlugK", "PlugU")), "DOWK", "DOWU"]
)
def test_recorded_trace_is_replayed_decision_by_decision(name, shared):
    trace = np.load(shared / "instances" / "cascade_trace.npz")
    online, calibration = (
        tuple(trace[f"{part}_{key}"] for key in ("X", "PHI", "C", "MU", "U")) for part in ("on", "cal")
    )
    common = {"calibration": 30, "refit_until": 200, "refit_growth": 0.02, "solver": CONVERGED}
    known = name.endswith("K")
    make = cascade.dow if name.startswith("DOW") else cascade.online_plugin
    with float64_mode():
        out, memory = replay(make(known, **common), online, calibration, Sizes(3, 100, 10))
    np.testing.assert_array_equal(out["opened"], trace[f"{name}_opened"])
    np.testing.assert_array_equal(out["first"], trace[f"{name}_first"])
    np.testing.assert_allclose(out["utility"], trace[f"{name}_util"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(memory.estimates.rho[:, :101], trace[f"{name}_rho"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(memory.estimates.theta, trace[f"{name}_theta"], rtol=0, atol=1e-6)


def small_periods(rng, periods, boxes=3, dx=4, d=3):
    x = rng.uniform(-1, 1, (periods, dx))
    psi = np.concatenate([np.ones((periods, 1)), x], axis=1)
    features = rng.normal(size=(periods, boxes, d))
    means = reference.sigmoid(features @ np.linspace(1, -1, d) * 1.5)
    costs = rng.uniform(0.01, 0.12, (periods, boxes)) * np.linspace(0.5, 1.5, boxes)
    return psi, features, costs, means, rng.uniform(size=(periods, boxes))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("estimator", ["refit", "one_pass"])
@pytest.mark.parametrize("widths", [(0.6, 0.3), (0.0, 0.0)])
def test_learners_agree_with_the_reference_step_by_step(known, estimator, widths):
    rng = np.random.default_rng(5)
    calibration, online = small_periods(rng, 10), small_periods(rng, 150)
    due = {int(t) + 10 for t in reference.refit_rounds(150, 20, 0.1)}
    learner = reference.Weitzman(3, 5, 3, known, *widths, ridge=(2.0, 1.0), due=due, one_pass=estimator == "one_pass")
    wanted = reference.run(learner, online, calibration)
    with float64_mode():
        policy = cascade.dow(
            known, 10, *widths, estimator, index_ridge=2.0, refit_until=20, refit_growth=0.1, solver=CONVERGED
        )
        out, memory = replay(policy, online, calibration, Sizes(3, 4, 3))
    for name, values in wanted.items():
        np.testing.assert_allclose(out[name], values, rtol=0, atol=1e-10, err_msg=name)
    estimates = memory.estimates
    np.testing.assert_allclose(estimates.rho[:, :5], learner.rho, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(estimates.rho[:, 5:], 0)
    np.testing.assert_allclose(estimates.index_inverse[:, :5, :5], np.linalg.inv(learner.v), rtol=0, atol=1e-10)
    if not known:
        np.testing.assert_allclose(estimates.theta, learner.theta, rtol=0, atol=1e-8)
        np.testing.assert_allclose(estimates.value_inverse, np.linalg.inv(learner.phi), rtol=0, atol=1e-10)


def test_static_plugin_agrees_with_the_reference():
    rng = np.random.default_rng(6)
    calibration, online = small_periods(rng, 30), small_periods(rng, 60)
    learner = reference.Weitzman(3, 5, 3, False, 0, 0, due={30})
    wanted = reference.run(learner, online, calibration)
    with float64_mode():
        out, memory = replay(cascade.static_plugin(30, solver=CONVERGED), online, calibration, Sizes(3, 4, 3))
    for name, values in wanted.items():
        np.testing.assert_allclose(out[name], values, rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(memory.estimates.rho[:, :5], learner.rho, rtol=0, atol=1e-8)


def test_lin_ucb_agrees_with_the_reference():
    rng = np.random.default_rng(7)
    calibration, online = small_periods(rng, 6), small_periods(rng, 200)
    learner = reference.LinUCB(3, 5, 0.3)
    wanted = reference.run(learner, online, calibration)
    with float64_mode():
        out, memory = replay(cascade.lin_ucb(6), online, calibration, Sizes(3, 4, 3))
    for name, values in wanted.items():
        np.testing.assert_allclose(out[name], values, rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose(memory.coefficients[:, :5], learner.coefficients(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("deploy", ["stopped", "best"])
def test_frugal_gpt_agrees_with_the_reference(deploy):
    rng = np.random.default_rng(8)
    calibration, online = small_periods(rng, 40), small_periods(rng, 80)
    scorer, order, threshold, _ = reference.tune_frugal(calibration, 1.0, deploy == "stopped")
    with float64_mode():
        out, memory = replay(cascade.frugal_gpt(40, deploy), online, calibration, Sizes(3, 4, 3))
    np.testing.assert_allclose(memory.scorer, scorer, rtol=0, atol=1e-8)
    utility = []
    for _, features, costs, means, _ in zip(*online, strict=True):
        score = reference.sigmoid(features @ scorer)
        opened, deployed = reference.play(order, threshold, score, True, deploy == "stopped")
        utility.append(means[deployed] - sum(costs[a] for a in opened))
    np.testing.assert_allclose(out["utility"], utility, rtol=0, atol=1e-10)
