"""Legends, which stand to the right of what they explain, so that they cover nothing."""

from typing import Any, NamedTuple

from jaxcascade.plotting._style import ShownFigure
from jaxcascade.plotting._text import wrap_characters

_MOST_CHARACTERS = 34


class Entry(NamedTuple):
    """An entry of a legend; the note holds for its panel."""

    label: str
    handle: Any
    note: str = ""


def legend_beside(ax, entries, caption):
    """The legend of a picture of one panel. A figure of ours grows for it; in another, the Axes shrink."""
    content = _content(entries, caption)
    width, height = _inches(ax.legend(**content, loc="upper left", bbox_to_anchor=(1.02, 1), borderaxespad=0))
    figure = ax.figure.figure
    if isinstance(figure, ShownFigure):
        figure.grow(width, height + 0.9)
    elif figure.get_layout_engine() is None:
        spec = ax.get_subplotspec()  # so that a second picture in the same Axes takes no more room
        place = spec.get_position(figure) if spec else ax.get_position()
        room = (width + 0.1) / figure.get_size_inches()[0]
        ax.set_position((place.x0, place.y0, max(place.width - room, 0.3 * place.width), place.height))


def legend_of_panels(figure, entries, caption, title_height):
    """The legend of all panels, for which the figure grows, below a title of so many inches."""
    panels = figure.get_size_inches()[0]
    legend = figure.legend(**_content(entries, caption), loc="upper left", borderaxespad=0)
    width, height = _inches(legend)
    figure.grow(width, height + title_height + 0.1)
    whole_width, whole_height = figure.get_size_inches()
    figure.get_layout_engine().set(rect=(0, 0, panels / whole_width, 1))
    legend.set_bbox_to_anchor((panels / whole_width, 1 - title_height / whole_height))


def _content(entries, caption):
    labels = [f"{entry.label} ({entry.note})" if entry.note else entry.label for entry in entries]
    return {
        "handles": [entry.handle for entry in entries],
        "labels": [wrap_characters(label, _MOST_CHARACTERS) for label in labels],
        "title": wrap_characters(caption, _MOST_CHARACTERS) or None,
        "alignment": "left",
    }


def _inches(legend):
    box = legend.get_window_extent()
    return box.width / legend.figure.dpi + 0.15, box.height / legend.figure.dpi
