"""Instances that replay a routing table, and the part of a table that routers are trained on."""

import os
import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from jaxcascade.core import choose
from jaxcascade.data import (
    RoutingTable,
    distinct_endings,
    embed_prompts,
    join_tables,
    read_routing_table,
    split_table,
)
from jaxcascade.queueing.instance import Instance, make_instance
from jaxcascade.queueing.targets import COST_WEIGHT, net_utility

_LOWEST, _HIGHEST = 0.1, 0.99  # interval of the acceptance probabilities
_PARTS = ("all", "train", "evaluation")


Tables = str | os.PathLike


def read_part(
    tables: Tables | Sequence[Tables],
    part: str = "all",
    train_share: float = 0.5,
    split_seed: int = 0,
    drop_missing: bool = False,
    encoder: str | None = None,
    cache: str | None = None,
) -> RoutingTable:
    """The prompts of one or more routing tables, or those of one side of a split by prompt text.

    Args:
      tables: path, or paths of files with the same models, each with its embeddings beside it, read by
        ``data.read_routing_table``.
      part: "all", "train" or "evaluation".
      train_share: share of the different prompts that go to "train".
      split_seed: from which the split is drawn.
      drop_missing: leave out prompts that lack a score or cost, which are otherwise refused.
      encoder: embed the prompts anew with this model, as ``data.embed_prompts`` has it, in the place of what is
        beside the files; without what all prompts of a benchmark begin with (``data.distinct_endings``).
      cache: folder in which these embeddings are kept.

    Raises:
      FileNotFoundError: if there is no such file.
      ImportError: with an encoder that is not installed.
      ValueError: naming file or argument, what was expected and what came.
    """
    choose("part", part, dict.fromkeys(_PARTS))
    paths = table_paths(tables)
    if not paths:
        raise ValueError("tables: expected at least one file, got none")
    if encoder is None:
        whole = join_tables([read_routing_table(path, drop_missing=drop_missing) for path in paths])
    else:
        versions = tuple(os.stat(path).st_mtime_ns if os.path.exists(path) else 0 for path in paths)
        whole = _embedded(paths, versions, drop_missing, encoder, cache)
    if not whole.embeddings.shape[1]:
        raise ValueError(f"{paths[0]}: expected embeddings beside it (such as a .minilm.npy file) or encoder, got none")
    if len(whole.embeddings) > 1 and not np.any(whole.embeddings != whole.embeddings[0]):
        warnings.warn(
            f"{paths[0]}: the embeddings of all {len(whole.embeddings)} prompts are the same, as an encoder's are that"
            " cuts long prompts of one beginning; nothing can be learnt from them (encoder= embeds their endings)",
            stacklevel=2,
        )
    if part == "all":
        return whole
    return split_table(whole, train_share, split_seed)[part == "evaluation"]


def table_paths(tables: Tables | Sequence[Tables]) -> tuple[str, ...]:
    """One path or several as a tuple."""
    several = [tables] if isinstance(tables, (str, os.PathLike)) else tables
    return tuple(os.fspath(path) for path in several)


# The instance and every policy of a study read the same prompts, and encoding takes long; versions tell when a file
# has changed.
@lru_cache(maxsize=4)
def _embedded(paths, versions, drop_missing, encoder, cache):
    tables = [read_routing_table(path, drop_missing=drop_missing) for path in paths]
    whole = join_tables([table._replace(embeddings=np.zeros((len(table.prompt), 0))) for table in tables])
    texts = distinct_endings(whole.prompt, whole.group)
    return whole._replace(embeddings=embed_prompts(texts, encoder, cache=cache))


def from_table(
    embeddings=None,
    performance=None,
    cost=None,
    *,
    tables=None,
    part="all",
    train_share=0.5,
    split_seed=0,
    drop_missing=False,
    encoder=None,
    cache=None,
    cost_weight=COST_WEIGHT,
    arrival_rate=0.7,
    assortment_size=1,
    features=None,
    arrivals=None,
) -> Instance:
    """Contexts from an offline routing table, with its performance and cost turned into acceptance probabilities.

    ``raw = performance - cost_weight * cost / max(cost)``, scaled over the models of each prompt to
    ``.1 + .89 (raw - min) / (max - min)``; that is the acceptance probability q of a model alone, and its
    utility is ``log(q / (1 - q))``. A prompt on which all models tie gets the middle value .545 for all.
    Prompts are drawn uniformly, whether or not they can be served at the arrival rate.

    Args:
      embeddings: ``[P, d]`` contexts; or give ``tables``.
      performance: ``[P, N]`` scores in [0, 1].
      cost: ``[P, N]`` costs >= 0.
      tables: path or paths of routing tables in the place of the three arrays, as ``read_part`` takes them.
      part: which side of a split of the files' prompts, as in ``read_part``.
      train_share: as in ``read_part``.
      split_seed: as in ``read_part``.
      drop_missing: as in ``read_part``.
      encoder: as in ``read_part``.
      cache: as in ``read_part``.
      cost_weight: performance given up for the largest cost; the paper's is lost.
      arrival_rate: probability of an arrival in a round.
      assortment_size: K, static.
      features: ``[N, D, d]`` feature maps of the shared-parameter form.
      arrivals: as in ``make_instance``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.2 and Appendix B.5.
    """
    given = (embeddings, performance, cost)
    if tables is not None:
        if any(array is not None for array in given):
            raise ValueError("tables: expected nothing beside embeddings, performance or cost, got both")
        table = read_part(tables, part, train_share, split_seed, drop_missing, encoder, cache)
        embeddings, performance, cost = table.embeddings, table.performance, table.cost
    elif any(array is None for array in given):
        raise ValueError("embeddings: expected embeddings, performance and cost, or tables, got neither")
    contexts = np.asarray(embeddings, np.float64)
    if contexts.ndim != 2 or 0 in contexts.shape:
        raise ValueError(f"embeddings: expected a table with one row per prompt, got shape {list(contexts.shape)}")
    raw = net_utility(performance, cost, cost_weight)
    if len(raw) != len(contexts):
        raise ValueError(f"performance: expected {len(contexts)} rows, got {len(raw)}")
    low, high = raw.min(1, keepdims=True), raw.max(1, keepdims=True)
    spread = high - low
    share = np.where(spread > 0, (raw - low) / np.where(spread > 0, spread, 1), 0.5)
    chance = _LOWEST + (_HIGHEST - _LOWEST) * share
    return make_instance(
        np.zeros((raw.shape[1], contexts.shape[1])),
        arrival_rate,
        0.0,
        assortment_size,
        embeddings=contexts,
        utility=np.log(chance / (1 - chance)),
        features=features,
        arrivals=arrivals,
    )
