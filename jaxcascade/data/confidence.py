"""Reader of self-consistency and other confidence logs: one row a question, a level and 0/1."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.data._rows import (
    Row,
    Table,
    fail,
    open_table,
    read_boolean,
    read_integer,
    read_list,
    read_number,
    shown,
)

COLUMNS = (
    "level",
    "correct",
    "largest_class",
    "n_samples",
    "majority_correct",
    "class_sizes",
    "answers",
    "gold",
)
SAMPLE_SIGNALS = ("agreement", "entropy", "margin")
DEFAULT_SCORE_LEVELS = 10
# A wrong column (an identifier, a time) taken for a level would otherwise ask for gigabytes of levels.
MOST_LEVELS = 1_000_000


class ConfidenceLog(NamedTuple):
    """One row a question: `level` [n] int32 from 1, `correct` [n] int32 (0/1), `num_levels` K, `score` [K].

    `score` is the model's own confidence at each level, in [0, 1] and increasing.
    """

    level: np.ndarray
    correct: np.ndarray
    num_levels: int
    score: np.ndarray


class LevelCounts(NamedTuple):
    """Per level: `count` [K] questions and how many of them are `correct` [K], both int64."""

    count: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride] (tuple.count is no loss)
    correct: np.ndarray


class ConfidenceSignals(NamedTuple):
    """Three confidences in [0, 1] of the same sampled answers, each [...], one a question.

    `agreement` is the share of the largest class, `entropy` 1 - H/log n, `margin` the lead over the second class.
    """

    agreement: np.ndarray
    entropy: np.ndarray
    margin: np.ndarray


class _Sample(NamedTuple):
    class_sizes: tuple[int, ...]  # largest first
    num_samples: int
    correct: int
    has_gold: bool = True


def read_confidence_log(
    path: str | os.PathLike[str],
    *,
    signal: str = "agreement",
    num_levels: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> ConfidenceLog:
    """Returns the `ConfidenceLog` of a CSV or JSON-lines file (.jsonl, .ndjson: one object a line).

    Recognised columns, the first that fit: `level` and `correct`; `largest_class` (or `class_sizes`, written
    `5|2|1`), `n_samples` and `correct`; sampled `answers` separated by `|` (or a JSON list) and `gold`. A
    column `majority_correct` stands in for a missing `correct`. Answers are compared as text; an empty one
    (null) is unparsed: it counts in n and casts no vote. Ties between the largest classes go to the first to
    appear. A question without any valid answer, or without a gold answer, is wrong; a UserWarning tells how
    many lack gold.

    Signals, with n the samples a question, q1 >= q2 the shares of the two largest classes, j the level:
      "agreement": j = 1 + n q1, K = 1 + n, score_j = (j-1)/n. A `level` column is taken as it is, K =
        num_levels or the largest level seen, score_j = (j-1)/(K-1), .5 when K = 1.
      "margin": j = 1 + n (q1 - q2), same K and score.
      "entropy": 1 - H/log n cut into K equal bins of [0, 1], K = num_levels or 1 + n, score_j = (j-1/2)/K.
      a column's name: that number cut into K equal bins of its observed range, K = num_levels or 10, score as
        for entropy.
    Args:
      path: the file.
      signal: one of the above.
      num_levels: K, where the signal leaves it open.
      columns: our name -> the file's, such as {"level": "bucket"}; a signal may be such a name too, which is
    how to bin a column that the file calls "entropy".

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: in one line with file, row (from 1, blank lines not counted) and column, for a missing column, an
        empty file, a short or malformed row, bytes that are not UTF-8, a cell that is not what it should be, n_samples
        that varies, gold empty in every row, a constant score, a num_levels that does not fit.

    Source: arXiv 2610.15128, Sections 3.1 and 6 and Appendix D.1.
    """
    if num_levels is not None and not _is_level_count(num_levels):
        raise ValueError(f"{os.fspath(path)}: expected num_levels from 1 to {MOST_LEVELS}, got {shown(num_levels)}")
    with open_table(path) as table:
        found = _recognise(table, signal, columns or {})
        if signal == "agreement" and {"level", "correct"} <= found.keys():
            return _from_levels(table, found, num_levels)
        if signal in SAMPLE_SIGNALS:
            return _from_samples(table, found, signal, num_levels)
        return _from_scores(table, found, signal, num_levels)


def summarise_log(log: ConfidenceLog) -> LevelCounts:
    """Returns how many questions each level has, and how many of them are right: `LevelCounts` [K].

    count_j = #{i: level_i = j}, correct_j = #{i: level_i = j, correct_i = 1}.

    Args:
      log: the log.

    Raises:
      ValueError: for a level outside 1..num_levels.

    Source: arXiv 2610.15128, Section 6 (the frequencies omega and h of a real log).
    """
    level, correct = np.asarray(log.level), np.asarray(log.correct)
    if level.size and not (level.min() >= 1 and level.max() <= log.num_levels):
        raise ValueError(f"level: expected 1 to {log.num_levels}, got values from {level.min()} to {level.max()}")
    count = np.bincount(level - 1, minlength=log.num_levels)
    right = np.bincount(level[correct == 1] - 1, minlength=log.num_levels)
    return LevelCounts(count.astype(np.int64), right.astype(np.int64))


def confidence_signals(class_sizes: ArrayLike, n_samples: int) -> ConfidenceSignals:
    """Returns agreement q1, entropy confidence 1 - H/log n and margin q1 - q2 of answers: [..., C] -> [...].

    `class_sizes` holds the sizes of the answer classes in any order, padded with zeros; q =
    class_sizes/n_samples, H = -sum q log q. Samples missing from the sizes are unparsed answers: each is
    counted in H as a class of its own, so that a question without valid answers has confidence 0 (leaving
    them out would make it 1). With one sample all three are equal.

    Args:
      class_sizes: [..., C], in any order, padded with zeros.
      n_samples: n, samples a question.

    Raises:
      ValueError: for negative or fractional sizes, or more of them than n_samples.

    Source: arXiv 2610.15128, Appendix D.1.
    """
    if isinstance(n_samples, bool) or not isinstance(n_samples, int | np.integer) or n_samples < 1:
        raise ValueError(f"n_samples: expected an integer from 1, got {shown(n_samples)}")
    sizes = np.asarray(class_sizes, dtype=np.float64)
    if sizes.ndim == 0:
        raise ValueError(f"class_sizes: expected an array of sizes, got {shown(class_sizes)}")
    if not np.all((sizes >= 0) & (sizes == np.floor(sizes)) & np.isfinite(sizes)):
        raise ValueError("class_sizes: expected integers from 0, got a negative, fractional or infinite size")
    num_valid = sizes.sum(axis=-1)
    if np.any(num_valid > n_samples):
        raise ValueError(f"class_sizes: expected at most n_samples = {n_samples} answers, got {num_valid.max():g}")
    # Two columns of zeros: there may be fewer than two classes, even none.
    padding = np.zeros((*sizes.shape[:-1], 2))
    share = -np.sort(-np.concatenate([sizes, padding], axis=-1), axis=-1) / n_samples
    agreement = share[..., 0]
    margin = share[..., 0] - share[..., 1]
    if n_samples == 1:
        return ConfidenceSignals(agreement, agreement.copy(), margin)
    class_entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=-1)
    unparsed_entropy = (1 - num_valid / n_samples) * np.log(n_samples)
    entropy = 1 - (class_entropy + unparsed_entropy) / np.log(n_samples)
    return ConfidenceSignals(agreement, np.clip(entropy, 0.0, 1.0), margin)


def _is_level_count(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(1 <= value <= MOST_LEVELS)


def _recognise(table: Table, signal: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Our names -> the file's columns, for those the file has."""
    names = COLUMNS if signal in SAMPLE_SIGNALS else (*COLUMNS, signal)
    for name, column in columns.items():
        if name not in names:
            raise ValueError(f"{table.path}: expected columns to map {', '.join(names)}, got {shown(name)}")
        if column not in table.columns:
            raise ValueError(f"{table.path}: expected column {shown(column)} for {name}, {_found(table)}")
    found = {name: columns.get(name, name) for name in names if columns.get(name, name) in table.columns}
    # A column the caller names wins over one that merely has our name.
    asked_for = "majority_correct" in columns and "correct" not in columns
    if "majority_correct" in found and (asked_for or "correct" not in found):
        found["correct"] = found["majority_correct"]
    for column in found.values():
        if table.columns.count(column) > 1:
            raise ValueError(f"{table.path}: expected one column {shown(column)}, {_found(table)}")
    return found


def _found(table: Table) -> str:
    most = 40
    names = ", ".join(shown(column)[1:-1] for column in table.columns[:most])
    return f"found columns: {names}" + (", ..." if len(table.columns) > most else "")


def _from_levels(table: Table, found: dict[str, str], num_levels: int | None) -> ConfidenceLog:
    levels: list[int] = []
    correct: list[int] = []
    for row in table.rows:
        levels.append(read_integer(row, found["level"], 1, num_levels or MOST_LEVELS))
        correct.append(read_boolean(row, found["correct"]))
    count = num_levels or max(levels)
    return _log(np.array(levels), correct, count, _grid_scores(count))


def _from_samples(table: Table, found: dict[str, str], signal: str, num_levels: int | None) -> ConfidenceLog:
    read_sample, size_column = _sample_reader(table, found, signal)
    # Few patterns of class sizes are distinct: the signal is computed once for each.
    patterns: dict[tuple[int, ...], int] = {}
    pattern_of_row: list[int] = []
    correct: list[int] = []
    num_samples = num_without_gold = 0
    for row in table.rows:
        sample = read_sample(row)
        num_samples = num_samples or sample.num_samples
        if sample.num_samples != num_samples:
            raise ValueError(
                f"{row.path}, row {row.number}, column {shown(size_column)}: "
                f"expected {num_samples} samples as in row 1, got {sample.num_samples}"
            )
        pattern_of_row.append(patterns.setdefault(sample.class_sizes, len(patterns)))
        correct.append(sample.correct)
        num_without_gold += not sample.has_gold
    _report_missing_gold(table, found, num_without_gold, len(correct))

    sizes = np.zeros((len(patterns), max(map(len, patterns))), np.int64)
    for pattern, index in patterns.items():
        sizes[index, : len(pattern)] = pattern
    value: np.ndarray = getattr(confidence_signals(sizes, num_samples), signal)
    if signal == "entropy":
        count = num_levels or num_samples + 1
        level, score = _equal_bins(value, 0.0, 1.0, count), _bin_scores(count)
    else:
        count = num_samples + 1
        if num_levels not in (None, count):
            raise ValueError(
                f"{table.path}: expected num_levels = {count} (1 + n_samples) for {signal}, got {num_levels}"
            )
        level, score = 1 + np.rint(value * num_samples).astype(np.int64), _grid_scores(count)
    return _log(level[pattern_of_row], correct, count, score)


def _from_scores(table: Table, found: dict[str, str], signal: str, num_levels: int | None) -> ConfidenceLog:
    if signal not in found:
        signals = ", ".join(SAMPLE_SIGNALS)
        raise ValueError(f"{table.path}: expected signal {signals} or a column, got {shown(signal)}; {_found(table)}")
    judge = _judge(table, found)
    values: list[float] = []
    correct: list[int] = []
    num_without_gold = 0
    for row in table.rows:
        values.append(read_number(row, found[signal]))
        right, has_gold = judge(row)
        correct.append(right)
        num_without_gold += not has_gold
    _report_missing_gold(table, found, num_without_gold, len(correct))
    count = num_levels or DEFAULT_SCORE_LEVELS
    low, high = min(values), max(values)
    where = f"{table.path}, column {shown(found[signal])}"
    if low == high:
        raise ValueError(f"{where}: expected a score that varies, got {low:g} in every row")
    if not np.isfinite(high - low):
        raise ValueError(f"{where}: expected a range within float64, got {low:g} to {high:g}")
    return _log(_equal_bins(np.array(values), low, high, count), correct, count, _bin_scores(count))


def _sample_reader(table: Table, found: dict[str, str], signal: str) -> tuple[Callable[[Row], _Sample], str]:
    """How a row becomes a `_Sample`, and the column that tells how many samples it has."""
    sizes = [name for name in ("largest_class", "class_sizes") if name in found]
    if signal != "agreement":
        sizes = [name for name in sizes if name == "class_sizes"]
    if sizes and {"n_samples", "correct"} <= found.keys():
        return (lambda row: _counted(row, found, sizes[0])), found["n_samples"]
    if {"answers", "gold"} <= found.keys():
        return (lambda row: _vote(row, found)), found["answers"]
    either = "level and correct, or largest_class" if signal == "agreement" else "class_sizes"
    expected = f"{either}, n_samples and correct, or answers and gold"
    raise ValueError(f"{table.path}: expected columns {expected}; {_found(table)}")


def _judge(table: Table, found: dict[str, str]) -> Callable[[Row], tuple[int, bool]]:
    """How a row tells whether its question was answered right, and whether that can be told."""
    if "correct" in found:
        return lambda row: (read_boolean(row, found["correct"]), True)
    if {"answers", "gold"} <= found.keys():

        def judge(row: Row) -> tuple[int, bool]:
            sample = _vote(row, found)
            return sample.correct, sample.has_gold

        return judge
    raise ValueError(f"{table.path}: expected column correct, or answers and gold; {_found(table)}")


def _report_missing_gold(table: Table, found: dict[str, str], num_missing: int, num_rows: int) -> None:
    # Published logs hold a few such questions and count them as wrong; all of them are a wrong column.
    if num_missing == 0:
        return
    where = f"{table.path}, column {shown(found['gold'])}"
    if num_missing == num_rows:
        raise ValueError(f"{where}: expected gold answers, got none in {num_rows} rows")
    message = f"{where}: {num_missing} of {num_rows} questions have no gold answer and count as wrong"
    warnings.warn(message, stacklevel=4)


def _counted(row: Row, found: dict[str, str], size_name: str) -> _Sample:
    num_samples = read_integer(row, found["n_samples"], 1, MOST_LEVELS - 1)
    column = found[size_name]
    if size_name == "largest_class":
        sizes = [read_integer(row, column, 0, num_samples)]
    else:
        # An empty cell: no valid answer, no class.
        parts = [part for part in read_list(row, column) if part != ""]
        sizes = [_class_size(row, column, part, num_samples) for part in parts]
        if sum(sizes) > num_samples:
            fail(row, column, f"class sizes that sum to at most {num_samples}")
    sizes = tuple(sorted((size for size in sizes if size), reverse=True))
    return _Sample(sizes, num_samples, read_boolean(row, found["correct"]))


def _class_size(row: Row, column: str, part: Any, num_samples: int) -> int:
    text = str(part) if isinstance(part, int | str) and not isinstance(part, bool) else ""
    # isdecimal also takes other alphabets' digits, isascii does not.
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        fail(row, column, f"class sizes, integers from 0 to {num_samples}, separated by |")
    return int(text)


def _vote(row: Row, found: dict[str, str]) -> _Sample:
    """The majority answer of one question, judged against its gold answer."""
    answers = read_list(row, found["answers"])
    if not 1 <= len(answers) < MOST_LEVELS:
        fail(row, found["answers"], f"1 to {MOST_LEVELS - 1} sampled answers")
    if "n_samples" in found and read_integer(row, found["n_samples"], 1, MOST_LEVELS - 1) != len(answers):
        # More often an answer that itself holds a | than a wrong count: better refused than counted twice.
        fail(row, found["n_samples"], f"the number of answers, {len(answers)}")
    valid = [_answer(row, found["answers"], answer) for answer in answers]
    valid = [answer for answer in valid if answer is not None]
    if found["gold"] not in row.cells:
        fail(row, found["gold"], "a gold answer")
    gold = _answer(row, found["gold"], row.cells[found["gold"]])
    for answer in valid:
        if gold is not None and type(answer) is not type(gold):
            # 18.0 never equals "18.0": the question would be wrong without a word.
            fail(row, found["gold"], f"gold of the same kind as the answers (as {shown(answer)})")
    votes = Counter(valid)
    # A Counter keeps the order of first appearance, and max takes the first of equals.
    majority = max(votes, key=votes.__getitem__, default=None)
    sizes = tuple(sorted(votes.values(), reverse=True))
    return _Sample(sizes, len(answers), int(majority is not None and majority == gold), gold is not None)


def _answer(row: Row, column: str, value: Any) -> str | float | bool | None:
    """An answer in a comparable form, None when it is unparsed."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, int | float):
        return read_number(Row(row.path, row.number, {column: value}), column)
    return fail(row, column, "answers that are text, numbers or null")


def _equal_bins(values: np.ndarray, low: float, high: float, count: int) -> np.ndarray:
    """Levels 1..count of values [n] in `count` equal bins of [low, high], the last one closed."""
    position = (values - low) / (high - low) * count
    # Rounding first puts a value that is an edge on paper (.29 of 100 bins: 28.999...96) above that edge.
    return 1 + np.clip(np.floor(np.round(position, 9)), 0, count - 1).astype(np.int64)


def _grid_scores(count: int) -> np.ndarray:
    return np.arange(count) / (count - 1) if count > 1 else np.array([0.5])


def _bin_scores(count: int) -> np.ndarray:
    return (np.arange(count) + 0.5) / count


def _log(level: np.ndarray, correct: list[int], count: int, score: np.ndarray) -> ConfidenceLog:
    return ConfidenceLog(level.astype(np.int32), np.array(correct, np.int32), int(count), score)
