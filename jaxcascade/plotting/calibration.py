"""How well the confidence scores of a deferral instance tell its accuracies."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jaxcascade.plotting._style import DARK, GREY, house_style, looks, new_axes
from jaxcascade.plotting._text import Title, headline, tick_text, wrap


@house_style()
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

    left, right = new_axes(1, 2, (8.0, 3.6))
    look = looks(1)[0]
    order = np.argsort(score, kind="stable")
    left.plot([0, 1], [0, 1], color=GREY, linestyle="--", marker="none", linewidth=1.2)
    left.plot(score[order], accuracy[order], **look)
    left.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="confidence score", ylabel="accuracy of the LLM")
    left.set_title("accuracy by level (dashed: calibrated)")
    right.bar(np.arange(1, len(accuracy) + 1), arrival[1:], color=look["color"], width=0.8)
    if arrival[0] > 0:
        right.bar([0], arrival[:1], color="white", edgecolor=DARK, hatch="///", width=0.8)
    right.set(xlabel="confidence level (0: no query)", ylabel="arrivals per round")
    right.set_title("arrival rate by level")
    right.grid(False, axis="x")
    right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right.yaxis.set_major_formatter(FuncFormatter(tick_text))
    figure = left.figure.figure
    heading = headline(title, f"Calibration: {len(accuracy)} levels of confidence")
    figure.suptitle(wrap(heading, figure.get_size_inches()[0] - 0.4, 12))
    return figure
