"""Rounds of one policy as the runner plays them, kept whole, for the checks of ``testing``."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.core import Environment, Policy
from jaxcascade.simulate import seed_keys


class Round(NamedTuple):
    """All of one round; over a run, leaves are ``[seeds, rounds, ...]``."""

    t: jax.Array
    key: jax.Array
    state: Any
    memory: Any
    noise: Any
    draws: Any
    observation: Any
    action: Any
    feedback: Any
    metrics: dict[str, jax.Array]
    next_state: Any
    next_memory: Any


class Run(NamedTuple):
    """All rounds of all seeds, the audits ``[seeds]``, and the models of environment and policy."""

    rounds: Round
    audits: dict[str, Any]
    models: tuple[Any, Any]


class Player(NamedTuple):
    """Programs that play one policy: ``shapes`` of its first round, and a whole ``run``."""

    shapes: Callable[..., Round]
    run: Callable[..., Run]


@lru_cache(maxsize=8)
def player(environment: Environment, policy: Policy, num_steps: int, num_seeds: int) -> Player:
    def models(instance, view, params, horizon):
        told = num_steps if policy.static_horizon else jnp.int32(num_steps)
        return (
            call("environment.setup", environment.setup, instance, horizon),
            call("policy.setup", policy.setup, params, view, told),
        )

    def start(made):
        return call("environment.init", environment.init, made[0]), call("policy.init", policy.init, made[1])

    def shapes(instance, view, params, seed):
        def first(instance, view, params, horizon, key):
            made = models(instance, view, params, horizon)
            return _play_round(environment, policy, made, (key, key), start(made), jnp.int32(1))

        return jax.eval_shape(first, instance, view, params, jnp.int32(num_steps), jax.random.key(seed))

    @_quick_jit
    def play(instance, view, params, horizon, environment_keys, policy_keys):
        made = models(instance, view, params, horizon)

        def one_seed(*keys):
            def body(carry, t):
                played = _play_round(environment, policy, made, keys, carry, t)
                return (played.next_state, played.next_memory), played

            carry, rounds = lax.scan(
                body, start(made), jnp.arange(1 - policy.calibration, num_steps + 1, dtype=jnp.int32)
            )
            audits = policy.audit(made[1], carry[1]) if policy.audit else {}
            return rounds, audits | (environment.audit(made[0]) if environment.audit else {})

        rounds, audits = jax.vmap(one_seed)(environment_keys, policy_keys)
        return Run(rounds, audits, made)

    def run(instance, view, params, seed, horizon=num_steps):
        return play(instance, view, params, jnp.int32(horizon), *seed_keys(jax.random.key(seed), jnp.arange(num_seeds)))

    return Player(shapes, run)


def _play_round(environment, policy, models, keys, carry, t):
    """What the runner does in round t, for one seed."""
    (environment_model, policy_model), (state, memory) = models, carry
    environment_key, policy_key = (jax.random.fold_in(key, t) for key in keys)
    noise = call("environment.noise", environment.noise, environment_key, environment_model)
    draws = policy_key
    if policy.draw is not None:
        draws = call("policy.draw", policy.draw, policy_model, policy_key)
    observation = call("environment.observe", environment.observe, environment_model, state, noise, t)
    action, between = _parts("policy.act", 2, policy.act, policy_model, memory, draws, t, observation)
    next_state, feedback, metrics = _parts(
        "environment.step", 3, environment.step, environment_model, state, action, noise, t
    )
    next_memory = call("policy.update", policy.update, policy_model, between, t, observation, action, feedback)
    return Round(
        t, environment_key, state, memory, noise, draws, observation, action, feedback, metrics, next_state, next_memory
    )


def plain_policy_round(policy, model, r):
    action, memory = policy.act(model, r.memory, r.draws, r.t, r.observation)
    return action, policy.update(model, memory, r.t, r.observation, action, r.feedback)


def plain_environment_round(environment, model, r):
    noise = environment.noise(r.key, model)
    observation = environment.observe(model, r.state, r.noise, r.t)
    return noise, observation, *environment.step(model, r.state, r.action, r.noise, r.t)


def _quick_jit(function):
    """``jax.jit`` compiled fast rather than made fast; by the defaults where XLA does not know the options."""
    return jax.jit(function, compiler_options=quick_options())


@lru_cache
def quick_options():
    """XLA options that cut the time to compile to a third, as far as this jaxlib knows them."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    while options:
        try:
            jax.jit(lambda x: x, compiler_options=options)(0)
            return options
        except Exception:
            options.popitem()
    return options


def call(name, function, *arguments):
    """The function's value; what it raises becomes an AssertionError that names it."""
    try:
        return function(*arguments)
    except AssertionError:
        raise
    except Exception as error:
        told = str(error).strip().splitlines()
        message = f"{name}: expected it to take what the contract gives it, got {type(error).__name__}"
        raise AssertionError(f"{message}: {told[0]}" if told else message) from error


def _parts(name, count, function, *arguments):
    value = call(name, function, *arguments)
    expect(isinstance(value, tuple) and len(value) == count, name, f"a tuple of {count}", _kind(value))
    return value


def expect(condition, what, expected, found):
    if not condition:
        raise AssertionError(f"{what}: expected {expected}, got {found}")


def _kind(value):
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple) else type(value).__name__
