"""Opens a table of any kind of file (CSV, JSON lines, Parquet, pickled pandas) as columns and streamed rows."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from jaxcascade.core import closest
from jaxcascade.data._rows import Row, open_table, shown
from jaxcascade.data._unpickle import read_pickled_table

_ROWS_A_BATCH = 2048
_MOST_NAMES_SHOWN = 12


class Source(NamedTuple):
    """An open file: its name, columns in order, the fields of its struct columns, the columns of text alone.

    `rows(columns, fields)` streams the rows once, with at least the named columns; of a struct column only the
    named fields, as a mapping.
    """

    path: str
    columns: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]
    text: frozenset[str]
    rows: Callable[[Sequence[str], Sequence[str]], Iterator[Row]]


@contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[Source]:
    """Yields the `Source` of a file: Parquet and pickle by ending or first bytes, else as `open_table` takes it.

    Raises FileNotFoundError, ImportError for Parquet without pyarrow, and ValueError for a file that is empty,
    damaged, not what its ending says, or names a column twice.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as stream:
            start = stream.read(4)
    except FileNotFoundError:
        raise FileNotFoundError(f"{name}: no such file") from None
    if not start:
        raise ValueError(f"{name}: expected a header and rows, got an empty file")
    ending = os.path.splitext(name)[1].lower()
    if start == b"PAR1" or ending in (".parquet", ".pq"):
        with _parquet(name) as source:
            yield _checked(source)
    elif start[:1] == b"\x80" or ending in (".pkl", ".pickle"):
        yield _checked(_pickled(name))
    else:
        with open_table(name) as table:
            yield _checked(Source(name, table.columns, {}, frozenset(), lambda columns, fields: table.rows))


def require(source: Source, columns: Sequence[str]) -> None:
    """Raises ValueError naming the first of the columns that the file lacks, and the names it has."""
    for column in columns:
        if column not in source.columns:
            names = ", ".join(shown(name) for name in source.columns[:_MOST_NAMES_SHOWN])
            more = ", ..." if len(source.columns) > _MOST_NAMES_SHOWN else ""
            near = closest(column, source.columns)
            raise ValueError(f"{source.path}: expected a column {shown(column)}{near}, got {names}{more}")


def _checked(source: Source) -> Source:
    seen: set[str] = set()
    for column in source.columns:
        if column in seen:
            raise ValueError(f"{source.path}, header: expected every column once, got {shown(column)} twice")
        seen.add(column)
    return source


def _pickled(name: str) -> Source:
    table = read_pickled_table(name)
    if not table.num_rows:
        raise ValueError(f"{name}: expected rows, got none")

    def rows(columns: Sequence[str], fields: Sequence[str]) -> Iterator[Row]:
        values = [table.values(column) for column in columns]
        for number, cells in enumerate(zip(*values, strict=True), start=1):
            yield Row(name, number, dict(zip(columns, cells, strict=True)))

    return Source(name, table.columns, {}, frozenset(), rows)


@contextmanager
def _parquet(name: str) -> Iterator[Source]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"{name}: Parquet needs pyarrow: pip install 'jaxcascade[parquet]'") from error
    failures = (pyarrow.ArrowException, OSError, UnicodeDecodeError)

    def damaged(place: str, error: BaseException) -> ValueError:
        reason = str(error).partition("\n")[0][:100]
        return ValueError(f"{name}{place}: expected a whole Parquet file, got a damaged or shortened one ({reason})")

    try:
        file = pyarrow.parquet.ParquetFile(name)
        schema = file.schema_arrow
    except failures as error:
        raise damaged("", error) from None
    with file:
        if not file.metadata.num_rows:
            raise ValueError(f"{name}: expected rows, got none")
        types: dict[str, Any] = dict(zip(schema.names, schema.types, strict=True))
        is_struct, is_text = pyarrow.types.is_struct, (pyarrow.types.is_string, pyarrow.types.is_large_string)
        structs = {
            column: tuple(kind.field(i).name for i in range(kind.num_fields))
            for column, kind in types.items()
            if is_struct(kind)
        }
        text = frozenset(column for column, kind in types.items() if any(test(kind) for test in is_text))

        def rows(columns: Sequence[str], fields: Sequence[str]) -> Iterator[Row]:
            # A response text beside a score, often most of the file, is not even decompressed.
            wanted = [
                part
                for column in columns
                for part in ([f"{column}.{field}" for field in fields] if column in structs else [column])
            ]
            number = 1
            try:
                for batch in file.iter_batches(batch_size=_ROWS_A_BATCH, columns=wanted):
                    values = [batch.column(column).to_pylist() for column in columns]
                    for cells in zip(*values, strict=True):
                        yield Row(name, number, dict(zip(columns, cells, strict=True)))
                        number += 1
            except failures as error:
                raise damaged(f", after row {number - 1}", error) from None

        yield Source(name, tuple(schema.names), structs, text, rows)
