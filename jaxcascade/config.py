"""Experiments written as TOML files: read, checked to the last key before anything runs, and run.

A complaint is one ``ValueError`` of one line: file, dotted key, what was expected, what came, closest name.
"""

import inspect
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from jaxcascade._paper import Paper, PaperRow, as_entry, beside, parse_paper
from jaxcascade._toml import (
    check_names,
    dotted,
    one_line,
    read_toml,
    shown,
    split_key,
    type_name,
    typed,
    whole,
    with_value,
)
from jaxcascade.arrays import load_instance
from jaxcascade.core import Policy, System, choose, closest, get_system, one_of, systems
from jaxcascade.data import level_counts
from jaxcascade.results import Study
from jaxcascade.simulate import prepare, record_steps
from jaxcascade.study import compare, sweep

_QUICK = ("num_steps", "num_seeds", "record", "snapshot", "sweep")
_TEXTS = ("title", "description", "system", "baseline")
_TABLES = ("instance", "policies", "sweep", "figures", "paper")
_KEYS = (*_TEXTS, "num_steps", "num_seeds", "seed", "record", "snapshot", "quick", *_TABLES)
_SOURCES = ("kind", "file", "log")
_FIGURE = ("kind", "file", "select")
# What a policy that is trained on routing tables takes from [instance], so that both see one split of one table.
_TABLE_ARGUMENTS = ("tables", "train_share", "split_seed", "drop_missing", "encoder", "cache", "cost_weight")
_DEFAULT_RECORD = 50
_LARGEST_SEED = 2**32 - 1  # jax.random.key keeps 32 bits


class Axis(NamedTuple):
    """One axis of a sweep: its name in the study, the keys of the argument it varies, and its values."""

    name: str
    path: tuple[str, ...]
    values: list


class Config(NamedTuple):
    """An experiment, checked.

    Attributes:
      path: the file it came from.
      title: headline of the figures, or None.
      description: what is claimed and found, or None.
      system: name of the system.
      baseline: the policy that the others are compared with, paired by seed, or None.
      num_steps: horizon T.
      num_seeds: number of seeds.
      seed: number from which every random stream derives.
      record: how many rounds to record, or the rounds themselves.
      snapshot: round after which the policies' rules are recorded, or None.
      instance: the table ``[instance]``.
      policies: name -> table of ``[policies]``, in the file's order.
      sweep: the axes of the grid; empty for a single instance.
      figures: the tables ``[[figures]]``, or the default one.
      paper: the tables ``[[paper]]``.
      comparable: False if the horizon, the instance or the policies are not those that the file holds, so that
        its published numbers are no yardstick.
    """

    path: str
    title: str | None
    description: str | None
    system: str
    baseline: str | None
    num_steps: int
    num_seeds: int
    seed: int
    record: int | list[int]
    snapshot: int | None
    instance: dict[str, Any]
    policies: dict[str, dict[str, Any]]
    sweep: tuple[Axis, ...]
    figures: list[dict[str, Any]]
    paper: list[Paper]
    comparable: bool


def load_config(path: str | os.PathLike, *, overrides: Mapping[str, Any] | None = None, quick: bool = False) -> Config:
    """The experiment in a TOML file, with every instance and policy of its grid built once to check them.

    Args:
      path: the file.
      overrides: dotted key -> value, put in place of the file's values, such as ``{"instance.gap": 0.04}``.
      quick: take the values of ``[quick]`` first.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if anything is wrong; one line with file, key, what was expected and what came.
    """
    name = os.fspath(path)
    written = read_toml(name)
    try:
        config = _parse(name, written, _as_run(written, overrides or {}, quick))
        _check(config)
    except ValueError as error:
        raise ValueError(f"{name}: {one_line(error)}") from error
    return config


def run_config(
    config: Config,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    seed_chunk: int | None = None,
    memory: int | str | None = None,
    devices: int | None = None,
    checkpoint: str | os.PathLike | None = None,
    save_every: float = 10.0,
) -> Study:
    """The study that the experiment describes.

    Args:
      config: the experiment.
      progress: called with (policy, seed-rounds done, seed-rounds in all).
      seed_chunk: most seeds a device runs at once, as for ``compare``.
      memory: most bytes that this process may take, as for ``compare``.
      devices: number of devices to share the chunks.
      checkpoint: folder in which the state is saved, and from which an interrupted run goes on.
      save_every: least seconds between two saves of the same seeds.

    Raises:
      FloatingPointError: if a policy's check of its own numbers failed.
      ValueError: if the checkpoint is damaged or of another run, or there are fewer devices.
      OSError: if the checkpoint cannot be written.
    """
    options: dict[str, Any] = {
        "num_steps": config.num_steps,
        "num_seeds": config.num_seeds,
        "seed": config.seed,
        "record": config.record,
        "snapshot": config.snapshot,
        "seed_chunk": seed_chunk,
        "memory": memory,
        "devices": devices,
        "checkpoint": checkpoint,
        "save_every": save_every,
        "progress": progress,
    }
    if config.sweep:
        return sweep(partial(build, config), {axis.name: axis.values for axis in config.sweep}, **options)
    return compare(*build(config), **options)


def build(config: Config, /, **point: Any) -> tuple[Any, dict[str, Policy]]:
    """The instance and the policies by name, with the values of ``point`` (axis -> value) in place.

    Raises:
      ValueError: naming the key, what was expected and what came.
    """
    tables: dict[str, Any] = {"instance": config.instance, "policies": config.policies}
    for axis in config.sweep:
        if axis.name in point:
            tables = with_value(tables, axis.path, point[axis.name])
    system = get_system(config.system)
    instance = _instance(typed(tables, "instance", dict), system, os.path.dirname(config.path))
    policies = typed(tables, "policies", dict)
    of = partial(_policy, system=system, of_instance=tables["instance"])
    return instance, {name: of(name, typed(policies, name, dict, "policies.")) for name in policies}


def as_table(config: Config) -> dict[str, Any]:
    """The experiment as the tables of a TOML file that would give it again, for a manifest."""
    table = {name: value for name, value in config._asdict().items() if name not in ("path", "comparable")}
    table["sweep"] = {}
    for axis in config.sweep:
        table["sweep"] = with_value(table["sweep"], axis.path, axis.values)
    table["paper"] = [as_entry(paper) for paper in config.paper]
    return {name: value for name, value in table.items() if value is not None}


def paper_table(config: Config, study: Study) -> list[PaperRow]:
    """Our numbers beside the published ones, a row for every cell whose point is in the study."""
    rows = []
    for paper in config.paper:
        for cell in paper.cells:
            if set(cell.point) != set(study.axes):
                continue
            try:
                part = study.select(**cell.point)
            except ValueError:  # a quick run, or --set, may have left the point out
                continue
            interval = part.interval(paper.policy, paper.metric)
            ours = float(interval.mean[-1]), float(interval.ci95[-1])
            rows.append(beside(paper, cell, *ours, config.comparable))
    return rows


def _as_run(written, overrides, quick):
    """The tables with those of ``[quick]`` and the overrides in place."""
    short = typed(written, "quick", dict, default={})
    check_names(short, _QUICK, "quick.")
    for name in ("num_steps", "num_seeds", "snapshot"):
        whole(short, name, "quick.", default=None)
    _record(short, where="quick.")
    if quick and not short:
        raise ValueError("quick: expected a table [quick] with the values of a quick run, got none")
    tables = {name: value for name, value in written.items() if name != "quick"} | (short if quick else {})
    for key, value in overrides.items():
        path = split_key(key)
        if path[0] == "quick":
            raise ValueError(f"{key}: expected a key outside [quick], whose values give way to those set here")
        tables = with_value(tables, path, value)
    return tables


def _parse(name, written, tables):
    check_names(tables, _KEYS)
    if "system" not in tables:
        raise ValueError(f"system: expected {one_of(systems())}, got none")
    system = get_system(typed(tables, "system", str)).name
    num_steps = whole(tables, "num_steps")
    snapshot = whole(tables, "snapshot", most=num_steps, default=None)
    policies = typed(tables, "policies", dict)
    if not policies:
        raise ValueError("policies: expected at least one, got none")
    for policy in policies:
        typed(policies, policy, dict, "policies.")
    baseline = typed(tables, "baseline", str, default=None)
    if baseline is not None:
        choose("baseline", baseline, policies)
    axes = _axes(typed(tables, "sweep", dict, default={}), policies)
    # Published numbers belong to the grid of the file, of which a quick run may take a part.
    published = _axes(typed(written, "sweep", dict, default={}), policies)
    figures = typed(tables, "figures", list, default=[])
    default_figure = {"kind": "sweep" if axes else "curves", "metric": "regret"}
    return Config(
        path=name,
        title=typed(tables, "title", str, default=None),
        description=typed(tables, "description", str, default=None),
        system=system,
        baseline=baseline,
        num_steps=num_steps,
        num_seeds=whole(tables, "num_seeds"),
        seed=whole(tables, "seed", least=0, most=_LARGEST_SEED, default=0),
        record=_record(tables, num_steps),
        snapshot=snapshot,
        instance=typed(tables, "instance", dict),
        policies=policies,
        sweep=axes,
        figures=[_figure(figure, f"figures[{i}]") for i, figure in enumerate(figures)] or [default_figure],
        paper=parse_paper(tables, {axis.name: axis.values for axis in published}),
        comparable=_experiment(written) == _experiment(tables),
    )


def _experiment(tables):
    """What published numbers depend on: horizon, last recorded round, instance and policies."""
    record = _record(tables)
    last = max(record) if isinstance(record, list) else tables.get("num_steps")
    return [last, *(tables.get(name) for name in ("num_steps", "instance", "policies"))]


def _axes(table, policies):
    """The axes of a sweep, named by their last component, or by the whole path where two would clash."""
    leaves = list(_leaves(table, ()))
    names = Counter(path[-1] for path, _ in leaves)
    for path, values in leaves:
        choose(dotted("sweep", path[0]), path[0], {"instance": None, "policies": None})
        if len(path) == 1:
            raise ValueError(f"sweep.{path[0]}: expected a table of arguments and their values, got {shown(values)}")
        if path[0] == "policies":
            choose(dotted("sweep", *path[:2]), path[1], policies)
        if not isinstance(values, list) or not values:
            raise ValueError(f"{dotted('sweep', *path)}: expected a list of values, got {shown(values)}")
    return tuple(Axis(path[-1] if names[path[-1]] == 1 else dotted(*path), path, values) for path, values in leaves)


def _leaves(table: dict, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _figure(figure, key):
    """A table of ``[[figures]]``, its keywords held against the signature of ``plotting.plot_KIND``."""
    from jaxcascade import plotting  # matplotlib is slow to import

    if not isinstance(figure, dict):
        raise ValueError(f"{key}: expected a table, got {shown(figure)}")
    drawers = {name.removeprefix("plot_"): f for name, f in vars(plotting).items() if name.startswith("plot_")}
    keywords = {kind: [*inspect.signature(function).parameters] for kind, function in drawers.items()}
    of_studies = {kind: names for kind, names in keywords.items() if names[0] == "study"}
    names = choose(f"{key}.kind", typed(figure, "kind", str, f"{key}."), of_studies)
    check_names(figure, [*_FIGURE, *(name for name in names if name not in ("study", "ax"))], f"{key}.")
    return figure


def _check(config):
    """Builds every point of the grid, then looks up the metrics that figures and published numbers name."""
    metrics: dict[str, Any] = {}
    for values in itertools.product(*(axis.values for axis in config.sweep)):
        instance, _ = build(config, **dict(zip((axis.name for axis in config.sweep), values, strict=True)))
        environment = _called("instance", prepare, {"instance": instance, "num_steps": config.num_steps})
        metrics |= dict(environment.metrics) | dict(get_system(config.system).ratios)
    for i, figure in enumerate(config.figures):
        for name in ("metric", "x", "y"):
            if name in figure:
                choose(f"figures[{i}].{name}", typed(figure, name, str, f"figures[{i}]."), metrics)
    for i, entry in enumerate(config.paper):
        choose(f"paper[{i}].metric", entry.metric, metrics)


def _instance(table: dict, system: System, folder: str) -> Any:
    if "file" in table:
        for name in table:
            if name != "file":
                raise ValueError(f"{dotted('instance', name)}: expected nothing beside instance.file")
        path = _find(typed(table, "file", str, "instance."), folder)
        try:
            instance = load_instance(path)
        except (ValueError, OSError) as error:
            raise ValueError(f"instance.file: {one_line(error)}") from error
        if not isinstance(instance, system.instance_type):
            raise ValueError(f"instance.file: expected an instance of {system.name}, got one of another system")
        return instance
    if "kind" not in table and "log" not in table:
        raise ValueError(f"instance: expected {one_of(_SOURCES)}, got {', '.join(table) or 'none'}")
    kind = typed(table, "kind", str, "instance.", default="from_log")
    builder = choose("instance.kind", kind, system.builders)
    arguments = {name: value for name, value in table.items() if name != "kind"}
    if kind == "from_log" and "log" in arguments:
        log = arguments["log"] = _find(typed(arguments, "log", str, "instance."), folder)
        if not os.path.exists(log) and log not in level_counts():
            near = closest(log, level_counts())
            raise ValueError(f"instance.log: expected a file or a shipped table (jaxcascade list), got {log!r}{near}")
    return _call("instance", builder, arguments)


def _find(path, folder):
    """The path of a file beside the TOML file, else the path as it is."""
    beside = os.path.join(folder, path)
    return beside if os.path.isfile(beside) else path


def _policy(name: str, table: dict, system: System, of_instance: dict[str, Any]) -> Policy:
    key = dotted("policies", name)
    if "kind" not in table:
        raise ValueError(f"{key}.kind: expected {one_of(system.policies)}, got none")
    factory = choose(f"{key}.kind", typed(table, "kind", str, f"{key}."), system.policies)
    arguments = {name: value for name, value in table.items() if name != "kind"}
    accepted = inspect.signature(factory).parameters
    if "tables" in accepted and "tables" not in arguments and "tables" in of_instance:
        if of_instance.get("part") != "evaluation":
            raise ValueError(
                f"instance.part: expected 'evaluation', as {key} is trained on the rest of the same tables,"
                f" got {of_instance.get('part', 'all')!r}"
            )
        shared = {name: of_instance[name] for name in _TABLE_ARGUMENTS if name in of_instance and name in accepted}
        arguments = shared | arguments
    return _call(key, factory, arguments)


def _call(key: str, function: Callable, arguments: dict[str, Any]) -> Any:
    """``function(**arguments)`` after a check of the arguments against its signature."""
    parameters = inspect.signature(function).parameters
    what = getattr(function, "__name__", "the builder")
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in arguments:
            if name not in parameters:
                expected = f"an argument of {what} ({', '.join(parameters)})" if parameters else f"none by {what}"
                raise ValueError(f"{key}.{dotted(name)}: expected {expected}, got {name!r}{closest(name, parameters)}")
    for name, parameter in parameters.items():
        if name in arguments:
            _check_argument(f"{key}.{name}", parameter, arguments[name])
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise ValueError(f"{key}.{name}: expected a value, which {what} needs, got none")
    return _called(key, function, arguments)


def _check_argument(key, parameter, value):
    """Refuses a value of another type than a plain annotation, or else the default, tells."""
    wanted = parameter.annotation if parameter.annotation is not parameter.empty else type(parameter.default)
    if wanted in (int, float):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        fits = wanted not in (bool, str) or isinstance(value, wanted)
    if not fits:
        raise ValueError(f"{key}: expected {type_name(wanted)}, got {shown(value)}")


def _called(key, function, arguments):
    """``function(**arguments)``; whatever it objects to becomes one line that names the key."""
    try:
        return function(**arguments)
    except (TypeError, ValueError, ArithmeticError, OSError) as error:
        message = one_line(error)
        head = message.partition(":")[0]
        joint = "." if head in inspect.signature(function).parameters else ": "
        raise ValueError(f"{key}{joint}{message}") from error


def _record(tables, num_steps=None, where=""):
    """The key ``record``; its rounds are held against the horizon where one is given."""
    record = tables.get("record", _DEFAULT_RECORD)
    numbers = record if isinstance(record, list) else [record]
    if not numbers or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise ValueError(f"{where}record: expected a number of checkpoints or a list of rounds, got {shown(record)}")
    if num_steps is not None:
        record_steps(record, num_steps)
    return record
