"""TOML tables: read from a file, looked up with a check of the type, changed by dotted key.

Every complaint is one line: key, what was expected, what came, the closest valid name.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from jaxcascade.core import closest, one_of

_TYPE_NAMES = {str: "a text", dict: "a table", list: "a list", bool: "true or false"}
_REQUIRED: Any = object()
_LONGEST_SHOWN = 60
_LONGEST_COMPLAINT = 600

# Rounds and seeds are counted in int32.
LARGEST_INTEGER = 2**31 - 1


def read_toml(path: str) -> dict[str, Any]:
    """The tables of a file; floats are ``Decimal``s under ``paper``, to keep the decimals that were written.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not TOML; with the position.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        tables = tomllib.loads(text)
        if "paper" in tables:
            tables["paper"] = tomllib.loads(text, parse_float=Decimal)["paper"]
        return tables
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: expected a TOML file, got no such file") from None
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise ValueError(f"{path}: expected UTF-8 text, got {wrong}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: expected TOML, got a malformed file: {one_line(error)}") from error


def check_names(table: dict, names: Iterable[str], where: str = "") -> None:
    """Passes over a table of which every key is one of ``names``; ``where`` is the key of the table and a dot.

    Raises:
      ValueError: for any other key.
    """
    for name in table:
        if name not in names:
            raise ValueError(f"{where}{dotted(name)}: expected {one_of(names)}, got {name!r}{closest(name, names)}")


def typed(table: dict, name: str, kind: type, where: str = "", default: Any = _REQUIRED) -> Any:
    """``table[name]``, or the default where there is one and no such key.

    Raises:
      ValueError: if it is not of the type ``kind``.
    """
    if name not in table and default is not _REQUIRED:
        return default
    value = table.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{where}{dotted(name)}: expected {type_name(kind)}, got {shown(value)}")
    return value


def whole(
    table: dict,
    name: str,
    where: str = "",
    *,
    least: int = 1,
    most: int = LARGEST_INTEGER,
    default: Any = _REQUIRED,
) -> Any:
    """``table[name]`` as a whole number, or the default where there is one and no such key.

    Raises:
      ValueError: if it is no whole number within ``least..most``.
    """
    if name not in table and default is not _REQUIRED:
        return default
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{where}{name}: expected a whole number from {least} to {most}, got {shown(value)}")
    return value


def with_value(table: dict, path: tuple[str, ...], value: Any, above: tuple[str, ...] = ()) -> dict:
    """A copy of nested tables with ``value`` at ``path``; ``above`` is where ``table`` itself lies.

    Raises:
      ValueError: if something on the way is not a table.
    """
    head, rest = path[0], path[1:]
    if not rest:
        return {**table, head: value}
    below = table.get(head, {})
    if not isinstance(below, dict):
        raise ValueError(f"{dotted(*above, head)}: expected a table to set {dotted(*rest)} in, got {shown(below)}")
    return {**table, head: with_value(below, rest, value, (*above, head))}


def split_key(key: str) -> tuple[str, ...]:
    """The parts of a dotted TOML key.

    Raises:
      ValueError: if it is none.
    """
    parts: list[str] = []
    try:
        table: Any = tomllib.loads(f"{key} = 0")
        while isinstance(table, dict):
            ((name, table),) = table.items()
            parts.append(name)
    except ValueError:
        raise ValueError(f"{shown(key)}: expected a dotted key such as instance.gap") from None
    return tuple(parts)


def dotted(*parts: str) -> str:
    """The parts of a key as one dotted TOML key."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part) for part in parts)


def type_name(kind: type) -> str:
    """What a value of the type is called in a message."""
    return _TYPE_NAMES.get(kind, "a number")


def shown(value: Any) -> str:
    """The value as one short line for a message."""
    text = "none" if value is None else str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def one_line(error: BaseException) -> str:
    """The message of an exception on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST_COMPLAINT else text[: _LONGEST_COMPLAINT - 3] + "..."
