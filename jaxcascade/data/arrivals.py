"""Reader of arrival traces (Azure LLM inference 2023 and the like), and their binning into rounds."""

import math
import os
import re
from array import array
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.data._rows import Row, fail, open_table, read_integer, shown

CONTEXT_COLUMN = "ContextTokens"
GENERATED_COLUMN = "GeneratedTokens"
MOST_TOKENS = 10**12
# Epoch seconds stay below 1e11 until the year 5138, and milliseconds are above it from 1973 on.
_EPOCH_UNITS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (math.inf, 1e9))
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class ArrivalTrace(NamedTuple):
    """One entry an arrival: `seconds` [n] float64, increasing from 0.

    `context_tokens` and `generated_tokens` are [n] int64, None without the column.
    """

    seconds: np.ndarray
    context_tokens: np.ndarray | None
    generated_tokens: np.ndarray | None


def read_arrival_trace(path: str | os.PathLike[str], *, column: str = "TIMESTAMP", sort: bool = False) -> ArrivalTrace:
    """Returns the `ArrivalTrace` of a CSV or JSON-lines file (.jsonl, .ndjson), seconds counted from the first row.

    Columns ContextTokens and GeneratedTokens are read where the file has them, as the Azure LLM inference trace 2023
    does.

    Args:
      path: the file.
      column: holds ISO text (without a zone it is UTC) or numbers: seconds, or milli-, micro- or nanoseconds where
        they are too large to be epoch seconds.
      sort: put rows that are out of order in order (equal times stay as in the file).

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: in one line with file, row (from 1) and column, for a missing column, an empty file, a time or a
        token count that is none, a time before the row ahead of it unless `sort`, bytes that are not UTF-8.
    """
    seconds, context, generated = array("d"), array("q"), array("q")
    with open_table(path) as table:
        if column not in table.columns:
            found = ", ".join(shown(name)[1:-1] for name in table.columns[:40])
            raise ValueError(f"{table.path}: expected column {shown(column)}, found columns: {found}")
        token_columns = [
            (name, tokens)
            for name, tokens in ((CONTEXT_COLUMN, context), (GENERATED_COLUMN, generated))
            if name in table.columns
        ]
        for row in table.rows:
            time = read_timestamp(row, column, row.cells.get(column))
            if time is None:
                fail(row, column, "a time")
            if seconds and time < seconds[-1] and not sort:
                fail(row, column, f"a time not before that of row {row.number - 1} (or sort=True)")
            seconds.append(time)
            for name, tokens in token_columns:
                tokens.append(read_integer(row, name, 0, MOST_TOKENS))
    times = np.array(seconds)
    order = np.argsort(times, kind="stable")

    def sorted_tokens(tokens: array) -> np.ndarray | None:
        return np.array(tokens, np.int64)[order] if tokens else None

    return ArrivalTrace(times[order] - times.min(), sorted_tokens(context), sorted_tokens(generated))


def bin_arrivals(trace: ArrivalTrace | ArrayLike, rate: float) -> np.ndarray:
    """Returns which rounds (slots) have an arrival: bool [slots], `rate` arrivals a slot on average.

    The time from the first to the last of n arrivals is cut into ceil(n/rate) equal slots. An arrival whose slot is
    taken is carried to the next free one, because a round has at most one arrival, so the i-th True is the i-th
    arrival; those carried past the end add slots there.

    Args:
      trace: an `ArrivalTrace`, or increasing seconds [n].
      rate: mean number of arrivals a slot.

    Raises:
      ValueError: for a rate outside (0, 1), fewer than two different times, times out of order.

    Source: arXiv 2602.02061, Appendix B.4 (the replay at rate .7; arrivals are one a round at most).
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not 0 < rate < 1:
        raise ValueError(f"rate: expected a number of arrivals a slot between 0 and 1, got {shown(rate)}")
    seconds = np.asarray(trace.seconds if isinstance(trace, ArrivalTrace) else trace, np.float64)
    if seconds.ndim != 1 or not np.all(np.isfinite(seconds)) or np.any(np.diff(seconds) < 0):
        raise ValueError(f"trace: expected finite increasing seconds [n], got an array of shape {seconds.shape}")
    if seconds.size < 2 or seconds[0] == seconds[-1]:
        raise ValueError(f"trace: expected arrivals at two times or more, got {seconds.size} at one time")
    num_slots = math.ceil(seconds.size / rate)
    share = (seconds - seconds[0]) / (seconds[-1] - seconds[0])
    wanted = np.minimum(np.floor(share * num_slots), num_slots - 1).astype(np.int64)
    # slot_i = max(wanted_i, slot_(i-1) + 1), which is a running maximum once i is taken off both sides.
    index = np.arange(seconds.size)
    slot = index + np.maximum.accumulate(wanted - index)
    arrived = np.zeros(max(num_slots, int(slot[-1]) + 1), bool)
    arrived[slot] = True
    return arrived


def read_timestamp(row: Row, column: str, value: Any) -> float | None:
    """Returns one cell of `row` as epoch seconds (UTC), None for an empty one (null, "").

    value: ISO text, a datetime (both UTC without a zone), or a number of seconds, milli-, micro- or nanoseconds,
    told apart by size, which may also be written as text. Raises ValueError, naming file, row and `column`.
    """
    number = value
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return None
        if _NUMBER.fullmatch(text):
            number = float(text)
        else:
            try:
                value = datetime.fromisoformat(text.removesuffix(" UTC"))
            except ValueError:
                _fail_time(row, column, value)
    if value is None:
        return None
    if isinstance(value, datetime):
        # A missing time of pandas is a datetime too, and equal to nothing.
        if value != value:
            return None
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e19:
        _fail_time(row, column, value)
    return number / next(unit for limit, unit in _EPOCH_UNITS if abs(number) < limit)


def _fail_time(row: Row, column: str, value: Any) -> None:
    fail(Row(row.path, row.number, {column: value}), column, "a time (ISO text or epoch seconds)")
