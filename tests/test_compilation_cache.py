"""Compiled programs kept in a folder: the next process compiles none and gets the same numbers."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np

import jaxcascade as jc
from jaxcascade._compilation_cache import _SETTINGS, kept_programs
from jaxcascade.cli import main
from tests.conftest import COMPILE_FAST

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOML = """
system = "deferral"
num_steps = 20
num_seeds = 2
record = 2
[instance]
kind = "two_point"
num_levels = 3
[policies.accept]
kind = "accept_all"
[[figures]]
kind = "curves"
metric = "cost"
"""
PROGRAM = """
import sys
import jax
from jaxcascade.cli import main
found = {"hits": 0, "misses": 0}
def note(event, **about):
    for kind in found:
        found[kind] += event == f"/jax/compilation_cache/cache_{kind}"
jax.monitoring.register_event_listener(note)
status = main(sys.argv[1:])
print(status, found["hits"], found["misses"])
"""


def start(folder, out, *flags):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, "run", "one.toml", "--out", out, "--quiet", *flags]
    environment = os.environ | COMPILE_FAST | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)


def finish(process):
    """Hits and misses of a run in a process of its own."""
    try:
        told, errors = process.communicate(timeout=200)
    finally:
        process.kill()
    assert errors == ""
    status, hits, misses = map(int, told.split())
    assert status == 0
    return hits, misses


def run(folder, out, *flags):
    return finish(start(folder, out, *flags))


def test_a_second_process_compiles_nothing_and_gets_the_same_numbers(tmp_path):
    (tmp_path / "one.toml").write_text(TOML)
    hits, misses = run(tmp_path, "first", "--compilation-cache", "programs")
    kept = sorted(path.name for path in (tmp_path / "programs").iterdir())
    assert hits == 0 and misses > 3 and any("_advance_batch" in name for name in kept)
    assert run(tmp_path, "second", "--compilation-cache", "programs") == (misses, 0)
    # JAX notes beside a program when it was last used; there is no other program.
    assert sorted(path.name for path in (tmp_path / "programs").iterdir()) == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "one.toml", "programs", "second"]
    one, other = (jc.load_study(tmp_path / name / "curves.npz") for name in ("first", "second"))
    for metric, values in one.curves["accept"].items():
        np.testing.assert_array_equal(other.curves["accept"][metric], values)


def test_every_one_of_several_processes_finds_the_programs_of_one(tmp_path):
    (tmp_path / "one.toml").write_text(TOML)
    kept = ("--compilation-cache", "programs", "--seed-chunk", "1")
    hits, misses = run(tmp_path, "first", *kept)
    assert hits == 0
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = ("--coordinator", address, "--num-processes", "2", "--process-id")
    both = [start(tmp_path, "second", *kept, *shared, str(index)) for index in range(2)]
    for found, missed in map(finish, both):
        assert 3 < found <= misses and missed == 0


def test_settings_are_the_callers_own_afterwards(tmp_path):
    def settings():
        return {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", *_SETTINGS)}

    before = settings()
    with kept_programs(None):
        assert settings() == before
    with kept_programs(str(tmp_path / "programs")):
        assert settings() == {"jax_compilation_cache_dir": str(tmp_path / "programs"), **_SETTINGS}
        jax.jit(lambda x: 7 * x - 3)(2.0)
    assert settings() == before
    kept = list((tmp_path / "programs").iterdir())
    assert kept
    jax.jit(lambda x: 9 * x - 4)(2.0)
    assert list((tmp_path / "programs").iterdir()) == kept


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "one.toml").write_text(TOML)
    (tmp_path / "file").write_text("mine")
    flags = ["--out", str(tmp_path / "out"), "--compilation-cache", str(tmp_path / "file")]
    assert main(["run", str(tmp_path / "one.toml"), *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{tmp_path / 'file'}: expected a folder that can be written" in error
    assert not (tmp_path / "out").exists()
