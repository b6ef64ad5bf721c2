"""Published numbers in an experiment's TOML file, and ours beside them."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from jaxcascade._toml import check_names, shown, typed, whole
from jaxcascade.core import choose

_NUMBERS = ("mean", "ci95", "decimals")
_NORMAL_95 = 1.96


class Cell(NamedTuple):
    """A published number: the ``point`` it belongs to (axis -> value), its mean, 95 % half width and decimals."""

    point: dict[str, Any]
    mean: float
    ci95: float
    decimals: int


class Paper(NamedTuple):
    """Published numbers of one policy and metric, over ``n`` runs each (None if the file does not tell)."""

    policy: str
    metric: str
    n: int | None
    cells: list[Cell]


class PaperRow(NamedTuple):
    """Our number beside the published one at the last recorded round.

    ``z = (ours - paper) / standard error of the difference``, in which the rounding of the published mean (uniform
    over one unit of its last decimal) counts as an error too; nan where z says nothing: one seed, or a run that is
    not comparable. Where neither number has a spread, z is 0 if they agree to the decimals published, else inf.
    """

    policy: str
    metric: str
    point: dict[str, Any]
    ours: float
    ours_ci95: float
    paper: float
    paper_ci95: float
    n: int | None
    z: float


def parse_paper(tables: dict[str, Any], axes: Mapping[str, list]) -> list[Paper]:
    """The entries of ``[[paper]]``, every cell at a point of the grid that ``axes`` (name -> values) spans.

    Raises:
      ValueError: if anything is wrong; one line with key, what was expected and what came.
    """
    papers = []
    for i, entry in enumerate(typed(tables, "paper", list, default=[])):
        where = f"paper[{i}]."
        if not isinstance(entry, dict):
            raise ValueError(f"paper[{i}]: expected a table, got {shown(entry)}")
        check_names(entry, Paper._fields, where)
        policy = typed(entry, "policy", str, where)
        choose(f"{where}policy", policy, tables["policies"])
        cells = [_cell(cell, f"{where}cells[{j}]", axes) for j, cell in enumerate(typed(entry, "cells", list, where))]
        papers.append(Paper(policy, typed(entry, "metric", str, where), whole(entry, "n", where, default=None), cells))
    return papers


def as_entry(paper: Paper) -> dict[str, Any]:
    """The entry of ``[[paper]]`` that would give this one again."""
    cells = [{**cell.point, **{name: getattr(cell, name) for name in _NUMBERS}} for cell in paper.cells]
    return {name: value for name, value in paper._asdict().items() if value is not None} | {"cells": cells}


def beside(paper: Paper, cell: Cell, ours: float, ours_ci95: float, comparable: bool) -> PaperRow:
    """Our mean and its 95 % half width beside a published cell, with z if the two are comparable."""
    z = _z_score(ours, ours_ci95, cell) if comparable else math.nan
    return PaperRow(paper.policy, paper.metric, cell.point, ours, ours_ci95, cell.mean, cell.ci95, paper.n, z)


def _z_score(ours, ours_ci95, cell):
    spread, unit = math.hypot(ours_ci95, cell.ci95) / _NORMAL_95, 10.0**-cell.decimals
    if spread != 0:
        return (ours - cell.mean) / math.hypot(spread, unit / math.sqrt(12))
    return 0.0 if abs(ours - cell.mean) <= unit / 2 + 1e-9 * abs(cell.mean) else math.inf


def _cell(cell, key, axes):
    if not isinstance(cell, dict):
        raise ValueError(f"{key}: expected a table, got {shown(cell)}")
    check_names(cell, [*axes, *_NUMBERS], f"{key}.")
    point = {}
    for axis, values in axes.items():
        if axis not in cell:
            raise ValueError(f"{key}.{axis}: expected a value of the sweep's axis, got none")
        point[axis] = _as_float(cell[axis])
        if point[axis] not in values:
            raise ValueError(f"{key}.{axis}: expected one of {', '.join(map(str, values))}, got {shown(cell[axis])}")
    mean, ci95 = _finite(cell, "mean", key, "a finite number"), _finite(cell, "ci95", key, "a finite number >= 0")
    if ci95 < 0:
        raise ValueError(f"{key}.ci95: expected a finite number >= 0, got {shown(cell['ci95'])}")
    written = max(0, -int(Decimal(str(cell["mean"])).as_tuple().exponent))
    return Cell(point, mean, ci95, whole(cell, "decimals", f"{key}.", least=0, default=written))


def _as_float(value):
    if isinstance(value, list):
        return [_as_float(entry) for entry in value]
    return float(value) if isinstance(value, Decimal) else value


def _finite(cell, name, key, expected):
    value = cell.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not math.isfinite(value):
        raise ValueError(f"{key}.{name}: expected {expected}, got {shown(value)}")
    return float(value)
