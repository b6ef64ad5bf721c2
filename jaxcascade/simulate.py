"""The runner: chunks of seeds and of rounds, over devices and processes, saved as they go.

With ``_programs`` it is the only place that loops over time.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxcascade._programs import (
    _audit,
    _audit_batch,
    _init,
    _init_batch,
    _inspect_batch,
    _rounds,
    _setup,
    _setup_batch,
    advance_program,
    seed_keys,
)
from jaxcascade.checkpoint import Checkpoint, Unit, load_unit, pack, restore, save_unit, unpack
from jaxcascade.core import NOW, SUM, Environment, Policy, is_concrete, system_of, with_float_type
from jaxcascade.devices import EVERYWHERE, SEEDS, by_seeds, count_devices, gather, parts, place, seed_mesh, share

# Sums inside a block are in the default float type; blocks are added up in float64 on the host.
_BLOCK_ROUNDS = 10_000
_SEED_CHUNK = 128
# A learner that remembers much has up to megabytes a seed: few seeds at once then fit the cache, which is faster
# (cascade's one-pass learner: 20 microseconds with 4 seeds, 28 with 8, 37 with 16) and takes less memory.
_ROUND_BYTES, _WHOLE_BYTES, _LEAST_CHUNK = 2**20, 4 * 2**20, 8


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
      devices: how many devices took part in this process.
    """

    metrics: dict[str, np.ndarray]
    snapshot: dict[str, np.ndarray]
    compile_seconds: float
    run_seconds: float
    devices: int


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
    # Stops between the records keep sums of whole numbers, such as queue lengths, within int32.
    stops = _stops(np.asarray(steps), num_steps, None)
    ends = jnp.asarray(stops, jnp.int32)
    starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]]) + 1

    def segment(carry, bounds):
        carry, metrics = _rounds(environment, policy, models, keys, carry, *bounds)
        return carry, metrics

    (_, memory), blocks = lax.scan(segment, carry, (starts, ends))
    kinds = dict(environment.metrics)
    metrics = {}
    for name, values in blocks.items():
        whole = values if kinds[name] in (NOW, SUM) else values.astype(float)
        total = whole if kinds[name] == NOW else jnp.cumsum(whole, axis=0)
        if kinds[name] not in (NOW, SUM):
            total = total / ends[:, None]
        metrics[name] = total[np.searchsorted(stops, steps)].T
    return metrics, memory, _audit(environment, policy, models, memory, num_seeds)


class _Job(NamedTuple):
    """What all units of a block have in common; a unit is a chunk of seeds for every device of the mesh."""

    environment: Environment
    policy: Policy
    batched: bool
    models: Any
    chunk: int
    mesh: Mesh | None
    seed: int
    stops: list[int]
    recorded: frozenset[int]
    snapshot: int | None
    checkpoint: Checkpoint | None
    progress: Callable[[int], None]
    name: str

    @property
    def width(self) -> int:
        return self.chunk * (1 if self.mesh is None else self.mesh.size)


def default_seed_chunk(environment: Environment, policy: Policy, batch: int, models: Any, num_steps: int) -> int:
    """Most seeds that a device runs at once, times the batch, where nobody says so; 0 where one is already too many.

    As many as keep what a round reads below 1 MiB, at most 128. Histories as long as the horizon are not read whole
    in every round: with them 4 MiB, and 8 seeds in any case, so that they share a round's calls.

    Args:
      environment: the environment.
      policy: the policy without its params.
      batch: number of instances G, or 0 for one instance without a leading axis.
      models: the models, or their shapes.
      num_steps: horizon T.
    """
    one_seed = jax.eval_shape(partial(_init_batch, environment, policy, batch > 0, 1), models)
    short = [leaf for leaf in jax.tree.leaves(one_seed) if max(leaf.shape, default=0) < num_steps]
    by_round = _ROUND_BYTES // max(num_bytes(short), 1)
    by_whole = max(_WHOLE_BYTES // max(num_bytes(one_seed), 1), _LEAST_CHUNK)
    return min(_SEED_CHUNK, max(batch, 1) * min(by_round, by_whole))


def share_seeds(num_seeds: int, most: int, devices: int | None) -> tuple[int, Mesh | None]:
    """Seeds of a chunk, at most ``most`` and as even as they go, and the mesh of the devices that have one each."""
    chunks = math.ceil(num_seeds / most)
    return math.ceil(num_seeds / chunks), seed_mesh(min(count_devices(devices), chunks))


def num_bytes(tree: Any) -> int:
    """Bytes of all leaves of a pytree of arrays or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


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
    devices: int | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
    name: str = "policy",
) -> Block:
    """Numbers of one policy on a batch of instances, chunk by chunk of seeds and rounds, sums in float64.

    Every device runs a chunk of seeds at a time, and the processes take turns at what the devices run at a time.
    The numbers depend on the chunks, not on how many devices or processes share them.

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
      seed_chunk: most seeds at once on a device (times ``batch``), by default as
        ``default_seed_chunk`` says.
      devices: number of this process's devices to use, by default all.
      checkpoint: where the state is saved, and found after an interruption.
      progress: called with the number of seed-rounds done since the last call.
      name: the policy's name, for error messages.

    Raises:
      FloatingPointError: if an audit of the policy or the environment failed; the message has the numbers.
      ValueError: if there are fewer devices, or a file of the checkpoint is damaged.
      OSError: if the state cannot be saved.
    """
    batched, copies = batch > 0, max(batch, 1)
    policy = policy._replace(params=None)
    clock = time.perf_counter()
    models = _setup_batch(environment, policy, batched, with_float_type(instance), with_float_type(params), num_steps)
    setup_seconds = time.perf_counter() - clock
    if seed_chunk is None:
        seed_chunk = default_seed_chunk(environment, policy, batch, models, num_steps)
    chunk, mesh = share_seeds(num_seeds, max(seed_chunk // copies, 1), devices)
    job = _Job(
        environment,
        policy,
        batched,
        place(models, mesh, EVERYWHERE),
        chunk,
        mesh,
        seed,
        _stops(steps, num_steps, snapshot),
        frozenset(steps.tolist()),
        snapshot,
        checkpoint,
        lambda seed_rounds: progress(seed_rounds * copies) if progress else None,
        name,
    )
    firsts = range(0, num_seeds, job.width)

    def work() -> dict[str, np.ndarray]:
        units, growths = {}, 0  # seeds start with the buffers that the last ones came to need
        own, count = share()
        for first in firsts[own::count]:
            units[first] = _run_unit(job, first, growths)
            growths = units[first].growths
        return {f"{first}/{key}": array for first, unit in units.items() for key, array in pack(unit).items()}

    found: dict[int, dict[str, np.ndarray]] = {first: {} for first in firsts}
    seconds = []
    for table in gather(work):
        for key, array in table.items():
            first, _, rest = key.partition("/")
            found[int(first)][rest] = array
        times = [
            [table[f"{first}/at/{kind}_seconds"] for first in firsts if f"{first}/at/done" in table]
            for kind in ("compile", "run")
        ]
        seconds.append([float(sum(kind)) for kind in times])
    units = [unpack(found[first]) for first in firsts]

    def join(tables: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        whole = {k: np.concatenate([table[k] for table in tables], axis=int(batched)) for k in tables[0]}
        return {k: (v if batched else v[None])[:, :num_seeds] for k, v in whole.items()}

    compile_seconds, run_seconds = np.max(seconds, axis=0)
    metrics, rules = join([unit.records for unit in units]), join([unit.snapshot for unit in units])
    return Block(metrics, rules, setup_seconds + float(compile_seconds), float(run_seconds), job.width // job.chunk)


def _run_unit(job: _Job, first: int, growths: int) -> Unit:
    """The numbers of the seeds ``first .. first + width - 1``, from the last state saved on."""
    saved = load_unit(job.checkpoint, first, job.width) if job.checkpoint else None
    if saved is not None:
        job.progress(saved.done * job.width)
        if saved.carry is None:
            return saved
    unit = saved or Unit(0, growths, None, {}, {}, {}, 0.0, 0.0)
    carry = _init_batch(job.environment, job.policy, job.batched, job.width, job.models)
    for _ in range(unit.growths):
        carry = _grown(job.environment, carry)
    carry = place(carry if saved is None else restore(carry, saved.carry), job.mesh, by_seeds(job.batched))
    keys = seed_keys(jax.random.key(job.seed), jnp.arange(first, first + job.width))
    keys = place(keys, job.mesh, PartitionSpec(SEEDS))
    program = advance_program(job.environment, job.checkpoint is not None)
    advance = partial(program, job.environment, job.policy, job.batched, job.models, keys, mesh=job.mesh)
    carry, seconds = _compile(job, advance, carry)
    unit = unit._replace(carry=carry, compile_seconds=unit.compile_seconds + seconds)
    del carry  # so that only the unit holds the state, and only the last one
    if job.policy.calibration and not unit.done:
        unit, _ = _advance_growing(job, advance, unit, 1 - job.policy.calibration, 0)
    written = time.monotonic()
    try:
        for stop in job.stops:
            if stop > unit.done:
                unit = _to_stop(job, advance, unit, stop)
                if job.checkpoint and time.monotonic() - written > job.checkpoint.seconds:
                    save_unit(job.checkpoint, first, job.width, unit)
                    written = time.monotonic()
    except KeyboardInterrupt:
        if job.checkpoint and unit.done:
            save_unit(job.checkpoint, first, job.width, unit)
        raise
    audit = partial(_audit_batch, job.environment, job.policy, job.batched, job.chunk)
    _raise_on_failed_audit(job.name, jax.device_get(audit(job.models, unit.carry[1], mesh=job.mesh)))
    unit = unit._replace(carry=None, totals={})
    if job.checkpoint:
        save_unit(job.checkpoint, first, job.width, unit)
    return unit


def _to_stop(job: _Job, advance: Callable, unit: Unit, stop: int) -> Unit:
    """The unit after round ``stop``, with that round's records."""
    kinds = dict(job.environment.metrics)
    before = unit.done
    unit, sums = _advance_growing(job, advance, unit, before + 1, stop)
    totals = _add(unit.totals, sums, kinds)
    unit = unit._replace(done=stop, totals=totals)
    if stop in job.recorded:
        now = {k: (v / stop if kinds[k] == "mean" else v)[..., None] for k, v in totals.items()}
        earlier = unit.records
        unit = unit._replace(records={k: np.concatenate([earlier[k], v], -1) if earlier else v for k, v in now.items()})
    if stop == job.snapshot and job.policy.inspect:
        inspect = partial(_inspect_batch, job.policy, job.batched, job.chunk, mesh=job.mesh)
        unit = unit._replace(snapshot=jax.device_get(inspect(job.models, unit.carry[1], np.int32(stop))))
    job.progress((stop - before) * job.width)
    return unit


def _compile(job, advance, carry):
    """The carry, and the seconds that a call without any round takes: it compiles, or costs nothing."""
    clock = time.perf_counter()
    carry = jax.block_until_ready(advance(carry, np.int32(1), np.int32(0)))[0]
    return place(carry, job.mesh, by_seeds(job.batched)), time.perf_counter() - clock


def _advance_growing(job, advance, unit, start, stop):
    """The unit after the rounds ``start..stop`` and their sums; repeated with larger buffers while one is too small."""
    clock, environment = time.perf_counter(), job.environment
    carry, growths, growing = unit.carry, unit.growths, 0.0
    while True:
        after, sums = advance(carry, np.int32(start), np.int32(stop))
        # Device by device: a reduction over all of them would make them wait for each other.
        if environment.overflowed is None or not any(
            np.any(environment.overflowed(state)) for state in parts(after[0], job.mesh)
        ):
            break
        carry = place(_grown(environment, carry), job.mesh, by_seeds(job.batched))
        carry, seconds = _compile(job, advance, carry)
        growths, growing = growths + 1, growing + seconds
    sums = jax.device_get(sums)
    # An empty leaf comes back laid out otherwise, for which the next call would compile again.
    after = place(after, job.mesh, by_seeds(job.batched))
    unit = unit._replace(carry=after, growths=growths, compile_seconds=unit.compile_seconds + growing)
    return unit._replace(run_seconds=unit.run_seconds + time.perf_counter() - clock - growing), sums


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
    if not totals:
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
