"""Studies: policies compared on common random numbers, on one instance or on a grid of them."""

import itertools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade._identity import identify
from jaxcascade._memory import Request, Run, parse_memory, plan_chunks
from jaxcascade.checkpoint import Checkpoint, open_checkpoint
from jaxcascade.core import Policy, system_of
from jaxcascade.devices import count_devices
from jaxcascade.results import Study, plain_scalar
from jaxcascade.simulate import prepare, record_steps, run_block


def compare(
    instance: Any,
    policies: Mapping[str, Policy],
    *,
    num_steps: int,
    num_seeds: int,
    seed: int = 0,
    record: int | Sequence[int] = 50,
    axis: tuple[str, Sequence] | None = None,
    snapshot: int | None = None,
    seed_chunk: int | None = None,
    memory: int | str | None = None,
    devices: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    save_every: float = 10.0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Study:
    """A study of several policies on one instance; every policy meets the same arrivals, labels and service.

    Args:
      instance: an instance of a registered system.
      policies: name -> policy.
      num_steps: horizon T.
      num_seeds: number of seeds; more of them leave the first ones as they were.
      seed: number from which every random stream derives.
      record: how many evenly spaced rounds to record, or the rounds themselves.
      axis: ``(name, values)`` if the instance's leaves carry a leading axis, one entry per value; the whole
        batch runs in one program.
      snapshot: round after which the policies' rules are recorded.
      seed_chunk: most seeds a device runs at once; by default 128, fewer where a learner remembers every round.
      memory: most bytes that this process may take, a number or text such as ``"2 GiB"``: on a CPU with Python and the
        compiler, for which 640 MiB and 64 MiB a policy are set aside. Chunks of seeds are made so small that state,
        XLA's temporaries and results fit. Smaller chunks change results by no more than rounding, and chunks that
        fit as they are, by nothing. Queues that outgrow their buffers take more than was planned.
      devices: number of this process's devices to share the chunks, by default all; a sum's last digit may
        differ from one device's.
      checkpoint: folder in which the state is saved; the same study called again goes on from there and ends with
        the same numbers. Remove the folder once the study is saved.
      save_every: least seconds between two saves of the same seeds; results are saved as soon as they are there.
      progress: called with (policy, seed-rounds done, seed-rounds in all).

    Raises:
      ValueError: on impossible arguments, before anything is run, or a checkpoint that is damaged or of another study.
      FloatingPointError: if a policy's check of its own numbers failed.
      OSError: if the checkpoint cannot be written.

    Warns:
      UserWarning: before anything is run, if the study does not fit into ``memory`` or into what the machine has left;
        and if it has too few chunks of seeds for the ``devices`` asked for.
    """
    options: dict[str, Any] = {
        "num_steps": num_steps,
        "num_seeds": num_seeds,
        "seed": seed,
        "record": record,
        "snapshot": snapshot,
        "seed_chunk": seed_chunk,
        "memory": memory,
        "devices": devices,
        "checkpoint": checkpoint,
        "save_every": save_every,
        "progress": progress,
    }
    if axis is None:
        return sweep(lambda: (instance, policies), {}, **options)
    name, values = axis[0], list(axis[1])
    lengths = {leaf.shape[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(instance)}
    if lengths != {len(values)}:
        raise ValueError(f"axis: expected every leaf of the instance to have {len(values)} entries for {name!r}")

    def entry(index: int) -> tuple[Any, Mapping[str, Policy]]:
        return jax.tree.map(lambda leaf: leaf[index], instance), policies

    return sweep(entry, {"index": range(len(values))}, axes={name: values}, **options)


def sweep(
    make: Callable[..., tuple[Any, Mapping[str, Policy]]],
    grid: Mapping[str, Sequence],
    *,
    num_steps: int,
    num_seeds: int,
    seed: int = 0,
    record: int | Sequence[int] = 50,
    snapshot: int | None = None,
    seed_chunk: int | None = None,
    memory: int | str | None = None,
    devices: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    save_every: float = 10.0,
    progress: Callable[[str, int, int], None] | None = None,
    axes: Mapping[str, Sequence] | None = None,
) -> Study:
    """A study over a grid of instances and policy arguments, on the same random numbers at every point.

    Points whose instances and policies have the same shapes and flags run together in one compiled program,
    batched by vmap; the others run one group after another.

    Args:
      make: called with one keyword per axis of the grid; returns an instance and its policies by name.
      grid: axis name -> values; the study has every combination.
      num_steps: horizon T.
      num_seeds: number of seeds.
      seed: number from which every random stream derives.
      record: how many evenly spaced rounds to record, or the rounds themselves.
      snapshot: round after which the policies' rules are recorded; the points must then agree in shapes.
      seed_chunk: most seeds a device runs at once; by default 128, fewer where a learner remembers every round.
      memory: as in ``compare``.
      devices: as in ``compare``.
      checkpoint: folder in which the state is saved; the same study called again goes on from there and ends with
        the same numbers. Remove the folder once the study is saved.
      save_every: least seconds between two saves of the same seeds; results are saved as soon as they are there.
      progress: called with (policy, seed-rounds done, seed-rounds in all).
      axes: axes of the study, where they should be named otherwise than the grid's.

    Raises:
      ValueError: on impossible arguments, before anything is run, or a checkpoint that is damaged or of another study.
      FloatingPointError: if a policy's check of its own numbers failed.
      OSError: if the checkpoint cannot be written.

    Warns:
      UserWarning: before anything is run, if the study does not fit into ``memory`` or into what the machine has left;
        and if it has too few chunks of seeds for the ``devices`` asked for.
    """
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, (int, np.integer)) or num_seeds < 1:
        raise ValueError(f"num_seeds: expected a whole number >= 1, got {num_seeds!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32:
        raise ValueError(f"seed: expected a whole number in 0..2^32-1, got {seed!r}")
    steps = record_steps(np.asarray(record) if np.ndim(record) else record, num_steps)  # type: ignore[arg-type]
    if snapshot is not None and not 1 <= snapshot <= num_steps:
        raise ValueError(f"snapshot: expected a round within 1..{num_steps}, got {snapshot!r}")
    if seed_chunk is not None and seed_chunk < 1:
        raise ValueError(f"seed_chunk: expected a whole number >= 1, got {seed_chunk!r}")
    budget = parse_memory(memory)
    for name, values in grid.items():
        if not len(values):
            raise ValueError(f"{name}: expected at least one value, got none")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    made = [make(**point) for point in points]
    environments = [prepare(instance, num_steps) for instance, _ in made]
    system = system_of(made[0][0])
    names = list(made[0][1])
    if not names:
        raise ValueError("policies: expected at least one, got none")
    for name, policy in made[0][1].items():
        if not isinstance(policy, Policy):
            raise ValueError(
                f"policies[{name!r}]: expected a policy such as jaxcascade.{system.name} makes, got {policy!r}"
            )
    for _, policies in made:
        if list(policies) != names:
            raise ValueError("policies: expected the same names at every point of the grid")

    if snapshot is not None and len({_static_form(instance) for instance, _ in made}) > 1:
        raise ValueError("snapshot: expected instances of the same shapes at every point of the grid")
    asked, devices = devices, count_devices(devices)
    blocks = [
        (name, group, members, _request(made, environments, name, members))
        for name in names
        for group, members in enumerate(_groups(made, environments, name))
    ]
    run = Run(num_steps, num_seeds, len(steps), snapshot is not None, devices, checkpoint is not None)
    plans = plan_chunks([request for *_, request in blocks], run, seed_chunk, budget)
    folder = None
    if checkpoint is not None:
        numbers = {
            "num_steps": int(num_steps),
            "num_seeds": int(num_seeds),
            "seed": int(seed),
            "record": steps.tolist(),
        }
        chunks = seed_chunk if budget is None else [chunk for chunk, _ in plans]
        numbers |= {"snapshot": snapshot, "seed_chunk": chunks, "devices": devices, "system": system.name}
        manifest = open_checkpoint(checkpoint, identify(made, environments, **numbers))
        folder = Checkpoint(os.fspath(checkpoint), "", manifest, save_every)
    shape = tuple(len(values) for values in grid.values())
    total = len(points) * len(names) * num_seeds * num_steps
    done = 0
    curves: dict[str, dict[str, np.ndarray]] = {}
    snapshots: dict[str, dict[str, np.ndarray]] = {}
    found: list = [None] * len(points)
    times = {name: {"compile_seconds": 0.0, "run_seconds": 0.0} for name in names}
    for (name, group, members, request), (chunk, seconds) in zip(blocks, plans, strict=True):

        def report(rounds: int, name: str = name) -> None:
            nonlocal done
            done += rounds
            if progress:
                progress(name, min(done, total), total)

        block = run_block(
            request.environment,
            request.policy,
            *_stacked(made, name, members),
            batch=request.batch,
            seed=seed,
            num_steps=num_steps,
            num_seeds=num_seeds,
            steps=steps,
            snapshot=snapshot,
            seed_chunk=chunk,
            devices=devices,
            checkpoint=None if folder is None else folder._replace(block=f"{names.index(name)}-{group}"),
            progress=report,
            name=name,
        )
        if asked is not None and block.devices < asked:
            warnings.warn(
                f"devices: {name!r} runs on {block.devices} of {asked}, as its {num_seeds} seeds are so few chunks;"
                " set seed_chunk lower to use all",
                stacklevel=3,
            )
        times[name]["compile_seconds"] += seconds + block.compile_seconds
        times[name]["run_seconds"] += block.run_seconds
        for position, index in enumerate(members):
            found[index] = (
                {k: v[position] for k, v in block.metrics.items()},
                {k: v[position] for k, v in block.snapshot.items()},
            )
        if None not in found:  # the policy's last block
            curves[name] = _grid([f[0] for f in found], shape)
            rules = _grid([f[1] for f in found], shape)
            if rules:
                snapshots[name] = rules
            found = [None] * len(points)
    meta = {
        "seed": int(seed),
        "num_steps": int(num_steps),
        "num_seeds": int(num_seeds),
        "snapshot": snapshot,
        "times": times,
        "float_type": str(jnp.result_type(float)),
    }
    chosen = {name: [plain_scalar(v) for v in values] for name, values in (grid if axes is None else axes).items()}
    return Study(system.name, steps, curves, chosen, snapshots, meta)


def _groups(made, environments, name):
    """Indices of the points, grouped by what must be the same to run in one program."""
    groups: dict[Any, list[int]] = {}
    for index, (instance, policies) in enumerate(made):
        policy = policies[name]
        static = policy._replace(params=jax.tree.structure(policy.params))
        key = (environments[index], static, _static_form(instance))
        groups.setdefault(key, []).append(index)
    return groups.values()


def _stacked(made, name, members):
    """Instance and hyper-parameters of the points ``members``, with a leading axis unless there is one point in all."""
    trees = [made[i][0] for i in members], [jax.tree.map(jnp.asarray, made[i][1][name].params) for i in members]
    if len(made) == 1:
        return trees[0][0], trees[1][0]
    return tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *tree) for tree in trees)


def _request(made, environments, name, members):
    """The block of the points ``members``, with shapes in the place of arrays."""
    instance, params = jax.eval_shape(lambda: _stacked(made, name, members))
    batch = len(members) if len(made) > 1 else 0
    return Request(name, environments[members[0]], made[members[0]][1][name], instance, params, batch)


def _static_form(instance):
    """What two instances must share to be stacked: structure, static fields and shapes."""
    return jax.tree.structure(instance), tuple(np.shape(leaf) for leaf in jax.tree.leaves(instance))


def _grid(tables, shape):
    """Per-point dicts of arrays as one dict of arrays with the grid's axes in front."""
    if not tables[0]:
        return {}
    sizes = {name: {table[name].shape for table in tables} for name in tables[0]}
    uneven = [name for name, shapes in sizes.items() if len(shapes) > 1]
    if uneven:
        raise ValueError(f"snapshot: expected the same shapes at every point of the grid, {uneven[0]!r} differs")
    return {
        name: np.stack([table[name] for table in tables]).reshape(*shape, *tables[0][name].shape) for name in tables[0]
    }
