"""Final metrics against an axis of the grid."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from jaxcascade.core import choose
from jaxcascade.plotting._means import check_drawable, draw_mean, intervals, metric_texts, set_top
from jaxcascade.plotting._panels import arrange, close_axes, open_axes, policy_names, seeds_text
from jaxcascade.plotting._style import house_style
from jaxcascade.plotting._text import Title, headline, positions, value_text, words, wrap_characters
from jaxcascade.results import Study


@house_style()
def plot_sweep(
    study: Study,
    metric: str = "regret",
    *,
    axis: str | None = None,
    policies: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: Title = None,
    xscale: str = "linear",
    yscale: str = "linear",
    reference: str | None = None,
    ymax: float | None = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with a metric's final mean and 95 % error bars against an axis.

    One line per policy, or, of one policy, one per value of a second axis; what is left becomes panels.

    Args:
      study: a study with at least one axis.
      metric: name of a recorded or derived metric.
      axis: axis along x, by default the first; values that are not numbers are set side by side.
      policies: names to draw, by default all.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.
      xscale: "linear" or "log".
      yscale: "linear" or "log"; numbers at or below zero are left out of a log scale.
      reference: policy whose metric is subtracted seed by seed.
      ymax: top of the frame; lines that leave it are listed in the legend with their last value.

    Raises:
      ValueError: if the study has no axis, a name is unknown (names the closest), or nothing is defined.
    """
    if not study.axes:
        raise ValueError("study: expected at least one axis to sweep along, got a study without axes")
    axis = next(iter(study.axes)) if axis is None else axis
    values = choose("axis", axis, study.axes)
    places, numeric = positions(values)
    if xscale == "log" and not (numeric and places.min() > 0):
        raise ValueError(f"xscale: expected numbers above zero on {axis!r} for a log scale, got {values!r}")
    table = intervals(study, policy_names(study, policies), metric, reference)
    layout = arrange(study, list(table), along=axis)
    check_drawable("metric", metric, [interval.mean[..., -1] for interval in table.values()], yscale)

    axes = open_axes(layout, ax, xscale, yscale)
    order = np.argsort(places, kind="stable")
    drawn = []
    for here, panel in zip(axes, layout.panels, strict=True):
        entries = []
        for line in panel.lines:
            interval = table[line.policy]
            mean, half = interval.mean[line.index][order, -1], interval.ci95[line.index][order, -1]
            entries.append(draw_mean(here, places[order], mean, half, line, ymax, bars=True))
        if not numeric or (xscale == "log" and len(values) <= 8):
            here.set_xticks(places, [wrap_characters(value_text(value), 14) for value in values])
            here.xaxis.set_minor_locator(NullLocator())
        set_top(here, ymax)
        drawn.append(entries)
    label, heading = metric_texts(study, metric, reference, f"after {study.steps[-1]:,} rounds")
    return close_axes(axes, layout, drawn, seeds_text(study, "bars"), headline(title, heading), words(axis), label)
