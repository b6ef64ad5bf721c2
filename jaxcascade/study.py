"""Studies: policies compared on common random numbers, their statistics, saved and loaded."""

import itertools
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade._identity import identify
from jaxcascade._memory import Request, Run, parse_memory, plan_chunks
from jaxcascade.arrays import read_npz, write_npz
from jaxcascade.checkpoint import Checkpoint, open_checkpoint
from jaxcascade.core import Policy, choose, get_system, system_of
from jaxcascade.devices import count_devices
from jaxcascade.simulate import prepare, record_steps, run_block

_NORMAL_95 = 1.959963984540054


class Interval(NamedTuple):
    """Mean over seeds with its spread, each ``[..., R]`` at the recorded rounds.

    Attributes:
      mean: mean over seeds.
      sd: standard deviation over seeds (n - 1 in the denominator; nan for one seed).
      ci95: half width of the normal 95 % interval, ``1.96 sd / sqrt(n)``.
      n: number of seeds.
    """

    mean: np.ndarray
    sd: np.ndarray
    ci95: np.ndarray
    n: int


@dataclass(frozen=True)
class Study:
    """Results of policies on one instance or on a grid of them, all on the same random numbers.

    Attributes:
      system: name of the system.
      steps: ``[R]`` recorded rounds.
      curves: policy -> metric -> ``[*axes, num_seeds, R]`` float64.
      axes: name -> values of each leading axis, in order; empty for a single instance.
      snapshots: policy -> name -> ``[*axes, num_seeds, ...]``, the rule in force at round ``meta["snapshot"]``.
      meta: what was run: seed, num_steps, times, versions.
    """

    system: str
    steps: np.ndarray
    curves: dict[str, dict[str, np.ndarray]]
    axes: dict[str, list] = field(default_factory=dict)
    snapshots: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def policies(self) -> list[str]:
        """Names of the policies, in the order they were given."""
        return list(self.curves)

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, recorded and derived."""
        return list(next(iter(self.curves.values()))) + list(get_system(self.system).ratios)

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return next(iter(next(iter(self.curves.values())).values())).shape[-2]

    def curve(self, policy: str, metric: str) -> np.ndarray:
        """A metric of every seed at every recorded round, ``[*axes, num_seeds, R]`` float64.

        Derived metrics are ratios of recorded ones, seed by seed.

        Args:
          policy: its name.
          metric: recorded or derived.

        Raises:
          ValueError: if there is no such policy or metric; names the closest.
        """
        recorded = choose("policy", policy, self.curves)
        ratios = get_system(self.system).ratios
        if metric in recorded:
            return recorded[metric]
        over, under = choose("metric", metric, {**dict.fromkeys(recorded), **ratios})
        below = self.steps if under == "rounds" else recorded[under]
        with np.errstate(invalid="ignore", divide="ignore"):
            return recorded[over] / np.where(np.asarray(below) > 0, below, np.nan)

    def final(self, policy: str, metric: str) -> np.ndarray:
        """A metric of every seed at the last recorded round, ``[*axes, num_seeds]`` float64.

        Args:
          policy: its name.
          metric: recorded or derived.

        Raises:
          ValueError: if there is no such policy or metric; names the closest.
        """
        return self.curve(policy, metric)[..., -1]

    def interval(self, policy: str, metric: str) -> Interval:
        """Mean, spread and 95 % half width of a metric over seeds, each ``[*axes, R]``.

        Args:
          policy: its name.
          metric: recorded or derived.

        Raises:
          ValueError: if there is no such policy or metric; names the closest.
        """
        return _interval(self.curve(policy, metric))

    def paired(self, first: str, second: str, metric: str) -> Interval:
        """The difference ``first - second`` of a metric, paired by seed, with its interval, each ``[*axes, R]``.

        Args:
          first: name of a policy.
          second: name of the policy to subtract.
          metric: recorded or derived.

        Raises:
          ValueError: if there is no such policy or metric; names the closest.
        """
        return _interval(self.curve(first, metric) - self.curve(second, metric))

    def summary(self) -> dict[str, Any]:
        """Mean, sd, 95 % half width and n of every policy and metric at every recorded round, as plain lists.

        ``{"steps": [...], "policies": {NAME: {METRIC: {"mean", "sd", "ci95", "n"}}}}``, with ``"axes"`` and
        lists nested by axis for a grid. Undefined numbers (a ratio over nothing, the sd of one seed) are None.
        """
        table = {
            policy: {
                metric: {**{k: _plain(v) for k, v in self.interval(policy, metric)._asdict().items()}}
                for metric in self.metrics
            }
            for policy in self.policies
        }
        axes = {"axes": {name: [_plain(v) for v in values] for name, values in self.axes.items()}} if self.axes else {}
        return {"steps": self.steps.tolist(), **axes, "policies": table}

    def select(self, **values: Any) -> "Study":
        """The part of a grid with the given values of its axes; those axes are gone.

        Raises:
          ValueError: if there is no such axis, or no such value on it.
        """
        study = self
        for name, value in values.items():
            options = choose("axis", name, study.axes)
            matches = [i for i, option in enumerate(options) if _same(option, value)]
            if not matches:
                raise ValueError(f"{name}: expected one of {', '.join(map(str, options))}, got {value!r}")
            position, index = list(study.axes).index(name), matches[0]
            study = replace(
                study,
                axes={k: v for k, v in study.axes.items() if k != name},
                curves={p: {m: a.take(index, position) for m, a in c.items()} for p, c in study.curves.items()},
                snapshots={p: {m: a.take(index, position) for m, a in c.items()} for p, c in study.snapshots.items()},
            )
        return study

    def points(self) -> list[dict[str, Any]]:
        """The points of the grid, each a dict axis -> value; ``[{}]`` for a single instance."""
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]

    def save(self, path: str | os.PathLike) -> None:
        """Write the study to one ``.npz`` file: ``steps``, ``curve/POLICY/METRIC`` and ``about`` as JSON.

        The file is complete or not there: it is written under another name and renamed.

        Args:
          path: the file.
        """
        arrays = {"steps": self.steps}
        for kind, tables in (("curve", self.curves), ("snapshot", self.snapshots)):
            for policy, table in tables.items():
                arrays |= {f"{kind}/{policy}/{name}": array for name, array in table.items()}
        about = {"system": self.system, "axes": self.axes, "policies": self.policies, "meta": self.meta}
        arrays["about"] = np.array(json.dumps(about, default=_plain))
        write_npz(path, arrays)

    def to_pandas(self) -> Any:
        """A tidy DataFrame, one row per grid point, policy, seed and recorded round, one column per metric.

        Raises:
          ImportError: if pandas is not installed (``pip install jaxcascade[pandas]``).
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install 'jaxcascade[pandas]'") from error
        frames = []
        for point, policy in itertools.product(self.points(), self.policies):
            part = self.select(**point)
            seeds, steps = np.meshgrid(np.arange(self.num_seeds), self.steps, indexing="ij")
            columns = {**point, "policy": policy, "seed": seeds.ravel(), "step": steps.ravel()}
            frames.append(
                pandas.DataFrame(columns | {metric: part.curve(policy, metric).ravel() for metric in self.metrics})
            )
        return pandas.concat(frames, ignore_index=True)

    def plot(self, metric: str = "regret", **options: Any) -> Any:
        """Mean curves with 95 % bands, drawn on matplotlib axes, which are returned.

        Args:
          metric: recorded or derived.
          options: as in ``jaxcascade.plotting.plot_curves``.
        """
        from jaxcascade import plotting

        return plotting.plot_curves(self, metric, **options)


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
      devices: number of this process's devices to share the chunks, by default all; the numbers stay the same.
      checkpoint: folder in which the state is saved; the same study called again goes on from there and ends with
        the same numbers. Remove the folder once the study is saved.
      save_every: least seconds between two saves of the same seeds; results are saved as soon as they are there.
      progress: called with (policy, seed-rounds done, seed-rounds in all).

    Raises:
      ValueError: on impossible arguments, before anything is run, or a checkpoint that is damaged or of another study.
      FloatingPointError: if a policy's check of its own numbers failed.
      OSError: if the checkpoint cannot be written.

    Warns:
      UserWarning: before anything is run, if the study does not fit into ``memory`` or into what the machine has left.
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
      memory: most bytes that this process may take, a number or text such as ``"2 GiB"``: on a CPU with Python and the
        compiler, for which 640 MiB and 64 MiB a policy are set aside. Chunks of seeds are made so small that state,
        XLA's temporaries and results fit. Smaller chunks change results by no more than rounding, and chunks that
        fit as they are, by nothing. Queues that outgrow their buffers take more than was planned.
      devices: number of this process's devices to share the chunks, by default all; the numbers stay the same.
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
      UserWarning: before anything is run, if the study does not fit into ``memory`` or into what the machine has left.
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
    for _, policies in made:
        if list(policies) != names:
            raise ValueError("policies: expected the same names at every point of the grid")

    if snapshot is not None and len({_static_form(instance) for instance, _ in made}) > 1:
        raise ValueError("snapshot: expected instances of the same shapes at every point of the grid")
    devices = count_devices(devices)
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
    chosen = {name: [_scalar(v) for v in values] for name, values in (grid if axes is None else axes).items()}
    return Study(system.name, steps, curves, chosen, snapshots, meta)


def load_study(path: str | os.PathLike) -> Study:
    """The study saved at ``path``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not a whole study file.
    """
    arrays = read_npz(path, "a study")
    if "about" not in arrays or "steps" not in arrays:
        raise ValueError(f"{path}: expected a study, got an .npz file without 'about' and 'steps'")
    try:
        about = json.loads(str(arrays["about"]))
        tables: dict[str, dict] = {"curve": {name: {} for name in about["policies"]}, "snapshot": {}}
        for key, array in arrays.items():
            kind, _, rest = key.partition("/")
            if rest:
                policy, _, name = rest.rpartition("/")
                tables[kind].setdefault(policy, {})[name] = array
        return Study(
            about["system"], arrays["steps"], tables["curve"], about["axes"], tables["snapshot"], about["meta"]
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected a study, got one whose description is damaged ({error!r})") from error


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


def _interval(values):
    count = values.shape[-2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one seed has no spread: nan, as documented
        spread = np.std(values, axis=-2, ddof=1) if count > 1 else np.full(values[..., 0, :].shape, np.nan)
    return Interval(np.mean(values, axis=-2), spread, _NORMAL_95 * spread / math.sqrt(count), count)


def _scalar(value):
    """An axis value as a plain number where it is an array of one."""
    return value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value


def _plain(value):
    """Numbers and arrays as JSON can hold them; nan and infinities become None."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _same(option, value):
    option, value = _scalar(option), _scalar(value)
    if isinstance(option, float) and isinstance(value, (int, float)):
        return math.isclose(option, value, rel_tol=1e-9)
    return option == value
