"""Pictures of studies: mean curves with 95 % bands, sweeps, heat maps, scatters, learned rules, calibration.

Every function draws into the given Axes, or makes a figure of its own, and returns the Axes, or the Figure
where it has several panels. Figures are made without pyplot: nothing is opened, the user's backend and
rcParams stay as they are, and what is returned shows itself in a notebook. A policy has the same colour,
dashes and marker in every picture of a study.
"""

import inspect
import io
import itertools
import math
import numbers
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from jaxcascade.core import choose, closest, get_system, one_of
from jaxcascade.study import Study

STYLE = str(Path(__file__).with_name("jaxcascade.mplstyle"))

Title = str | Callable[[str], str] | None

_SINGLE, _PANEL = (6.0, 4.0), (3.1, 2.5)  # inches: a figure of one panel, each of several
_MOST_PANELS = 36
_MOST_INSIDE = 5  # entries of a legend that may stand inside the frame
_LABEL_CHARACTERS = 34
_BAND_ALPHA = 0.2
_DARK, _GREY = "#333333", "#8C8C8C"
_DEFER, _ACCEPT = "#F5C242", "#3A3F6B"
_SCALES = {"linear": None, "log": None}
_GUIDES = {"sqrt": (np.sqrt, "∝ √t"), "log": (np.log, "∝ log t")}
_THEORY_DASHES = ((0, (1, 1.5)), (0, (1, 3)), (0, (1, 1.5, 1, 4)), (0, (2, 2)))
_SPOTS = {
    "upper left": (0, 1),
    "upper right": (1, 1),
    "lower right": (1, 0),
    "lower left": (0, 0),
    "center right": (1, 0.5),
    "upper center": (0.5, 1),
    "lower center": (0.5, 0),
    "center left": (0, 0.5),
    "center": (0.5, 0.5),
}
_UNDEFINED, _TOO_LOW = _UNDRAWN = "undefined", "not above zero"


class _ShownFigure(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        return _png(self)


class _ShownAxes(Axes):
    """Axes that a notebook shows as their whole figure."""

    def _repr_png_(self) -> bytes:
        return _png(_figure_of(self))


class _Line(NamedTuple):
    """One line or marker kind: its label, the policy, the position on each axis that is fixed, how it looks."""

    label: str
    policy: str
    where: dict[str, int]
    look: dict[str, Any]


class _Panel(NamedTuple):
    title: list[str]
    lines: list[_Line]


class _Layout(NamedTuple):
    """Panels in reading order on ``rows`` x ``columns``; ``constant`` is what all lines share, for the legend."""

    panels: list[_Panel]
    rows: int
    columns: int
    constant: str


class _Entry(NamedTuple):
    """An entry of a legend; the note holds for its panel alone."""

    label: str
    handle: Any
    note: str = ""


def plot_curves(
    study: Study,
    metric: str = "regret",
    *,
    policies: Sequence[str] | None = None,
    lines: str | None = None,
    ax: Axes | None = None,
    title: Title = None,
    guide: str | None = None,
    theory: Mapping[str, Any] | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    reference: str | None = None,
    ymax: float | None = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with a metric's mean over seeds and 95 % band against the round.

    One line per policy, or, of one policy, one per value of the last axis; what is left of the grid becomes
    panels. Policies whose metric is undefined are named in the legend.

    Args:
      study: the study.
      metric: name of a recorded or derived metric.
      policies: names to draw, by default all.
      lines: what the lines of a panel are, "policy" or the name of an axis.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.
      guide: "sqrt" or "log": a grey line proportional to that of the round, which ends where a panel's first
        line above zero ends.
      theory: label -> numbers at ``study.steps``, one number, or an array ``[*axes, R]``; dotted.
      xscale: "linear" or "log".
      yscale: "linear" or "log"; numbers at or below zero are left out of a log scale.
      reference: policy whose metric is subtracted seed by seed; the band is that of the paired difference.
      ymax: top of the frame; lines that leave it are listed in the legend with their last value.

    Raises:
      ValueError: if a name is unknown (names the closest), nothing is defined, or a number cannot be drawn.
    """
    names = _policies(study, policies)
    _check_names(study, metric=metric, reference=reference)
    _check_scales(xscale=xscale, yscale=yscale)
    if guide is not None:
        choose("guide", guide, _GUIDES)
    if reference is not None:
        names = _without(names, reference)
        table = {name: study.paired(name, reference, metric) for name in names}
    else:
        table = {name: study.interval(name, metric) for name in names}
    bounds = _theory_values(study, theory)
    layout = _arrange(study, names, lines, "policy" if len(names) > 1 else None)
    _check_drawable("metric", metric, [table[name].mean for name in names], yscale)

    with _house_style():
        axes = _open(layout, ax)
        drawn = []
        guided = False
        for here, panel in zip(axes, layout.panels, strict=True):
            means, entries = [], []
            for position, line in enumerate(panel.lines):
                index = tuple(line.where.values())
                mean, half = table[line.policy].mean[index], table[line.policy].ci95[index]
                means.append(_visible(mean, yscale))
                entries.append(_draw_curve(here, study.steps, mean, half, line, position, yscale, ymax))
            if guide:
                extra = _draw_guide(here, study.steps, means, guide, xscale)
                guided |= bool(extra)
                entries += extra
            entries += _draw_theory(here, study.steps, bounds, panel, yscale)
            if reference is not None and yscale == "linear":
                here.axhline(0, color=_GREY, linewidth=0.8, zorder=1)
            _set_scale(here, "x", xscale)
            _frame(here, means, yscale, ymax)
            drawn.append(entries)
        if guide and not guided:
            raise ValueError(f"guide: expected a line that ends above zero to scale {guide!r} by, got none")
        label = _label(study, metric)
        heading = f"{_quantity(label)} over {study.steps[-1]:,} rounds"
        if reference is not None:
            label, heading = (f"{text}, difference to {_plain(reference)}" for text in (label, heading))
        caption = _caption(layout, study.num_seeds, "band")
        return _close(axes, layout, drawn, caption, _heading(title, heading), "round t", label)


def plot_sweep(
    study: Study,
    metric: str = "regret",
    *,
    axis: str | None = None,
    policies: Sequence[str] | None = None,
    lines: str | None = None,
    ax: Axes | None = None,
    title: Title = None,
    xscale: str = "linear",
    yscale: str = "linear",
    reference: str | None = None,
    ymax: float | None = None,
    paper: Sequence[Mapping[str, Any]] | None = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with a metric's final mean and 95 % error bars against an axis.

    One line per policy, or, of one policy, one per value of a second axis; what is left becomes panels.

    Args:
      study: a study with at least one axis.
      metric: name of a recorded or derived metric.
      axis: axis along x, by default the first; values that are not numbers are set side by side.
      policies: names to draw, by default all.
      lines: what the lines of a panel are, "policy" or the name of another axis.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.
      xscale: "linear" or "log".
      yscale: "linear" or "log".
      reference: policy whose metric is subtracted seed by seed.
      ymax: top of the frame; lines that leave it are listed in the legend with their last value.
      paper: published numbers, drawn as hollow markers: dicts of ``policy`` (needed where there are several),
        a value for every axis of the study, ``mean`` and, if known, ``ci95``.

    Raises:
      ValueError: if the study has no axis, a name is unknown (names the closest), or nothing is defined.
    """
    if not study.axes:
        raise ValueError("study: expected at least one axis to sweep along, got a study without axes")
    axis = next(iter(study.axes)) if axis is None else axis
    values = choose("axis", axis, study.axes)
    names = _policies(study, policies)
    _check_names(study, metric=metric, reference=reference)
    _check_scales(xscale=xscale, yscale=yscale)
    if reference is not None:
        names = _without(names, reference)
        table = {name: study.paired(name, reference, metric) for name in names}
    else:
        table = {name: study.interval(name, metric) for name in names}
    published = [_paper_point(study, names, axis, row, number) for number, row in enumerate(paper or ())]
    layout = _arrange(study, names, lines, "policy" if len(names) > 1 else None, along=axis)
    _check_drawable("metric", metric, [table[name].mean[..., -1] for name in names], yscale)
    places, order, numeric = _places(values)
    if xscale == "log" and not (numeric and np.min(places) > 0):
        raise ValueError(f"xscale: expected numbers above zero on {axis!r} for a log scale, got {values!r}")

    with _house_style():
        axes = _open(layout, ax)
        drawn = []
        for here, panel in zip(axes, layout.panels, strict=True):
            means, entries = [], []
            for line in panel.lines:
                index = tuple(line.where.get(name, slice(None)) for name in study.axes)
                interval = table[line.policy]
                mean, half = interval.mean[index][:, -1][order], interval.ci95[index][:, -1][order]
                entry, shown = _draw_points(here, places[order], mean, half, line, yscale, ymax)
                entries.append(entry)
                means.append(shown)
            rows = [row for row in published if any(_same_place(row, line, axis, study) for line in panel.lines)]
            for row in rows:
                line = next(line for line in panel.lines if _same_place(row, line, axis, study))
                place = row.x if numeric else places[values.index(row.x)]
                _draw_published(here, place, row, line.look)
                means.append(np.array([row.mean]))
            if rows:
                hollow = Line2D([], [], color=_DARK, marker="o", linestyle="none", **_HOLLOW)
                entries.append(_Entry("paper", hollow))
            _set_scale(here, "x", xscale)
            _name_places(here, values, places, numeric, xscale)
            _frame(here, means, yscale, ymax)
            drawn.append(entries)
        label = _label(study, metric)
        heading = f"{_quantity(label)} after {study.steps[-1]:,} rounds"
        if reference is not None:
            label, heading = (f"{text}, difference to {_plain(reference)}" for text in (label, heading))
        caption = _caption(layout, study.num_seeds, "bars")
        return _close(axes, layout, drawn, caption, _heading(title, heading), _words(axis), label)


def plot_heatmap(
    study: Study,
    metric: str = "regret",
    policy: str | None = None,
    *,
    ax: Axes | None = None,
    title: Title = None,
) -> Axes:
    """The Axes with a metric's final mean over a grid of two axes as a heat map, the numbers in its cells.

    The first axis runs up, the second to the right. Cells without a number are grey and marked with a dash;
    numbers that would be too small to read are left to the colour bar.

    Args:
      study: a study with two axes; take ``study.select`` to fix the others.
      metric: name of a recorded or derived metric.
      policy: name of the policy; needed where there are several.
      ax: Axes to draw into.
      title: title, or a function of the default one.

    Raises:
      ValueError: if the study has not two axes, a name is unknown (names the closest), or nothing is defined.
    """
    if len(study.axes) != 2:
        raise ValueError(f"study: expected two axes, got {', '.join(study.axes) or 'none'} (see Study.select)")
    if policy is None and len(study.policies) > 1:
        raise ValueError(f"policy: expected {one_of(study.policies)}, got none")
    policy = study.policies[0] if policy is None else policy
    _check_names(study, metric=metric, policy=policy)
    mean = study.interval(policy, metric).mean[..., -1]
    _check_drawable("metric", metric, [mean], "linear")
    (up, up_values), (right, right_values) = study.axes.items()
    rows, columns = mean.shape

    with _house_style():
        size = (min(max(4.6, 1.8 + 0.68 * columns), 16), min(max(3.0, 1.3 + 0.4 * rows), 12))
        here = _new_axes(1, 1, size)[0] if ax is None else ax
        here.grid(False)
        here.set_facecolor("#DDDDDD")
        edges = (np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5)
        mesh = here.pcolormesh(*edges, np.ma.masked_invalid(mean), edgecolors="white", linewidth=0.5)
        here.set_xticks(np.arange(columns), [_value_text(value) for value in right_values])
        here.set_yticks(np.arange(rows), [_value_text(value) for value in up_values])
        here.tick_params(length=0)
        label = _label(study, metric)
        bar = _figure_of(here).colorbar(mesh, ax=here, format=FuncFormatter(_short))
        bar.outline.set_visible(False)  # type: ignore[operator]
        heading = f"{_plain(policy)}: {label.split(' (')[0]} after {study.steps[-1]:,} rounds"
        _title_axes(here, _heading(title, heading))
        here.set_xlabel(_words(right))
        here.set_ylabel(_words(up))
        bar.set_label(_wrap(label, _height(here), 10))
        _thin_ticks(here, len(right_values), len(up_values))
        _write_cells(here, mean, mesh)
        return here


def plot_scatter(
    study: Study,
    x: str = "deferral_rate",
    y: str = "regret",
    *,
    policies: Sequence[str] | None = None,
    lines: str | None = None,
    ax: Axes | None = None,
    title: Title = None,
    xscale: str = "linear",
    yscale: str = "linear",
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with two final metrics against each other, one point a seed.

    The legend gives Pearson's correlation r of the plain numbers, where three seeds or more differ.

    Args:
      study: the study.
      x: name of the metric along x.
      y: name of the metric along y.
      policies: names to draw, by default all.
      lines: what has a marker of its own, "policy" or the name of an axis.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.
      xscale: "linear" or "log".
      yscale: "linear" or "log".

    Raises:
      ValueError: if a name is unknown (names the closest), or nothing is defined.
    """
    names = _policies(study, policies)
    _check_names(study, x=x, y=y)
    _check_scales(xscale=xscale, yscale=yscale)
    finals = {name: (study.final(name, x), study.final(name, y)) for name in names}
    layout = _arrange(study, names, lines, "policy" if len(names) > 1 else None)
    for what, metric, scale, side in (("x", x, xscale, 0), ("y", y, yscale, 1)):
        _check_drawable(what, metric, [finals[name][side] for name in names], scale)

    with _house_style():
        axes = _open(layout, ax)
        drawn = []
        for here, panel in zip(axes, layout.panels, strict=True):
            entries = []
            for line in panel.lines:
                index = tuple(line.where.values())
                across, up = finals[line.policy]
                entries.append(_draw_cloud(here, across[index], up[index], line))
            _set_scale(here, "x", xscale)
            _set_scale(here, "y", yscale)
            drawn.append(entries)
        xlabel, ylabel = _label(study, x), _label(study, y)
        heading = f"{_quantity(ylabel)} against {xlabel.split(' (')[0]} after {study.steps[-1]:,} rounds"
        seeds = "1 point, 1 seed" if study.num_seeds == 1 else f"1 point a seed, {study.num_seeds:,} seeds"
        caption = "\n".join(filter(None, (layout.constant, seeds)))
        return _close(axes, layout, drawn, caption, _heading(title, heading), xlabel, ylabel)


def plot_thresholds(
    study: Study,
    *,
    policies: Sequence[str] | None = None,
    lines: str | None = None,
    ax: Axes | None = None,
    title: Title = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with the mean accuracy threshold and 95 % band by queue length.

    Thresholds below 0 count as 0; the full queue, where nobody is deferred, is left out. One line per value
    of the last axis and a panel per policy, or one line per policy where there is no axis.

    Args:
      study: a study run with ``snapshot=``.
      policies: names to draw, by default all with a recorded threshold.
      lines: what the lines of a panel are, "policy" or the name of an axis.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.

    Raises:
      ValueError: if no threshold was recorded, or a name is unknown (names the closest).
    """
    found = {name: _clipped(rule) for name, rule in _rules(study, policies, "threshold").items()}
    rules = replace(study, curves={name: {"threshold": rule} for name, rule in found.items()})
    table = {name: rules.interval(name, "threshold") for name in found}
    layout = _arrange(study, list(found), lines, list(study.axes)[-1] if study.axes else "policy")
    _check_drawable("snapshot", "threshold", [interval.mean for interval in table.values()], "linear")

    with _house_style():
        axes = _open(layout, ax)
        drawn = []
        for here, panel in zip(axes, layout.panels, strict=True):
            entries = []
            for position, line in enumerate(panel.lines):
                index = tuple(line.where.values())
                mean, half = table[line.policy].mean[index], table[line.policy].ci95[index]
                entries.append(_draw_curve(here, np.arange(len(mean)), mean, half, line, position))
            here.set_ylim(bottom=min(0, here.get_ylim()[0]))
            here.xaxis.set_major_locator(MaxNLocator(integer=True))
            drawn.append(entries)
        caption = _caption(layout, study.num_seeds, "band")
        heading = _heading(title, f"Accuracy threshold{_moment(study)}")
        return _close(axes, layout, drawn, caption, heading, "queue length (queries)", "accuracy threshold")


def plot_decisions(
    study: Study,
    *,
    policies: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: Title = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with the most frequent decision over seeds by level and queue length.

    One panel per policy and grid point. "Defer" needs more than half of the seeds.

    Args:
      study: a study run with ``snapshot=``.
      policies: names to draw, by default all with recorded decisions.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.

    Raises:
      ValueError: if no decisions were recorded, or a name is unknown (names the closest).
    """
    found = _rules(study, policies, "decision")
    layout = _arrange(study, list(found), None, None, each=True)

    with _house_style():
        axes = _open(layout, ax)
        for here, panel in zip(axes, layout.panels, strict=True):
            line = panel.lines[0]
            share = np.mean(found[line.policy][tuple(line.where.values())], axis=0)
            levels, lengths = share.shape
            edges = (np.arange(lengths + 1) - 0.5, np.arange(levels + 1) + 0.5)
            here.grid(False)
            here.pcolormesh(
                *edges,
                (share > 0.5).astype(float),
                cmap=ListedColormap([_ACCEPT, _DEFER]),
                vmin=0,
                vmax=1,
                edgecolors="white",
                linewidth=0.5 if max(share.shape) <= 60 else 0,
            )
            for side in (here.xaxis, here.yaxis):
                side.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        seeds = "1 seed" if study.num_seeds == 1 else f"most frequent\nof {study.num_seeds:,} seeds"
        caption = "\n".join(filter(None, (layout.constant, seeds)))
        patches = [("defer", _DEFER), ("accept", _ACCEPT)]
        entries = [_Entry(text, Patch(facecolor=color, edgecolor="#888888")) for text, color in patches]
        heading = _heading(title, f"Decisions{_moment(study)}")
        x, y = "queue length (queries)", "confidence level"
        return _close(axes, layout, [entries] * len(axes), caption, heading, x, y, filled=True)


def plot_calibration(instance: Any, *, title: Title = None) -> Figure:
    """The Figure of a deferral instance: accuracy per level against the score, and the levels' arrival rates.

    Args:
      instance: an instance of the deferral system.
      title: title, or a function of the default one.

    Raises:
      ValueError: if it has no accuracies, arrivals and scores of one instance.
    """
    parts = [getattr(instance, name, None) for name in ("accuracy", "arrival", "score")]
    if any(part is None for part in parts):
        raise ValueError(f"instance: expected a deferral instance, got {type(instance).__name__}")
    accuracy, arrival, score = (np.asarray(part, np.float64) for part in parts)
    if accuracy.ndim != 1:
        raise ValueError(f"instance: expected one instance, got a batch of shape {accuracy.shape[:-1]}")

    with _house_style():
        left, right = axes = _new_axes(1, 2, (8.0, 3.6))
        look = _looks(1)[0] | {"linestyle": "-"}
        order = np.argsort(score, kind="stable")
        diagonal = {"color": _GREY, "linestyle": "--", "marker": "none", "linewidth": 1.2}
        left.plot([0, 1], [0, 1], **diagonal)
        left.plot(score[order], accuracy[order], **look)
        handles = [Line2D([], [], **look), Line2D([], [], **diagonal)]
        left.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="confidence score", ylabel="accuracy of the LLM")
        left.set_title("accuracy by level")
        levels = np.arange(1, len(accuracy) + 1)
        right.bar(levels, arrival[1:], color=look["color"], width=0.8)
        if arrival[0] > 0:
            right.bar([0], arrival[:1], color="white", edgecolor=_DARK, hatch="///", width=0.8)
        right.set(xlabel="confidence level", ylabel="arrivals per round")
        right.set_title("arrival rate by level")
        right.grid(False, axis="x")
        right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        right.xaxis.set_major_formatter(FuncFormatter(_level_text))
        right.yaxis.set_major_formatter(FuncFormatter(_short))
        heading = _heading(title, f"Calibration: {len(accuracy)} levels of confidence")
        _title_figure(axes, heading)
        _place_legends([_Legend(left, handles, ["instance", "calibrated"])], 2)
        return _figure_of(left)


_KINDS: dict[str, Callable[..., Axes | Figure]] = {
    "curves": plot_curves,
    "sweep": plot_sweep,
    "heatmap": plot_heatmap,
    "scatter": plot_scatter,
    "thresholds": plot_thresholds,
    "decisions": plot_decisions,
}
_SUFFIXES = {".png": None, ".pdf": None, ".svg": None}


def draw(
    study: Study,
    figures: Sequence[Mapping[str, Any]],
    directory: str | os.PathLike,
    title: str | None = None,
) -> list[Path]:
    """The files of the given figures, drawn and written at 150 dots per inch, in order.

    Kinds, keywords, names, selections and files are checked before the first figure is drawn. A file is
    named by its kind and metric, ``curves_regret.png``, with a number behind where that is taken; it is
    complete or not there.

    Args:
      study: the study.
      figures: one dict per figure: ``kind`` ("curves", "sweep", "heatmap", "scatter", "thresholds",
        "decisions"), keywords of ``plot_KIND``, and if wanted ``file`` (a name that ends in .png, .pdf or
        .svg) and ``select`` (axis -> value, as in ``Study.select``).
      directory: where to write; made if missing.
      title: put before the default title of every figure that has none of its own.

    Raises:
      ValueError: naming the figure and its key, what was expected, and the closest valid name.
    """
    plans = [_plan(study, figure, number, title) for number, figure in enumerate(figures)]
    paths = _file_names([plan[0] for plan in plans], [figure.get("file") for figure in figures], Path(directory))
    Path(directory).mkdir(parents=True, exist_ok=True)
    for (_, function, part, options), path in zip(plans, paths, strict=True):
        drawn = function(part, **options)
        figure = _figure_of(drawn) if isinstance(drawn, Axes) else drawn
        partial = path.with_name(f"{path.name}.partial")
        with _house_style():
            figure.savefig(partial, format=path.suffix[1:], dpi=150)
        os.replace(partial, path)
    return paths


# --- checks


def _policies(study, policies):
    """The names to draw, in the study's order of styles."""
    if policies is None:
        return study.policies
    names = [policies] if isinstance(policies, str) else list(policies)
    for name in names:
        choose("policies", name, study.curves)
    if not names:
        raise ValueError(f"policies: expected some of {', '.join(study.policies)}, got none")
    return list(dict.fromkeys(names))


def _check_names(study, **names):
    """Metrics (metric, x, y) and policies (policy, reference) must be of the study; None passes."""
    for what, name in names.items():
        if name is not None:
            options = study.policies if what in ("policy", "reference") else study.metrics
            choose(what, name, dict.fromkeys(options))


def _check_scales(**scales):
    for what, scale in scales.items():
        choose(what, scale, _SCALES)


def _without(names, reference):
    others = [name for name in names if name != reference]
    if not others:
        raise ValueError(f"reference: expected another policy than the only one drawn, got {reference!r}")
    return others


def _check_drawable(what, metric, tables, scale):
    """Some number of the tables must be finite, and above zero on a log scale."""
    if not any(np.isfinite(table).any() for table in tables):
        raise ValueError(f"{what}: expected a metric with numbers to draw, got {metric!r}, which is undefined here")
    if scale == "log" and not any((np.nan_to_num(table, nan=0) > 0).any() for table in tables):
        raise ValueError(f"{what}: expected numbers above zero for a log scale, got none for {metric!r}")


def _theory_values(study, theory):
    """Label -> ``[*axes, R]``."""
    shape = (*(len(values) for values in study.axes.values()), len(study.steps))
    found = {}
    for label, values in (theory or {}).items():
        array = np.asarray(values, np.float64)
        try:
            found[label] = np.broadcast_to(array, shape)
        except ValueError:
            raise ValueError(
                f"theory: expected one number, {len(study.steps)} (one a recorded round) or shape {shape} "
                f"for {label!r}, got shape {array.shape}"
            ) from None
    return found


def _rules(study, policies, name):
    """Policy -> its recorded snapshot ``name``."""
    recorded = {policy: rules[name] for policy, rules in study.snapshots.items() if name in rules}
    if not recorded:
        raise ValueError(f"study: expected a snapshot of {name}s (run with snapshot=ROUND), got none")
    if policies is None:
        return recorded
    names = _policies(study, policies)
    for policy in names:
        if policy not in recorded:
            raise ValueError(f"policies: expected {one_of(recorded)}, got {policy!r}, which recorded no {name}")
    return {policy: recorded[policy] for policy in names}


def _clipped(threshold):
    """Thresholds at least 0, nan at queue lengths where every seed has none."""
    threshold = np.asarray(threshold, np.float64)
    nobody = np.isneginf(threshold).all(axis=-2, keepdims=True)
    return np.where(nobody, np.nan, np.maximum(threshold, 0))


class _Published(NamedTuple):
    policy: str
    x: Any
    where: dict[str, int]
    mean: float
    ci95: float


def _paper_point(study, names, axis, row, number):
    """One published number, with the grid positions of its other axes."""
    what = f"paper[{number}]"
    known = {"policy": None, "mean": None, "ci95": None, **study.axes}
    for key in row:
        choose(what, key, known)
    for key in ("mean", *study.axes, *(("policy",) if len(names) > 1 else ())):
        if key not in row:
            raise ValueError(f"{what}: expected a {key!r}, got only {', '.join(row) or 'nothing'}")
    policy = row.get("policy", names[0])
    choose(f"{what}: policy", policy, study.curves)
    where = {}
    numeric = _places(study.axes[axis])[2]
    for name, values in study.axes.items():
        matches = [i for i, value in enumerate(values) if _equal(value, row[name])]
        free = name == axis and numeric and _is_number(row[name])
        if not matches and not free:
            raise ValueError(f"{what}: {name}: expected one of {', '.join(map(str, values))}, got {row[name]!r}")
        if name != axis:
            where[name] = matches[0]
    for key in ("mean", "ci95"):
        if key in row and not _is_number(row[key]):
            raise ValueError(f"{what}: {key}: expected a number, got {row[key]!r}")
    return _Published(policy, row[axis], where, float(row["mean"]), float(row.get("ci95", math.nan)))


def _same_place(row, line, axis, study):
    others = all(row.where[name] == line.where[name] for name in study.axes if name != axis)
    return row.policy == line.policy and others


def _plan(study, figure, number, title):
    """(file stem, function, study to draw, keywords) of one figure's description, checked."""
    what = f"figures[{number}]"
    if "kind" not in figure:
        raise ValueError(f"{what}.kind: expected {one_of(_KINDS)}, got none")
    kind = figure["kind"]
    function = choose(f"{what}.kind", kind, _KINDS)
    options = {key: value for key, value in figure.items() if key not in ("kind", "file", "select")}
    allowed = [name for name in inspect.signature(function).parameters if name not in ("study", "ax")]
    for key in options:
        if key not in allowed:
            valid = [*allowed, "file", "select"]
            raise ValueError(f"{what}.{key}: expected {one_of(valid)}, got {key!r}{closest(key, valid)}")
    select = figure.get("select", {})
    if not isinstance(select, Mapping):
        raise ValueError(f"{what}.select: expected axis = value, got {select!r}")
    defaults = inspect.signature(function).parameters
    metrics = {key: options.get(key, defaults[key].default) for key in ("metric", "x", "y") if key in allowed}
    try:
        part = study.select(**select)
        _check_names(part, **metrics, **{key: options.get(key) for key in ("policy", "reference")})
        _policies(part, options.get("policies"))
        if options.get("axis") is not None:
            choose("axis", options["axis"], part.axes)
        _check_scales(**{key: options[key] for key in ("xscale", "yscale") if key in options})
    except ValueError as error:
        raise ValueError(f"{what}.{error}") from None
    if options.get("title") is None:
        before = f"{title}: " if title else ""
        points = ", ".join(f"{_words(axis)} = {_value_text(value)}" for axis, value in select.items())
        after = f" ({points})" if points else ""
        options["title"] = lambda default: f"{before}{default if not title else _lower(default)}{after}"
    stem = "_".join([kind, *dict.fromkeys(metrics[key] for key in ("metric", "y", "x") if key in metrics)])
    return stem, function, part, options


def _file_names(stems, wanted, directory):
    """A path for every figure: the wanted name, or its stem with a number where that is taken."""
    for number, name in enumerate(wanted):
        if name is None:
            continue
        what = f"figures[{number}].file"
        if not isinstance(name, str) or name != Path(name).name or Path(name).suffix not in _SUFFIXES:
            raise ValueError(f"{what}: expected a plain file name that ends in .png, .pdf or .svg, got {name!r}")
        if name in wanted[:number]:
            raise ValueError(f"{what}: expected another name than that of an earlier figure, got {name!r}")
    taken = {name for name in wanted if name is not None}
    found = []
    for stem, name in zip(stems, wanted, strict=True):
        if name is None:
            numbered = (f"{stem}{'' if count == 1 else f'_{count}'}.png" for count in itertools.count(1))
            name = next(candidate for candidate in numbered if candidate not in taken)
            taken.add(name)
        found.append(directory / name)
    return found


# --- what goes where


def _arrange(study, names, lines, default, along=None, each=False):
    """The panels of a picture: ``lines`` varies within a panel, everything else but the axis ``along`` across them."""
    grid = {axis: values for axis, values in study.axes.items() if axis != along}
    if each:
        lines = None
    elif lines is None:
        lines = default or (list(grid)[-1] if grid else "policy")
    else:
        choose("lines", lines, {"policy": None, **grid})
    across = {"policy": names, **grid}
    within = {} if lines is None else {lines: across.pop(lines)}
    looks = _line_looks(study, names, lines, within.get(lines, [None]))
    several = {name: values for name, values in across.items() if len(values) > 1}
    count = math.prod(len(values) for values in across.values())
    if count > _MOST_PANELS:
        sizes = ", ".join(f"{len(values)} of {name}" for name, values in several.items())
        raise ValueError(f"study: expected at most {_MOST_PANELS} panels, got {sizes}; fix an axis with Study.select")
    panels = []
    for positions in itertools.product(*(range(len(values)) for values in across.values())):
        fixed = dict(zip(across, positions, strict=True))
        title = [_point_text(name, across[name][fixed[name]]) for name in several]
        found = []
        for position, look in enumerate(looks):
            where = fixed if lines is None else fixed | {lines: position}
            label = "" if lines is None else _point_text(lines, within[lines][position])
            order = {axis: where[axis] for axis in grid}
            found.append(_Line(label, names[where["policy"]], order, look))
        panels.append(_Panel(title, found))
    sizes = [len(values) for values in several.values()]
    rows, columns = sizes if len(sizes) == 2 and sizes[1] <= 5 else _wrapped(count)
    once = [name for name in across if name not in several]
    constant = ", ".join(_point_text(name, across[name][0]) for name in once)
    return _Layout(panels, rows, columns, constant)


def _wrapped(count):
    columns = 2 if count == 4 else min(count, 3)
    return math.ceil(count / columns), columns


def _line_looks(study, names, lines, values):
    """A look per value within a panel: the policies' own ones, or a scale from dark to light for numbers."""
    if lines == "policy":
        looks = _looks(len(study.policies))
        return [looks[study.policies.index(name)] for name in names]
    looks = _looks(len(values))
    places, _, numeric = _places(values)
    if not numeric or len(values) < 2:
        return looks
    shades = matplotlib.colormaps["viridis"](0.85 * np.argsort(np.argsort(places)) / (len(values) - 1))
    return [look | {"color": tuple(shade)} for look, shade in zip(looks, shades, strict=True)]


def _looks(count):
    """Colour, dashes and marker of the house style, one set per line; hollow markers after the thirteenth."""
    with _house_style():
        cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    looks = []
    for position in range(count):
        again = position >= len(cycle)
        looks.append(cycle[position % len(cycle)] | ({"markerfacecolor": "white"} if again else {}))
    return looks


def _places(values):
    """Positions along x, their order, and whether they are the values themselves (all are numbers)."""
    numeric = all(_is_number(value) for value in values)
    places = np.asarray(values, np.float64) if numeric else np.arange(len(values), dtype=np.float64)
    return places, np.argsort(places, kind="stable"), numeric


def _is_number(value):
    return isinstance(value, (numbers.Real, np.number)) and not isinstance(value, (bool, np.bool_))


def _equal(first, second):
    if _is_number(first) and _is_number(second):
        return math.isclose(first, second, rel_tol=1e-9)
    return first == second


# --- drawing

_HOLLOW = {"markerfacecolor": "none", "markersize": 9, "markeredgewidth": 1.4}


def _visible(values, scale):
    """The numbers that a scale can show, nan for the others."""
    return np.where(np.isfinite(values) & ((scale == "linear") | (values > 0)), values, np.nan)


def _undrawn(line, values):
    """The entry of a line without a point to draw, which says why."""
    note = _TOO_LOW if np.isfinite(values).any() else _UNDEFINED
    return _Entry(line.label, Line2D([], [], linestyle="none"), note)


def _leaving(values, last, ymax):
    """Note on a line that leaves the frame."""
    return f"ends at {_number(last)}" if ymax is not None and np.nanmax(values) > ymax else ""


def _draw_curve(ax, places, mean, half, line, position, yscale="linear", ymax=None):
    shown = _visible(mean, yscale)
    if np.isnan(shown).all():
        return _undrawn(line, mean)
    every = (0.03 * (position % 5), 0.16) if len(places) > 12 else None
    ax.plot(places, shown, markevery=every, **line.look)
    if np.isfinite(half).any():
        floor = np.nanmin(shown) / 2 if yscale == "log" else -np.inf
        low, high = np.maximum(shown - half, floor), shown + half
        ax.fill_between(places, low, high, color=line.look["color"], alpha=_BAND_ALPHA, linewidth=0)
    last = shown[np.isfinite(shown)][-1]
    return _Entry(line.label, Line2D([], [], **line.look), _leaving(shown, last, ymax))


def _draw_points(ax, places, mean, half, line, yscale, ymax):
    shown = _visible(mean, yscale)
    if np.isnan(shown).all():
        return _undrawn(line, mean), shown
    low = half if yscale == "linear" else np.minimum(half, shown / 2)
    bars = None if not np.isfinite(half).any() else (np.nan_to_num(low), np.nan_to_num(half))
    ax.errorbar(places, shown, yerr=bars, elinewidth=1, **line.look)
    last = shown[np.isfinite(shown)][-1]
    return _Entry(line.label, Line2D([], [], **line.look), _leaving(shown, last, ymax)), shown


def _draw_published(ax, place, row, look):
    bars = None if math.isnan(row.ci95) else row.ci95
    shape = {"color": look["color"], "marker": look["marker"]}
    ax.errorbar([place], [row.mean], yerr=bars, linestyle="none", elinewidth=1, capsize=5, zorder=3, **shape, **_HOLLOW)


def _draw_cloud(ax, x, y, line):
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return _undrawn(line, np.nan)
    x, y = x[both], y[both]
    face = line.look.get("markerfacecolor", line.look["color"])
    shape = {"marker": line.look["marker"], "facecolor": face, "edgecolor": line.look["color"], "s": 18}
    ax.scatter(x, y, alpha=0.75 if len(x) <= 300 else 0.35, linewidth=0.6, **shape)
    note = f"r = {_signed(np.corrcoef(x, y)[0, 1])}" if len(x) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0 else ""
    return _Entry(line.label, Line2D([], [], **line.look | {"linestyle": "none"}), note)


def _draw_guide(ax, steps, means, guide, xscale):
    """A grey line like the root or logarithm of the round, and its entry; nothing without a line to scale by."""
    shape, label = _GUIDES[guide]
    lasts = [(mean[np.isfinite(mean)][-1], steps[np.isfinite(mean)][-1]) for mean in means if np.isfinite(mean).any()]
    lasts = [(value, step) for value, step in lasts if value > 0 and shape(step) > 0]
    if not lasts:
        return []
    value, step = lasts[0]
    spread = np.geomspace if xscale == "log" else np.linspace
    places = spread(max(steps[0], 1), steps[-1], 200)
    heights = value / shape(step) * shape(places)
    look = {"color": _GREY, "linestyle": "-", "marker": "none", "linewidth": 2.5, "alpha": 0.6, "zorder": 1.5}
    ax.plot(places, np.where(heights > 0, heights, np.nan), **look)
    return [_Entry(label, Line2D([], [], **look))]


def _draw_theory(ax, steps, bounds, panel, yscale):
    """Dotted lines: one for the panel, or one per line, in its colour, where they differ."""
    entries = []
    for dashes, (label, table) in zip(itertools.cycle(_THEORY_DASHES), bounds.items(), strict=False):
        rows = [(table[tuple(line.where.values())], line.look["color"]) for line in panel.lines]
        alike = all(np.array_equal(rows[0][0], row, equal_nan=True) for row, _ in rows)
        look = {"linestyle": dashes, "marker": "none", "linewidth": 2.0, "zorder": 2.5}
        for row, color in rows[:1] if alike else rows:
            ax.plot(steps, _visible(row, yscale), color=_DARK if alike else color, **look)
        entries.append(_Entry(_plain(label), Line2D([], [], color=_DARK, **look)))
    return entries


def _frame(ax, tables, yscale, ymax):
    """Scale the y axis; with ``ymax``, fit the bottom to what lies below it."""
    _set_scale(ax, "y", yscale)
    if ymax is None:
        return
    inside = [table[table <= ymax] for table in tables]
    inside = np.concatenate([part for part in inside if part.size] or [np.array([np.nan])])
    if np.isnan(inside).all():
        raise ValueError(f"ymax: expected a number above some of the means, got {ymax!r}")
    low = float(np.nanmin(inside))
    bottom = low / 1.2 if yscale == "log" else low - 0.05 * ((ymax - low) or abs(ymax) or 1)
    ax.set_ylim(bottom, ymax)


def _set_scale(ax, which, scale):
    """A linear or log scale on the axis "x" or "y", with short tick labels."""
    ax.set(**{f"{which}scale": scale})
    side = ax.xaxis if which == "x" else ax.yaxis
    if scale == "log":
        side.set_major_formatter(_ShortLogFormatter())
        side.set_minor_formatter(_ShortLogFormatter(minor_thresholds=(1.5, 0.5)))
    else:
        side.set_major_formatter(FuncFormatter(_short))


class _ShortLogFormatter(LogFormatter):
    """Labels the ticks that LogFormatter would, in short numbers."""

    def __call__(self, x, pos=None):
        return _short(x) if super().__call__(x, pos) else ""


def _name_places(ax, values, places, numeric, xscale):
    """Ticks at the values of an axis where these are words, or few on a log scale."""
    if not numeric:
        ax.set_xticks(places, [_wrap_text(_value_text(value), 14) for value in values])
        ax.set_xlim(-0.4, len(values) - 0.6)
    elif xscale == "log" and len(values) <= 8:
        ax.set_xticks(places, [_value_text(value) for value in values])
        ax.xaxis.set_minor_locator(NullLocator())


def _write_cells(ax, mean, mesh):
    """The numbers of a heat map, in black or white, as large as the cells allow, or not at all."""
    _lay_out(_figure_of(ax))
    texts = [[_number(value) if math.isfinite(value) else "–" for value in row] for row in mean]
    box, dots = ax.get_window_extent(), _figure_of(ax).dpi / 72
    longest = max(len(text) for row in texts for text in row)
    width, height = box.width / mean.shape[1] / dots, box.height / mean.shape[0] / dots
    size = min(9.0, width / (0.7 * longest), height / 1.4)
    if size < 4:
        return
    for row, column in np.ndindex(mean.shape):
        shade = mesh.to_rgba(mean[row, column]) if math.isfinite(mean[row, column]) else (1, 1, 1, 1)
        dark = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] < 0.5
        color = "white" if dark else "black"
        ax.text(column, row, texts[row][column], ha="center", va="center", color=color, fontsize=size)


def _thin_ticks(ax, columns, rows):
    """Fewer, or turned, labels where the values of an axis would overlap."""
    figure = _figure_of(ax)
    _lay_out(figure)
    widest = max(label.get_window_extent().width for label in ax.get_xticklabels())
    if widest > 0.95 * ax.get_window_extent().width / columns:
        ax.tick_params(axis="x", rotation=90)
    tall = max(label.get_window_extent().height for label in ax.get_yticklabels())
    step = math.ceil(tall / (ax.get_window_extent().height / rows))
    for position, label in enumerate(ax.get_yticklabels()):
        label.set_visible(position % step == 0)


# --- figures, titles, legends


def _house_style():
    return matplotlib.style.context(STYLE)


def _png(figure):
    file = io.BytesIO()
    with _house_style():
        figure.savefig(file, format="png", dpi=figure.dpi)
    return file.getvalue()


def _figure_of(ax) -> Figure:
    """The figure of an Axes, through subfigures."""
    figure = ax.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def _new_axes(rows, columns, size, count=None):
    figure = _ShownFigure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": _ShownAxes})
    axes = list(grid.ravel())
    for spare in axes[count or len(axes) :]:
        spare.remove()
    return axes[: count or len(axes)]


def _open(layout, ax):
    """The Axes of a layout, new ones or the given one."""
    count = len(layout.panels)
    if ax is not None:
        if count > 1:
            raise ValueError(f"ax: expected none for a picture of {count} panels; fix an axis with Study.select")
        return [ax]
    if count == 1:
        return _new_axes(1, 1, _SINGLE)
    return _new_axes(layout.rows, layout.columns, (_PANEL[0] * layout.columns, _PANEL[1] * layout.rows + 0.6), count)


def _close(axes, layout, drawn, caption, heading, xlabel, ylabel, filled=False):
    """Titles, axis labels and legends; returns the Axes, or the Figure of several."""
    if len(axes) == 1:
        (ax,), (entries,) = axes, drawn
        _title_axes(ax, heading)
        ax.set_xlabel(xlabel)
        ax.set_ylabel(_wrap(ylabel, _height(ax), 10))
        labels = [f"{entry.label} ({entry.note})" if entry.note else entry.label for entry in entries]
        _place_legends([_Legend(ax, [entry.handle for entry in entries], labels, caption, not filled)])
        return ax
    for ax, panel in zip(axes, layout.panels, strict=True):
        ax.set_title(_panel_title(panel.title), fontsize=9.5)
    figure = _title_figure(axes, heading)
    figure.supxlabel(xlabel)
    figure.supylabel(_wrap(ylabel, figure.get_size_inches()[1] - 0.6, 10))
    shared: dict[str, _Entry] = {}
    for entry in itertools.chain(*drawn):
        if entry.label not in shared or shared[entry.label].note in _UNDRAWN:
            shared[entry.label] = entry
    nowhere = {label for label, entry in shared.items() if entry.note in _UNDRAWN}
    labels = [f"{label} ({entry.note})" if label in nowhere else label for label, entry in shared.items()]
    _legend_outside(figure, [entry.handle for entry in shared.values()], labels, caption)
    legends = []
    for ax, entries in zip(axes, drawn, strict=True):
        noted = [entry for entry in entries if entry.note and entry.label not in nowhere]
        if noted:
            # "ends at 1,366" and "ends at 85" become numbers under a caption.
            common = {entry.note.rpartition(" ")[0] for entry in noted}
            caption = common.pop() if len(common) == 1 else ""
            labels = [entry.note.removeprefix(f"{caption} ") for entry in noted]
            legends.append(_Legend(ax, [shared[entry.label].handle for entry in noted], labels, caption))
    _place_legends(legends, layout.columns)
    return figure


class _Legend(NamedTuple):
    """A legend to be placed; ``inside`` says whether it may stand inside the frame."""

    ax: Axes
    handles: list
    labels: list[str]
    caption: str = ""
    inside: bool = True


def _place_legends(legends, columns=1):
    """Legends where they cover nothing: inside the frame if short and there is a free spot, else beside it."""
    if not legends:
        return
    figure = _figure_of(legends[0].ax)
    drawn = [_draw_legend(legend, loc="upper left") for legend in legends]
    _lay_out(figure)
    boxes = [legend.get_window_extent() for legend in drawn]
    beside = []
    for legend, box in zip(legends, boxes, strict=True):
        allowed = legend.inside and len(legend.labels) <= _MOST_INSIDE
        spot = _free_spot(legend.ax, box.width, box.height) if allowed else None
        if spot is None:
            _draw_legend(legend, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0)
            beside.append((legend.ax, box.width / figure.dpi, box.height / figure.dpi))
        else:
            _draw_legend(legend, loc=spot)
    if not beside:
        return
    if isinstance(figure, _ShownFigure):
        width, height = (max(sizes) for sizes in list(zip(*beside, strict=True))[1:])
        _enlarge(figure, columns * (width + 0.15), height + 0.9 if columns == 1 else 0)
    elif figure.get_layout_engine() is None:
        for ax, width, _ in beside:
            spec = ax.get_subplotspec()  # so that a second picture in the same Axes takes no more room
            place = spec.get_position(figure) if spec else ax.get_position()
            room = (width + 0.25) / figure.get_size_inches()[0]
            ax.set_position((place.x0, place.y0, max(place.width - room, 0.3 * place.width), place.height))


def _draw_legend(legend, **where):
    labels = [_wrap_text(label, _LABEL_CHARACTERS) for label in legend.labels]
    caption = _wrap_text(legend.caption, _LABEL_CHARACTERS) or None
    return legend.ax.legend(legend.handles, labels, title=caption, alignment="left", **where)


def _legend_outside(figure, handles, labels, caption):
    """The legend of a whole figure, to the right of its panels."""
    texts = [_wrap_text(label, _LABEL_CHARACTERS) for label in labels]
    caption = _wrap_text(caption, _LABEL_CHARACTERS) or None
    legend = figure.legend(handles, texts, loc="outside right upper", title=caption, alignment="left")
    box = legend.get_window_extent()
    _enlarge(figure, box.width / figure.dpi + 0.1, box.height / figure.dpi + 0.3)


def _lay_out(figure):
    """Place the Axes as a drawing would."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _enlarge(figure, more_width, least_height):
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + more_width, max(height, least_height))


def _free_spot(ax, width, height):
    """The first place for a legend of the given size, in dots, that no data touch, or None."""
    frame, pad = ax.get_window_extent(), 0.6 * 8.5 * _figure_of(ax).dpi / 72
    if width + 2 * pad > frame.width or height + 2 * pad > frame.height:
        return None
    for spot, (right, up) in _SPOTS.items():
        x = frame.x0 + pad + right * (frame.width - width - 2 * pad)
        y = frame.y0 + pad + up * (frame.height - height - 2 * pad)
        box = Bbox.from_bounds(x, y, width, height).padded(pad)
        if not any(_touches(artist, box) for artist in (*ax.lines, *ax.collections, *ax.patches)):
            return spot
    return None


def _touches(artist, box):
    if isinstance(artist, PathCollection):
        points = np.ma.filled(artist.get_offset_transform().transform(artist.get_offsets()), np.nan)
        return bool(np.any((box.min < points).all(axis=1) & (points < box.max).all(axis=1)))
    if isinstance(artist, Patch):
        return artist.get_window_extent().overlaps(box)
    paths = [artist.get_path()] if isinstance(artist, Line2D) else artist.get_paths()
    filled, move = not isinstance(artist, (Line2D, LineCollection)), artist.get_transform()
    shown = (move.transform_path(path).cleaned(remove_nans=True) for path in paths)
    return any(path.intersects_bbox(box, filled=filled) for path in shown)


def _title_axes(ax, heading):
    ax.set_title(_wrap(heading, ax.get_window_extent().width / _figure_of(ax).dpi, 11))


def _panel_title(parts):
    """The parts of a panel's title on one line where they fit, else each on its own."""
    parts = [_wrap(part, _PANEL[0] - 0.4, 9.5) for part in parts]
    joined = ", ".join(parts)
    return joined if _wrap(joined, _PANEL[0] - 0.4, 9.5) == joined else ",\n".join(parts)


def _title_figure(axes, heading):
    figure = _figure_of(axes[0])
    figure.suptitle(_wrap(heading, figure.get_size_inches()[0] - 0.4, 12))
    return figure


def _heading(title, default):
    return default if title is None else title if isinstance(title, str) else title(default)


def _height(ax):
    return ax.get_window_extent().height / _figure_of(ax).dpi


def _caption(layout, seeds, shape):
    """What the legend says of all lines: their common policy or axis value, and how many seeds there are."""
    counted = "1 seed" if seeds == 1 else f"mean of {seeds:,} seeds, 95 % {shape}"
    return "\n".join(filter(None, (layout.constant, counted)))


def _moment(study):
    return f" after round {study.meta['snapshot']:,}" if study.meta.get("snapshot") else ""


# --- text


def _label(study, metric):
    """A metric's axis label with its unit."""
    return get_system(study.system).labels.get(metric, _words(metric))


def _quantity(label):
    """A label without its unit, to begin a title."""
    name = label.split(" (")[0]
    return name[:1].upper() + name[1:]


def _lower(text):
    return text[:1].lower() + text[1:]


def _words(name):
    return _plain(name.replace("_", " "))


def _plain(text):
    """A name as it is written: dollars are no mathematics, and a leading underscore hides nothing."""
    text = str(text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _point_text(name, value):
    return _plain(value) if name == "policy" else f"{_words(name)} = {_value_text(value)}"


def _value_text(value):
    """A value of an axis, ``200,000`` or ``0.05``."""
    if not _is_number(value):
        return _plain(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return f"{float(value):.6g}".replace("-", "−")


def _number(value):
    """A result, ``1,366`` or ``0.0431``."""
    if not math.isfinite(value):
        return str(value)
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "0" if text in ("-0", "0") else text.replace("-", "−")


def _signed(value):
    return f"{value:.2f}".replace("-0.00", "0.00").replace("-", "−")


def _short(value, position=None):
    """A tick label, ``200k`` or ``0.5``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.6g}{letter}".replace("-", "−")
    return f"{round(value, 12):.6g}".replace("-", "−")


def _level_text(value, position=None):
    return "no\nquery" if value == 0 else _short(value)


def _wrap(text, inches, size):
    """The text broken into lines that fit a width at a font size in points."""
    return _wrap_text(text, max(int(inches * 72 / (0.56 * size)), 12))


def _wrap_text(text, characters):
    return "\n".join(textwrap.fill(line, characters) for line in str(text).split("\n"))
