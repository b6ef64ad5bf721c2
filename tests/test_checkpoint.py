"""A run that is killed, interrupted or out of room ends with the same numbers; what is damaged is refused."""

import errno
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import checkpoint, plotting, study
from jaxcascade._identity import fingerprint
from jaxcascade.cli import main
from tests.conftest import COMPILE_FAST, float64_mode

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | COMPILE_FAST | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}

# What one session computes in: three units of seeds, a snapshot between records, and for queueing buffers that grow.
SYSTEMS = {
    "deferral": (
        lambda: jc.deferral.two_point(num_levels=3),
        lambda: {"coin": jc.deferral.random(0.3), "oracle": jc.deferral.oracle()},
        {"num_steps": 60, "record": 6, "snapshot": 25},
    ),
    "cascade": (
        lambda: jc.cascade.synthetic(context_size=4, output_size=4, feature_size=2),
        lambda: {"box": jc.cascade.random_box()},
        {"num_steps": 60, "record": 6},
    ),
    "queueing": (
        lambda: jc.queueing.synthetic(2, 2, 1.0, -1.0, 1),
        lambda: {"rand": jc.queueing.rand()},
        {"num_steps": 400, "record": 8},
    ),
}


def compare(system="deferral", **changes):
    instance, policies, options = SYSTEMS[system]
    return jc.compare(instance(), policies(), **({"num_seeds": 5, "seed_chunk": 2, "seed": 3} | options | changes))


def same(first, second):
    assert first.policies == second.policies
    np.testing.assert_array_equal(first.steps, second.steps)
    for tables in ("curves", "snapshots"):
        ours, theirs = (jax.tree.map(np.asarray, getattr(one, tables)) for one in (first, second))
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


class KilledError(RuntimeError):
    """Stands for the end of a process in tests that stay in one."""


def killed_after(calls, beyond=0):
    """A progress callback that raises at call ``calls`` beyond so many seed-rounds, and a list of what it was told."""
    told = []

    def progress(name, done, total):
        told.append(done)
        if sum(one > beyond for one in told) >= calls:
            raise KilledError

    return progress, told


@pytest.mark.parametrize(
    "system", [name if name != "queueing" else pytest.param(name, marks=pytest.mark.slow) for name in SYSTEMS]
)
def test_a_study_that_is_stopped_again_and_again_has_the_same_numbers(system, tmp_path):
    whole = compare(system)
    stops = []
    for _ in range(40):
        progress, told = killed_after(len(stops) % 3 + 3, stops[-1] if stops else 0)
        try:
            found = compare(system, checkpoint=tmp_path / "state", save_every=0.0, progress=progress)
            break
        except KilledError:
            stops.append(told[-1])
    assert len(stops) >= 4 and stops == sorted(set(stops))
    same(found, whole)
    progress, told = killed_after(10**9)
    same(compare(system, checkpoint=tmp_path / "state", progress=progress), whole)
    assert len(told) == 3 * len(whole.policies)  # every unit of seeds was read, none was played
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.slow
def test_a_buffer_that_grew_before_the_end_of_a_session_is_large_in_the_next(tmp_path):
    progress, _ = killed_after(7)
    with pytest.raises(KilledError):
        compare("queueing", checkpoint=tmp_path, save_every=0.0, progress=progress)
    (path,) = tmp_path.glob("unit-*")
    unit = checkpoint.unpack(checkpoint.unsealed(path.read_bytes(), str(path)))
    assert unit.growths >= 1 and unit.carry is not None


@pytest.mark.usefixtures("single")
def test_a_grid_and_float64_go_on_too(tmp_path):
    def grid(**options):
        make = lambda gap: (jc.deferral.two_point(num_levels=3, gap=gap), {"coin": jc.deferral.random(0.3)})  # noqa: E731
        return jc.sweep(make, {"gap": [0.04, 0.08]}, num_steps=40, num_seeds=5, record=4, seed_chunk=4, **options)

    with float64_mode():
        progress, _ = killed_after(6)
        with pytest.raises(KilledError):
            grid(checkpoint=tmp_path, save_every=0.0, progress=progress)
        same(grid(checkpoint=tmp_path), grid())
    with pytest.raises(ValueError, match=r"manifest.json: expected a checkpoint with .*float"):
        grid(checkpoint=tmp_path)


def test_typed_keys_and_small_floats_are_kept():
    carry = {"key": jax.random.split(jax.random.key(3), 4), "small": jnp.arange(4, dtype=jnp.bfloat16) / 3}
    unit = checkpoint.Unit(7, 1, carry, {"cost": np.ones(4)}, {}, {}, 1.5, 2.5)
    found = checkpoint.unpack(checkpoint.unsealed(checkpoint.sealed(checkpoint.pack(unit)), "here"))
    again = checkpoint.restore(jax.tree.map(lambda leaf: leaf[::-1], carry), found.carry)
    np.testing.assert_array_equal(jax.random.key_data(again["key"]), jax.random.key_data(carry["key"]))
    assert again["small"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(again["small"], float), np.asarray(carry["small"], float))
    assert (found.done, found.growths, found.compile_seconds, found.run_seconds) == (7, 1, 1.5, 2.5)
    with pytest.raises(ValueError, match="expected a state of shapes"):
        checkpoint.restore({"key": carry["key"][:2], "small": carry["small"]}, found.carry)


# --- damaged, or of another run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a study that was stopped in its second unit of seeds; copy it to change it."""
    folder = tmp_path_factory.mktemp("stopped") / "state"
    progress, _ = killed_after(10)
    with pytest.raises(KilledError):
        compare(checkpoint=folder, save_every=0.0, progress=progress)
    assert len(list(folder.glob("unit-*"))) == 2
    return folder


def test_a_flipped_byte_or_a_missing_end_is_seen_wherever_it_is(stopped):
    for path in sorted(stopped.glob("unit-*")):
        data = path.read_bytes()
        checkpoint.unsealed(data, path.name)
        for position in [*range(0, len(data), max(len(data) // 150, 1)), len(data) - 1]:
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            with pytest.raises(ValueError, match=f"{path.name}: expected a whole file"):
                checkpoint.unsealed(bytes(damaged), path.name)
        for length in (0, 1, 63, 64, 65, len(data) // 2, len(data) - 1):
            with pytest.raises(ValueError, match=f"{path.name}: expected a whole file"):
                checkpoint.unsealed(data[:length], path.name)


def test_a_damaged_manifest_is_seen_wherever_it_is(stopped, tmp_path):
    data = (stopped / "manifest.json").read_bytes()
    identity = json.loads(data)
    folder = tmp_path / "state"
    folder.mkdir()
    for position in range(0, len(data), max(len(data) // 150, 1)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        (folder / "manifest.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"manifest.json: expected .*, got .*--overwrite"):
            checkpoint.open_checkpoint(folder, identity)
    (folder / "manifest.json").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"manifest.json: expected .* as JSON, got a damaged one"):
        checkpoint.open_checkpoint(folder, identity)


def test_a_study_with_a_damaged_file_is_refused_and_nothing_is_changed(stopped, tmp_path):
    folder = tmp_path / "state"
    shutil.copytree(stopped, folder)
    path = max(folder.glob("unit-*"))
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 4]) + data[101:])
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"{path.name}: expected a whole file"):
        compare(checkpoint=folder)
    assert path.read_bytes() == before


def test_a_file_of_another_checkpoint_is_refused(stopped, tmp_path):
    progress, _ = killed_after(10)
    with pytest.raises(KilledError):
        compare(checkpoint=tmp_path, save_every=0.0, seed=4, progress=progress)
    for path in stopped.glob("unit-*"):
        shutil.copy(path, tmp_path)
    with pytest.raises(ValueError, match=r"unit-.*: expected the manifest \w+, got one of"):
        compare(checkpoint=tmp_path, seed=4)


OTHER = {
    "num_steps": ({"num_steps": 61}, "num_steps = 61, got one with 60"),
    "num_seeds": ({"num_seeds": 6}, "num_seeds = 6, got one with 5"),
    "seed": ({"seed": 4}, "seed = 4, got one with 3"),
    "record": ({"record": [10, 60]}, r"record = \[10, 60\], got one with \[10, 20"),
    "snapshot": ({"snapshot": None}, "snapshot = None, got one with 25"),
    "chunks": ({"seed_chunk": 3}, "seed_chunk = 3, got one with 2"),
}


@pytest.mark.parametrize("case", OTHER)
def test_another_study_is_refused_by_name(stopped, case):
    changes, message = OTHER[case]
    with pytest.raises(ValueError, match=f"manifest.json: expected a checkpoint with {message}.*--overwrite"):
        compare(checkpoint=stopped, **changes)


def test_other_instances_policies_and_versions_are_refused(stopped, monkeypatch):
    options = {"num_seeds": 5, "seed_chunk": 2, "seed": 3, "checkpoint": stopped} | SYSTEMS["deferral"][2]
    instance, policies = (make() for make in SYSTEMS["deferral"][:2])
    with pytest.raises(ValueError, match=r"points\[0\].instance.accuracy"):
        jc.compare(jc.deferral.two_point(num_levels=3, gap=0.05), policies, **options)
    with pytest.raises(ValueError, match=r"points\[0\].policies.coin"):
        jc.compare(instance, policies | {"coin": jc.deferral.random(0.31)}, **options)
    with pytest.raises(ValueError, match=r"points\[0\].policies.oracle"):
        jc.compare(instance, policies | {"oracle": jc.deferral.accept_all()}, **options)
    monkeypatch.setattr("jaxcascade._identity.__version__", "0.0.0")
    with pytest.raises(ValueError, match=r"versions.jaxcascade = '0.0.0'"):
        jc.compare(instance, policies, **options)


def test_fingerprints_tell_functions_apart_by_what_they_do():
    def make(scale, body):
        return (lambda x: x * scale) if body else (lambda x: x + scale)

    assert fingerprint(make(2, True)) == fingerprint(make(2, True))
    assert len({fingerprint(make(scale, body)) for scale in (2, 3) for body in (True, False)}) == 4
    assert fingerprint(jax.jit(make(2, True))) != fingerprint(jax.jit(make(3, True)))
    assert fingerprint(0.25) == "0.25" and fingerprint(jnp.float32(0.25)) == "float32 0.25"
    assert fingerprint(np.arange(3)) != fingerprint(np.arange(3.0))


# --- no room


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    whole = compare()
    saves, sync = [], os.fsync

    def full(descriptor):
        saves.append(descriptor)
        if len(saves) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "fsync", full)
        with pytest.raises(OSError, match=r"unit-.*: expected room to save the run's state, got: No space left"):
            compare(checkpoint=tmp_path, save_every=0.0)
    assert not list(tmp_path.glob("*.partial"))
    progress, told = killed_after(10**9)
    same(compare(checkpoint=tmp_path, progress=progress), whole)
    assert len(told) < 2 * 3 * 7  # some rounds were not played again


TOML = """
title = "Two points"
system = "deferral"
num_steps = 400
num_seeds = 600
record = 40
[instance]
kind = "two_point"
num_levels = 3
[policies.accept]
kind = "accept_all"
"""


def test_a_run_on_a_small_file_system_goes_on_once_there_is_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plotting, "draw", lambda study, figures, directory, title=None: [])
    (tmp_path / "two.toml").write_text(TOML.replace("400", "40").replace("600", "300"))
    room = tmp_path / "room"
    room.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(room)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no permission to mount a file system")
    try:
        command = ["run", str(tmp_path / "two.toml"), "--quiet", "--save-every", "0", "--out"]
        with pytest.raises(OSError, match="No space"), open(room / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        # All but a few pages.
        os.truncate(room / "ballast", os.path.getsize(room / "ballast") - 9 * 4096)
        assert main([*command, str(room / "out")]) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1 and "No space left" in message and "--resume" in message
        (room / "ballast").unlink()
        assert main([*command, str(room / "out"), "--resume"]) == 0
        assert main([*command, str(tmp_path / "whole")]) == 0
        same(jc.load_study(room / "out" / "curves.npz"), jc.load_study(tmp_path / "whole" / "curves.npz"))
    finally:
        subprocess.run(["umount", str(room)], check=True)


# --- the command


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A function that runs a small experiment in this process, without figures."""
    monkeypatch.setattr(plotting, "draw", lambda study, figures, directory, title=None: [])
    (tmp_path / "two.toml").write_text(TOML.replace("400", "40").replace("600", "3"))
    return lambda *flags: main(["run", str(tmp_path / "two.toml"), "--out", str(tmp_path / "out"), "--quiet", *flags])


def test_resume_starts_goes_on_and_says_when_it_is_done(quick, tmp_path, monkeypatch, capsys):
    out, original = tmp_path / "out", study.run_block

    def stopped(*arguments, **options):
        original(*arguments, **options)
        raise FloatingPointError("enough")

    with monkeypatch.context() as patch:
        patch.setattr(study, "run_block", stopped)
        assert quick("--resume") == 2  # an empty folder is begun
    assert [path.name for path in out.iterdir()] == [".checkpoint"]
    capsys.readouterr()
    assert quick() == 2
    message = capsys.readouterr().err
    assert "got one with an unfinished run (go on: --resume; start again: --overwrite)" in message
    assert quick("--resume", "--seed", "9") == 2
    assert ".checkpoint/manifest.json: expected a checkpoint with seed = 9, got one with 0" in capsys.readouterr().err

    blocks = []
    monkeypatch.setattr(study, "run_block", lambda *a, **k: blocks.append(original(*a, **k)) or blocks[-1])
    assert quick("--resume") == 0
    assert {path.name for path in out.iterdir()} == {"manifest.json", "summary.json", "curves.npz"}
    assert len(blocks) == 1
    assert main(["run", str(tmp_path / "two.toml"), "--out", str(out), "--resume"]) == 0
    assert capsys.readouterr().out.endswith(f"{out}: the run is finished (again: --overwrite)\n")
    assert len(blocks) == 1
    assert quick("--resume", "--seeds", "4") == 2
    assert "expected num_seeds = 4, got a finished run with 3 (--overwrite)" in capsys.readouterr().err
    assert quick("--overwrite", "--seeds", "4") == 0 and len(blocks) == 2
    assert quick("--overwrite", "--resume") == 2
    assert "not allowed with" in capsys.readouterr().err


def test_overwrite_starts_again_from_a_damaged_checkpoint(quick, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr("jaxcascade._run_folder.write_results", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            quick()
    for path in (tmp_path / "out" / ".checkpoint").glob("unit-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert quick("--resume") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "expected a whole file" in message and "--overwrite" in message
    assert quick("--overwrite") == 0
    assert not (tmp_path / "out" / ".checkpoint").exists()


def test_figures_that_a_kill_prevented_are_drawn(quick, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("jaxcascade.cli._draw_figures", lambda *arguments: None)
        assert quick() == 0
    drawn = []
    monkeypatch.setattr(plotting, "draw", lambda study, figures, *rest, **options: drawn.append(figures) or [])
    assert quick("--resume") == 0
    assert drawn == [[{"kind": "curves", "metric": "regret"}]]


# --- real processes, really killed


def start(config, out, *flags):
    command = [sys.executable, "-m", "jaxcascade", "run", str(config), "--out", str(out), "--quiet"]
    return subprocess.Popen(
        [*command, "--save-every", "0", *flags], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process, timeout=300):
    try:
        _, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, errors.decode()


def kill_again_and_again(config, folder, kills, moment, *flags):
    """How many sessions were killed; the results of each chain of sessions are those of a run left alone."""
    code, errors = finish(start(config, folder / "whole", *flags))
    assert code == 0, errors
    whole, killed, chains = jc.load_study(folder / "whole" / "curves.npz"), 0, 0
    while True:
        process = start(config, folder / f"out-{chains}", "--resume", *flags)
        if killed < kills:
            moment(folder / f"out-{chains}", process)
            process.kill()
        code, errors = finish(process)
        assert code in (0, -signal.SIGKILL), errors
        killed += code != 0
        if code == 0:
            same(jc.load_study(folder / f"out-{chains}" / "curves.npz"), whole)
            assert not (folder / f"out-{chains}" / ".checkpoint").exists()
            chains += 1
            if killed >= kills:
                return killed, chains


def some_saves_later(out, process):
    """Waits until the state was saved a random number of times."""
    seen, last, wanted = 0, None, random.randint(1, 100)
    while seen < wanted and process.poll() is None:
        now = sorted((path.name, path.stat().st_mtime_ns) for path in out.glob(".checkpoint/unit-*.npz"))
        seen, last = seen + (now != last), now
        time.sleep(0.001)


def test_a_process_killed_three_times_ends_with_the_same_numbers(tmp_path):
    (tmp_path / "two.toml").write_text(TOML)
    killed, chains = kill_again_and_again(tmp_path / "two.toml", tmp_path, 3, some_saves_later)
    assert killed == 3 and chains >= 1
    assert {path.name for path in tmp_path.iterdir()} == {"two.toml", "whole", *(f"out-{i}" for i in range(chains))}


REAL = {
    "deferral": TOML.replace("400", "4_000") + '[policies.kl]\nkind = "kl_pbd"\n',
    "cascade": """
system = "cascade"
num_steps = 600
num_seeds = 40
record = 30
[instance]
kind = "synthetic"
[policies.dow]
kind = "dow"
calibration = 20
[policies.box]
kind = "random_box"
""",
    "queueing": """
system = "queueing"
num_steps = 600
num_seeds = 100
record = 30
[instance]
kind = "synthetic"
assortment_size = 1
[policies.acqb]
kind = "acqb"
estimator = "one_pass"
[policies.rand]
kind = "rand"
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("system", REAL)
def test_a_process_killed_twenty_times_at_any_moment_ends_with_the_same_numbers(system, tmp_path):
    (tmp_path / "real.toml").write_text(REAL[system])
    # Programs are compiled once, or most of the kills would fall into compiling, and take an hour.
    kept = ("--compilation-cache", str(tmp_path / "programs"))
    assert finish(start(tmp_path / "real.toml", tmp_path / "first", *kept))[0] == 0
    clock = time.monotonic()
    assert finish(start(tmp_path / "real.toml", tmp_path / "timed", *kept))[0] == 0
    seconds = time.monotonic() - clock

    def any_moment(out, process):
        process.poll() is None and time.sleep(random.uniform(0, seconds))

    killed, chains = kill_again_and_again(tmp_path / "real.toml", tmp_path, 20, any_moment, *kept)
    print(f"{system}: {killed} kills, {chains} runs ended with the same numbers")
    assert killed == 20


def test_an_interrupt_tells_how_to_go_on(tmp_path):
    (tmp_path / "two.toml").write_text(TOML)
    out = tmp_path / "out of the way"
    process = start(tmp_path / "two.toml", out)
    some_saves_later(out, process)
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130 and errors.count("\n") == 1
    assert errors.startswith("jaxcascade: interrupted (go on with: jaxcascade run ")
    words = shlex.split(errors[errors.index("jaxcascade run") :].strip()[:-1])
    assert str(out) in words and words[-1] == "--resume"
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert jc.load_study(out / "curves.npz").num_seeds == 600
