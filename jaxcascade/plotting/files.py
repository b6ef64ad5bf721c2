"""Files of the figures that an experiment asks for."""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcascade.core import choose
from jaxcascade.plotting._style import house_style
from jaxcascade.plotting._text import point_text
from jaxcascade.plotting.curves import plot_curves
from jaxcascade.plotting.heatmaps import plot_heatmap
from jaxcascade.plotting.rules import plot_decisions, plot_thresholds
from jaxcascade.plotting.scatters import plot_scatter
from jaxcascade.plotting.sweeps import plot_sweep
from jaxcascade.results import Study

_KINDS = {
    "curves": plot_curves,
    "sweep": plot_sweep,
    "heatmap": plot_heatmap,
    "scatter": plot_scatter,
    "thresholds": plot_thresholds,
    "decisions": plot_decisions,
}


@house_style()
def draw(
    study: Study,
    figures: Sequence[Mapping[str, Any]],
    directory: str | os.PathLike,
    title: str | None = None,
) -> list[Path]:
    """The files of the given figures, written at 150 dots per inch, in order, once all could be drawn.

    A file is named by its kind and metric, ``curves_regret.png``, with a number behind where that is taken;
    it is complete or not there.

    Args:
      study: the study.
      figures: one dict per figure: ``kind`` ("curves", "sweep", "heatmap", "scatter", "thresholds",
        "decisions"), keywords of ``plot_KIND``, and if wanted ``file`` (a name that ends in .png, .pdf or
        .svg) and ``select`` (axis -> value, as in ``Study.select``).
      directory: where to write; made if missing.
      title: a line above the default title of every figure that has none of its own.

    Raises:
      ValueError: naming the figure and its key, what was expected, and the closest valid name.
    """
    drawn: dict[str, Any] = {}
    for number, figure in enumerate(figures):
        try:
            function = choose("kind", figure.get("kind", ""), _KINDS)
            drawn[_file_name(figure, function, drawn)] = _drawn(study, figure, function, title)
        except ValueError as error:
            raise ValueError(f"figures[{number}].{error}") from error
    Path(directory).mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        partial = Path(directory, f"{name}.partial")
        picture.figure.savefig(partial, format=name[-3:], dpi=150)
        partial.replace(Path(directory, name))
    return [Path(directory, name) for name in drawn]


def _file_name(figure, function, taken):
    name = figure.get("file")
    if name is None:
        defaults = inspect.signature(function).parameters
        metrics = [figure.get(key, defaults[key].default) for key in ("metric", "y", "x") if key in defaults]
        stem = "_".join([figure["kind"], *metrics])
        names = [f"{stem}.png", *(f"{stem}_{count}.png" for count in range(2, len(taken) + 2))]
        return next(name for name in names if name not in taken)
    if not isinstance(name, str) or name != Path(name).name or Path(name).suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"file: expected a plain file name that ends in .png, .pdf or .svg, got {name!r}")
    if name in taken:
        raise ValueError(f"file: expected another name than that of an earlier figure, got {name!r}")
    return name


def _drawn(study, figure, function, title):
    options = {key: value for key, value in figure.items() if key not in ("kind", "file", "select")}
    known = [key for key in inspect.signature(function).parameters if key not in ("study", "ax")]
    for key in options:
        choose(key, key, dict.fromkeys([*known, "file", "select"]))
    select = figure.get("select", {})
    if not isinstance(select, Mapping):
        raise ValueError(f"select: expected axis = value, got {select!r}")
    before = f"{title}\n" if title else ""
    points = ", ".join(point_text(axis, value) for axis, value in select.items())
    after = f" ({points})" if points else ""
    return function(study.select(**select), **{"title": lambda default: f"{before}{default}{after}"} | options)
