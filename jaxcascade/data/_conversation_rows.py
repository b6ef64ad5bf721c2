"""Streams the rows of conversation logs: Parquet, JSON lines, or a folder of such files."""

import os
from collections.abc import Iterator
from typing import Any

from jaxcascade.data._rows import JSON_LINES_ENDINGS, Row, open_table, shown

TOKEN_FIELDS = ("tokens", "num_tokens", "token_count")
_ROW_COLUMNS = ("conversation", "model", "hashed_ip", "timestamp", *TOKEN_FIELDS)
_TURN_FIELDS = ("content", "role", "hashed_ip", "timestamp", *TOKEN_FIELDS)
_BATCH_ROWS = 256  # rows decoded at once; conversations of 100 kB are common


def conversation_rows(name: str, model: str | None) -> Iterator[Row]:
    """Yields the `Row`s of a file, or of the files of a folder in order of their names.

    Rows of another model than `model` (None: all are wanted) may hold nothing but the model. Raises ValueError for a
    missing column, an empty or damaged file; FileNotFoundError; ImportError for Parquet without pyarrow.
    """
    endings = (".parquet", *JSON_LINES_ENDINGS)
    if os.path.isdir(name):
        names = [os.path.join(name, part) for part in sorted(os.listdir(name)) if part.lower().endswith(endings)]
        if not names:
            raise ValueError(f"{name}: expected a folder with {', '.join(endings)} files, got none")
    else:
        names = [name]
    for part in names:
        if part.lower().endswith(".parquet"):
            yield from _parquet_rows(part, model)
        elif part.lower().endswith(JSON_LINES_ENDINGS):
            with open_table(part) as table:
                _check_columns(part, table.columns, model)
                yield from table.rows
        else:
            raise ValueError(f"{part}: expected a name ending in {', '.join(endings)}, got {shown(part[-8:])}")


def _check_columns(name: str, columns: tuple[str, ...], model: str | None) -> None:
    for column in ("conversation",) if model is None else ("conversation", "model"):
        if column not in columns:
            found = ", ".join(shown(one)[1:-1] for one in columns[:40])
            raise ValueError(f"{name}: expected column {column!r}, found columns: {found}")


def _parquet_rows(name: str, model: str | None) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install 'jaxcascade[parquet]'") from error
    try:
        # Buffered: without it a whole row group is held, which some writers make of the whole file.
        file = parquet.ParquetFile(name, buffer_size=1 << 20, pre_buffer=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{name}: no such file") from None
    except (OSError, ValueError, ArrowException) as error:
        raise ValueError(f"{name}: expected a Parquet file, got a damaged one ({_one_line(error)})") from None
    with file:
        columns = tuple(file.schema_arrow.names)
        _check_columns(name, columns, model)
        if file.metadata.num_rows == 0:
            raise ValueError(f"{name}: expected rows, got an empty file")
        leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        batches = file.iter_batches(_BATCH_ROWS, columns=[leaf for leaf in leaves if _is_needed(leaf)])
        number = 1
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                cells = _batch_cells(batch, model)
            except (OSError, ValueError, ArrowException) as error:
                place = f"{name}, row {number} or one of the {_BATCH_ROWS - 1} after it"
                raise ValueError(f"{place}: expected Parquet data, got damage ({_one_line(error)})") from None
            for row in cells:
                yield Row(name, number, row)
                number += 1


def _is_needed(leaf: str) -> bool:
    """Whether a Parquet column such as conversation.list.element.role is read."""
    parts = leaf.split(".")
    return parts[0] in _ROW_COLUMNS and (len(parts) == 1 or parts[-1] in _TURN_FIELDS)


def _batch_cells(batch: Any, model: str | None) -> list[dict[str, Any]]:
    if model is None:
        return batch.to_pylist()
    # Other models' conversations, most of a log, are not made into Python objects.
    cells = batch.select(["model"]).to_pylist()
    wanted = [index for index, row in enumerate(cells) if row["model"] == model]
    for index, row in zip(wanted, batch.take(wanted).to_pylist() if wanted else (), strict=True):
        cells[index] = row
    return cells


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
