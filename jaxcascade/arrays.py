"""Files of arrays: instances, and what studies are saved in."""

import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcascade.core import get_system, system_of


def save_instance(path: str | os.PathLike, instance: Any) -> None:
    """Write an instance to an ``.npz`` file: its arrays under the names of the spec tables, and ``system``.

    Args:
      path: the file, replaced if it is there.
      instance: an instance of a registered system.

    Raises:
      ValueError: if the instance is of no registered system.
    """
    system = system_of(instance)
    arrays = {name: np.asarray(value) for name, value in vars(instance).items()}
    write_npz(path, {"system": np.array(system.name), **arrays})


def load_instance(path: str | os.PathLike) -> Any:
    """The instance saved at ``path``, checked.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming the file and the array, what was expected and what came.
    """
    arrays = read_npz(path, "an instance")
    if "system" not in arrays:
        raise ValueError(f"{path}: expected an instance with an array 'system', got {', '.join(arrays) or 'none'}")
    try:
        system = get_system(str(arrays.pop("system")))
        return system.from_arrays(arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_npz(path: str | os.PathLike, arrays: Mapping[str, Any]) -> None:
    """Write arrays to an ``.npz`` file that is complete or not there: under another name, then renamed."""
    path = os.fspath(path)
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_npz(path: str | os.PathLike, what: str) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file.

    Args:
      path: the file.
      what: what it should hold, for the message.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is damaged.
    """
    try:
        # A handle of our own: np.load leaks its own one on a damaged archive.
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("one array without a name")
            with file:
                return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: expected {what}, got no such file") from None
    except (ValueError, EOFError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: expected {what} as a whole .npz file, got a damaged one ({error})") from error


def make_folder(folder: str) -> None:
    """Make the folder unless it is there.

    Raises:
      OSError: if it cannot be written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(f"{folder}: expected a folder that can be written, got: {error.strerror}") from error
