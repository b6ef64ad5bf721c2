"""Rules that policies learned: thresholds by queue length, decisions by level and queue length."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jaxcascade.core import choose
from jaxcascade.plotting._legend import Entry
from jaxcascade.plotting._means import check_drawable, draw_mean
from jaxcascade.plotting._panels import arrange, close_axes, open_axes, seeds_text
from jaxcascade.plotting._style import house_style
from jaxcascade.plotting._text import Title, headline
from jaxcascade.results import Study

_COLORS = {"defer": "#F5C242", "accept": "#3A3F6B"}


@house_style()
def plot_thresholds(
    study: Study,
    *,
    policies: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: Title = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with the mean accuracy threshold and 95 % band by queue length.

    Thresholds below 0 count as 0; the full queue, where nobody is deferred, is left out. One line per value
    of the last axis and a panel per policy, or one line per policy where there is no axis.

    Args:
      study: a study run with ``snapshot=``.
      policies: names to draw, by default all with a recorded threshold.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.

    Raises:
      ValueError: if no threshold was recorded, or a name is unknown (names the closest).
    """
    found = _recorded(study, policies, "threshold")
    rules = replace(study, curves={name: {"threshold": _from_zero(rule)} for name, rule in found.items()})
    table = {name: rules.interval(name, "threshold") for name in found}
    layout = arrange(study, list(found), lines=["policy", *study.axes][-1])
    check_drawable("snapshot", "threshold", [interval.mean for interval in table.values()], "linear")

    axes = open_axes(layout, ax)
    drawn = []
    for here, panel in zip(axes, layout.panels, strict=True):
        entries = []
        for line in panel.lines:
            mean, half = table[line.policy].mean[line.index], table[line.policy].ci95[line.index]
            entries.append(draw_mean(here, np.arange(len(mean)), mean, half, line))
        here.set_ylim(bottom=min(0, here.get_ylim()[0]))
        here.xaxis.set_major_locator(MaxNLocator(integer=True))
        drawn.append(entries)
    heading = headline(title, f"Accuracy threshold{_moment(study)}")
    caption = seeds_text(study, "band")
    return close_axes(axes, layout, drawn, caption, heading, "queue length (queries)", "accuracy threshold")


@house_style()
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
    found = _recorded(study, policies, "decision")
    layout = arrange(study, list(found), lines=None)

    axes = open_axes(layout, ax)
    colors = ListedColormap([_COLORS["accept"], _COLORS["defer"]])
    for here, panel in zip(axes, layout.panels, strict=True):
        line = panel.lines[0]
        defer = np.mean(found[line.policy][line.index], axis=0) > 0.5
        levels, lengths = defer.shape
        edges = (np.arange(lengths + 1) - 0.5, np.arange(levels + 1) + 0.5)
        width = 0.5 if max(defer.shape) <= 60 else 0
        here.pcolormesh(*edges, defer.astype(float), cmap=colors, vmin=0, vmax=1, edgecolors="white", linewidth=width)
        here.grid(False)
        for side in (here.xaxis, here.yaxis):
            side.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    caption = "1 seed" if study.num_seeds == 1 else f"most frequent\nof {study.num_seeds:,} seeds"
    entries = [Entry(text, Patch(facecolor=color, edgecolor="#888888")) for text, color in _COLORS.items()]
    heading = headline(title, f"Decisions{_moment(study)}")
    x, y = "queue length (queries)", "confidence level"
    return close_axes(axes, layout, [entries] * len(axes), caption, heading, x, y)


def _recorded(study, policies, name):
    """Policy -> its recorded snapshot ``name``."""
    recorded = {policy: rules[name] for policy, rules in study.snapshots.items() if name in rules}
    if not recorded:
        raise ValueError(f"study: expected a snapshot of {name}s (run with snapshot=ROUND), got none")
    return {name: choose("policies", name, recorded) for name in policies or recorded}


def _from_zero(threshold):
    """Thresholds at least 0, nan at queue lengths where every seed has none."""
    threshold = np.asarray(threshold, np.float64)
    nobody = np.isneginf(threshold).all(axis=-2, keepdims=True)
    return np.where(nobody, np.nan, np.maximum(threshold, 0))


def _moment(study):
    return f" after round {study.meta['snapshot']:,}" if study.meta.get("snapshot") else ""
