"""What a study found: curves by policy and metric, their statistics, saved and loaded."""

import itertools
import json
import math
import os
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from jaxcascade.arrays import read_npz, write_npz
from jaxcascade.core import choose, get_system

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

    def __repr__(self) -> str:
        axes = "".join(f", {name} in {values}" for name, values in self.axes.items())
        last = self.steps[-1] if len(self.steps) else 0
        return f"Study({self.system}: {', '.join(self.policies)}; {self.num_seeds} seeds to round {last}{axes})"

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


def _interval(values):
    count = values.shape[-2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one seed has no spread: nan, as documented
        spread = np.std(values, axis=-2, ddof=1) if count > 1 else np.full(values[..., 0, :].shape, np.nan)
    return Interval(np.mean(values, axis=-2), spread, _NORMAL_95 * spread / math.sqrt(count), count)


def plain_scalar(value: Any) -> Any:
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
    option, value = plain_scalar(option), plain_scalar(value)
    if isinstance(option, float) and isinstance(value, (int, float)):
        return math.isclose(option, value, rel_tol=1e-9)
    return option == value
