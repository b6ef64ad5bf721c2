"""Names and numbers as pictures write them."""

import math
import numbers
import textwrap
from collections.abc import Callable

import numpy as np

from jaxcascade.core import get_system

Title = str | Callable[[str], str] | None


def headline(title: Title, default: str) -> str:
    """The title, or what a function makes of the default one, which gets a capital."""
    default = default[:1].upper() + default[1:]
    return title(default) if callable(title) else default if title is None else title


def metric_label(study, metric):
    """A metric's axis label with its unit."""
    return get_system(study.system).labels.get(metric, words(metric))


def words(name):
    """An identifier in words."""
    return plain(name.replace("_", " "))


def plain(text):
    """A name as it is written: dollars are no mathematics, and a leading underscore hides nothing."""
    text = str(text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def point_text(name, value):
    """A policy's name, or ``axis = value``."""
    return plain(value) if name == "policy" else f"{words(name)} = {value_text(value)}"


def value_text(value):
    """A value of an axis, ``200,000`` or ``0.05``."""
    if not is_number(value):
        return plain(value)
    return _minus(f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.6g}")


def result_text(value):
    """A result, ``1,366`` or ``0.0431``."""
    return _minus(f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}")


def tick_text(value, position=None):
    """A tick label, ``200k`` or ``0.5``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return _minus(f"{value / size:.6g}{letter}")
    return _minus(f"{round(value, 12):.6g}")


def _minus(text):
    return "0" if text == "-0" else text.replace("-", "−")


def is_number(value):
    """True for a finite real number."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def positions(values):
    """Places along an axis, and whether they are the values themselves, which are numbers then."""
    numeric = all(is_number(value) for value in values)
    return np.asarray(values if numeric else range(len(values)), np.float64), numeric


def wrap(text, inches, size):
    """The text broken into lines that fit a width at a font size in points."""
    return wrap_characters(text, max(int(inches * 72 / (0.56 * size)), 12))


def wrap_characters(text, characters):
    """The text broken into as few lines of at most so many characters as will do, and these as even as they go."""
    return "\n".join(_even_lines(line, characters) for line in str(text).split("\n"))


def _even_lines(line, characters):
    lines = textwrap.wrap(line, characters)
    longest = max(map(len, line.split()), default=1)
    for width in range(characters - 1, longest - 1, -1):
        narrower = textwrap.wrap(line, width, break_on_hyphens=False)
        if len(narrower) > len(lines):
            break
        lines = narrower
    return "\n".join(lines)
