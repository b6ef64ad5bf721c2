"""Instances that replay a routing or cascade table: prompts with the score and cost of every API."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcascade.cascade.instance import Instance, discrete
from jaxcascade.core import closest, one_of
from jaxcascade.data._rows import open_table

_LARGEST_FEATURE = 3.0


class Columns(NamedTuple):
    """What ``read_columns`` returns: API ``names``, and per column name an array ``[P, A]``, nan where empty."""

    names: list[str]
    values: dict[str, np.ndarray]


def read_columns(paths: Sequence[str | os.PathLike], wanted: Sequence[str]) -> Columns:
    """Columns named ``API|column`` of CSV or JSON-lines files that hold the same prompts in the same order.

    Args:
      paths: the files; their APIs are put side by side.
      wanted: the parts after the bar.

    Returns:
      The names of all APIs and, for every part, ``[P, A]`` numbers; cells that are no number are nan.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file if a column is missing or the numbers of rows differ.
    """
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    length = None
    for path in paths:
        with open_table(path) as table:
            apis = list(dict.fromkeys(c.partition("|")[0] for c in table.columns if "|" in c))
            if not apis:
                raise ValueError(f"{path}: expected columns named API|{wanted[0]}, got {', '.join(table.columns)}")
            for api in apis:
                for name in wanted:
                    column = f"{api}|{name}"
                    if column not in table.columns:
                        near = closest(column, table.columns)
                        raise ValueError(f"{path}: expected a column {column!r}{near}, got none of that name")
            rows = [[[_number(row.cells[f"{api}|{name}"]) for api in apis] for name in wanted] for row in table.rows]
        if length is not None and len(rows) != length:
            raise ValueError(f"{path}: expected {length} rows, as many as {paths[0]}, got {len(rows)}")
        length = len(rows)
        names += apis
        for i, name in enumerate(wanted):
            parts[name].append(np.array([row[i] for row in rows], float))
    return Columns(names, {name: np.concatenate(columns, axis=1) for name, columns in parts.items()})


def _number(cell):
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan


def from_table(
    embeddings,
    scores=None,
    costs=None,
    features=None,
    *,
    tables: Sequence[str] | None = None,
    score_column: str = "correct",
    cost_column: str = "cost_usd",
    feature_columns: Sequence[str] = (),
    exchange_rate: float = 1.0,
    dimensions: int | None = None,
    drop_missing: bool = False,
) -> Instance:
    """The instance that replays a table of prompts answered by every API, prompts drawn with replacement.

    A context is a prompt's embedding. An answer's features are ``(1, features of the answer, embedding)``,
    the answer's features standardised over the table and cut at 3; its value is its benchmark score, its cost
    the table's times ``exchange_rate``. As the answer to a prompt is fixed, the oracle's utility is the best
    net score of each prompt; ``regret_single`` is against the best fixed API.

    Args:
      embeddings: ``[P, dx]``, or the path of an ``.npy`` file.
      scores: ``[P, A]`` in [0, 1]; or give ``tables``.
      costs: ``[P, A]`` in the table's unit, >= 0.
      features: ``[P, A, k]`` features of the answers, or None.
      tables: paths of files with columns ``API|score_column`` and so on, read by ``read_columns`` in the
        place of the three arrays.
      score_column: name of the scores in the files.
      cost_column: name of the costs in the files.
      feature_columns: names of the answers' features in the files.
      exchange_rate: reward units per unit of cost, for instance per dollar, >= 0.
      dimensions: project the embeddings on so many principal components, scaled to a mean squared norm of a
        third per component, as uniform contexts have; by default they are taken as they are.
      drop_missing: leave out the prompts with a missing number, which are otherwise refused.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the argument (both, where two do not fit), what was expected and what came.

    Source: arXiv 2606.07392, Section 2, on recorded answers.
    """
    if tables is not None:
        if scores is not None or costs is not None or features is not None:
            raise ValueError("tables: expected nothing beside scores, costs or features, got both")
        paths = [tables] if isinstance(tables, str) else list(tables)
        if not paths:
            raise ValueError("tables: expected at least one file, got none")
        columns = read_columns(paths, [score_column, cost_column, *feature_columns]).values
        scores, costs = columns[score_column], columns[cost_column]
        if feature_columns:
            features = np.stack([columns[name] for name in feature_columns], axis=-1)
    if scores is None or costs is None:
        raise ValueError(f"scores: expected {one_of(['scores and costs', 'tables'])}, got neither")
    if isinstance(embeddings, (str, os.PathLike)):
        embeddings = np.load(embeddings, allow_pickle=False)
    embeddings, scores, costs = (np.asarray(a, float) for a in (embeddings, scores, costs))
    _check_shapes(embeddings, scores, costs)
    prompts, boxes = scores.shape
    features = np.zeros((prompts, boxes, 0)) if features is None else np.asarray(features, float)
    if features.ndim != 3 or features.shape[:2] != scores.shape:
        raise ValueError(f"features: expected shape {scores.shape} and more, as scores, got {features.shape}")
    if not exchange_rate >= 0:
        raise ValueError(f"exchange_rate: expected a number >= 0, got {exchange_rate!r}")

    answers = np.concatenate([scores[..., None], costs[..., None], features], axis=-1)
    missing = ~(np.isfinite(answers).all(axis=(1, 2)) & np.isfinite(embeddings).all(axis=1))
    if missing.any():
        if not drop_missing:
            raise ValueError(
                f"scores: expected a number in every cell, {missing.sum()} of {prompts} rows have a missing score,"
                f" cost or feature (first: row {int(np.argmax(missing)) + 1}); drop_missing=True leaves them out"
            )
        if missing.all():
            raise ValueError(f"scores: expected at least one whole row, all {prompts} have a missing number")
        embeddings, scores, costs, features = (a[~missing] for a in (embeddings, scores, costs, features))

    context = embeddings if dimensions is None else _components(embeddings, dimensions)
    spread = features.std(axis=(0, 1))
    scaled = (features - features.mean(axis=(0, 1))) / np.where(spread > 0, spread, 1)
    phi = np.concatenate(
        [
            np.ones((*scores.shape, 1)),
            np.clip(scaled, -_LARGEST_FEATURE, _LARGEST_FEATURE),
            np.broadcast_to(context[:, None], (*scores.shape, context.shape[1])),
        ],
        axis=-1,
    )
    return discrete(
        scores[..., None],
        exchange_rate * costs[..., None],
        np.ones((*scores.shape, 1)),
        context=context,
        features=phi[:, :, None],
    )


def _check_shapes(embeddings, scores, costs):
    for name, value in (("embeddings", embeddings), ("scores", scores), ("costs", costs)):
        if value.ndim != 2:
            raise ValueError(f"{name}: expected two axes, got shape {value.shape}")
    if scores.shape[1] < 1:
        raise ValueError(f"scores: expected at least one API, got shape {scores.shape}")
    if costs.shape != scores.shape:
        raise ValueError(f"costs: expected shape {scores.shape} as scores, got {costs.shape}")
    if embeddings.shape[0] != scores.shape[0]:
        raise ValueError(
            f"embeddings: expected {scores.shape[0]} rows, as many as scores of shape {scores.shape},"
            f" got shape {embeddings.shape}"
        )
    if scores.shape[0] < 1:
        raise ValueError("scores: expected at least one prompt, got none")


def _components(embeddings, dimensions):
    """Principal components, scaled together to a mean squared norm of a third per component."""
    most = min(embeddings.shape)
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= most:
        raise ValueError(f"dimensions: expected a whole number from 1 to {most}, got {dimensions!r}")
    centred = embeddings - embeddings.mean(axis=0)
    _, _, rows = np.linalg.svd(centred, full_matrices=False)
    scores = centred @ rows[:dimensions].T
    norm = np.mean(np.sum(scores**2, axis=1))
    return scores * np.sqrt(dimensions / 3 / (norm if norm > 0 else 1))
