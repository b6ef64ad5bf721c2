"""State of a study on disk, so that a run that was killed goes on and ends with the same numbers, bit for bit.

A folder holds ``manifest.json``, which says what is run and by which versions, and one ``.npz`` file for every unit
of seeds that run together: its state after some round, or its results. Each file is written under another name,
synchronised and renamed, and ends in the SHA-256 of what comes before (as the comment of the zip archive, so that
``numpy.load`` reads it). What does not belong to the run, or is damaged, is refused.
"""

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade._identity import plain_data
from jaxcascade.devices import share

MANIFEST = "manifest.json"
_DIGITS = 64
_REMEDY = "start again with --overwrite, or without this folder"


class Checkpoint(NamedTuple):
    """Where the units of one block are saved.

    Attributes:
      folder: the folder.
      block: number of the block within the study, part of the files' names.
      manifest: SHA-256 of the manifest, repeated in every file.
      seconds: least time between two saves of a unit before it is finished.
    """

    folder: str
    block: str
    manifest: str
    seconds: float = 10.0


class Unit(NamedTuple):
    """Seeds that run together, after ``done`` rounds.

    Attributes:
      done: rounds played; the last stop once all are.
      growths: how often the buffers were doubled.
      carry: state of environment and policy, leaves ``[G, S, ...]`` or ``[S, ...]``; None once all rounds are played.
      totals: metric -> ``[G, S]`` or ``[S]`` float64, summed over rounds.
      records: metric -> ``[..., R]`` float64 at the recorded rounds so far.
      snapshot: name -> array, the policy's rule at the snapshot round, empty before.
      compile_seconds: time spent compiling.
      run_seconds: time spent on rounds.
    """

    done: int
    growths: int
    carry: Any
    totals: dict[str, np.ndarray]
    records: dict[str, np.ndarray]
    snapshot: dict[str, np.ndarray]
    compile_seconds: float
    run_seconds: float


def open_checkpoint(folder: str | os.PathLike, identity: Mapping[str, Any]) -> str:
    """Makes the folder a checkpoint of the run with this identity, or finds that it is one.

    Args:
      folder: the folder, made if it is not there.
      identity: what must be the same for the numbers to be the same, as JSON can hold it; see ``_identity.identify``.

    Returns:
      The SHA-256 of the manifest, for ``Checkpoint``.

    Raises:
      ValueError: if the folder is a checkpoint of another run, or its manifest is damaged; names the first difference.
      OSError: if it cannot be written.
    """
    path = os.path.join(folder, MANIFEST)
    wanted = json.dumps(identity, indent=1, sort_keys=True)
    try:
        found = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        _ensure_folder(os.fspath(folder))
        write_whole(path, wanted.encode())
        found = wanted
    if found != wanted:
        raise ValueError(f"{path}: {_difference(found, wanted)} ({_REMEDY})")
    return hashlib.sha256(wanted.encode()).hexdigest()


def is_begun(folder: str | os.PathLike) -> bool:
    """True if the folder is a checkpoint."""
    return os.path.isfile(os.path.join(folder, MANIFEST))


def remove_checkpoint(folder: str | os.PathLike) -> None:
    """Removes the folder, if it is there; its manifest first, so that no part of it is taken for the whole."""
    if os.path.isdir(folder):
        Path(folder, MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


def save_unit(checkpoint: Checkpoint, first: int, count: int, unit: Unit) -> None:
    """Saves the state of the seeds ``first .. first + count - 1`` in place of an earlier one.

    Raises:
      OSError: if it cannot be written, as on a full disk; what was saved before is then still whole.
    """
    path = _path(checkpoint, first, count)
    try:
        write_whole(path, sealed(pack(unit) | {"manifest": np.array(checkpoint.manifest)}))
    except OSError as error:
        raise OSError(
            f"{path}: expected room to save the run's state, got: {error.strerror or error};"
            " what was saved before is whole, and --resume goes on from there"
        ) from error


def load_unit(checkpoint: Checkpoint, first: int, count: int) -> Unit | None:
    """The saved state of the seeds ``first .. first + count - 1``, its carry as a list of leaves, or None.

    Raises:
      ValueError: if the file is damaged or of another run; one line with the file, what was expected and what came.
    """
    path = _path(checkpoint, first, count)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    arrays = unsealed(data, path)
    if str(arrays["manifest"]) != checkpoint.manifest:
        came = str(arrays["manifest"])
        raise ValueError(f"{path}: expected the manifest {checkpoint.manifest}, got one of {came} ({_REMEDY})")
    return unpack(arrays)


def restore(template: Any, leaves: list[np.ndarray]) -> Any:
    """The carry with the structure, types and typed keys of ``template`` and the saved leaves."""

    def convert(leaf: jax.Array, saved: np.ndarray) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(leaf))
        # numpy keeps bfloat16 and the like as plain bytes.
        return jnp.asarray(saved.view(leaf.dtype) if saved.dtype.kind == "V" else saved)

    old, structure = jax.tree.flatten(template)
    shapes = [plain_data(leaf).shape for leaf in old]
    if shapes != [leaf.shape for leaf in leaves]:
        raise ValueError(f"checkpoint: expected a state of shapes {shapes}, got {[leaf.shape for leaf in leaves]}")
    return structure.unflatten([convert(leaf, saved) for leaf, saved in zip(old, leaves, strict=True)])


def pack(unit: Unit) -> dict[str, np.ndarray]:
    """The unit as arrays by name."""
    arrays: dict[str, Any] = {f"at/{name}": np.asarray(getattr(unit, name)) for name in _SCALARS}
    # A state may have no leaf at all, so that being finished is told apart.
    arrays["at/finished"] = np.array(unit.carry is None)
    if unit.carry is not None:
        arrays |= {f"carry/{i}": np.asarray(plain_data(leaf)) for i, leaf in enumerate(jax.tree.leaves(unit.carry))}
    for kind in _TABLES:
        arrays |= {f"{kind}/{name}": np.asarray(value) for name, value in getattr(unit, kind).items()}
    return arrays


def unpack(arrays: Mapping[str, np.ndarray]) -> Unit:
    """The unit that ``pack`` made these arrays of; its carry is a list of leaves."""
    tables: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in ("at", "carry", *_TABLES)}
    for key, array in arrays.items():
        kind, slash, name = key.partition("/")
        if slash:
            tables[kind][name] = array
    at = {name: kind(tables["at"][name]) for name, kind in _SCALARS.items()}
    carry = None if tables["at"]["finished"] else list(tables["carry"].values())
    return Unit(**at, carry=carry, totals=tables["totals"], records=tables["records"], snapshot=tables["snapshot"])


_SCALARS = {"done": int, "growths": int, "compile_seconds": float, "run_seconds": float}
_TABLES = ("totals", "records", "snapshot")


def sealed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An ``.npz`` file of the arrays whose last 64 bytes are the SHA-256 of the others."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = b"0" * _DIGITS
    data = stream.getvalue()[:-_DIGITS]
    return data + hashlib.sha256(data).hexdigest().encode()


def unsealed(data: bytes, path: str) -> dict[str, np.ndarray]:
    """The arrays of a ``sealed`` file.

    Raises:
      ValueError: if a byte of it differs; names ``path``.
    """
    wanted = hashlib.sha256(data[:-_DIGITS]).hexdigest()
    came = data[-_DIGITS:].decode("latin-1")
    if came != wanted:
        raise ValueError(f"{path}: expected a whole file, which ends in its SHA-256 {wanted}, got {came!r} ({_REMEDY})")
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def write_whole(path: str, data: bytes) -> None:
    """Writes a file that is complete or not there, even after a power failure.

    Raises:
      OSError: if it cannot be written; an earlier file of that name is then still there.
    """
    # Processes that share the folder must not write to one name.
    partial = f"{path}.{share()[0]}.partial"
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        Path(partial).unlink(missing_ok=True)  # makes room on a full disk
        raise
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(os.path.dirname(path) or ".", os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _ensure_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder}: expected a folder that can be written, got: {error.strerror}") from error
    # Processes may share the folder, and one of them be further.
    strange = sorted(name for name in os.listdir(folder) if not name.startswith(("unit-", MANIFEST)))
    if strange:
        raise ValueError(f"{folder}: expected a checkpoint or an empty folder, got one with {strange[0]!r}")


def _path(checkpoint: Checkpoint, first: int, count: int) -> str:
    return os.path.join(checkpoint.folder, f"unit-{checkpoint.block}-seeds-{first}-{first + count - 1}.npz")


def _difference(found: str, wanted: str) -> str:
    """The first difference of two manifests, in words."""
    try:
        came = dict(_flat(json.loads(found)))
    except ValueError as error:
        return f"expected the manifest of a checkpoint as JSON, got a damaged one ({error})"
    here = dict(_flat(json.loads(wanted)))
    for name in [*here, *came]:
        if here.get(name) != came.get(name):
            return f"expected a checkpoint with {name} = {here.get(name)!r}, got one with {came.get(name)!r}"
    return "expected the manifest as it was written, got one that was edited"


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{name}[{i}]")
    else:
        yield name, value
