"""Reader of public LLM-routing tables: prompts by models, with the score and the dollars of every answer."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.core import closest, one_of
from jaxcascade.data import _routing_formats as formats
from jaxcascade.data._source import open_source


class RoutingTable(NamedTuple):
    """P prompts answered by N models.

    `prompt_id`, `prompt`, `group` (benchmark) are tuples of P texts, `models` of N; `performance` [P, N] float64
    in [0, 1]; `cost` [P, N] float64 in USD; `features`: name -> [P, N] float64, what else was logged of every
    answer, nan where it was not; `embeddings` [P, d] of the prompts, d = 0 without any.
    """

    prompt_id: tuple[str, ...]
    prompt: tuple[str, ...]
    group: tuple[str, ...]
    models: tuple[str, ...]
    performance: np.ndarray
    cost: np.ndarray
    features: dict[str, np.ndarray]
    embeddings: np.ndarray


class TableSummary(NamedTuple):
    """Per model `missing` [N] int64, `mean_score` [N], `mean_cost` [N] in USD, in the order of `models`; `rows`.

    `best_model` has the highest mean score, `best_net_model` the highest mean of score - weight * cost / largest
    cost of the table; `oracle_score` is the mean over prompts of the best score of any model.
    """

    models: tuple[str, ...]
    rows: int
    missing: np.ndarray
    mean_score: np.ndarray
    mean_cost: np.ndarray
    best_model: str
    best_net_model: str
    oracle_score: float


def read_routing_table(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    embeddings: str | os.PathLike[str] | ArrayLike | None = None,
    prices: Mapping[str, Any] | None = None,
    score: Mapping[str, str] | None = None,
    cost: Mapping[str, str | float] | None = None,
    prompt_id: str | None = None,
    prompt: str | None = None,
    group: str | None = None,
    drop_missing: bool = False,
) -> RoutingTable:
    """Returns the `RoutingTable` of a CSV, JSON-lines, Parquet or pickle file, in the order of its prompts.

    Formats, recognised by their columns: "routerbench" (withmartian/routerbench), "sprout"
    (CARROT-LLM-Routing/SPROUT, Parquet), "embedllm" (RZ412/EmbedLLM: rows of prompt and model; models by
    model_id, repeated pairs averaged), "cascade" (`MODEL|correct`, `MODEL|cost_usd`), and "wide", any table of
    one row a prompt. Nothing in a pickle is run, and none but a pandas table is taken.

    Args:
      path: the file; its kind by ending or first bytes.
      format: one of the names above, in place of the recognised one; "wide" is implied by `score`.
      embeddings: [P, d] numbers, or the `.npy` file of them, one row a prompt of the file; by default
        `<path without ending>.minilm.npy` or `<path>.npy` if there is one.
      prices: sprout: model -> (USD per million input tokens, output tokens), required; embedllm: model -> USD
        a query, 0 for models not named.
      score: wide: model -> column of its score.
      cost: wide: model -> column of its cost, or USD a query; 0 for models not named.
      prompt_id: column of the ids, in place of the format's; sprout and wide number the rows from 1.
      prompt: column of the prompts, in place of the format's.
      group: column of the benchmark's name, in place of the format's; without one, groups are empty.
      drop_missing: leave out the prompts (and their embeddings) that lack a score or cost, else refused.

    Raises:
      FileNotFoundError: if there is no such file.
      ImportError: for Parquet without pyarrow (``pip install jaxcascade[parquet]``).
      ValueError: in one line naming file, row (from 1) and column, for a column that is missing, an id that is
        repeated, a score outside [0, 1], a negative cost, a missing number, embeddings that do not fit, and a
        file that is empty, damaged, not UTF-8, or a pickle of anything else; naming the argument for that.
    """
    names = formats.Names(prompt_id, prompt, group)
    kind, answers = _read(path, format, names, prices, score, cost)
    vectors = _embeddings(os.fspath(path), embeddings, len(answers.prompt_id))
    keep = _complete_rows(os.fspath(path), answers, drop_missing)
    return _table(kind, answers, vectors, keep)


def read_incomplete_table(path: str | os.PathLike[str]) -> RoutingTable:
    """Returns the `RoutingTable` of a file without its embeddings, with nan where a score or cost is missing.

    Raises as `read_routing_table` does, but for missing numbers.
    """
    kind, answers = _read(path, None, formats.Names(None, None, None), None, None, None)
    return _table(kind, answers, np.zeros((len(answers.prompt_id), 0)), np.arange(len(answers.prompt_id)))


def join_tables(tables: Sequence[RoutingTable]) -> RoutingTable:
    """Returns one `RoutingTable` of the prompts of all, which must have the same models in any order.

    Features are kept where all have them.

    Args:
      tables: one or more.

    Raises:
      ValueError: for other models or embeddings of another size.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    for i, table in enumerate(tables):
        if sorted(table.models) != sorted(first.models):
            odd = sorted(set(table.models) ^ set(first.models))
            raise ValueError(f"tables[{i}]: expected the models of the first table, differs in {', '.join(odd)}")
        if table.embeddings.shape[1] != first.embeddings.shape[1]:
            sizes = first.embeddings.shape[1], table.embeddings.shape[1]
            raise ValueError(f"tables[{i}]: expected embeddings of size {sizes[0]}, got {sizes[1]}")
    places = [[table.models.index(model) for model in first.models] for table in tables]
    shared = [name for name in first.features if all(name in table.features for table in tables)]

    def columns(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([array[:, place] for array, place in zip(arrays, places, strict=True)])

    return RoutingTable(
        tuple(name for table in tables for name in table.prompt_id),
        tuple(text for table in tables for text in table.prompt),
        tuple(name for table in tables for name in table.group),
        first.models,
        columns([table.performance for table in tables]),
        columns([table.cost for table in tables]),
        {name: columns([table.features[name] for table in tables]) for name in shared},
        np.concatenate([table.embeddings for table in tables]),
    )


def split_table(table: RoutingTable, train_share: float = 0.5, seed: int = 0) -> tuple[RoutingTable, RoutingTable]:
    """Returns the training and the evaluation part of a table; prompts of one text stay on one side.

    Args:
      table: the whole.
      train_share: share of the different prompt texts, rounded, that go to training.
      seed: from which they are drawn.

    Raises:
      ValueError: for a share that leaves a side empty.
    """
    texts = {text: place for place, text in enumerate(dict.fromkeys(table.prompt))}
    count = round(train_share * len(texts)) if 0 < train_share < 1 else 0
    if not 0 < count < len(texts):
        raise ValueError(
            f"train_share: expected a share in (0, 1) with prompts on both sides of {len(texts)}, got {train_share!r}"
        )
    trains = np.zeros(len(texts), bool)
    trains[np.random.default_rng(seed).permutation(len(texts))[:count]] = True
    side = trains[[texts[text] for text in table.prompt]]
    return _rows_of(table, np.flatnonzero(side)), _rows_of(table, np.flatnonzero(~side))


def _rows_of(table: RoutingTable, keep: np.ndarray) -> RoutingTable:
    """The rows `keep` of a table."""
    return RoutingTable(
        tuple(table.prompt_id[i] for i in keep),
        tuple(table.prompt[i] for i in keep),
        tuple(table.group[i] for i in keep),
        table.models,
        table.performance[keep],
        table.cost[keep],
        {name: value[keep] for name, value in table.features.items()},
        table.embeddings[keep],
    )


def summarise_table(table: RoutingTable, *, weight: float = 0.3) -> TableSummary:
    """Returns the `TableSummary` of a table; scores and costs that are nan count as missing, not in the means.

    Args:
      table: the table; it may have gaps.
      weight: score given up for the table's largest cost.

    Raises:
      ValueError: for a table without a score.
    """
    performance, cost = np.asarray(table.performance, float), np.asarray(table.cost, float)
    known = np.isfinite(performance) & np.isfinite(cost)
    count = known.sum(axis=0)
    if not count.any():
        raise ValueError(f"table: expected at least one score, got none in shape {performance.shape}")
    with np.errstate(invalid="ignore"):
        mean_score, mean_cost = (np.where(known, x, 0).sum(axis=0) / count for x in (performance, cost))
    largest = np.max(cost, where=known, initial=0.0)
    net = mean_score - weight * mean_cost / (largest or 1.0)
    answered = known.any(axis=1)
    best = np.max(performance, axis=1, where=known, initial=-np.inf)[answered]
    return TableSummary(
        tuple(table.models),
        len(performance),
        len(performance) - count,
        mean_score,
        mean_cost,
        table.models[int(np.nanargmax(mean_score))],
        table.models[int(np.nanargmax(net))],
        float(best.mean()),
    )


def _read(path, format, names, prices, score, cost) -> tuple[str, formats.Answers]:
    """The format of a file and what it holds."""
    if format is not None and format not in formats.FORMATS:
        raise ValueError(
            f"format: expected {one_of(formats.FORMATS)}, got {format!r}{closest(format, formats.FORMATS)}"
        )
    with open_source(path) as source:
        kind = format or ("wide" if score is not None else formats.recognise(source))
        for argument, value, kinds in (
            ("prices", prices, ("sprout", "embedllm")),
            ("score", score, ("wide",)),
            ("cost", cost, ("wide",)),
        ):
            if value is not None and kind not in kinds:
                raise ValueError(f"{argument}: expected with the format {' or '.join(kinds)} only, got {kind!r}")
        if kind == "routerbench":
            return kind, formats.routerbench(source, names)
        if kind == "cascade":
            return kind, formats.cascade(source, names)
        if kind == "sprout":
            return kind, formats.sprout(source, names, prices)
        if kind == "embedllm":
            return kind, formats.embedllm(source, names, prices)
        return kind, formats.wide(source, names, score, cost)


def _table(kind: str, answers: formats.Answers, vectors: np.ndarray, keep: np.ndarray) -> RoutingTable:
    """The rows `keep` as a `RoutingTable`."""
    prompts = answers.prompt
    if kind == "routerbench":
        prompts = [formats.joined_prompt(text) for text in prompts]
    whole = RoutingTable(
        tuple(answers.prompt_id),
        tuple(prompts),
        tuple(answers.group),
        tuple(answers.models),
        answers.performance,
        answers.cost,
        answers.features,
        vectors,
    )
    return _rows_of(whole, keep)


def _complete_rows(path: str, answers: formats.Answers, drop_missing: bool) -> np.ndarray:
    """The places [rows kept] of the prompts that have every score and cost."""
    missing = np.concatenate([np.isnan(answers.performance), np.isnan(answers.cost)], axis=1)
    bad = np.asarray(missing.any(axis=1))
    if bad.all():
        raise ValueError(f"{path}: expected a row with every score and cost, got none in {len(bad)} rows")
    if bad.any() and not drop_missing:
        first = int(np.argmax(bad))
        columns = answers.score_columns + answers.cost_columns
        column = columns[int(np.argmax(missing[first]))]
        raise ValueError(
            f"{path}, row {answers.row_numbers[first]}, column {column!r}: expected a number for every prompt and"
            f" model, got none; {bad.sum()} of {len(bad)} prompts lack one (drop_missing=True leaves them out)"
        )
    return np.flatnonzero(~bad)


def _embeddings(path: str, given: Any, rows: int) -> np.ndarray:
    """The embeddings [rows, d], at least float32 (sums of float16 overflow and round)."""
    if given is None:
        beside = (os.path.splitext(path)[0] + ".minilm.npy", path + ".npy")
        given = next((name for name in beside if os.path.isfile(name)), None)
        if given is None:
            return np.zeros((rows, 0))
    label = "embeddings"
    if isinstance(given, str | os.PathLike):
        label = os.fspath(given)
        try:
            given = np.load(label, allow_pickle=False)
        except FileNotFoundError:
            raise FileNotFoundError(f"{label}: no such file") from None
        except (ValueError, EOFError, OSError) as error:
            reason = str(error).partition("\n")[0][:100]
            raise ValueError(
                f"{label}: expected a .npy file of numbers, got none or a damaged one ({reason})"
            ) from None
    try:
        vectors = np.asarray(given)
        vectors = vectors.astype(np.result_type(vectors.dtype, np.float32), copy=False)
        is_real = vectors.dtype.kind == "f"
    except (TypeError, ValueError):
        is_real = False
    if not is_real:
        raise ValueError(f"{label}: expected an array of numbers, got {type(given).__name__}")
    if vectors.ndim != 2 or len(vectors) != rows:
        raise ValueError(f"{label}: expected shape ({rows}, d), one row a prompt of {path}, got {vectors.shape}")
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise ValueError(f"{label}, row {int(np.argmax(bad)) + 1}: expected finite numbers, got nan or infinity")
    return vectors
