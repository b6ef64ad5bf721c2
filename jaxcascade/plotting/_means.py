"""Means with their 95 % intervals, as lines."""

import numpy as np
from matplotlib.lines import Line2D

from jaxcascade.core import choose
from jaxcascade.plotting._legend import Entry
from jaxcascade.plotting._text import metric_label, plain, result_text


def intervals(study, names, metric, reference):
    """Policy -> interval of a metric, or of its difference to the reference, which is left out then."""
    if reference is None:
        return {name: study.interval(name, metric) for name in names}
    choose("reference", reference, study.curves)
    others = [name for name in names if name != reference]
    if not others:
        raise ValueError(f"reference: expected another policy than the only one drawn, got {reference!r}")
    return {name: study.paired(name, reference, metric) for name in others}


def metric_texts(study, metric, reference, when):
    """Axis label and title of a metric, or of its difference to the reference."""
    label = metric_label(study, metric)
    title = f"{label.split(' (')[0]} {when}"
    difference = "" if reference is None else f", difference to {plain(reference)}"
    return label + difference, title + difference


def check_drawable(what, metric, tables, scale):
    """Some number of the tables must be finite, and above zero on a log scale."""
    if not any(np.isfinite(table).any() for table in tables):
        raise ValueError(f"{what}: expected a metric with numbers to draw, got {metric!r}, which is undefined here")
    if scale == "log" and not any((np.nan_to_num(table, nan=0) > 0).any() for table in tables):
        raise ValueError(f"{what}: expected numbers above zero for a log scale, got none for {metric!r}")


def visible(values, scale):
    """The numbers that a scale can show, nan for the others."""
    return np.where(np.isfinite(values) & ((scale == "linear") | (values > 0)), values, np.nan)


def draw_mean(ax, places, mean, half, line, ymax=None, bars=False, markevery=None):
    """A line with its band, or error bars, where it is defined; its entry, which says where it is not."""
    scale = ax.get_yscale()
    shown = visible(mean, scale)
    inside = shown[np.isfinite(shown)]
    if not inside.size:
        note = "not above zero" if np.isfinite(mean).any() else "undefined"
        return Entry(line.label, Line2D([], [], **line.look), note)
    low = np.maximum(shown - half, inside.min() / 2 if scale == "log" else -np.inf)
    spread = np.isfinite(half).any()
    if bars:
        sizes = np.nan_to_num([shown - low, half]) if spread else None
        ax.errorbar(places, shown, yerr=sizes, elinewidth=1, **line.look)
    else:
        ax.plot(places, shown, markevery=markevery, **line.look)
        if spread:
            ax.fill_between(places, low, shown + half, color=line.look["color"], alpha=0.2, linewidth=0)
    note = f"ends at {result_text(inside[-1])}" if ymax is not None and inside.max() > ymax else ""
    return Entry(line.label, Line2D([], [], **line.look), note)


def set_top(ax, ymax):
    """Ends the frame at ``ymax`` and fits its bottom to what lies below."""
    values = np.concatenate([np.ravel(line.get_ydata()) for line in ax.lines] or [[]])
    values = values[np.isfinite(values)]
    if ymax is None or not values.size:
        return
    low = min(values.min(), ymax)
    ax.set_ylim(low / 1.2 if ax.get_yscale() == "log" else low - 0.05 * ((ymax - low) or abs(ymax) or 1), ymax)
