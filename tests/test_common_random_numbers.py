"""All policies of a study meet the same world; what is added to a study leaves the rest as it was; nothing leaks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import deferral
from jaxcascade.core import SUM, hide
from jaxcascade.simulate import run_block, seed_keys
from tests.conftest import quick_jit
from tests.deferral_runs import bare

ROUNDS, SEEDS, STEPS = 160, 3, (50, 100, 160)
KEY = 5
POLICIES = {name: make() for name, make in deferral.SYSTEM.policies.items()} | {
    "kl_pbd, both": deferral.kl_pbd(estimate_arrival=True, estimate_service=True)
}


def small_instance():
    return deferral.make_instance(
        [0.3, 0.55], [0.2, 0.45, 0.35], service=[0.4, 0.6], cost_expert=0.23, cost_holding=0.01, queue_capacity=1
    )


def fingerprinting(environment):
    """The environment with one more metric: a checksum, modulo 2^32, of all its draws and when they came."""

    def step(model, state, action, noise, t):
        state, feedback, metrics = environment.step(model, state, action, noise, t)
        mix = jnp.uint32(0)
        for part in noise:
            mix = (mix ^ part.astype(jnp.uint32)) * jnp.uint32(0x9E3779B1) + jnp.uint32(0x7F4A7C15)
        mix = (mix ^ t.astype(jnp.uint32)) * jnp.uint32(0x85EBCA6B)
        mix = (mix ^ (mix >> 15)) * jnp.uint32(0xC2B2AE35)
        return state, feedback, {**metrics, "fingerprint": jax.lax.bitcast_convert_type(mix ^ (mix >> 13), jnp.int32)}

    return environment._replace(step=step, metrics=(*environment.metrics, ("fingerprint", SUM)))


WORLD = fingerprinting(bare(deferral.environment(small_instance(), ROUNDS)))


def run_policy(name):
    """Metrics ``[SEEDS, 3]`` of one policy by the runner, in the fingerprinting world."""

    def program(instance, key):
        options = {"num_steps": ROUNDS, "num_seeds": SEEDS, "record": STEPS, "environment": WORLD}
        return jc.simulate(instance, POLICIES[name], key=key, **options).metrics

    return jax.device_get(quick_jit(program)(small_instance(), jax.random.key(KEY)))


@pytest.fixture(scope="module")
def accepting():
    return run_policy("accept_all")


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_meets_the_same_world(name, accepting):
    found = run_policy(name)
    np.testing.assert_array_equal(found["fingerprint"], accepting["fingerprint"])
    np.testing.assert_array_equal(found["arrivals"], accepting["arrivals"])
    np.testing.assert_array_equal(found["arrivals"], found["accepted"] + found["deferrals"])
    np.testing.assert_array_equal(found["correct"], found["deferrals"] + found["accepted_correct"])
    # Queries that came = served + waiting.
    np.testing.assert_array_equal(found["deferrals"], found["labels"] + found["queue_length"])


def test_seeds_and_rounds_differ_in_their_fingerprints(accepting):
    assert len(np.unique(accepting["fingerprint"])) == SEEDS * len(STEPS)


def block(name, *, num_seeds=SEEDS, num_steps=ROUNDS, seed_chunk=SEEDS, steps=STEPS, seed=KEY):
    policy = POLICIES[name]
    options = {"num_seeds": num_seeds, "num_steps": num_steps, "seed_chunk": seed_chunk, "steps": np.array(steps)}
    return run_block(WORLD, policy, small_instance(), policy.params, batch=0, seed=seed, **options).metrics


STUDIED = ("kl_pbd", "salmut_sf", "random")


@pytest.mark.parametrize("name", STUDIED)
def test_more_seeds_and_a_longer_horizon_leave_what_was(name):
    short = block(name)
    more = block(name, num_seeds=2 * SEEDS + 1)
    for metric, values in more.items():
        assert values.shape == (1, 2 * SEEDS + 1, len(STEPS))
        np.testing.assert_array_equal(values[:, :SEEDS], short[metric], metric)
    longer = block(name, num_steps=2 * ROUNDS)
    for metric in ("fingerprint", "arrivals"):
        np.testing.assert_array_equal(longer[metric], short[metric], metric)
    if name == "random":  # a rule that knows no horizon does not change either
        for metric in ("deferrals", "labels", "queue_length_mean"):
            np.testing.assert_array_equal(longer[metric], short[metric], metric)
    other = block(name, seed=KEY + 1)
    assert np.all(other["fingerprint"] != short["fingerprint"])


@pytest.mark.parametrize("name", STUDIED[1:])
def test_another_chunk_of_seeds_leaves_the_results(name):
    """Up to rounding: another program may add up in another order."""
    three, five = (block(name, num_seeds=5, seed_chunk=chunk) for chunk in (3, 5))
    eps = np.finfo(jnp.result_type(float)).eps
    for metric, values in three.items():
        np.testing.assert_allclose(values, five[metric], rtol=100 * eps, atol=100 * eps, err_msg=metric)


def test_the_block_runner_and_simulate_agree(accepting):
    found = block("accept_all")
    # The one sum wraps around where the other does not.
    assert np.all((found.pop("fingerprint")[0] - accepting["fingerprint"]) % 2**32 == 0)
    for metric, values in found.items():
        np.testing.assert_allclose(values[0], accepting[metric], rtol=1e-5, err_msg=metric)


# ----------------------------------------------------------------------------------------------------------
# Nothing leaks


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_told_nothing_that_its_paper_hides(name):
    """That policies agree with the reference when told nan is tested in ``test_deferral_parity``."""
    policy, told = POLICIES[name], []

    def setup(params, view, horizon):
        told.append(view)
        return policy.setup(params, view, horizon)

    spied = policy._replace(setup=setup)
    options = {"num_steps": 7, "num_seeds": 2, "record": 1, "environment": WORLD}
    jax.eval_shape(
        lambda instance, key: jc.simulate(instance, spied, key=key, **options).metrics,
        small_instance(),
        jax.random.key(0),
    )
    fields = set(vars(small_instance()))
    (view,) = told
    assert {field for field in fields if getattr(view, field) is None} == set(policy.hidden)
    expected = {"oracle": set()}.get(name, {"accuracy"})
    assert expected <= set(policy.hidden)


@pytest.mark.parametrize(
    ("make", "flag", "field"),
    [
        (make, flag, field)
        for make in (deferral.kl_pbd, deferral.kl_pbd_plus, deferral.greedy_bellman, deferral.naive_bellman)
        for flag, field in (("estimate_arrival", "arrival"), ("estimate_service", "service"))
    ]
    + [
        (make, "estimate_arrival", "arrival")
        for make in (deferral.fixed_confidence_threshold, deferral.fixed_queue_threshold)
    ],
)
def test_what_is_estimated_is_hidden(make, flag, field):
    assert field not in make().hidden
    assert field in make(**{flag: True}).hidden


def test_a_leaking_policy_cannot_compile():
    honest = deferral.accept_all()
    leaking = honest._replace(
        act=lambda model, state, key, t, observation: (
            deferral.accept_all().act(model, state, key, t, observation)[0]._replace(defer=model.accuracy[0] < 0.5),
            state,
        )
    )
    with pytest.raises(TypeError):
        jc.simulate(small_instance(), leaking, key=jax.random.key(0), num_steps=3, num_seeds=1)


def test_hide_leaves_the_instance_itself_alone():
    instance = small_instance()
    view = hide(instance, ("accuracy", "service"))
    assert view.accuracy is None and view.service is None and view.arrival is instance.arrival
    assert instance.accuracy is not None


# ----------------------------------------------------------------------------------------------------------
# The noise itself


def test_environment_and_policies_draw_from_separate_streams():
    environment_keys, policy_keys = seed_keys(jax.random.key(KEY), jnp.arange(200))
    rounds = jnp.arange(1, 50)
    fold = jax.jit(jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)), in_axes=(0, None)))
    data = [np.asarray(jax.random.key_data(fold(keys, rounds))) for keys in (environment_keys, policy_keys)]
    every = np.concatenate([np.asarray(d, np.uint32).reshape(-1, d.shape[-1]) for d in data])
    assert len(np.unique(every, axis=0)) == len(every)


def test_the_noise_follows_its_laws():
    """Levels, labels and service capacities within 4.5 standard errors, one independent of the other."""
    instance = deferral.make_instance(
        [0.1, 0.5, 0.85], [0.3, 0.1, 0.0, 0.6], service=[0.2, 0.5, 0.0, 0.3], queue_capacity=2
    )
    environment = bare(deferral.environment(instance, 1))
    count = 40_000

    @jax.jit
    def draws(instance, key):
        model = environment.setup(instance, jnp.int32(1))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count))
        return jax.vmap(environment.noise, in_axes=(0, None))(keys, model)

    level, label, capacity = (np.asarray(a) for a in draws(instance, jax.random.key(1)))

    def close(hits, of, probability):
        spread = math.sqrt(probability * (1 - probability) / of)
        assert abs(hits / of - probability) <= 4.5 * spread + 1e-12

    for j, probability in enumerate([0.3, 0.1, 0.0, 0.6]):
        close(np.sum(level == j), count, probability)
    for c, probability in enumerate([0.2, 0.5, 0.0, 0.3]):
        close(np.sum(capacity == c), count, probability)
        close(np.sum((capacity == c) & (level == 3)), count, 0.6 * probability)
        close(np.sum((capacity == c) & label & (level == 3)), count, 0.6 * 0.85 * probability)
    for j, accuracy in ((1, 0.1), (3, 0.85)):
        close(np.sum(label[level == j]), np.sum(level == j), accuracy)
