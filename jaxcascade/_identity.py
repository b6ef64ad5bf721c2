"""What a study's numbers depend on, in a form that is the same in every process."""

import dataclasses
import functools
import hashlib
import platform
import types
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade._version import __version__


def identify(points: list[tuple[Any, Mapping[str, Any]]], environments: list[Any], **numbers: Any) -> dict[str, Any]:
    """What must be the same for a study to have the same numbers bit for bit, as JSON can hold it.

    Args:
      points: the instance and the policies by name, for every point of the grid.
      environments: the environment of every point.
      numbers: whatever else the numbers depend on: horizon, seeds, rounds, devices.
    """
    device = jax.local_devices()[0]
    return {
        **numbers,
        "versions": {
            "jaxcascade": __version__,
            "code": _package_digest(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
        },
        "float_type": str(jnp.result_type(float)),
        "prng": str(jax.random.key_impl(jax.random.key(0))),
        "matmul_precision": str(jax.config.jax_default_matmul_precision),  # pyright: ignore[reportAttributeAccessIssue]
        "threefry_partitionable": bool(jax.config.jax_threefry_partitionable),  # pyright: ignore[reportAttributeAccessIssue]
        "device": f"{device.platform} {device.device_kind}",
        "points": [
            {
                "instance": {name: fingerprint(value) for name, value in vars(instance).items()},
                "environment": fingerprint(environment),
                "policies": {name: fingerprint(policy) for name, policy in policies.items()},
            }
            for (instance, policies), environment in zip(points, environments, strict=True)
        ],
    }


def fingerprint(value: Any) -> str:
    """A short number as it is, of anything else the first digits of a SHA-256; the same in every process.

    Functions count by their name, their code and what they close over.
    """
    if isinstance(value, (bool, int, float, str, type(None))) and len(repr(value)) <= 40:
        return repr(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)) and value.ndim == 0 and value.dtype.kind in "biuf":
        return f"{value.dtype} {value.item()!r}"
    digest = hashlib.sha256()
    for part in _parts(value, set()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def _parts(value: Any, above: set[int]) -> Iterator[bytes]:
    """Bytes that tell the value from others, without memory addresses."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None), type(...))):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(plain_data(value))
        yield f"array {array.dtype} {array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
        return
    if id(value) in above:  # a function that refers to itself
        yield b"above"
        return
    above = above | {id(value)}
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    for inner in _inside(value):
        yield from _parts(inner, above)
    yield b"end"


def _inside(value: Any) -> list[Any]:
    """What a value is made of."""
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [value.__module__, value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if hasattr(value, "__wrapped__"):  # jitted or cached functions
        return [value.__wrapped__]
    if isinstance(value, type):
        return [value.__module__, value.__qualname__]
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        return [vars(value)]
    return [text] if " at 0x" not in (text := repr(value)) else []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@functools.lru_cache
def _package_digest() -> str:
    """First digits of the SHA-256 of the package's source: an edited copy has the same version."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def plain_data(leaf: Any) -> Any:
    """The array, or the plain numbers of typed keys."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
