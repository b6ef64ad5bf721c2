"""Instances that replay a routing or cascade table: prompts with the score and cost of every API."""

import os
from collections.abc import Sequence

import numpy as np

from jaxcascade.cascade.instance import Instance, discrete
from jaxcascade.core import choose, one_of
from jaxcascade.data import principal_components
from jaxcascade.data.routing import read_incomplete_table

_LARGEST_FEATURE = 3.0


def from_table(
    embeddings,
    scores=None,
    costs=None,
    features=None,
    *,
    tables: Sequence[str] | None = None,
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
      tables: path or paths of routing tables in the place of the three arrays (``data.read_routing_table`` has the
        formats), of different APIs on the same prompts in the same order.
      feature_columns: names of the answers' features in the files, such as "confidence".
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
        scores, costs, features = _side_by_side([tables] if isinstance(tables, str) else tables, feature_columns)
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

    context = embeddings if dimensions is None else principal_components(embeddings, dimensions)
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


def _side_by_side(paths, feature_columns):
    """Scores and costs ``[P, A]`` and features ``[P, A, k]`` of the APIs of all files, nan where missing."""
    if not len(paths):
        raise ValueError("tables: expected at least one file, got none")
    tables = [read_incomplete_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        if table.prompt != tables[0].prompt:
            first = next((i for i, (a, b) in enumerate(zip(table.prompt, tables[0].prompt, strict=False)) if a != b), 0)
            raise ValueError(
                f"{path}: expected the {len(tables[0].prompt)} prompts of {paths[0]} in the same order,"
                f" got {len(table.prompt)}, another one in row {first + 1}"
            )
        for name in feature_columns:
            choose(f"{path}: feature_columns", name, table.features)
    features = (
        [np.stack([table.features[n] for n in feature_columns], -1) for table in tables] if feature_columns else []
    )
    return (
        np.concatenate([table.performance for table in tables], axis=1),
        np.concatenate([table.cost for table in tables], axis=1),
        np.concatenate(features, axis=1) if features else None,
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
