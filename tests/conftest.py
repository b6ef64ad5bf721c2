"""Fixtures shared by the tests, and what they count and compare with."""

import contextlib
import importlib.metadata
import os
from functools import lru_cache, partial, wraps
from pathlib import Path

import hypothesis
import jax
import pytest

from jaxcascade._player import quick_options

# Most of a test's time is compiling, and a third of that without XLA's optimisations. XLA reads this when it is first
# used, and refuses flags that it does not know; XLA_FLAGS of one's own, or an empty one, leave it as it is.
COMPILE_FAST = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"}
if (0, 7) <= tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2]) < (0, 12):
    os.environ.setdefault("XLA_FLAGS", COMPILE_FAST["XLA_FLAGS"])

# What a program says of its own peak in KiB, on Linux; getrusage says at least the peak of whoever started it.
PEAK_KIB = 'next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))'

# Drawn examples differ from run to run only on request (HYPOTHESIS_PROFILE=search), so that a red test is a change.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.register_profile("search", deadline=None, max_examples=600)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
_compiled: list[str] = []


def _note_compile(event, duration, **details):
    if event == _COMPILE_EVENT:
        _compiled.append(details.get("fun_name", "unnamed"))


jax.monitoring.register_event_duration_secs_listener(_note_compile)


def float64_mode():
    """A context in which JAX's default float type is float64, whatever it is outside."""
    enable = getattr(jax, "enable_x64", None)
    if enable is None:
        from jax.experimental import enable_x64 as enable
    return enable(True)


def float32_mode():
    """A context in which JAX's default float type is float32, whatever it is outside."""
    enable = getattr(jax, "enable_x64", None)
    if enable is None:
        from jax.experimental import enable_x64 as enable
    return enable(False)


def quick_jit(function=None, **options):
    """``jax.jit`` for programs that run for milliseconds: compiled fast rather than made fast."""
    if function is None:
        return partial(quick_jit, **options)

    @lru_cache
    def jitted():
        return jax.jit(function, compiler_options=quick_options(), **options)

    return wraps(function)(lambda *arguments, **named: jitted()(*arguments, **named))


@contextlib.contextmanager
def compilations():
    """The names of the programs that XLA compiles inside the block, as a list that grows."""
    found: list[str] = []
    start = len(_compiled)
    try:
        yield found
    finally:
        found.extend(_compiled[start:])


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """After a file's tests its programs are dropped: kept, they come to gigabytes by the end."""
    yield
    jax.clear_caches()


@pytest.fixture(params=["float32", "float64"])
def float_mode(request):
    """Runs the test in both float types; the value is the type's name."""
    with float64_mode() if request.param == "float64" else float32_mode():
        yield request.param


@pytest.fixture
def x64():
    """Runs the test in float64."""
    with float64_mode():
        yield


@pytest.fixture
def single():
    """Runs the test in float32: for what is said of bytes, of names of types and of gaps in rounding."""
    with float32_mode():
        yield


@pytest.fixture(scope="session")
def shared():
    """The folder with logs, instances and specifications, beside the checkout or at JAXCASCADE_SHARED."""
    named = os.environ.get("JAXCASCADE_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder of shared data at {folder} (set JAXCASCADE_SHARED)")
    return folder
