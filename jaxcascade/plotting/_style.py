"""The house style, and figures that show themselves in a notebook without pyplot."""

import io
from pathlib import Path

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = str(Path(__file__).parent.with_name("jaxcascade.mplstyle"))
DARK, GREY = "#333333", "#8C8C8C"


def house_style():
    """A context, or a decorator, under which Matplotlib follows the house style."""
    return matplotlib.style.context(STYLE)


@house_style()
def looks(count):
    """Colour, dashes and marker of the house style, one set per line; hollow markers after the thirteenth."""
    cycle = list(matplotlib.rcParams["axes.prop_cycle"])
    hollow = {"markerfacecolor": "white"}
    return [cycle[i % len(cycle)] | (hollow if i >= len(cycle) else {}) for i in range(count)]


class ShownFigure(Figure):
    """A figure that a notebook shows without pyplot."""

    def grow(self, more_width, least_height):
        """Makes it wider, and at least so high, in inches."""
        width, height = self.get_size_inches()
        self.set_size_inches(width + more_width, max(height, least_height))

    @house_style()
    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=self.dpi)
        return file.getvalue()


class _ShownAxes(Axes):
    """Axes that a notebook shows as their whole figure."""

    def _repr_png_(self) -> bytes:
        return self.figure._repr_png_()  # type: ignore[union-attr]


def new_axes(rows, columns, size) -> list[Axes]:
    """The Axes of a new figure, in reading order; ``size`` is in inches."""
    figure = ShownFigure(figsize=size, layout="constrained")
    return list(figure.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": _ShownAxes}).ravel())
