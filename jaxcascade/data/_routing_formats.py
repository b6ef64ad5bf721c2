"""The columns of each published routing table, read into one shape: prompts by models, scores and dollars."""

import ast
import math
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcascade.core import closest
from jaxcascade.data._rows import Row, fail, read_number, shown
from jaxcascade.data._source import Source, require

FORMATS = ("routerbench", "sprout", "embedllm", "cascade", "wide")
_EMPTY = ("", "nan", "na", "none", "null")
_SCORE, _COST = "a score in [0, 1]", "a cost in USD, 0 or more"
_TOKEN_FIELDS = ("score", "num_input_tokens", "num_output_tokens")
# Answers are text even where a benchmark's answers happen to be numbers, and responses are most of a file.
_TEXT_PARTS = ("answer", "response", "model_response")


class Names(NamedTuple):
    """The columns of a table's ids, prompts and groups; None where the caller named or the format has none."""

    prompt_id: str | None
    prompt: str | None
    group: str | None


class Answers(NamedTuple):
    """What a format's reader returns: the fields of a `RoutingTable`, nan where missing, and for the messages
    about it the row number of every prompt and the columns of every model's score and cost."""

    prompt_id: list[str]
    prompt: list[str]
    group: list[str]
    models: list[str]
    performance: np.ndarray
    cost: np.ndarray
    features: dict[str, np.ndarray]
    row_numbers: Sequence[int]
    score_columns: list[str]
    cost_columns: list[str]


def recognise(source: Source) -> str:
    """Returns the format whose columns the file has. Raises ValueError naming what was looked for and found."""
    columns = source.columns
    if any(column.endswith("|total_cost") for column in columns):
        return "routerbench"
    if any(set(_TOKEN_FIELDS) <= set(fields) for fields in source.fields.values()):
        return "sprout"
    if "label" in columns and ("model_id" in columns or "model_name" in columns):
        return "embedllm"
    if any(column.endswith("|correct") for column in columns):
        return "cascade"
    names = ", ".join(shown(name) for name in columns[:12])
    raise ValueError(
        f"{source.path}: expected columns MODEL|total_cost (RouterBench), structs of score, num_input_tokens and"
        " num_output_tokens (SPROUT), label and model_id (EmbedLLM), MODEL|correct (cascade table), or the"
        f" argument score naming a column for each model, got {names}{', ...' if len(columns) > 12 else ''}"
    )


def routerbench(source: Source, names: Names) -> Answers:
    """RouterBench: a score column named by the model, `MODEL|total_cost`; other numeric `MODEL|x` are features."""
    models = _models(source, ("total_cost", "model_response"))
    return _per_model(source, names, Names("sample_id", "prompt", "eval_name"), models, "", "total_cost")


def cascade(source: Source, names: Names) -> Answers:
    """Cascade table: `MODEL|correct`, `MODEL|cost_usd`; other numeric `MODEL|x` are features."""
    return _per_model(source, names, Names("qid", "prompt", None), _models(source, ("correct",)), "correct", "cost_usd")


def wide(
    source: Source, names: Names, score: Mapping[str, str] | None, cost: Mapping[str, str | float] | None
) -> Answers:
    """A table of one's own: per model the column of its score, and the column of its cost or a number of USD."""
    if not score:
        raise ValueError(f"score: expected a column for each model, got {score!r}")
    models, costs = list(score), dict(cost or {})
    for model, value in costs.items():
        if model not in score:
            raise ValueError(f"cost: expected models named in score, got {model!r}{closest(model, models)}")
        if not isinstance(value, str):
            costs[model] = _price("cost", model, value)
    columns = [score[model] for model in models]
    cost_columns = [costs.get(model, 0.0) for model in models]
    require(source, columns + [column for column in cost_columns if isinstance(column, str)])

    def cost_of(row: Row, j: int) -> float:
        column = cost_columns[j]
        return _cost(row, column) if isinstance(column, str) else column

    found = Names(names.prompt_id, names.prompt or ("prompt" if "prompt" in source.columns else None), names.group)
    wanted = columns + [column for column in cost_columns if isinstance(column, str)]
    rows = _rows(source, found, wanted)
    return _collect(source, rows, found, models, columns, cost_of, [str(column) for column in cost_columns], {})


def sprout(source: Source, names: Names, prices: Mapping[str, Any] | None) -> Answers:
    """SPROUT: per model a struct of score and token counts; `prices`: USD per million input and output tokens."""
    models = [column for column, fields in source.fields.items() if set(_TOKEN_FIELDS) <= set(fields)]
    if not models:
        missing = next((column for column, fields in source.fields.items() if "score" in fields), None)
        got = f"{missing!r} with {', '.join(source.fields[missing])}" if missing else ", ".join(source.columns[:12])
        raise ValueError(f"{source.path}: expected struct columns with {', '.join(_TOKEN_FIELDS)}, got {got}")
    prices = prices or {}
    unpriced = [model for model in models if model not in prices]
    if unpriced:
        raise ValueError(
            "prices: expected (USD per million input tokens, per million output tokens) for every model of"
            f" {source.path}, got none for {', '.join(map(repr, unpriced))}"
        )
    rates = []
    for model in models:
        pair = prices[model]
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"prices: expected two prices (input, output) for {model!r}, got {pair!r}")
        rates.append([_price("prices", model, price) / 1e6 for price in pair])
    parts = [[f"{model}.{field}" for field in _TOKEN_FIELDS] for model in models]
    group = "dataset" if "dataset" in source.columns else None
    # Rows are numbered unless an id is named: the published key is not known to be unique.
    found = Names(names.prompt_id, names.prompt or "prompt", names.group or group)

    def flat_rows() -> Iterator[Row]:
        for row in _rows(source, found, models, _TOKEN_FIELDS):
            cells = dict(row.cells)
            for model in models:
                fields = cells.pop(model) or {}
                cells.update((f"{model}.{field}", fields.get(field)) for field in _TOKEN_FIELDS)
            yield Row(row.path, row.number, cells)

    def cost_of(row: Row, j: int) -> float:
        counts = (_cost(row, column, "a number of tokens, 0 or more") for column in parts[j][1:])
        return sum(count * rate for count, rate in zip(counts, rates[j], strict=True))

    scores, tokens = [part[0] for part in parts], [part[1] for part in parts]
    return _collect(source, flat_rows(), found, models, scores, cost_of, tokens, {})


def embedllm(source: Source, names: Names, prices: Mapping[str, Any] | None) -> Answers:
    """EmbedLLM: one row a prompt and model with a label; repeats are averaged; `prices`: flat USD a query."""
    id_column, prompt_column = names.prompt_id or "prompt_id", names.prompt or "prompt"
    group_column = names.group or ("category" if "category" in source.columns else None)
    model_column = "model_name" if "model_name" in source.columns else "model_id"
    order_column = "model_id" if "model_id" in source.columns else model_column
    wanted = [id_column, prompt_column, model_column, order_column, "label", *([group_column] if group_column else [])]
    wanted = list(dict.fromkeys(wanted))
    require(source, wanted)
    places: dict[str, int] = {}
    prompts, groups, first_rows = [], [], []
    model_places: dict[str, int] = {}
    model_order: list[str] = []
    which_prompt, which_model, labels = array("q"), array("q"), array("d")
    for row in source.rows(wanted, ()):
        prompt_id, model = _required_text(row, id_column), _required_text(row, model_column)
        prompt = _text(row, prompt_column)
        place = places.setdefault(prompt_id, len(places))
        if place == len(prompts):
            prompts.append(prompt)
            groups.append(_text(row, group_column))
            first_rows.append(row.number)
        elif prompts[place] != prompt:
            fail(row, prompt_column, f"the prompt that row {first_rows[place]} has under the id {shown(prompt_id)}")
        model_place = model_places.setdefault(model, len(model_places))
        if model_place == len(model_order):
            model_order.append(_text(row, order_column))
        label = _score(row, "label")
        if not math.isnan(label):
            which_prompt.append(place)
            which_model.append(model_place)
            labels.append(label)
    shape = (len(places), len(model_places))
    pairs = (np.frombuffer(which_prompt, np.int64), np.frombuffer(which_model, np.int64)) if labels else ([], [])
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, pairs, np.frombuffer(labels) if labels else [])
    np.add.at(count, pairs, 1.0)
    performance = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)
    # The splits list their pairs in different orders; by id the models have one order in all of them.
    as_integers = all(text.isascii() and text.isdecimal() for text in model_order)
    order = sorted(range(shape[1]), key=lambda j: int(model_order[j]) if as_integers else model_order[j])
    models = [list(model_places)[j] for j in order]
    for model in prices or {}:
        if model not in model_places:
            raise ValueError(f"prices: expected models of {source.path}, got {model!r}{closest(model, models)}")
    flat = [_price("prices", model, (prices or {}).get(model, 0.0)) for model in models]
    columns = [f"label of {model}" for model in models]
    cost = np.tile(flat, (shape[0], 1))
    return Answers(list(places), prompts, groups, models, performance[:, order], cost, {}, first_rows, columns, columns)


def _models(source: Source, parts: Iterable[str]) -> list[str]:
    """The models that have a column `MODEL|part` for one of the parts, in the file's order."""
    split = (column.rpartition("|") for column in source.columns)
    models = list(dict.fromkeys(model for model, bar, part in split if bar and part in parts))
    if not models:
        wanted = " or ".join(f"MODEL|{part}" for part in parts)
        names = ", ".join(shown(name) for name in source.columns[:12])
        raise ValueError(f"{source.path}: expected columns {wanted}, got {names}")
    return models


def _per_model(source: Source, names: Names, default: Names, models: list[str], score: str, cost: str) -> Answers:
    found = Names(names.prompt_id or default.prompt_id, names.prompt or default.prompt, names.group or default.group)
    scores = [f"{model}|{score}" if score else model for model in models]
    costs = [f"{model}|{cost}" for model in models]
    require(source, scores + costs)
    split = [column.rpartition("|") for column in source.columns if column not in source.text]
    parts = dict.fromkeys(part for model, bar, part in split if bar and model in models)
    features = {
        part: [f"{model}|{part}" for model in models]
        for part in parts
        if part not in (score, cost, *_TEXT_PARTS) and all(f"{model}|{part}" in source.columns for model in models)
    }
    rows = _rows(source, found, scores + costs + [column for group in features.values() for column in group])
    # The published RouterBench gives a few of its ids to two different prompts.
    return _collect(
        source, rows, found, models, scores, lambda row, j: _cost(row, costs[j]), costs, features, ids_repeat=not score
    )


def _rows(source: Source, names: Names, columns: Sequence[str], fields: Sequence[str] = ()) -> Iterator[Row]:
    wanted = [name for name in names if name is not None] + list(columns)
    require(source, wanted)
    return source.rows(list(dict.fromkeys(wanted)), fields)


def _collect(
    source: Source,
    rows: Iterable[Row],
    names: Names,
    models: list[str],
    scores: list[str],
    cost_of: Callable[[Row, int], float],
    cost_columns: list[str],
    features: dict[str, list[str]],
    ids_repeat: bool = False,
) -> Answers:
    """Reads a table of one row a prompt; a feature of which a cell is neither empty nor a number is none.

    With `ids_repeat`, other prompts under an id that came before are its "#2", "#3" and so on.
    """
    seen: dict[tuple[str, str], int] = {}
    copies: Counter[str] = Counter()
    ids, prompts, groups = [], [], []
    performance, cost = array("d"), array("d")
    values = {name: array("d") for name in features}
    for row in rows:
        prompt_id = str(row.number) if names.prompt_id is None else _required_text(row, names.prompt_id)
        prompt = _text(row, names.prompt)
        first = seen.setdefault((prompt_id, prompt if ids_repeat else ""), row.number)
        if first != row.number:
            expected = "an id and prompt" if ids_repeat else "an id"
            fail(row, str(names.prompt_id), f"{expected} that no other row has (row {first} has it)")
        copies[prompt_id] += 1
        ids.append(prompt_id if copies[prompt_id] == 1 else f"{prompt_id}#{copies[prompt_id]}")
        prompts.append(prompt)
        groups.append(_text(row, names.group))
        performance.extend(_score(row, column) for column in scores)
        cost.extend(cost_of(row, j) for j in range(len(models)))
        for name in list(values):
            try:
                values[name].extend([_feature(row, column) for column in features[name]])
            except ValueError:
                del values[name]
    shape = (len(seen), len(models))
    if not seen:
        raise ValueError(f"{source.path}: expected rows, got none")
    scored, paid = (np.array(numbers, float).reshape(shape) for numbers in (performance, cost))
    kept = {name: np.array(numbers, float).reshape(shape) for name, numbers in values.items()}
    return Answers(ids, prompts, groups, models, scored, paid, kept, range(1, len(seen) + 1), scores, cost_columns)


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _EMPTY
    return value is None or (isinstance(value, float) and math.isnan(value))


def _number(row: Row, column: str, expected: str) -> float:
    """One cell as a float, nan where it is empty; true and false are 1 and 0."""
    value = row.cells.get(column)
    if _is_missing(value):
        return math.nan
    text = str(value).strip().lower()
    return float(text == "true") if text in ("true", "false") else read_number(row, column, expected)


def _score(row: Row, column: str) -> float:
    number = _number(row, column, _SCORE)
    if not (0 <= number <= 1 or math.isnan(number)):
        fail(row, column, _SCORE)
    return number


def _cost(row: Row, column: str, expected: str = _COST) -> float:
    number = _number(row, column, expected)
    if number < 0:
        fail(row, column, expected)
    return number


def _feature(row: Row, column: str) -> float:
    value = row.cells.get(column)
    return math.nan if _is_missing(value) else float(value)  # pyright: ignore[reportArgumentType] (caught above)


def _required_text(row: Row, column: str) -> str:
    text = _text(row, column)
    if not text:
        fail(row, column, "an id")
    return text


def _text(row: Row, column: str | None) -> str:
    value = row.cells.get(column) if column is not None else None
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(str(part) for part in value)
    # pandas turns whole numbers with a gap into floats.
    return "" if _is_missing(value) else str(int(value) if isinstance(value, float) and value.is_integer() else value)


def joined_prompt(text: str) -> str:
    """Returns a prompt that is a Python list of texts, written as text, as its lines; any other as it is."""
    if not (text.startswith("[") and text.rstrip().endswith("]")):
        return text
    try:
        with warnings.catch_warnings():
            # An unknown escape ("\d") is a warning to Python and a plain prompt to us.
            warnings.simplefilter("ignore")
            parts = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    is_texts = isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts)
    return "\n".join(parts) if is_texts else text


def _price(argument: str, model: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{argument}: expected a price in USD, 0 or more, for {model!r}, got {value!r}")
    return float(value)
