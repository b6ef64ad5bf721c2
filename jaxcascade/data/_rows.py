"""Streams the rows of a CSV or JSON-lines file; every complaint is one line naming file, row and column."""

import csv
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, NoReturn

JSON_LINES_ENDINGS = (".jsonl", ".ndjson")
_LONGEST_SHOWN = 60


class Row(NamedTuple):
    """One data row: the file's name, the row's number from 1 (blank lines not counted), cells by column."""

    path: str
    number: int
    cells: Mapping[str, Any]


class Table(NamedTuple):
    """An open file: its name, its column names in order, and its rows, which can be read once."""

    path: str
    columns: tuple[str, ...]
    rows: Iterator[Row]


@contextmanager
def open_table(path: str | os.PathLike[str]) -> Iterator[Table]:
    """Yields the `Table` of a UTF-8 file: JSON lines by its ending (.jsonl, .ndjson), else CSV with a header.

    The columns of a JSON-lines file are the keys of its first object. Raises FileNotFoundError, and
    ValueError for an empty file, a header without rows, bytes that are not UTF-8, a malformed line, a row
    shorter or longer than the header (the rows' own faults while they are read).
    """
    name = os.fspath(path)
    try:
        stream = open(name, "rb")  # noqa: SIM115 (closed below; only the opening is guarded)
    except FileNotFoundError:
        raise FileNotFoundError(f"{name}: no such file") from None
    with stream:
        is_json = name.lower().endswith(JSON_LINES_ENDINGS)
        yield _json_table(name, stream) if is_json else _csv_table(name, stream)


def shown(value: Any) -> str:
    """Returns `value` as one short line for a message: its repr, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def fail(row: Row, column: str, expected: str) -> NoReturn:
    """Raises the ValueError `file, row, column: expected ..., got ...` for one cell."""
    got = shown(row.cells[column]) if column in row.cells else "no such key"
    raise ValueError(f"{row.path}, row {row.number}, column {shown(column)}: expected {expected}, got {got}")


def read_number(row: Row, column: str, expected: str = "a finite number") -> float:
    """Returns one cell as a float. Raises ValueError when it is no finite number (true, false are none)."""
    value = row.cells.get(column)
    # float() would also take "1_000", which no other reader of the file takes.
    if isinstance(value, bool) or not isinstance(value, int | float | str) or "_" in str(value):
        fail(row, column, expected)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        fail(row, column, expected)
    if not math.isfinite(number):
        fail(row, column, expected)
    return number


def read_integer(row: Row, column: str, low: int, high: int) -> int:
    """Returns one cell as an integer in low..high (`3.0` is 3). Raises ValueError for anything else."""
    expected = f"an integer from {low} to {high}"
    number = read_number(row, column, expected)
    if number != math.floor(number) or not low <= number <= high:
        fail(row, column, expected)
    return int(number)


def read_boolean(row: Row, column: str) -> int:
    """Returns one cell as 0 or 1, from 0, 1, true, false in any case. Raises ValueError for all else."""
    value = row.cells.get(column)
    text = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if text not in ("0", "1", "false", "true"):
        fail(row, column, "0, 1, true or false")
    return int(text in ("1", "true"))


def read_list(row: Row, column: str) -> list[Any]:
    """Returns one cell as a list: a JSON list as it is, text split at `|`. Raises ValueError for all else."""
    value = row.cells.get(column)
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        fail(row, column, "a list, or text separated by |")
    return [part.strip() for part in value.split("|")]


def _decoded_lines(stream: BinaryIO) -> Iterator[str]:
    # Split in bytes, so that a bad byte is met at its own row and not a buffer ahead of it.
    for number, line in enumerate(stream):
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")


def _not_text(name: str, place: str, error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"{name}, {place}: expected UTF-8 text, got byte 0x{error.object[error.start]:02x}")


def _csv_table(name: str, stream: BinaryIO) -> Table:
    # strict: a quote that is never closed would otherwise swallow the rest of the file as one cell.
    reader = csv.reader(_decoded_lines(stream), strict=True)
    header: list[str] = []
    while not header:
        try:
            header = [column.strip() for column in next(reader)]
        except StopIteration:
            raise ValueError(f"{name}: expected a header and rows, got an empty file") from None
        except UnicodeDecodeError as error:
            raise _not_text(name, "header", error) from None
        except csv.Error as error:
            raise ValueError(f"{name}, header: expected CSV, got a malformed line ({error})") from None
    return Table(name, tuple(header), _csv_rows(name, header, reader))


def _csv_rows(name: str, header: list[str], reader: Iterator[list[str]]) -> Iterator[Row]:
    number = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            break
        except UnicodeDecodeError as error:
            raise _not_text(name, f"row {number}", error) from None
        except csv.Error as error:
            raise ValueError(f"{name}, row {number}: expected CSV, got a malformed row ({error})") from None
        if not fields:
            continue
        if len(fields) < len(header):
            missing = shown(header[len(fields)])
            raise ValueError(
                f"{name}, row {number}, column {missing}: expected {len(header)} fields, got {len(fields)}"
            )
        if len(fields) > len(header):
            raise ValueError(f"{name}, row {number}: expected {len(header)} fields, got {len(fields)}")
        yield Row(name, number, dict(zip(header, fields, strict=True)))
        number += 1
    if number == 1:
        raise ValueError(f"{name}: expected rows below the header, got none")


def _json_table(name: str, stream: BinaryIO) -> Table:
    rows = _json_rows(name, stream)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{name}: expected one JSON object a line, got an empty file")

    def all_rows() -> Iterator[Row]:
        yield first
        yield from rows

    return Table(name, tuple(first.cells), all_rows())


def _json_rows(name: str, stream: BinaryIO) -> Iterator[Row]:
    lines = _decoded_lines(stream)
    number = 1
    while True:
        try:
            line = next(lines, None)
        except UnicodeDecodeError as error:
            raise _not_text(name, f"row {number}", error) from None
        if line is None:
            return
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at character {error.pos}"
            raise ValueError(f"{name}, row {number}: expected a JSON object, got a bad line ({problem})") from None
        except (ValueError, RecursionError):
            # A number of thousands of digits, or thousands of brackets.
            raise ValueError(f"{name}, row {number}: expected a JSON object, got {shown(line)}") from None
        if not isinstance(cells, dict):
            raise ValueError(f"{name}, row {number}: expected a JSON object, got {shown(cells)}")
        yield Row(name, number, cells)
        number += 1
