"""``jaxcascade.testing``: every policy and environment of the package keeps to the contract, broken ones do not."""

import dataclasses
import re
import textwrap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.cascade.instance import HIDDEN as CASCADE_HIDDEN
from jaxcascade.queueing.instance import HIDDEN as QUEUEING_HIDDEN
from jaxcascade.simulate import prepare
from jaxcascade.testing import check_environment, check_policy

INSTANCES = {
    "deferral": jc.deferral.make_instance(
        [0.3, 0.55], [0.2, 0.45, 0.35], service=[0.4, 0.6], cost_expert=0.23, cost_holding=0.01, queue_capacity=2
    ),
    "cascade": jc.cascade.discrete([[0.2, 0.9], [0.1, 0.6]], [0.1, 0.05], context=[[0.3]]),
    "queueing": jc.queueing.synthetic(num_llms=3, dim=2),
}
# What each system's papers tell no learner, and who is told all the same.
SECRET = {"deferral": ("accuracy",), "cascade": CASCADE_HIDDEN, "queueing": QUEUEING_HIDDEN}
TOLD = {"oracle", "optimal", "cheapest", "best_single"}
UNDEFINED = {"deferral": ("threshold_mean",), "cascade": (), "queueing": ("sojourn_p95",)}
CALIBRATED = {"dow", "static_plugin", "online_plugin", "lin_ucb", "frugal_gpt"}


def make_policy(system, name):
    factory = jc.get_system(system).policies[name]
    if name == "router":  # trained on as many LLMs and dimensions as the instance has
        embeddings, scores, costs = np.split(np.random.default_rng(0).random((40, 8)), [2, 5], axis=1)
        return jc.queueing.routed(jc.queueing.train_router("knn", embeddings, scores, costs))
    if name == "acqb_cl":
        embeddings, scores, costs = np.split(np.random.default_rng(0).random((40, 8)), [2, 5], axis=1)
        head = jc.queueing.train_projection(embeddings, scores, costs, epochs=2)
        return jc.queueing.projected(jc.queueing.acqb(estimator="one_pass"), head)
    return factory(calibration=2) if name in CALIBRATED else factory()


POLICIES = [(system, name) for system in INSTANCES for name in jc.get_system(system).policies]


@pytest.mark.parametrize(("system", "name"), POLICIES, ids=[".".join(pair) for pair in POLICIES])
def test_every_policy_keeps_to_the_contract(system, name):
    secret = () if name in TOLD else SECRET[system]
    check_policy(make_policy(system, name), INSTANCES[system], secret=secret, undefined=UNDEFINED[system])


def exogenous(system):
    """What no policy may influence, beside the noise."""
    return {
        "deferral": lambda state, observation, metrics: (observation.level, metrics["arrivals"]),
        "cascade": lambda state, observation, metrics: observation.context,
        "queueing": lambda state, observation, metrics: (state.block, state.theta, state.oracle, metrics["arrivals"]),
    }[system]


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("deferral", ("accept_all", "defer_all")),
        ("cascade", ("open_all", "random_box")),
        ("queueing", ("rand", "optimal")),
    ],
)
def test_every_environment_keeps_to_the_contract(system, names):
    instance = INSTANCES[system]
    policies = [make_policy(system, name) for name in names]
    options = {"exogenous": exogenous(system), "undefined": UNDEFINED[system]}
    check_environment(prepare(instance, 32), instance, policies, **options)


# ----------------------------------------------------------------------------------------------------------
# A world that costs nothing to compile, and ways to break it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arms:
    mean: jax.Array
    label: jax.Array


class Played(NamedTuple):
    count: jax.Array
    reward: jax.Array


ARMS = Arms(jnp.array([0.3, 0.7]), jnp.array([0, 1]))
STEPS = 12


def bandit_step(model, state, action, noise, t):
    reward = (noise < model[0].mean)[action].astype(float)
    metrics = {"regret": jnp.max(model[0].mean) - model[0].mean[action], "pulls": state}
    return state + 1, reward, metrics


BANDIT = jc.Environment(
    setup=lambda arms, horizon: (arms, horizon),
    noise=lambda key, model: jax.random.uniform(key, model[0].mean.shape),
    init=lambda model: jnp.int32(0),
    observe=lambda model, state, noise, t: (),
    step=bandit_step,
    metrics=(("regret", "sum"), ("pulls", "now")),
)


def leader_act(view, state, key, t, observation):
    return jnp.argmax((state.reward + 1) / (state.count + 2)), state


def leader_update(view, state, t, observation, action, feedback):
    return Played(state.count.at[action].add(1), state.reward.at[action].add(feedback))


LEADER = jc.Policy(
    setup=lambda params, view, horizon: view,
    init=lambda view: Played(jnp.zeros_like(view.label), jnp.zeros(view.label.shape)),
    act=leader_act,
    update=leader_update,
    hidden=("mean",),
)


def always(arm):
    return LEADER._replace(act=lambda view, state, key, t, observation: (jnp.int32(arm), state))


def check_leader(policy, **options):
    check_policy(policy, ARMS, environment=BANDIT, num_steps=STEPS, **options)


def check_bandit(environment, **options):
    check_environment(environment, ARMS, [always(0), always(1)], num_steps=STEPS, **options)


def test_the_unbroken_ones_pass():
    check_leader(LEADER, secret=("mean",))
    check_bandit(BANDIT, exogenous=lambda state, observation, metrics: metrics["pulls"])


def peeking_setup(params, view, horizon):
    return view, jnp.argmax(view.mean)


def cautious_setup(params, view, horizon):
    return view, jnp.zeros((), int) if view.mean is None else jnp.argmax(view.mean)


def told(setup, **changes):
    """A policy that plays the arm that its set-up chose."""
    return LEADER._replace(
        setup=setup,
        init=lambda model: LEADER.init(model[0]),
        act=lambda model, state, key, t, observation: (model[1], state),
        **changes,
    )


def growing_init(view):
    return LEADER.init(view)._replace(count=jnp.zeros((1,), int))


def side_effect_act():
    calls = iter(range(10**6))
    return lambda view, state, key, t, observation: (jnp.int32(next(calls) % 2), state)


def wrong_batch_act(view, state, key, t, observation):
    @jax.custom_batching.custom_vmap
    def identity(x):
        return x

    @identity.def_vmap
    def batched(size, batched, x):
        return 1 - x, batched[0]

    return identity(jnp.argmax(state.reward)), state


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("kl_pbd", {}, r"policy: expected a jaxcascade.Policy, got str"),
        (LEADER._replace(act=None), {}, r"policy.act: expected a function, got NoneType"),
        (LEADER._replace(draw=3), {}, r"policy.draw: expected a function, got int"),
        (
            LEADER._replace(hidden=["mean"]),
            {},
            r"policy: expected fields that can be hashed, got unhashable type: 'list'",
        ),
        (
            LEADER._replace(hidden=("means",)),
            {},
            r"policy.hidden: expected fields .* 'means' \(did you mean 'mean'\?\)",
        ),
        (LEADER, {"secret": ("law",)}, r"secret: expected fields of the instance, got 'law'"),
        (LEADER._replace(calibration=-1), {}, r"policy.calibration: expected a whole number >= 0, got -1"),
        (LEADER._replace(params={"kind": "kl"}), {}, r"policy.params: expected numbers or arrays, got str 'kl'"),
        (
            LEADER._replace(setup=lambda params, view, horizon: jnp.zeros((horizon,))),
            {},
            r"policy.setup: expected it to take what the contract gives it, got TypeError: Shapes must be",
        ),
        (LEADER._replace(act=lambda *_: jnp.int32(0)), {}, r"policy.act: expected a tuple of 2, got "),
        (LEADER._replace(init=lambda view: ()), {}, r"policy.act: .* got AttributeError: 'tuple' object has no"),
        (told(peeking_setup), {}, r"policy.setup: .* got TypeError"),
        (
            told(peeking_setup, hidden=()),
            {"secret": ("mean",)},
            r"secret: expected a policy that does not read mean, got",
        ),
        (
            told(cautious_setup, hidden=()),
            {"secret": ("mean",)},
            r"policy.act: expected the same actions whatever the values of mean, got 1 and 0",
        ),
        (
            LEADER._replace(update=lambda view, state, *_: state._replace(count=state.count + 0.5)),
            {},
            r"policy: state.count: expected int32\[2\] after a round as before, got .*float32",
        ),
        (
            LEADER._replace(init=lambda view: Played(0, LEADER.init(view).reward), act=always(0).act),
            {},
            r"policy.update: .* got AttributeError",
        ),
        (
            always(0)._replace(
                init=lambda view: Played(0, 0.0), update=lambda view, state, *_: Played(jnp.int32(1), 0.0)
            ),
            {},
            r"policy: state.count: expected weak int32\[\] after a round as before, got int32\[\]",
        ),
        (
            always(0)._replace(init=growing_init, update=lambda view, s, *_: s._replace(count=jnp.append(s.count, 0))),
            {},
            r"policy: state.count: expected int32\[1\] after a round as before, got int32\[2\]",
        ),
        (
            always(0)._replace(update=lambda view, state, *_: tuple(state)),
            {},
            r"policy: state: expected PyTreeDef.*Played.* after a round as before, got PyTreeDef",
        ),
        (LEADER._replace(act=side_effect_act()), {}, r"policy: action: expected the same with and without jit, got"),
        (
            LEADER._replace(act=wrong_batch_act),
            {},
            r"policy: action: expected the same with and without vmap over seeds, got",
        ),
        (
            LEADER._replace(audit=lambda view, state: {"pulls": jc.Audit(jnp.sum(state.count), jnp.int32(3))}),
            {},
            r"audit 'pulls': expected at most 3, got 12",
        ),
    ],
)
def test_a_broken_policy_is_named(policy, options, message):
    with pytest.raises(AssertionError, match=message):
        check_leader(policy, **options)


def step_with(**changes):
    """The bandit with other metrics, as functions of the state after the round."""

    def step(model, state, action, noise, t):
        state, reward, metrics = bandit_step(model, state, action, noise, t)
        return state, reward, metrics | {name: value(state) for name, value in changes.items()}

    return BANDIT._replace(step=step)


def impure_noise():
    calls = iter(range(10**6))
    return lambda key, model: jax.random.uniform(key, (2,)) + next(calls)


def forgetful_step(model, state, action, noise, t):
    """Its arrivals come from a key in the state that only some actions use up."""
    key, arrived = state
    arrives = jax.random.bernoulli(key)
    key = jnp.where(action == 0, key, jax.random.fold_in(key, 1))
    return (key, arrived), arrives, {"regret": jnp.float32(0), "pulls": arrives.astype(int)}


def counting_step():
    calls = iter(range(10**6))

    def step(model, state, action, noise, t):
        state, reward, metrics = bandit_step(model, state, action, noise, t)
        return state, reward + next(calls), metrics

    return step


def shrinking(state):
    return state[:1]


BUFFERED = BANDIT._replace(
    init=lambda model: jnp.zeros((4,), int),
    step=lambda model, state, action, noise, t: (state, noise[action], {"regret": noise[0], "pulls": action}),
    overflowed=lambda state: state[0] > 0,
)


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ("deferral", {}, r"environment: expected a jaxcascade.Environment, got str"),
        (BANDIT._replace(noise=None), {}, r"environment.noise: expected a function, got NoneType"),
        (BANDIT._replace(metrics=(("regret", "total"),)), {}, r"metrics\['regret'\]: expected one of sum, now, mean"),
        (BANDIT._replace(metrics=("regret",)), {}, r"environment.metrics: expected a tuple of pairs"),
        (BANDIT._replace(metrics=(("pulls", "now"),) * 2), {}, r"environment.metrics: expected different names"),
        (
            BANDIT._replace(metrics=(*BANDIT.metrics, ("cost", "sum"))),
            {},
            r"metrics \['cost', .* got \['pulls', 'regret'\]",
        ),
        (
            step_with(pulls=lambda state: jnp.zeros(3)),
            {},
            r"metric 'pulls': expected a scalar number, got float32\[3\]",
        ),
        (
            step_with(regret=lambda state: jnp.where(state > 3, jnp.nan, 0.0)),
            {},
            r"metric 'regret': expected finite .* got nan in played round 4 of seed 0; pass undefined=\('regret',\)",
        ),
        (
            step_with(regret=lambda state: jnp.where(state > 3, jnp.inf, 0.0)),
            {"undefined": ("regret",)},
            r"metric 'regret': expected finite numbers, got inf in played round 4 of seed 0$",
        ),
        (
            BANDIT._replace(step=lambda model, state, *_: (state / 2, 0, {"regret": state, "pulls": state})),
            {},
            r"environment: state: expected int32\[\] after a round as before, got .*float32",
        ),
        (
            BANDIT._replace(init=lambda model: jnp.zeros(2, int), step=lambda *_: 3),
            {},
            r"environment.step: expected a tuple",
        ),
        (
            BANDIT._replace(noise=impure_noise()),
            {},
            r"environment.noise: expected the same draws whatever the policy does",
        ),
        (
            BANDIT._replace(noise=lambda key, model: jax.random.uniform(key, (2,)) * model[1]),
            {},
            r"environment.noise: expected the same draws however long the horizon is",
        ),
        (
            BANDIT._replace(init=lambda model: (jax.random.key(0), jnp.int32(0)), step=forgetful_step),
            {"exogenous": lambda state, observation, metrics: metrics["pulls"]},
            r"exogenous: expected the same values whatever the policy does",
        ),
        (BANDIT._replace(step=counting_step()), {}, r"environment: feedback: expected the same with and without jit"),
        (
            BANDIT._replace(audit=lambda model: {"gap": jc.Audit(model[1], jnp.int32(5))}),
            {},
            r"audit 'gap': expected at most 5",
        ),
        (BUFFERED, {}, r"environment.grow: expected grow and overflowed both or neither, got only one"),
        (
            BUFFERED._replace(grow=shrinking),
            {},
            r"environment.grow: expected no leaf smaller than before, got a smaller",
        ),
        (
            BUFFERED._replace(grow=lambda state: jnp.append(state, 1.0)),
            {},
            r"environment.grow: expected a state of the same dtypes and ranks",
        ),
        (
            BUFFERED._replace(grow=shrinking, overflowed=lambda state: state > 0),
            {},
            r"environment.overflowed: expected bool\[\], got bool\[4\]",
        ),
    ],
)
def test_a_broken_environment_is_named(environment, options, message):
    with pytest.raises(AssertionError, match=message):
        check_bandit(environment, **options)


def test_an_environment_is_checked_with_two_policies_that_differ():
    for policies, message in (([LEADER], "got 1"), ([always(0), always(0)], "got the same actions in every round")):
        with pytest.raises(ValueError, match=message):
            check_environment(BANDIT, ARMS, policies, num_steps=STEPS)


def test_the_examples_run():
    blocks = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", jc.testing.__doc__)
    assert len(blocks) == 2
    for block in blocks:
        exec(textwrap.dedent(block), {})
