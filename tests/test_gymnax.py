"""The environments in gymnax's interface, against the real gymnax, and a learner that trains on one."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import interop
from jaxcascade.simulate import seed_keys
from tests.conftest import quick_jit

gymnax = pytest.importorskip("gymnax")
wrappers = pytest.importorskip("gymnax.wrappers")

EXPERIMENT = Path(__file__).resolve().parents[1] / "experiments" / "gymnax_dqn.py"
STEPS, EPISODES = 12, 3
DEFERRAL = jc.deferral.make_instance([0.2, 0.5, 0.9], [0.1, 0.3, 0.3, 0.3], service_rate=0.5, queue_capacity=3)
CASCADE = jc.cascade.discrete([[0.2, 0.9], [0.1, 0.6], [0.5, 0.5]], [0.1, 0.05, 0.02], context=[[0.3, -1.0]])
QUEUEING = jc.queueing.synthetic(num_llms=3, dim=2, assortment_size=2)
CASES = {
    "deferral": (DEFERRAL, interop.deferral_interface(), 2, (5,)),
    "cascade, indices": (CASCADE, interop.cascade_interface(), 3, (2,)),
    "cascade, subsets": (CASCADE, interop.cascade_interface("subset"), 7, (2,)),
    "queueing": (QUEUEING, interop.queueing_interface(), 3, (5,)),
    "queueing, three queries": (QUEUEING, interop.queueing_interface(window=3), 9, (13,)),
}


def rollouts(environment, key, choose, steps, params=None):
    """Observations, rewards, truncations and metrics of ``EPISODES`` episodes, leaves ``[EPISODES, steps, ...]``."""
    params = environment.default_params if params is None else params

    def one(key):
        def body(carry, key):
            observation, state = carry
            action = choose(key, observation)
            observation, state, reward, terminated, truncated, info = environment.step(key, state, action, params)
            seen = (info["final_observation"], action, reward, terminated, truncated, info["metrics"])
            return (observation, state), seen

        return jax.lax.scan(body, environment.reset(key, params), jax.random.split(key, steps))[1]

    return jax.vmap(one)(key)


def environment_keys(seed=3):
    return seed_keys(jax.random.key(seed), jnp.arange(EPISODES))[0]


@pytest.mark.parametrize("name", CASES)
def test_random_actions_play_whole_episodes_under_vmap(name):
    instance, interface, num_actions, shape = CASES[name]
    environment = interop.to_gymnax(instance, STEPS, interface=interface)
    params = environment.default_params
    assert isinstance(environment, gymnax.environments.environment.Environment)
    assert isinstance(params, gymnax.EnvParams) and params.max_steps_in_episode == STEPS
    actions, observations = environment.action_space(params), environment.observation_space(params)
    assert environment.num_actions == num_actions and observations.shape == shape
    logged = wrappers.LogWrapper(environment)

    @quick_jit
    def play(keys):
        return rollouts(logged, keys, lambda key, seen: actions.sample(key), 2 * STEPS + 3, params)

    seen, action, reward, terminated, truncated, metrics = play(jax.random.split(jax.random.key(0), EPISODES))
    assert seen.shape == (EPISODES, 2 * STEPS + 3, *shape) and jnp.all(observations.contains(seen))
    assert jnp.all(actions.contains(action))
    assert jnp.all(jnp.isfinite(reward)) and jnp.std(reward) > 0 and not jnp.any(terminated)
    np.testing.assert_array_equal(np.flatnonzero(truncated[0]) + 1, [STEPS, 2 * STEPS])
    assert set(metrics) == set(dict(environment.environment.metrics))


def test_an_episode_is_a_seed_of_the_runner():
    """On the key of a seed's environment, the same decisions pay the same."""
    environment = interop.to_gymnax(DEFERRAL, STEPS)
    keys = environment_keys()
    play = quick_jit(lambda keys: rollouts(environment, keys, lambda key, seen: jnp.int32(1), STEPS))
    *_, reward, _, _, metrics = play(keys)
    runs = jc.simulate(
        DEFERRAL, jc.deferral.defer_all(), key=jax.random.key(3), num_steps=STEPS, num_seeds=EPISODES, record=STEPS
    )
    np.testing.assert_allclose(np.cumsum(reward, axis=1), -runs.metrics["cost"], rtol=1e-5, atol=1e-6)
    for name in ("arrivals", "deferrals", "labels", "regret"):
        found = np.cumsum(metrics[name], axis=1)
        np.testing.assert_allclose(found, runs.metrics[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_optimal_subset_and_index_of_a_cascade():
    """Indices above and below everything open all boxes or one; a subset opens what its bits say."""
    keys = environment_keys()
    by_subset = interop.to_gymnax(CASCADE, STEPS, interface=interop.cascade_interface("subset"))
    for number in (0, 4, 6):  # boxes 1; 1 and 3; all
        play = quick_jit(lambda keys, n=number: rollouts(by_subset, keys, lambda key, seen: jnp.int32(n), STEPS))
        metrics = play(keys)[-1]
        opened = [float(metrics[f"opened_{a}"].mean()) for a in (1, 2, 3)]
        assert opened == [float((number + 1) >> a & 1) for a in range(3)]
        np.testing.assert_allclose(metrics["utility"], play(keys)[2])
    by_index = interop.to_gymnax(CASCADE, STEPS)
    indices = jnp.array([-1.0, 0.0, 1.0])
    metrics = quick_jit(lambda keys: rollouts(by_index, keys, lambda key, seen: indices, STEPS))(keys)[-1]
    # The third box, always worth .5, comes first, and nothing after it has an index above that.
    assert float(metrics["opened"].mean()) == 1 and float(metrics["opened_3"].mean()) == 1


def test_agents_that_act_differently_meet_the_same_queries():
    environment = interop.to_gymnax(QUEUEING, STEPS)
    play = quick_jit(lambda keys, action: rollouts(environment, keys, lambda key, seen: action, STEPS))
    first, second = (play(environment_keys(), jnp.int32(action)) for action in (0, 2))
    np.testing.assert_array_equal(first[-1]["arrivals"], second[-1]["arrivals"])
    assert np.any(first[-1]["offers_1"] != second[-1]["offers_1"])
    # What is left after the round: what was there and what came, less what left.
    np.testing.assert_array_equal(-first[2], first[-1]["waiting"])


def test_an_outgrown_buffer_cuts_the_episode_off():
    world = jc.queueing.environment(QUEUEING, 40, slots=2)
    interface = interop.queueing_interface(window=2)
    environment = interop.to_gymnax(QUEUEING, 40, interface=interface, environment=world)
    # The second oldest query is there for one round only, when two wait.
    play = quick_jit(lambda keys: rollouts(environment, keys, lambda key, seen: jnp.int32(3), 40))
    _, _, reward, _, truncated, metrics = play(environment_keys())
    assert np.all(truncated.sum(axis=1) >= 2) and jnp.all(jnp.isfinite(reward))
    np.testing.assert_array_equal(np.isnan(metrics["queue_length"]), truncated)


def test_params_of_other_instances_go_through_vmap():
    environment = interop.to_gymnax(DEFERRAL, STEPS)
    dear = jc.deferral.make_instance(
        [0.2, 0.5, 0.9], [0.1, 0.3, 0.3, 0.3], cost_expert=0.6, service_rate=0.5, queue_capacity=3
    )
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), environment.default_params, environment.params_of(dear))

    def play(params):
        return rollouts(environment, environment_keys(), lambda key, seen: jnp.int32(1), STEPS, params)

    reward, metrics = (quick_jit(jax.vmap(play))(both)[i] for i in (2, -1))
    extra = (0.6 - 0.25) * metrics["deferrals"][0]
    np.testing.assert_allclose(reward[0] - reward[1], extra, atol=1e-6)


def test_another_reward_is_a_function_of_the_metrics():
    interface = interop.deferral_interface()._replace(reward=lambda metrics: -metrics["regret"])
    environment = interop.to_gymnax(DEFERRAL, STEPS, interface=interface)
    play = quick_jit(lambda keys: rollouts(environment, keys, lambda key, seen: jnp.int32(0), STEPS))
    _, _, reward, _, _, metrics = play(environment_keys())
    np.testing.assert_allclose(reward, -metrics["regret"], rtol=1e-6)


def test_a_trained_network_beats_accepting_everything():
    spec = importlib.util.spec_from_file_location("gymnax_dqn", EXPERIMENT)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    found, rewards = experiment.study(updates=1500, num_steps=300, num_seeds=50)
    gap = found.paired("dqn", "accept-all", "cost")
    standard_error = gap.sd[-1] / np.sqrt(gap.n)
    assert gap.mean[-1] + 10 * standard_error < 0
    # Most of what there is to gain, and not more: the oracle is optimal.
    best = found.paired("oracle", "accept-all", "cost")
    assert gap.mean[-1] < 0.8 * best.mean[-1]
    over = found.paired("dqn", "oracle", "cost")
    assert over.mean[-1] > -4 * over.sd[-1] / np.sqrt(over.n)
    assert rewards[-100:].mean() > rewards[:100].mean()


def test_without_gymnax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.delitem(sys.modules, "jaxcascade.interop.gymnax_environment", raising=False)
    for name in [name for name in sys.modules if name.startswith("gymnax.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'jaxcascade\[gymnax\]'"):
        interop.to_gymnax(DEFERRAL, STEPS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interop.cascade_interface("boxes"), "actions: expected one of index, subset, got 'boxes'"),
        (lambda: interop.queueing_interface(0), "window: expected a whole number >= 1, got 0"),
        (
            lambda: interop.queueing_interface(2000).action_space(QUEUEING),
            "actions: expected at most 4096 queries times assortments, got 6000",
        ),
        (lambda: interop.to_gymnax(object(), STEPS), "instance: expected one of"),
    ],
)
def test_impossible_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
