"""Two final metrics against each other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jaxcascade.core import choose
from jaxcascade.plotting._legend import Entry
from jaxcascade.plotting._means import check_drawable
from jaxcascade.plotting._panels import arrange, close_axes, open_axes, policy_names
from jaxcascade.plotting._style import house_style
from jaxcascade.plotting._text import Title, headline, metric_label
from jaxcascade.results import Study


@house_style()
def plot_scatter(
    study: Study,
    x: str = "deferral_rate",
    y: str = "regret",
    *,
    policies: Sequence[str] | None = None,
    ax: Axes | None = None,
    title: Title = None,
) -> Axes | Figure:
    """The Axes (or Figure of several panels) with two final metrics against each other, one point a seed.

    The legend gives Pearson's correlation r of the plain numbers, where three seeds or more differ.

    Args:
      study: the study.
      x: name of the metric along x.
      y: name of the metric along y.
      policies: names to draw, by default all.
      ax: Axes to draw into, for a picture of one panel.
      title: title, or a function of the default one.

    Raises:
      ValueError: if a name is unknown (names the closest), or nothing is defined.
    """
    names = policy_names(study, policies)
    for what, metric in (("x", x), ("y", y)):
        choose(what, metric, dict.fromkeys(study.metrics))
        check_drawable(what, metric, [study.final(name, metric) for name in names], "linear")
    layout = arrange(study, names)

    axes = open_axes(layout, ax)
    drawn = []
    for here, panel in zip(axes, layout.panels, strict=True):
        entries = []
        for line in panel.lines:
            across, up = study.final(line.policy, x)[line.index], study.final(line.policy, y)[line.index]
            entries.append(_draw_cloud(here, across, up, line))
        drawn.append(entries)
    xlabel, ylabel = metric_label(study, x), metric_label(study, y)
    heading = f"{ylabel.split(' (')[0]} against {xlabel.split(' (')[0]} after {study.steps[-1]:,} rounds"
    caption = "1 point, 1 seed" if study.num_seeds == 1 else f"1 point a seed, {study.num_seeds:,} seeds"
    return close_axes(axes, layout, drawn, caption, headline(title, heading), xlabel, ylabel)


def _draw_cloud(ax, x, y, line):
    handle = Line2D([], [], **line.look | {"linestyle": "none"})
    both = np.isfinite(x) & np.isfinite(y)
    x, y = x[both], y[both]
    if not both.any():
        return Entry(line.label, handle, "undefined")
    face = line.look.get("markerfacecolor", line.look["color"])
    colors = {"facecolor": face, "edgecolor": line.look["color"], "alpha": 0.75 if len(x) <= 300 else 0.35}
    ax.scatter(x, y, s=18, marker=line.look["marker"], linewidth=0.6, **colors)
    differ = len(x) > 2 and np.ptp(x) > 0 and np.ptp(y) > 0
    return Entry(line.label, handle, f"r = {np.corrcoef(x, y)[0, 1]:.2f}".replace("-", "−") if differ else "")
