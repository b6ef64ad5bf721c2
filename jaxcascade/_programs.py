"""The programs that XLA compiles: rounds of every seed by scan and vmap, and what the runner asks between them."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxcascade.core import NOW, hide
from jaxcascade.devices import EVERYWHERE, SEEDS, by_seeds, on_each

# Random numbers of so many rounds are drawn at once: a call costs more than the numbers it returns.
_DRAWN_ROUNDS = 16


def seed_keys(key: jax.Array, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys of the environment's and the policy's streams, each ``[S]``, for the seed numbers ``[S]``.

    A seed's stream depends on the key and its own number only, so more seeds leave the others as they were.
    """
    environment_key, policy_key = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(environment_key, seeds), fold(policy_key, seeds)


def _setup(environment, policy, instance, params, num_steps):
    view = hide(instance, policy.hidden)
    return environment.setup(instance, num_steps), policy.setup(params, view, num_steps)


def _init(environment, policy, models, num_seeds):
    state = (environment.init(models[0]), policy.init(models[1]))
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_seeds, *jnp.shape(leaf))), state)


def _rounds(environment, policy, models, keys, carry, start, stop):
    """Rounds ``start..stop`` for every seed: the new carry and each metric's sum (or last value) over them."""
    environment_model, policy_model = models
    kinds = dict(environment.metrics)

    def drawn(t, environment_key, policy_key):
        noise = environment.noise(jax.random.fold_in(environment_key, t), environment_model)
        key = jax.random.fold_in(policy_key, t)
        return noise, key if policy.draw is None else policy.draw(policy_model, key)

    def one_round(t, noise, draws, state, memory, totals):
        observation = environment.observe(environment_model, state, noise, t)
        action, memory = policy.act(policy_model, memory, draws, t, observation)
        state, feedback, metrics = environment.step(environment_model, state, action, noise, t)
        memory = policy.update(policy_model, memory, t, observation, action, feedback)
        totals = {name: metrics[name] if kind == NOW else totals[name] + metrics[name] for name, kind in kinds.items()}
        return state, memory, totals

    every_seed = jax.vmap(drawn, in_axes=(None, 0, 0))
    some_rounds = jax.vmap(every_seed, in_axes=(0, None, None))
    play_all = jax.vmap(one_round, in_axes=(None, 0, 0, 0, 0, 0))
    one = jax.eval_shape(every_seed, jnp.int32(1), *keys)
    totals = jax.eval_shape(play_all, jnp.int32(1), *one, *carry, _zero_totals(kinds, keys[0].shape[0]))[2]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), totals)

    def block(i, state):
        first = start + i * _DRAWN_ROUNDS
        drawn_now = some_rounds(first + jnp.arange(_DRAWN_ROUNDS, dtype=jnp.int32), *keys)

        def body(t, state):
            here = jax.tree.map(lambda leaf: leaf[t - first], drawn_now)
            return play_all(t, *here, *state)

        return lax.fori_loop(first, jnp.minimum(first + _DRAWN_ROUNDS, stop + 1), body, state)

    blocks = (stop - start + _DRAWN_ROUNDS) // _DRAWN_ROUNDS
    state, memory, totals = lax.fori_loop(0, blocks, block, (*carry, zeros))
    return (state, memory), totals


def _zero_totals(kinds, num_seeds):
    # Weakly typed zeros take the type of the metric that is added to them.
    return {name: jax.ShapeDtypeStruct((num_seeds,), jnp.int32, weak_type=True) for name in kinds}


def _audit(environment, policy, models, memory, num_seeds):
    claims = environment.audit(models[0]) if environment.audit else {}
    if policy.audit:
        claims = claims | jax.vmap(policy.audit, in_axes=(None, 0), axis_size=num_seeds)(models[1], memory)
    return claims


def _setup_batch(environment, policy, batched, instance, params, num_steps):
    program = _setup_static if policy.static_horizon else _setup_traced
    return program(environment, policy, batched, instance, params, num_steps)


def _setup_models(environment, policy, batched, instance, params, num_steps):
    one = partial(_setup, environment, policy, num_steps=num_steps)
    return jax.vmap(one)(instance, params) if batched else one(instance, params)


_setup_traced = jax.jit(_setup_models, static_argnames=("environment", "policy", "batched"))
_setup_static = jax.jit(_setup_models, static_argnames=("environment", "policy", "batched", "num_steps"))


@partial(jax.jit, static_argnames=("environment", "policy", "batched", "num_seeds"))
def _init_batch(environment, policy, batched, num_seeds, models):
    one = partial(_init, environment, policy, num_seeds=num_seeds)
    return jax.vmap(one)(models) if batched else one(models)


def _advance_batch(environment, policy, batched, models, keys, carry, start, stop, mesh=None):
    def every(models, keys, carry, start, stop):
        def one(models, carry):
            return _rounds(environment, policy, models, keys, carry, start, stop)

        return jax.vmap(one)(models, carry) if batched else one(models, carry)

    seeds = by_seeds(batched)
    specs = (EVERYWHERE, PartitionSpec(SEEDS), seeds, EVERYWHERE, EVERYWHERE)
    return on_each(every, mesh, specs, seeds)(models, keys, carry, start, stop)


_ADVANCE_STATIC = ("environment", "policy", "batched", "mesh")
_advance_in_place = jax.jit(_advance_batch, static_argnames=_ADVANCE_STATIC, donate_argnames="carry")
_advance_batch = jax.jit(_advance_batch, static_argnames=_ADVANCE_STATIC)


def advance_program(environment, saved):
    """The program of a block's rounds: it takes over the carry's memory unless somebody may need the old carry.

    That is a run that is saved, which may be interrupted, and one that is repeated when a buffer was too small. A
    long history would otherwise be copied whole at every stop.
    """
    return _advance_batch if saved or environment.overflowed else _advance_in_place


@partial(jax.jit, static_argnames=("environment", "policy", "batched", "num_seeds", "mesh"))
def _audit_batch(environment, policy, batched, num_seeds, models, memory, mesh=None):
    def one(models, memory):
        claims = _audit(environment, policy, models, memory, num_seeds)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_seeds,)), claims)

    every = jax.vmap(one) if batched else one
    return on_each(every, mesh, (EVERYWHERE, by_seeds(batched)), by_seeds(batched))(models, memory)


@partial(jax.jit, static_argnames=("policy", "batched", "num_seeds", "mesh"))
def _inspect_batch(policy, batched, num_seeds, models, memory, t, mesh=None):
    def every(models, memory, t):
        def one(models, memory):
            return jax.vmap(policy.inspect, in_axes=(None, 0, None), axis_size=num_seeds)(models[1], memory, t)

        return jax.vmap(one)(models, memory) if batched else one(models, memory)

    return on_each(every, mesh, (EVERYWHERE, by_seeds(batched), EVERYWHERE), by_seeds(batched))(models, memory, t)
