"""Metrics against the round."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxcascade.core import choose
from jaxcascade.plotting._legend import Entry
from jaxcascade.plotting._means import check_drawable, draw_mean, intervals, metric_texts, set_top, visible
from jaxcascade.plotting._panels import arrange, close_axes, open_axes, policy_names, seeds_text
from jaxcascade.plotting._style import DARK, GREY, house_style
from jaxcascade.plotting._text import Title, headline, plain
from jaxcascade.results import Study

_GUIDES = {"sqrt": ("grows like √t", np.sqrt), "log": ("grows like log t", np.log1p)}
_THEORY_DASHES = ((0, (1, 1.5)), (0, (1, 3)), (0, (1, 1.5, 1, 4)), (0, (2, 2)))


@house_style()
def plot_curves(
    study: Study,
    metric: str = "regret",
    *,
    policies: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: Title = None,
    theory: Mapping[str, Any] | None = None,
    guide: str | None = None,
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
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.
      theory: label -> numbers at ``study.steps``, one number, or an array ``[*axes, R]``; dotted.
      guide: "sqrt" or "log", a dotted line of that growth through the middle one of the last means.
      xscale: "linear" or "log".
      yscale: "linear" or "log"; numbers at or below zero are left out of a log scale.
      reference: policy whose metric is subtracted seed by seed; the band is that of the paired difference.
      ymax: top of the frame; lines that leave it are listed in the legend with their last value.

    Raises:
      ValueError: if a name is unknown (names the closest), or nothing is defined.
    """
    table = intervals(study, policy_names(study, policies), metric, reference)
    bounds = {label: _on_grid(study, label, values) for label, values in (theory or {}).items()}
    if guide is not None:
        label, growth = choose("guide", guide, _GUIDES)
        last = np.nanmedian([interval.mean[..., -1] for interval in table.values()])
        bounds[label] = _on_grid(study, label, last * growth(study.steps) / growth(study.steps[-1]))
    layout = arrange(study, list(table))
    check_drawable("metric", metric, [interval.mean for interval in table.values()], yscale)

    axes = open_axes(layout, ax, xscale, yscale)
    drawn = []
    for here, panel in zip(axes, layout.panels, strict=True):
        entries = []
        for position, line in enumerate(panel.lines):
            mean, half = table[line.policy].mean[line.index], table[line.policy].ci95[line.index]
            every = (0.03 * (position % 5), 0.16) if len(mean) > 12 else None
            entries.append(draw_mean(here, study.steps, mean, half, line, ymax, markevery=every))
        entries += _draw_theory(here, study.steps, bounds, panel)
        if reference is not None and yscale == "linear":
            here.axhline(0, color=GREY, linewidth=0.8, zorder=1)
        set_top(here, ymax)
        drawn.append(entries)
    label, heading = metric_texts(study, metric, reference, f"over {study.steps[-1]:,} rounds")
    return close_axes(axes, layout, drawn, seeds_text(study, "band"), headline(title, heading), "round t", label)


def _on_grid(study, label, values):
    """Theory as ``[*axes, R]``."""
    shape = (*(len(values) for values in study.axes.values()), len(study.steps))
    try:
        return np.broadcast_to(np.asarray(values, np.float64), shape)
    except ValueError:
        expected = f"one number, {len(study.steps)} (one a recorded round) or shape {shape}"
        raise ValueError(f"theory: expected {expected} for {label!r}, got shape {np.shape(values)}") from None


def _draw_theory(ax, steps, bounds, panel):
    """Dotted lines: one for the panel, or one per line, in its colour, where they differ."""
    entries = []
    for dashes, (label, table) in zip(itertools.cycle(_THEORY_DASHES), bounds.items(), strict=False):
        rows = [table[line.index] for line in panel.lines]
        alike = all(np.array_equal(rows[0], row, equal_nan=True) for row in rows)
        look = {"linestyle": dashes, "marker": "none", "linewidth": 2.0, "zorder": 2.5}
        for row, line in list(zip(rows, panel.lines, strict=True))[: 1 if alike else None]:
            ax.plot(steps, visible(row, ax.get_yscale()), color=DARK if alike else line.look["color"], **look)
        entries.append(Entry(plain(label), Line2D([], [], color=DARK, **look)))
    return entries
