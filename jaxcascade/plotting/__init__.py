"""Pictures of studies: mean curves with 95 % bands, sweeps, heat maps, scatters, learned rules, calibration.

Every function draws into the given Axes, or makes a figure of its own, and returns the Axes, or the Figure
where it has several panels. Figures are made without pyplot: nothing is opened, the user's backend and
rcParams stay as they are, and what is returned shows itself in a notebook. A policy has the same colour,
dashes and marker in every picture of a study.
"""

from jaxcascade.plotting._style import STYLE
from jaxcascade.plotting.calibration import plot_calibration
from jaxcascade.plotting.curves import plot_curves
from jaxcascade.plotting.files import draw
from jaxcascade.plotting.heatmaps import plot_heatmap
from jaxcascade.plotting.rules import plot_decisions, plot_thresholds
from jaxcascade.plotting.scatters import plot_scatter
from jaxcascade.plotting.sweeps import plot_sweep

__all__ = [
    "STYLE",
    "draw",
    "plot_calibration",
    "plot_curves",
    "plot_decisions",
    "plot_heatmap",
    "plot_scatter",
    "plot_sweep",
    "plot_thresholds",
]
