"""What goes into which panel of a picture, and what stands around the panels."""

import itertools
import math
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter

from jaxcascade.core import choose
from jaxcascade.plotting._legend import legend_beside, legend_of_panels
from jaxcascade.plotting._style import looks, new_axes
from jaxcascade.plotting._text import point_text, positions, tick_text, wrap

_SINGLE, _PANEL = (6.0, 4.0), (3.1, 2.5)  # inches: a figure of one panel, each of several
_SMALL = 9.5  # points: titles of panels
_MOST_PANELS = 36
_SCALES = {"linear": None, "log": None}


class Line(NamedTuple):
    """One line or marker kind: label, policy, index of its numbers in the grid, and how it looks."""

    label: str
    policy: str
    index: tuple
    look: dict[str, Any]


class Panel(NamedTuple):
    """What one frame shows."""

    title: str
    lines: list[Line]


class Layout(NamedTuple):
    """Panels in reading order on ``rows`` x ``columns``; ``constant`` is what all lines share, for the legend."""

    panels: list[Panel]
    rows: int
    columns: int
    constant: str


def policy_names(study, policies):
    """The policies to draw, by default all."""
    if policies is None:
        return study.policies
    names = list(dict.fromkeys([policies] if isinstance(policies, str) else policies))
    for name in names:
        choose("policies", name, study.curves)
    if not names:
        raise ValueError(f"policies: expected some of {', '.join(study.policies)}, got none")
    return names


def arrange(study, names, along=None, lines: str | None = ""):
    """The layout: ``lines`` varies within a panel, all else but the axis ``along`` across panels.

    By default the policy varies within a panel, or if there is but one, the last axis; with None nothing does.
    """
    across = {"policy": names, **{axis: values for axis, values in study.axes.items() if axis != along}}
    if lines == "":
        lines = "policy" if len(names) > 1 else list(across)[-1]
    within = across.pop(lines, [None])
    styles = _line_looks(study, names, lines, within)
    several = {name: len(values) for name, values in across.items() if len(values) > 1}
    count = math.prod(several.values())
    if count > _MOST_PANELS:
        sizes = ", ".join(f"{size} of {name}" for name, size in several.items())
        raise ValueError(f"study: expected at most {_MOST_PANELS} panels, got {sizes}; fix an axis with Study.select")
    panels = []
    for place in itertools.product(*(range(len(values)) for values in across.values())):
        at = dict(zip(across, place, strict=True))
        panel = Panel(", ".join(point_text(name, across[name][at[name]]) for name in several), [])
        for position, (value, style) in enumerate(zip(within, styles, strict=True)):
            at[lines] = position
            label = "" if lines is None else point_text(lines, value)
            index = tuple(at.get(axis, slice(None)) for axis in study.axes)
            panel.lines.append(Line(label, names[at["policy"]], index, style))
        panels.append(panel)
    columns = 2 if count == 4 else min(count, 3)
    if len(several) == 2 and list(several.values())[1] <= 5:
        columns = list(several.values())[1]
    constant = ", ".join(point_text(name, values[0]) for name, values in across.items() if name not in several)
    return Layout(panels, math.ceil(count / columns), columns, constant)


def _line_looks(study, names, lines, values):
    """A look per value within a panel: the policies' own ones, or a scale from dark to light for numbers."""
    if lines == "policy":
        styles = looks(len(study.policies))
        return [styles[study.policies.index(name)] for name in names]
    styles = looks(len(values))
    places, numeric = positions(values)
    if not numeric or len(values) < 2:
        return styles
    shades = matplotlib.colormaps["viridis"](0.85 * np.argsort(np.argsort(places)) / (len(values) - 1))
    return [style | {"color": tuple(shade)} for style, shade in zip(styles, shades, strict=True)]


def open_axes(layout, ax, xscale="linear", yscale="linear") -> list[Axes]:
    """The Axes of a layout, new ones or the given one, with their scales and short tick labels."""
    count = len(layout.panels)
    if ax is not None and count > 1:
        raise ValueError(f"ax: expected none for a picture of {count} panels; fix an axis with Study.select")
    for name, scale in (("xscale", xscale), ("yscale", yscale)):
        choose(name, scale, _SCALES)
    size = _SINGLE if count == 1 else (_PANEL[0] * layout.columns, _PANEL[1] * layout.rows + 0.6)
    axes = new_axes(layout.rows, layout.columns, size) if ax is None else [ax]
    for spare in axes[count:]:
        spare.remove()
    for here in axes[:count]:
        here.set(xscale=xscale, yscale=yscale)
        for side, scale in ((here.xaxis, xscale), (here.yaxis, yscale)):
            side.set_major_formatter(_LogTicks() if scale == "log" else FuncFormatter(tick_text))
            if scale == "log":
                side.set_minor_formatter(_LogTicks(minor_thresholds=(1.5, 0.5)))
    return axes[:count]


class _LogTicks(LogFormatter):
    """Labels the ticks that LogFormatter would, in short numbers."""

    def __call__(self, x, pos=None):
        return tick_text(x) if super().__call__(x, pos) else ""


def close_axes(axes, layout, drawn, caption, heading, xlabel, ylabel) -> Axes | Figure:
    """Titles, axis labels and legend; returns the Axes, or the Figure of several.

    Of several panels, notes that differ between them stand in the panels' titles.
    """
    figure = axes[0].figure.figure
    caption = "\n".join(filter(None, (layout.constant, caption)))
    if len(axes) == 1:
        box = axes[0].get_window_extent()
        axes[0].set_title(wrap(heading, box.width / figure.dpi, 11))
        axes[0].set_xlabel(xlabel)
        axes[0].set_ylabel(wrap(ylabel, box.height / figure.dpi, 10))
        legend_beside(axes[0], drawn[0], caption)
        return axes[0]
    shared = {entry.label: entry for entry in drawn[0]}
    for entry in itertools.chain(*drawn):
        if entry.note != shared[entry.label].note:
            shared[entry.label] = entry._replace(note="")
    most_lines = 1
    for ax, panel, entries in zip(axes, layout.panels, drawn, strict=True):
        notes = (f"{entry.label}: {entry.note}" for entry in entries if entry.note != shared[entry.label].note)
        title = wrap("\n".join(filter(None, (panel.title, ", ".join(notes)))), _PANEL[0] - 0.4, _SMALL)
        ax.set_title(title, fontsize=_SMALL)
        most_lines = max(most_lines, len(title.split("\n")))
    width, height = figure.get_size_inches()
    figure.grow(0, height + layout.rows * (most_lines - 1) * 0.16)
    title = figure.suptitle(wrap(heading, width - 0.4, 12))
    legend_of_panels(figure, list(shared.values()), caption, title.get_window_extent().height / figure.dpi + 0.15)
    middle = width / 2 / figure.get_size_inches()[0]
    title.set_x(middle)
    figure.supxlabel(xlabel, x=middle)
    figure.supylabel(wrap(ylabel, height - 0.6, 10))
    return figure


def seeds_text(study, shape):
    """How many seeds a mean is over and what the ``shape`` around it means."""
    return "1 seed" if study.num_seeds == 1 else f"mean of {study.num_seeds:,} seeds, 95 % {shape}"
