"""Reads the columns of a pickled pandas table without running anything that the pickle asks for.

Unpickling calls what the file names, so a pickle from elsewhere is a program. Here the few pandas, numpy and
Arrow names that such a table needs stand for inert parts that keep what they were given, and every other name is
refused; the numbers and texts are then taken out of those parts. Neither pandas nor its version matters.
"""

import os
import pickle
import re
from collections.abc import Sequence
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeGuard

import numpy as np

_INDEX_CLASSES = ("Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index")
# (module, name) as pandas 1.3 to 3 and numpy 1 and 2 write them, and the kind of part that each becomes.
_KINDS = {
    ("pandas", "DataFrame"): "frame",
    ("pandas.core.frame", "DataFrame"): "frame",
    ("pandas.core.internals.managers", "BlockManager"): "manager",
    ("pandas._libs.internals", "_unpickle_block"): "block",
    ("pandas.core.indexes.base", "_new_Index"): "index",
    **{("pandas", name): "class" for name in _INDEX_CLASSES},
    ("pandas.core.indexes.base", "Index"): "class",
    ("pandas.core.indexes.range", "RangeIndex"): "class",
    **{("pandas.core.indexes.numeric", name): "class" for name in _INDEX_CLASSES},
    ("pandas", "StringDtype"): "class",
    ("pandas.core.arrays.string_", "StringDtype"): "class",
    ("pandas.arrays", "ArrowStringArray"): "extension",
    ("pandas.arrays", "StringArray"): "extension",
    ("pandas.core.arrays.string_", "StringArray"): "extension",
    ("pandas.core.arrays.string_arrow", "ArrowStringArray"): "extension",
    ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"): "extension",
    ("pyarrow.lib", "_restore_array"): "arrow",
    ("pyarrow.lib", "type_for_alias"): "arrow type",
    ("pyarrow.lib", "py_buffer"): "bytes",
    ("numpy", "ndarray"): "class",
    ("numpy", "dtype"): "dtype",
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "array" for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): "scalar" for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "buffer" for core in ("core", "_core")},
    ("builtins", "slice"): "slice",
    ("__builtin__", "slice"): "slice",
    ("builtins", "bytearray"): "bytes",
    ("__builtin__", "bytearray"): "bytes",
    ("_codecs", "encode"): "text bytes",
}
_DTYPE_NAME = re.compile(r"b1|[iu][1248]|f[248]|O8?|U\d{1,9}")


class PickledTable(NamedTuple):
    """The column names of a pickled table, its number of rows, and per name where its values are."""

    path: str
    columns: tuple[str, ...]
    num_rows: int
    places: dict[str, np.ndarray]

    def values(self, column: str) -> list[Any]:
        """Returns the cells of one column as Python numbers, texts, lists or None. Raises ValueError for others."""
        try:
            return [_plain(value) for value in self.places[column].tolist()]
        except Exception as error:
            raise _damaged(self.path, error) from None


class _RefusedError(Exception):
    pass


class _Part:
    """Stands for an object of the pickle: keeps its arguments and its state, does nothing with them."""

    kind = ""
    source = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **named: Any) -> "_Part":
        part = object.__new__(cls)
        part.args, part.state = args, None
        return part

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader:
    """Reads a file of known size, so that a length in it that goes beyond its end costs no memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size

    def read(self, count: int) -> bytes:
        if count > self.size - self.stream.tell():
            raise EOFError("it is cut short, or a length in it is wrong")
        return self.stream.read(count)

    def readline(self) -> bytes:
        return self.stream.readline()


# The C unpickler fills memory up to any slot number in the file, 64 GB for five bytes; this one keeps a dict.
class _InertUnpickler(pickle._Unpickler):
    read: Any  # set by load, as append
    append: Any

    def load_bytearray8(self) -> None:
        # The inherited one makes the array before it reads.
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch: ClassVar[Any] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        # Looked up as a whole, so that a dotted name ("DataFrame.eval") is just another unknown one. A new class
        # each time: whatever the pickle does to it ends with this file.
        kind = _KINDS.get((module_name, global_name))
        if kind is None:
            raise _RefusedError(f"the name {module_name}.{global_name}")
        return type("Part", (_Part,), {"kind": kind, "source": f"{module_name}.{global_name}"})


def read_pickled_table(path: str | os.PathLike[str]) -> PickledTable:
    """Returns the columns of a pickled pandas DataFrame of numbers and texts; nothing in the file is run.

    Raises FileNotFoundError, and ValueError for a file that is no pickle, is cut short, names anything beyond
    the parts of such a table, or holds another object.
    """
    name = os.fspath(path)
    with open(name, "rb") as stream:
        try:
            return _table(name, _InertUnpickler(_Reader(stream), encoding="latin1").load())
        except Exception as error:
            raise _damaged(name, error) from None


def _damaged(name: str, error: Exception) -> ValueError:
    if isinstance(error, _RefusedError):
        return ValueError(
            f"{name}: expected a pickled pandas table of numbers and texts, got {error}; nothing of the pickle was run"
        )
    # A damaged pickle can fail in any way (EOFError, IndexError, MemoryError, UnicodeDecodeError ...).
    reason = str(error).partition("\n")[0][:100] or type(error).__name__
    return ValueError(f"{name}: expected a pickled pandas table, got none or a damaged one ({reason})")


def _is(value: Any, kind: str) -> TypeGuard[_Part]:
    return isinstance(value, _Part) and value.kind == kind


def _unexpected(value: Any) -> _RefusedError:
    return _RefusedError(f"{value.source} out of place" if isinstance(value, _Part) else f"a {type(value).__name__}")


def _table(name: str, frame: Any) -> PickledTable:
    if not _is(frame, "frame"):
        raise _RefusedError(_unexpected(frame).args[0] + " as the whole")
    state = frame.state
    manager = (state.get("_mgr") or state.get("_data")) if isinstance(state, dict) else state
    if not _is(manager, "manager"):
        raise _unexpected(manager)
    blocks, axes = manager.args
    columns = _labels(axes[0])
    if len(set(columns)) < len(columns):
        raise _RefusedError("a column name that comes twice")
    places: dict[str, np.ndarray] = {}
    for part in blocks:
        if not _is(part, "block"):
            raise _unexpected(part)
        values, placement, *_ = part.args
        block = _array(values)
        block = block[None] if block.ndim == 1 else block
        for position, row in zip(_positions(placement, len(columns)), block, strict=True):
            places[columns[position]] = row
    lengths = {len(row) for row in places.values()}
    if len(places) < len(columns) or len(lengths) > 1:
        raise _RefusedError("columns of unequal length or without values")
    return PickledTable(name, tuple(columns), lengths.pop() if lengths else 0, places)


def _labels(index: Any) -> list[str]:
    if not _is(index, "index"):
        raise _unexpected(index)
    about = index.args[1]
    if "data" not in about:
        raise _RefusedError("columns without names")
    return [str(_plain(label)) for label in _array(about["data"]).tolist()]


def _positions(placement: Any, count: int) -> Sequence[int]:
    if _is(placement, "slice"):
        return range(count)[slice(*placement.args)]
    return [int(position) for position in _array(placement).tolist()]


def _array(part: Any) -> np.ndarray:
    """The NumPy array that a part stands for: [columns, rows] of a block, or one axis."""
    if _is(part, "array"):
        _, shape, dtype, is_fortran, data = part.state
        if isinstance(data, list):
            # numpy lists objects in logical order, but dumps bytes in the order of the memory.
            return np.fromiter(data, object, len(data)).reshape(shape)
        return np.frombuffer(_bytes(data), _number_type(dtype)).reshape(shape, order="F" if is_fortran else "C")
    if _is(part, "buffer"):
        data, dtype, shape, order, *axes = part.args
        flat = np.frombuffer(_bytes(data), _number_type(dtype))
        if order == "K":
            return flat.reshape(shape).transpose(axes[0])
        return flat.reshape(shape, order=order)
    if _is(part, "extension"):
        state = part.state
        inner = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else (state,)
        for value in inner:
            if _is(value, "arrow"):
                return _arrow_texts(value)
            if _is(value, "array") or _is(value, "buffer"):
                return _array(value)
    raise _unexpected(part)


def _arrow_texts(part: _Part) -> np.ndarray:
    kind, length, _, start, buffers, *_ = part.args[0]
    if not _is(kind, "arrow type") or kind.args[0] not in ("string", "large_string"):
        raise _RefusedError("an Arrow column that holds no text")
    valid, offsets, data = (None if buffer is None else _bytes(buffer) for buffer in buffers)
    if length == 0:
        return np.empty(0, object)
    ends = np.frombuffer(offsets or b"", "<i8" if kind.args[0] == "large_string" else "<i4")[start:].tolist()
    bits = (
        np.ones(len(ends))
        if valid is None
        else np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[start:]
    )
    if not len(ends) > length:
        raise _RefusedError("an Arrow column without its ends")
    texts = np.empty(length, object)
    for i in range(length):
        if bits[i]:
            texts[i] = (data or b"")[ends[i] : ends[i + 1]].decode()
    return texts


def _number_type(part: Any) -> np.dtype:
    if not _is(part, "dtype"):
        raise _unexpected(part)
    name, order = str(part.args[0]), part.state[1] if part.state else "="
    if not _DTYPE_NAME.fullmatch(name):
        raise _RefusedError(f"a column of the type {name[:20]!r}")
    # np.frombuffer refuses the object type, so that no bytes are ever taken for an object's address.
    return np.dtype(name if order == "|" or name[0] == "O" else order + name)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if _is(value, "bytes"):
        return _bytes(value.args[0]) if value.args else b""
    if _is(value, "text bytes"):
        return value.args[0].encode("latin1")
    if isinstance(value, str):  # a Python 2 string, read as latin1
        return value.encode("latin1")
    raise _unexpected(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _Part):
        if value.kind != "scalar":
            raise _unexpected(value)
        return np.frombuffer(_bytes(value.args[1]), _number_type(value.args[0]))[0].item()
    # Lists within lists within lists can be far longer as text than in the file.
    for part in value if isinstance(value, list) else [value]:
        if part is not None and not isinstance(part, str | int | float):
            raise _unexpected(part)
    return value
