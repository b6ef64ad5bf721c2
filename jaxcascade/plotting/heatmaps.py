"""Final metrics over a grid of two axes."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from jaxcascade.core import one_of
from jaxcascade.plotting._means import check_drawable
from jaxcascade.plotting._style import house_style, new_axes
from jaxcascade.plotting._text import (
    Title,
    headline,
    metric_label,
    plain,
    result_text,
    tick_text,
    value_text,
    words,
    wrap,
)
from jaxcascade.results import Study

_CELL = (0.68, 0.4)  # inches
_SMALLEST_TEXT = 4  # points


@house_style()
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
    if policy is None:
        if len(study.policies) > 1:
            raise ValueError(f"policy: expected {one_of(study.policies)}, got none")
        policy = study.policies[0]
    mean = study.interval(policy, metric).mean[..., -1]
    check_drawable("metric", metric, [mean], "linear")

    rows, columns = mean.shape
    size = (max(4.6, 1.8 + _CELL[0] * columns), max(3.0, 1.3 + _CELL[1] * rows))
    here = new_axes(1, 1, size)[0] if ax is None else ax
    figure = here.figure.figure
    here.grid(False)
    here.set_facecolor("#DDDDDD")
    edges = (np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5)
    mesh = here.pcolormesh(*edges, np.ma.masked_invalid(mean), edgecolors="white", linewidth=0.5)
    (up, up_values), (right, right_values) = study.axes.items()
    texts = [value_text(value) for value in right_values]
    here.set_xticks(range(columns), texts, rotation=90 if max(map(len, texts)) > 7 else 0)
    here.set_yticks(range(rows), [value_text(value) for value in up_values])
    here.tick_params(length=0)
    label = metric_label(study, metric)
    bar = figure.colorbar(mesh, ax=here, format=FuncFormatter(tick_text))
    bar.outline.set_visible(False)  # type: ignore[operator]
    box = here.get_window_extent()
    heading = f"{label.split(' (')[0]} of {plain(policy)} after {study.steps[-1]:,} rounds"
    here.set_title(wrap(headline(title, heading), box.width / figure.dpi, 11))
    here.set_xlabel(words(right))
    here.set_ylabel(words(up))
    bar.set_label(wrap(label, box.height / figure.dpi, 10))
    _write_cells(here, mean, mesh)
    return here


def _write_cells(ax, mean, mesh):
    """The numbers of a heat map, in black or white, as large as the cells allow, or not at all."""
    figure = ax.figure.figure
    figure.draw_without_rendering()
    rows, columns = mean.shape
    texts = [[result_text(value) if math.isfinite(value) else "–" for value in row] for row in mean]
    longest = max(len(text) for row in texts for text in row)
    box, dots = ax.get_window_extent(), figure.dpi / 72
    size = min(9.0, box.width / columns / dots / (0.7 * longest), box.height / rows / dots / 1.4)
    if size < _SMALLEST_TEXT:
        return
    for row, column in np.ndindex(mean.shape):
        shade = mesh.to_rgba(mean[row, column]) if math.isfinite(mean[row, column]) else (1, 1, 1, 1)
        color = "white" if np.dot(shade[:3], (0.299, 0.587, 0.114)) < 0.5 else "black"
        ax.text(column, row, texts[row][column], ha="center", va="center", color=color, fontsize=size)
