"""A budget for memory: chunks that fit it, the same numbers, and a warning before what does not fit."""

import os
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import _memory
from jaxcascade._memory import available_memory, parse_memory
from jaxcascade.cli import main
from tests.conftest import COMPILE_FAST, PEAK_KIB, compilations, float32_mode

pytestmark = pytest.mark.usefixtures("single")

ROOT = pathlib.Path(__file__).resolve().parents[1]
MEBIBYTE = 2**20
# What is set aside for Python and the compiler with one policy.
ASIDE = _memory._PROCESS_BYTES + _memory._PROGRAM_BYTES
INSTANCE = jc.deferral.two_point(num_levels=4, gap=0.1)
POLICIES = {"kl-pbd": jc.deferral.kl_pbd()}
TOML = """
system = "deferral"
num_steps = 20
num_seeds = 4
record = 2
[instance]
kind = "two_point"
num_levels = 4
gap = 0.1
[policies.kl-pbd]
kind = "kl_pbd"
"""


def compare(**changes):
    return jc.compare(INSTANCE, POLICIES, **({"num_steps": 60, "num_seeds": 40, "record": 3} | changes))


@pytest.fixture(scope="module")
def default():
    with float32_mode():
        return compare()


@pytest.fixture
def chunks(monkeypatch):
    """The seed chunks that blocks are run with."""
    found = []
    original = jc.study.run_block

    def run_block(*arguments, **options):
        found.append(options["seed_chunk"])
        return original(*arguments, **options)

    monkeypatch.setattr(jc.study, "run_block", run_block)
    return found


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        (None, None),
        (1, 1),
        (np.int64(5000), 5000),
        ("2 GiB", 2**31),
        ("2GiB", 2**31),
        (" 1.5 gib ", 3 * 2**29),
        ("500 MB", 500_000_000),
        (".5kB", 500),
        ("7", 7),
        ("7 B", 7),
        ("1 TiB", 2**40),
    ],
)
def test_sizes_are_bytes_or_text_with_a_unit(memory, size):
    assert parse_memory(memory) == size


@pytest.mark.parametrize(
    "memory", [0, -5, True, 1.5e9, "", "GiB", "two GiB", "2 GiBs", "2 Gi B", "-2 GiB", "nan", "0 GiB", [1]]
)
def test_other_sizes_are_refused_before_anything_runs(memory):
    with compilations() as compiled, pytest.raises(ValueError) as caught:
        compare(memory=memory)
    assert str(caught.value).startswith("memory: expected a number of bytes >= 1 or text such as '2 GiB'")
    assert str(caught.value).endswith(f"got {memory!r}") and "\n" not in str(caught.value)
    assert not compiled


def test_a_budget_that_is_large_changes_nothing_and_compiles_nothing_twice(default, chunks):
    with compilations() as compiled:
        found = compare(memory="4 GiB")
    # The default study has compiled the programs; looking at what they take is no other program.
    assert not [name for name in compiled if name.startswith("jit(_")]
    assert chunks == [40]
    assert found.meta["times"]["kl-pbd"]["compile_seconds"] < 2
    for metric, values in default.curves["kl-pbd"].items():
        np.testing.assert_array_equal(found.curves["kl-pbd"][metric], values)


def test_a_small_budget_makes_small_chunks_and_the_same_numbers(default, chunks):
    with compilations() as compiled:
        found = compare(memory=ASIDE + 80_000)
    assert 1 < chunks[0] < 20
    # One program for every size tried, the last of which is run.
    tried = compiled.count("jit(_advance_batch)")
    assert 1 <= tried <= 4
    again = compare(seed_chunk=chunks[0])
    for metric, values in default.curves["kl-pbd"].items():
        np.testing.assert_array_equal(found.curves["kl-pbd"][metric], again.curves["kl-pbd"][metric])
        np.testing.assert_allclose(found.curves["kl-pbd"][metric], values, rtol=1e-5, atol=1e-6, err_msg=metric)
        if metric in ("arrivals", "deferrals", "labels", "correct", "queue_length"):
            np.testing.assert_array_equal(found.curves["kl-pbd"][metric], values)


def test_a_seed_chunk_is_the_most_that_a_budget_gives(chunks):
    compare(seed_chunk=8, memory="4 GiB")
    assert chunks == [8]


def test_a_budget_counts_all_points_of_a_batch(chunks):
    def make(gap):
        return jc.deferral.two_point(num_levels=4, gap=gap), {"a": jc.deferral.accept_all()}

    gaps = [0.02, 0.04, 0.06, 0.08]
    options = {"num_steps": 20, "num_seeds": 30, "record": 1}
    wide = jc.sweep(make, {"gap": gaps}, **options)
    narrow = jc.sweep(make, {"gap": gaps}, memory=ASIDE + 190_000, **options)
    assert chunks[0] is None and chunks[1] % len(gaps) == 0 and len(gaps) <= chunks[1] < 100
    for metric, values in wide.curves["a"].items():
        np.testing.assert_allclose(narrow.curves["a"][metric], values, rtol=1e-5, atol=1e-6)


def test_a_learner_that_remembers_everything_gets_few_seeds(chunks):
    policies = {"dow": jc.cascade.dow()}
    instance = jc.cascade.synthetic(context_size=6, output_size=6, feature_size=2)
    options = {"num_steps": 2000, "num_seeds": 16, "record": [5]}
    jc.compare(instance, policies, memory=ASIDE + 3 * MEBIBYTE, **options)
    assert 1 < chunks[0] < 16


def test_a_study_over_its_budget_is_warned_of_before_it_runs(chunks):
    warned = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compare(memory="600 MiB", progress=lambda *_: warned.append(len(caught)))
    assert chunks == [1] and len(caught) == 1 and set(warned) == {1}


def test_the_warning_says_what_is_needed_what_there_is_and_what_to_change(monkeypatch):
    def warning(**options):
        with pytest.warns(UserWarning) as caught:
            compare(**options)
        assert len(caught) == 1 and "\n" not in str(caught[0].message)
        return str(caught[0].message)

    text = warning(memory="600 MiB")
    assert text.startswith("memory: the study needs 704 MiB with one seed at a time (") and "to run 'kl-pbd'" in text
    assert "704 MiB for Python and the compiler), it may take 600 MiB; raise memory or shorten the horizon" in text
    monkeypatch.setattr(_memory, "available_memory", lambda: 40_000)
    text = warning()
    assert text.startswith("memory: the study needs at least ") and "the machine has 39.1 KiB left" in text
    monkeypatch.setattr(_memory, "available_memory", lambda: None)  # a machine that does not say
    compare()


def test_results_alone_can_be_too_many(monkeypatch):
    monkeypatch.setattr(_memory, "available_memory", lambda: 200_000)
    with pytest.warns(UserWarning, match=r"for results.*; record fewer rounds or run fewer seeds$"):
        compare(record=60)


def test_the_machine_says_what_it_has_left():
    left = available_memory()
    assert left is None or MEBIBYTE < left < 2**50


def test_a_checkpoint_belongs_to_the_chunks_of_its_budget(tmp_path):
    class StopError(Exception):
        pass

    def stop(name, done, total):
        raise StopError

    small, options = ASIDE + 80_000, {"checkpoint": tmp_path, "save_every": 0.0}
    with pytest.raises(StopError):
        compare(memory=small, progress=stop, **options)
    with pytest.raises(ValueError, match=r"expected a checkpoint with seed_chunk"):
        compare(memory="4 GiB", **options)
    resumed, whole = compare(memory=small, **options), compare(memory=small)
    for metric, values in whole.curves["kl-pbd"].items():
        np.testing.assert_array_equal(resumed.curves["kl-pbd"][metric], values)


def test_the_command_line_takes_a_size(tmp_path, capsys, chunks, monkeypatch):
    (tmp_path / "one.toml").write_text(TOML)
    run = ["run", str(tmp_path / "one.toml"), "--quiet", "--out"]
    assert main([*run, str(tmp_path / "bad"), "--memory", "much"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "memory: expected a number of bytes" in error and "got 'much'" in error
    monkeypatch.setattr(jc.config, "compare", lambda *a, **options: chunks.append(options["memory"]) or compare())
    monkeypatch.setattr(jc.plotting, "draw", lambda *a, **k: [])
    assert main([*run, str(tmp_path / "good"), "--memory", "2GiB"]) == 0
    assert chunks[0] == "2GiB"


_PEAK = f"""
import sys
from jaxcascade.cli import main
status = main(sys.argv[1:])
print(status, {PEAK_KIB})
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    ("rounds", "memory"),
    [(200, "900MiB"), pytest.param(100_000, "2GiB", marks=pytest.mark.slow)],
)
def test_ten_thousand_seeds_stay_within_their_budget(rounds, memory, tmp_path):
    (tmp_path / "one.toml").write_text(TOML.replace("record = 2", f"record = {5 if rounds < 1000 else 50}"))
    flags = ["--seeds", "10000", "--steps", str(rounds), "--memory", memory, "--quiet"]
    command = [sys.executable, "-c", _PEAK, "run", str(tmp_path / "one.toml"), "--out", str(tmp_path / "out"), *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment |= COMPILE_FAST if rounds < 1000 else {}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    status, peak = map(int, done.stdout.split())
    assert status == 0 and 1024 * peak < parse_memory(memory), peak
    study = jc.load_study(tmp_path / "out" / "curves.npz")
    assert study.num_seeds == 10_000 and np.isfinite(study.final("kl-pbd", "regret")).all()
