"""The runner: scan over rounds, vmap over seeds, chunks of both. The only place that loops over time."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcascade.core import NOW, SUM, Environment, Policy, hide, is_concrete, system_of, with_float_type

# Sums inside a block are in the default float type; blocks are added up in float64 on the host.
_BLOCK_ROUNDS = 10_000
_SEED_CHUNK = 128
# Random numbers of so many rounds are drawn at once: a call costs more than the numbers it returns.
_DRAWN_ROUNDS = 16
# A learner that remembers much has up to megabytes a seed: few seeds at once then fit the cache, which is faster
# (maximum likelihood of queueing: 29 microseconds against 48) and takes less memory.
_CACHE_BYTES = 4 * 2**20


class Trajectories(NamedTuple):
    """What ``simulate`` returns.

    Attributes:
      steps: ``[R]`` int, the rounds at which metrics were recorded.
      metrics: name -> ``[num_seeds, R]``.
      state: the policy's final state, leaves ``[num_seeds, ...]``.
      audit: claims of policy and environment, name -> Audit; each value must be at most its limit.
    """

    steps: np.ndarray
    metrics: dict[str, jax.Array]
    state: Any
    audit: dict[str, Any]


class Block(NamedTuple):
    """Numbers of one run on the host, with a leading axis for a batch of instances.

    Attributes:
      metrics: name -> ``[G, num_seeds, R]`` float64.
      snapshot: name -> ``[G, num_seeds, ...]``, the policy's rule at the snapshot round.
      compile_seconds: time of the first, empty calls, one for every size of the buffers.
      run_seconds: time of all rounds.
    """

    metrics: dict[str, np.ndarray]
    snapshot: dict[str, np.ndarray]
    compile_seconds: float
    run_seconds: float


def record_steps(record: int | list[int] | np.ndarray, num_steps: int) -> np.ndarray:
    """The rounds to record, ``[R]`` increasing: ``record`` evenly spaced ones, or those given.

    Raises:
      ValueError: if there is no round or one lies outside 1..num_steps.
    """
    if isinstance(num_steps, bool) or not isinstance(num_steps, (int, np.integer)) or not 1 <= num_steps < 2**31:
        raise ValueError(f"num_steps: expected a whole number of rounds in 1..2^31-1, got {num_steps!r}")
    if np.ndim(record) == 0:
        if int(record) < 1:  # type: ignore[arg-type]
            raise ValueError(f"record: expected at least 1 checkpoint, got {record}")
        count = min(int(record), num_steps)  # type: ignore[arg-type]
        return np.unique(np.round(np.linspace(num_steps / count, num_steps, count)).astype(np.int64))
    steps = np.unique(np.asarray(record))
    if steps.size == 0 or steps.dtype.kind not in "iu" or steps[0] < 1 or steps[-1] > num_steps:
        raise ValueError(f"record: expected rounds within 1..{num_steps}, got {record!r}")
    return steps.astype(np.int64)


def seed_keys(key: jax.Array, seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys of the environment's and the policy's streams, each ``[S]``, for the seed numbers ``[S]``.

    A seed's stream depends on the key and its own number only, so more seeds leave the others as they were.
    """
    environment_key, policy_key = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(environment_key, seeds), fold(policy_key, seeds)


def simulate(
    instance: Any,
    policy: Policy,
    *,
    key: jax.Array,
    num_steps: int,
    num_seeds: int,
    record: int | list[int] | np.ndarray = 50,
    environment: Environment | None = None,
) -> Trajectories:
    """Metrics of one policy at the recorded rounds, for ``num_seeds`` independent seeds at once.

    Pure: it can be called under jit, vmap or grad-free transformations of the caller's own. Cumulative
    metrics are summed in the default float type; use ``jaxcascade.compare`` for sums in float64, seeds in
    chunks and statistics.

    Args:
      instance: an instance of a registered system; its leaves may be traced.
      policy: a policy of that system.
      key: typed key, ``jax.random.key(seed)``.
      num_steps: horizon T, static.
      num_seeds: number of seeds S, static.
      record: how many evenly spaced rounds to record, or the rounds themselves.
      environment: the environment, by default the one of the instance's system.

    Raises:
      ValueError: on impossible arguments, or an instance with impossible numbers (if they are concrete).
    """
    steps = record_steps(record, num_steps)
    if num_seeds < 1:
        raise ValueError(f"num_seeds: expected at least 1, got {num_seeds}")
    environment = environment or prepare(instance, num_steps)
    metrics, state, audit = _simulate(
        environment,
        policy._replace(params=None),
        with_float_type(instance),
        with_float_type(policy.params),
        key,
        num_steps,
        num_seeds,
        tuple(steps.tolist()),
    )
    return Trajectories(steps, metrics, state, audit)


def prepare(instance: Any, num_steps: int) -> Environment:
    """The environment of the instance's system, after a check of the instance's numbers.

    Raises:
      ValueError: if the type is unknown or, for concrete leaves, a number is impossible.
    """
    system = system_of(instance)
    if is_concrete(instance):
        system.validate(instance)
    return system.environment(instance, num_steps)


@partial(jax.jit, static_argnames=("environment", "policy", "num_steps", "num_seeds", "steps"))
def _simulate(environment, policy, instance, params, key, num_steps, num_seeds, steps):
    models = _setup(environment, policy, instance, params, num_steps)
    keys = seed_keys(key, jnp.arange(num_seeds))
    carry = _init(environment, policy, models, num_seeds)
    if policy.calibration:
        carry, _ = _rounds(environment, policy, models, keys, carry, 1 - policy.calibration, 0)
    ends = jnp.asarray(steps, jnp.int32)
    starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]]) + 1

    def segment(carry, bounds):
        carry, metrics = _rounds(environment, policy, models, keys, carry, *bounds)
        return carry, metrics

    (_, memory), blocks = lax.scan(segment, carry, (starts, ends))
    kinds = dict(environment.metrics)
    metrics = {}
    for name, values in blocks.items():
        total = values if kinds[name] == NOW else jnp.cumsum(values, axis=0)
        if kinds[name] not in (NOW, SUM):
            total = total.astype(float) / ends[:, None]
        metrics[name] = total.T
    return metrics, memory, _audit(environment, policy, models, memory, num_seeds)


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


@partial(jax.jit, static_argnames=("environment", "policy", "batched"))
def _advance_batch(environment, policy, batched, models, keys, carry, start, stop):
    def one(models, carry):
        return _rounds(environment, policy, models, keys, carry, start, stop)

    return jax.vmap(one)(models, carry) if batched else one(models, carry)


@partial(jax.jit, static_argnames=("environment", "policy", "batched", "num_seeds"))
def _audit_batch(environment, policy, batched, num_seeds, models, memory):
    one = partial(_audit, environment, policy, num_seeds=num_seeds)
    return jax.vmap(one)(models, memory) if batched else one(models, memory)


@partial(jax.jit, static_argnames=("policy", "batched", "num_seeds"))
def _inspect_batch(policy, batched, num_seeds, models, memory, t):
    def one(models, memory):
        return jax.vmap(policy.inspect, in_axes=(None, 0, None), axis_size=num_seeds)(models[1], memory, t)

    return jax.vmap(one)(models, memory) if batched else one(models, memory)


def run_block(
    environment: Environment,
    policy: Policy,
    instance: Any,
    params: Any,
    *,
    batch: int,
    seed: int,
    num_steps: int,
    num_seeds: int,
    steps: np.ndarray,
    snapshot: int | None = None,
    seed_chunk: int | None = None,
    progress: Callable[[int], None] | None = None,
    name: str = "policy",
) -> Block:
    """Numbers of one policy on a batch of instances, chunk by chunk of seeds and rounds, sums in float64.

    Args:
      environment: the environment.
      policy: the policy; its ``params`` are ignored in favour of ``params``.
      instance: the instance; leaves have a leading axis of ``batch`` if ``batch > 0``.
      params: the policy's hyper-parameters, likewise.
      batch: number of instances G, or 0 for one instance without a leading axis.
      seed: number from which every stream derives.
      num_steps: horizon T.
      num_seeds: number of seeds.
      steps: ``[R]`` rounds to record.
      snapshot: round after which ``policy.inspect`` is recorded.
      seed_chunk: most seeds at once (times ``batch``), by default 128, or as many as keep what the scan
        carries below 4 MiB, at least one.
      progress: called with the number of seed-rounds done since the last call.
      name: the policy's name, for error messages.

    Raises:
      FloatingPointError: if an audit of the policy or the environment failed; the message has the numbers.
    """
    batched, copies = batch > 0, max(batch, 1)
    policy = policy._replace(params=None)
    stops = _stops(steps, num_steps, snapshot)
    kinds = dict(environment.metrics)
    clock = time.perf_counter()
    models = _setup_batch(environment, policy, batched, with_float_type(instance), with_float_type(params), num_steps)
    compile_seconds, run_seconds = time.perf_counter() - clock, 0.0
    if seed_chunk is None:
        one_seed = jax.eval_shape(partial(_init_batch, environment, policy, batched, 1), models)
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(one_seed))
        seed_chunk = min(_SEED_CHUNK, copies * (_CACHE_BYTES // max(size, 1)))
    chunks = math.ceil(num_seeds / max(seed_chunk // copies, 1))
    chunk = math.ceil(num_seeds / chunks)
    pieces: list[dict[str, np.ndarray]] = []
    snapshots: list[dict[str, np.ndarray]] = []
    growths = 0  # a chunk starts with the buffers that the last one came to need
    for first in range(0, num_seeds, chunk):
        keys = seed_keys(jax.random.key(seed), jnp.arange(first, first + chunk))
        carry = _init_batch(environment, policy, batched, chunk, models)
        for _ in range(growths):
            carry = _grown(environment, carry)
        advance = partial(_advance_batch, environment, policy, batched, models, keys)
        compile_seconds += _compile(advance, carry)
        clock = time.perf_counter()
        done, totals, records, growing = 0, None, [], []
        if policy.calibration:
            carry, _ = _advance_growing(environment, advance, carry, 1 - policy.calibration, 0, growing)
        for stop in stops:
            carry, block = _advance_growing(environment, advance, carry, done + 1, stop, growing)
            totals = _add(totals, jax.device_get(block), kinds)
            if progress:
                progress((int(stop) - done) * chunk * copies)
            done = int(stop)
            if done in steps:
                records.append({k: v / done if kinds[k] == "mean" else v for k, v in totals.items()})
            if done == snapshot and policy.inspect:
                snapshots.append(
                    jax.device_get(_inspect_batch(policy, batched, chunk, models, carry[1], np.int32(done)))
                )
        run_seconds += time.perf_counter() - clock - sum(growing)
        compile_seconds += sum(growing)
        growths += len(growing)
        _raise_on_failed_audit(
            name, jax.device_get(_audit_batch(environment, policy, batched, chunk, models, carry[1]))
        )
        pieces.append({k: np.stack([r[k] for r in records], axis=-1) for k in kinds})

    def join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        whole = {k: np.concatenate([part[k] for part in parts], axis=int(batched)) for k in parts[0]} if parts else {}
        return {k: (v if batched else v[None])[:, :num_seeds] for k, v in whole.items()}

    return Block(join(pieces), join(snapshots), compile_seconds, run_seconds)


def _compile(advance, carry):
    """Seconds that a call without any round takes: it compiles, or costs nothing."""
    clock = time.perf_counter()
    jax.block_until_ready(advance(carry, np.int32(1), np.int32(0)))
    return time.perf_counter() - clock


def _advance_growing(environment, advance, carry, start, stop, growing):
    """The rounds ``start..stop``, repeated with larger buffers for as long as one was too small.

    Appends to ``growing`` the time that each larger size took to compile.
    """
    while True:
        after, block = advance(carry, np.int32(start), np.int32(stop))
        if environment.overflowed is None or not bool(jnp.any(environment.overflowed(after[0]))):
            return after, block
        carry = _grown(environment, carry)
        growing.append(_compile(advance, carry))


def _grown(environment, carry):
    return environment.grow(carry[0]), carry[1]


def _stops(steps, num_steps, snapshot):
    """Rounds at which the scan stops: those recorded, the snapshot, and block ends in between."""
    stops = set(steps.tolist()) | set(range(_BLOCK_ROUNDS, int(steps[-1]), _BLOCK_ROUNDS))
    if snapshot is not None:
        stops.add(snapshot)
    return sorted(stops)


def _add(totals, block, kinds):
    block = {name: np.asarray(value, np.float64) for name, value in block.items()}
    if totals is None:
        return block
    return {name: value if kinds[name] == NOW else totals[name] + value for name, value in block.items()}


def _raise_on_failed_audit(name, claims):
    for claim, (value, limit) in claims.items():
        worst = np.max(np.asarray(value) - np.asarray(limit))
        if not worst <= 0:
            raise FloatingPointError(
                f"{name}: {claim} is {np.max(value):.3g}, at most {np.min(limit):.3g} was promised;"
                " the recursion has not settled on this instance (try float64)"
            )
