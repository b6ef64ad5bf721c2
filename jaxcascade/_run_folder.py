"""The folder of one run: manifest.json, summary.json, curves.npz and figures, each whole or not there."""

import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from typing import Any

import jax

from jaxcascade._version import __version__
from jaxcascade.arrays import make_folder
from jaxcascade.checkpoint import is_begun, remove_checkpoint
from jaxcascade.config import Config, as_table
from jaxcascade.results import Study, load_study

MANIFEST, SUMMARY, CURVES = "manifest.json", "summary.json", "curves.npz"
CHECKPOINT = ".checkpoint"
_STAGE = ".jaxcascade-"


def prepare_folder(directory: str, overwrite: bool = False, resume: bool = False) -> None:
    """Makes the folder, and a file in it, to be sure that results can be written.

    Args:
      directory: the folder.
      overwrite: whether its results may be replaced; a checkpoint in it is then removed.
      resume: whether a checkpoint in it is to be used.

    Raises:
      ValueError: if it holds files, unless ``overwrite`` is True, or ``resume`` is and the files are those of a run.
      OSError: if it cannot be written.
    """
    names = os.listdir(directory) if os.path.isdir(directory) else []
    if names and not overwrite and not (resume and {CHECKPOINT, MANIFEST} & set(names)):
        found, way = "files", "replace: --overwrite"
        if not resume and is_begun(checkpoint_folder(directory)):
            found, way = "an unfinished run", "go on: --resume; start again: --overwrite"
        raise ValueError(f"{directory}: expected a new or empty folder, got one with {found} ({way})")
    for name in names:
        if name.startswith(_STAGE):  # of a run that was killed while it wrote its results
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    if overwrite or not is_begun(checkpoint_folder(directory)):  # without its manifest, half removed
        remove_checkpoint(checkpoint_folder(directory))
    make_folder(directory)


def checkpoint_folder(directory: str) -> str:
    """Where a run with results in ``directory`` keeps its state until they are written."""
    return os.path.join(directory, CHECKPOINT)


def finished_run(directory: str, config: Config, float_type: str) -> tuple[Study, dict[str, Any]] | None:
    """Study and manifest of this very experiment, if the folder holds its results; None if it is still to be run.

    Raises:
      ValueError: if the folder holds the results of another experiment, or damaged ones.
    """
    if is_begun(checkpoint_folder(directory)) or not os.path.exists(os.path.join(directory, MANIFEST)):
        return None
    study, manifest = read_results(directory)
    wanted = {"config": _strict(as_table(config)), "float_type": float_type}
    for name, value in wanted.items():
        if manifest.get(name) != value:
            here, came = value, manifest.get(name)
            if isinstance(here, dict) and isinstance(came, dict):
                name, here, came = next(
                    (k, here.get(k), came.get(k)) for k in here | came if here.get(k) != came.get(k)
                )
            path = os.path.join(directory, MANIFEST)
            raise ValueError(f"{path}: expected {name} = {here!r}, got a finished run with {came!r} (--overwrite)")
    return study, manifest


def describe_run(config: Config, study: Study, wall_seconds: float) -> dict[str, Any]:
    """What a manifest tells: the experiment as run, versions, devices, random numbers, times."""
    return {
        "config_file": os.path.basename(config.path),
        "config": as_table(config),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "jaxcascade": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
        },
        "platform": platform.platform(),
        "devices": [{"platform": device.platform, "kind": device.device_kind} for device in jax.devices()],
        "prng": str(jax.random.key_impl(jax.random.key(config.seed))),
        "float_type": study.meta["float_type"],
        "times": {"wall_seconds": wall_seconds, "policies": study.meta["times"]},
        "figures": [],
    }


def write_results(directory: str, study: Study, manifest: dict[str, Any]) -> None:
    """Puts study, summary and manifest into the folder, in place of those of an earlier run and its figures.

    The run's checkpoint is removed.

    Raises:
      OSError: if they cannot be written; those of the earlier run are then still there.
    """
    stale = _old_figures(directory)
    with _staged(directory) as stage:
        study.save(os.path.join(stage, CURVES))
        _write_json(os.path.join(stage, SUMMARY), study.summary())
        _write_json(os.path.join(stage, MANIFEST), manifest)
        for name in (CURVES, SUMMARY, MANIFEST):
            os.replace(os.path.join(stage, name), os.path.join(directory, name))
    remove_checkpoint(checkpoint_folder(directory))
    for name in stale:
        if os.path.isfile(os.path.join(directory, name)):
            os.remove(os.path.join(directory, name))


def read_results(directory: str) -> tuple[Study, dict[str, Any]]:
    """The study and the manifest in the folder.

    Raises:
      OSError: if they are not there.
      ValueError: if they are damaged.
    """
    study = load_study(os.path.join(directory, CURVES))
    path = os.path.join(directory, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: expected the manifest of a run, got no such file") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected the manifest of a run as JSON, got a damaged one ({error})") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("config"), dict):
        raise ValueError(f"{path}: expected the manifest of a run, got JSON without 'config'")
    return study, manifest


def draw_figures(directory: str, study: Study, figures: list[dict[str, Any]], manifest: dict[str, Any]) -> list[str]:
    """Draws the figures into the folder, lists them in its manifest, and returns their paths.

    Raises:
      ValueError: if a figure asks for what cannot be drawn.
      OSError: if they cannot be written.
    """
    with _staged(directory) as stage:
        names = []
        for path in draw(study, figures, stage, manifest["config"].get("title")):
            names.append(os.path.basename(path))
            os.replace(path, os.path.join(directory, names[-1]))
        known = list(dict.fromkeys([*manifest.get("figures", []), *names]))
        _write_json(os.path.join(stage, MANIFEST), manifest | {"figures": known})
        os.replace(os.path.join(stage, MANIFEST), os.path.join(directory, MANIFEST))
    return [os.path.join(directory, name) for name in names]


def draw(study: Study, figures: list[dict[str, Any]], directory: str, title: str | None) -> list[str]:
    """Draws the figures into any folder and returns their paths.

    Raises:
      ValueError: if a figure asks for what cannot be drawn.
    """
    from jaxcascade import plotting  # matplotlib is slow to import, and a run may need no figure

    return [os.fspath(path) for path in plotting.draw(study, figures, directory, title=title)]


@contextmanager
def _staged(directory: str) -> Iterator[str]:
    # Beside the results, so that a rename puts each of them in place at once.
    with tempfile.TemporaryDirectory(dir=directory, prefix=_STAGE) as stage:
        yield stage


def _old_figures(directory):
    """File names of figures that an earlier run's manifest lists; none if it cannot be read."""
    try:
        with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
            names = json.load(file)["figures"]
        return [name for name in names if os.path.basename(name) == name]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(_strict(value), file, indent=1, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _strict(value):
    """The value as JSON knows it: nan and infinities become None, dates text."""
    if isinstance(value, Mapping):
        return {str(name): _strict(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
