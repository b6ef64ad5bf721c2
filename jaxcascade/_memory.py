"""What a study takes of memory, before it runs, and chunks of seeds that keep it within a budget."""

import re
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcascade._programs import _init_batch, _inspect_batch, _setup_batch, advance_program, seed_keys
from jaxcascade.core import Environment, Policy, with_float_type
from jaxcascade.devices import EVERYWHERE, SEEDS, by_seeds
from jaxcascade.simulate import default_seed_chunk, num_bytes, share_seeds

_UNITS = {"": 1, "b": 1} | {f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}
_UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}
# Python, JAX and XLA's compiler, and what it keeps of a program; one policy of any system was seen to take 370 to 640
# MiB, eight of them 805.
_PROCESS_BYTES = 640 * 2**20
_PROGRAM_BYTES = 64 * 2**20
# A checkpoint is a stream of bytes, a copy of it to be sealed, and the sealed one.
_CHECKPOINT_COPIES = 3
# Chunks that are a little smaller than in proportion, as a program does not shrink with them to the last byte.
_MARGIN = 0.98


class Request(NamedTuple):
    """A block to be run: a policy on a batch of instances of the same shapes, as ``run_block`` takes them.

    Attributes:
      name: the policy's name.
      environment: the environment.
      policy: the policy.
      instance: the instance or its shapes, with a leading axis of ``batch`` if that is above 0.
      params: the policy's hyper-parameters or their shapes, likewise.
      batch: number of instances, or 0.
    """

    name: str
    environment: Environment
    policy: Policy
    instance: Any
    params: Any
    batch: int


class Run(NamedTuple):
    """What all blocks of a study have in common: its sizes, and whether its state is saved."""

    num_steps: int
    num_seeds: int
    num_records: int
    snapshot: bool
    devices: int
    saved: bool


def parse_memory(memory: int | str | None) -> int | None:
    """The budget in bytes, or None for none.

    Args:
      memory: bytes, or a number with a unit such as ``"2 GiB"``, ``"500MB"`` (powers of 1024 and of 1000).

    Raises:
      ValueError: if it is neither, or not positive.
    """
    if memory is None:
        return None
    size = None
    if isinstance(memory, (int, np.integer)) and not isinstance(memory, bool):
        size = int(memory)
    elif isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", memory.lower())
        if found and found[2] in _UNITS:
            size = int(float(found[1]) * _UNITS[found[2]])
    if size is None or size < 1:
        raise ValueError(f"memory: expected a number of bytes >= 1 or text such as '2 GiB' or '500 MB', got {memory!r}")
    return size


def plan_chunks(
    requests: Sequence[Request], run: Run, seed_chunk: int | None, memory: int | None
) -> list[tuple[int | None, float]]:
    """For every block the seed chunk, in the runner's count, and the seconds that its program took to compile.

    Without a budget the chunks stay as given, and what is compared with the machine's memory is known without
    compiling: state, models and results. With one, the programs are compiled (which the run then need not do), and
    a chunk is made smaller until XLA's own account of its program fits.

    Args:
      requests: the blocks.
      run: what they have in common.
      seed_chunk: most seeds at once, or None for the default.
      memory: the budget in bytes, or None.

    Warns:
      UserWarning: if a block does not fit, even with one seed at a time if there is a budget.
    """
    results = _result_bytes(requests, run)
    if memory is None:
        room, fixed = available_memory(), results
    else:
        room = memory
        fixed = results + _PROCESS_BYTES * (jax.default_backend() == "cpu") + _PROGRAM_BYTES * len(requests)
    plans, most, worst = [], 0, ""
    for request in requests:
        models = _models(request, run.num_steps)
        chunk = seed_chunk or default_seed_chunk(
            request.environment, _bare(request), request.batch, models, run.num_steps
        )
        seconds, copies = 0.0, max(request.batch, 1)
        seeds = max(chunk // copies, 1)
        if memory is None:
            chunk, needed = seed_chunk, _least_bytes(request, run, models, seeds)
        else:
            clock = time.perf_counter()
            seeds, needed = _fit(request, run, models, seeds, memory - fixed)
            chunk, seconds = seeds * copies, time.perf_counter() - clock
        plans.append((chunk, seconds))
        if needed >= most:
            most, worst = needed, request.name
    if room is not None and fixed + most > room:
        parts = [f"{_text(results)} for results", f"{_text(most)} to run {worst!r}"]
        if memory is None:
            head, limit = f"the study needs at least {_text(fixed + most)}", f"the machine has {_text(room)} left"
            remedy = "shorten the horizon or set memory"
        else:
            head, limit = f"the study needs {_text(fixed + most)} with one seed at a time", f"it may take {_text(room)}"
            parts.append(f"{_text(fixed - results)} for Python and the compiler")
            remedy = "raise memory or shorten the horizon"
        if results > most:
            remedy = "record fewer rounds or run fewer seeds"
        warnings.warn(f"memory: {head} ({', '.join(parts)}), {limit}; {remedy}", stacklevel=3)
    return plans


def available_memory() -> int | None:
    """Bytes that this process's devices, or on a CPU the machine or the process's group, have left; None if unknown."""
    if jax.default_backend() != "cpu":
        tables = [device.memory_stats() or {} for device in jax.local_devices()]
        if not all("bytes_limit" in table for table in tables):
            return None
        return sum(table["bytes_limit"] - table.get("bytes_in_use", 0) for table in tables)
    found = [left for left in (_machine_left(), _group_left()) if left is not None]
    return min(found, default=None)


def _machine_left():
    try:
        table = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        return None


def _group_left():
    """What a container may still take, by cgroup 2 or 1; files that are only cached do not count."""
    for folder, limit, used, cached in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            table = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            taken = int(Path(folder, used).read_text()) - int(table[cached])
            return int(Path(folder, limit).read_text()) - taken
        except (OSError, KeyError, ValueError):  # no such version, or no limit
            continue
    return None


def _bare(request):
    return request.policy._replace(params=None)


def _models(request, num_steps):
    """Shapes of what all seeds share."""
    program = partial(_setup_batch, request.environment, _bare(request), request.batch > 0, num_steps=num_steps)
    given = jax.eval_shape(with_float_type, (request.instance, request.params))
    return jax.eval_shape(program, *given)


def _result_bytes(requests, run):
    """What the host holds in the end, and of the largest block once more while its chunks are put together."""
    sizes = []
    for request in requests:
        each = len(request.environment.metrics) * run.num_records * 8
        if run.snapshot and request.policy.inspect:
            models = _models(request, run.num_steps)
            carry = _carry(request, models, 1)
            program = partial(_inspect_batch, request.policy._replace(params=None), request.batch > 0, 1)
            rule = num_bytes(jax.eval_shape(program, models, carry[1], np.int32(1)))
            each += rule // max(request.batch, 1)
        sizes.append(each * run.num_seeds * max(request.batch, 1))
    return sum(sizes) + max(sizes)


def _carry(request, models, num_seeds):
    program = partial(_init_batch, request.environment, _bare(request), request.batch > 0, num_seeds)
    return jax.eval_shape(program, models)


def _least_bytes(request, run, models, seeds):
    """State before and after a call, and the models, on all devices."""
    chunk, mesh = share_seeds(run.num_seeds, seeds, run.devices)
    carry = num_bytes(_carry(request, models, 1))
    return _size(mesh) * (2 * chunk * carry + num_bytes(models))


def _fit(request, run, models, seeds, room):
    """The most seeds a chunk, up to ``seeds``, whose program takes at most ``room`` bytes, and what it takes."""
    while True:
        chunk, needed = _compiled_bytes(request, run, models, seeds)
        if needed <= room or chunk == 1:
            return chunk, needed
        shared = num_bytes(models)
        share = max(room - shared, 0) / max(needed - shared, 1)
        seeds = max(1, min(chunk - 1, int(chunk * share * _MARGIN)))


def _compiled_bytes(request, run, models, seeds):
    """The seeds of a chunk, at most ``seeds``, and what XLA says that its program takes on all devices."""
    batched = request.batch > 0
    chunk, mesh = share_seeds(run.num_seeds, seeds, run.devices)
    width = chunk * _size(mesh)
    carry = _laid_out(_carry(request, models, width), mesh, by_seeds(batched))
    keys = jax.eval_shape(lambda: seed_keys(jax.random.key(0), jnp.arange(width)))
    keys = _laid_out(keys, mesh, PartitionSpec(SEEDS))
    models = _laid_out(models, mesh, EVERYWHERE)
    # To the letter what the runner calls, so that it finds the program compiled.
    lowered = advance_program(request.environment, run.saved).lower(
        request.environment, _bare(request), batched, models, keys, carry, np.int32(1), np.int32(0), mesh=mesh
    )
    found = lowered.compile().memory_analysis()
    if found is None:  # a backend that gives no account
        return chunk, _least_bytes(request, run, models, seeds)
    copies = _CHECKPOINT_COPIES * found.output_size_in_bytes if run.saved else 0
    working = found.argument_size_in_bytes + found.output_size_in_bytes + max(found.temp_size_in_bytes, copies)
    working -= found.alias_size_in_bytes
    return chunk, _size(mesh) * working


def _laid_out(shapes: Any, mesh: Mesh | None, spec: PartitionSpec) -> Any:
    """The shapes as ``place`` would lay out their arrays."""
    if mesh is None:
        return shapes
    layout = NamedSharding(mesh, spec)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout), shapes)


def _size(mesh):
    return 1 if mesh is None else mesh.size


def _text(size):
    """Bytes in words of three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
