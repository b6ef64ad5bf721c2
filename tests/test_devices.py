"""Several devices of one process, and several processes, give the numbers of one; nothing waits for ever.

Batched LAPACK on two CPU devices of one process can hang, so every test that has them ends at a time limit.
"""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.cli import main
from jaxcascade.devices import count_devices, gather, parts, seed_mesh
from tests.conftest import COMPILE_FAST

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENVIRONMENT = os.environ | COMPILE_FAST | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
LIMIT = 200

DEFERRAL = """
system = "deferral"
num_steps = 60
num_seeds = 7
record = 3
snapshot = 30
[sweep]
instance.gap = [0.04, 0.08]
[instance]
kind = "two_point"
num_levels = 3
[policies.coin]
kind = "random"
probability = 0.3
[policies.oracle]
kind = "oracle"
"""
CASCADE = """
system = "cascade"
num_steps = 60
num_seeds = 3
record = 3
[instance]
kind = "synthetic"
context_size = 6
output_size = 6
feature_size = 2
[policies.one-pass]
kind = "dow"
estimator = "one_pass"
calibration = 5
"""
QUEUEING = """
system = "queueing"
num_steps = 300
num_seeds = 7
record = 3
[instance]
kind = "synthetic"
num_llms = 2
dim = 2
arrival_rate = 1.0
slackness = -1.0
assortment_size = 1
[policies.acqb]
kind = "acqb"
estimator = "one_pass"
"""
FILES = {"deferral": DEFERRAL, "cascade": CASCADE, "queueing": QUEUEING}


def start(config, out, *flags):
    command = [sys.executable, "-m", "jaxcascade", "run", str(config), "--out", str(out), "--seed-chunk", "2"]
    return subprocess.Popen(
        [*command, "--quiet", *flags], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(*processes):
    """Exit statuses and messages of processes that run at the same time."""
    try:
        messages = [process.communicate(timeout=LIMIT)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], messages


def same(first, second):
    ours, theirs = (jc.load_study(folder / "curves.npz") for folder in (first, second))
    for tables in ("curves", "snapshots"):
        one, other = getattr(ours, tables), getattr(theirs, tables)
        assert jax.tree.structure(one) == jax.tree.structure(other)
        jax.tree.map(np.testing.assert_array_equal, one, other)


def together(config, out, *flags, count=2):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    shared = ["--coordinator", address, "--num-processes", str(count), *flags]
    return finish(*(start(config, out, *shared, "--process-id", str(i)) for i in range(count)))


@pytest.mark.parametrize(
    "system", [name if name == "deferral" else pytest.param(name, marks=pytest.mark.slow) for name in FILES]
)
def test_two_devices_and_two_processes_give_the_numbers_of_one(system, tmp_path):
    config = tmp_path / "experiment.toml"
    config.write_text(FILES[system])
    assert finish(start(config, tmp_path / "one")) == ([0], [""])
    assert finish(start(config, tmp_path / "devices", "--devices", "2")) == ([0], [""])
    same(tmp_path / "one", tmp_path / "devices")
    if system == "deferral":
        codes, messages = together(config, tmp_path / "processes")
        assert codes == [0, 0], messages
        same(tmp_path / "one", tmp_path / "processes")
        assert not (tmp_path / "processes" / ".checkpoint").exists()


def test_what_fails_in_one_process_ends_all(tmp_path):
    (tmp_path / "one.toml").write_text(DEFERRAL)
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    codes, messages = together(tmp_path / "one.toml", out)
    assert codes == [2, 2] and all("expected a new or empty folder" in message for message in messages)
    assert "process 0 failed: " in messages[1]


def test_two_devices_go_on_where_two_devices_were_stopped(tmp_path):
    program = f"""
import sys
import numpy as np
import jaxcascade as jc
from jaxcascade.devices import set_cpu_devices
set_cpu_devices(3)
import jax
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **about: compiled.append(about.get("fun_name")) if "backend_compile" in event else None
)
instance, policies = jc.deferral.two_point(num_levels=3), {{"coin": jc.deferral.random(0.3)}}
options = dict(num_steps=40, num_seeds=9, record=4, seed_chunk=2)
one = jc.compare(instance, policies, devices=1, **options)
class Stop(Exception): pass
def stop(name, done, total):
    if done > 250: raise Stop
try:
    jc.compare(instance, policies, checkpoint=r"{tmp_path}", save_every=0.0, progress=stop, **options)
except Stop:
    pass
told = []
def note(name, done, total): told.append(done)
three = jc.compare(instance, policies, checkpoint=r"{tmp_path}", progress=note, **options)
assert told[0] == 240, told
assert compiled.count("jit(_advance_batch)") == 2, compiled  # for one device and for three
for metric, values in one.curves["coin"].items():
    np.testing.assert_array_equal(three.curves["coin"][metric], values)
try:
    jc.compare(instance, policies, checkpoint=r"{tmp_path}", devices=2, **options)
except ValueError as error:
    assert "expected a checkpoint with devices = 2, got one with 3" in str(error), error
else:
    raise AssertionError
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    jc.compare(instance, policies, devices=3, num_steps=4, num_seeds=9)
assert [str(w.message).startswith("devices: 'coin' runs on 1 of 3") for w in said] == [True], said
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr


def test_the_programs_of_the_runner_call_no_lapack():
    # On two CPU devices of one process batched LAPACK can wait for ever (jaxlib 0.10.2).
    from jaxcascade._programs import _advance_batch, _init_batch, _setup_batch, seed_keys
    from jaxcascade.core import with_float_type
    from jaxcascade.simulate import prepare

    instance = jc.cascade.synthetic(context_size=4, output_size=4, feature_size=2)
    policy = jc.cascade.dow()
    environment, bare = prepare(instance, 50), policy._replace(params=None)
    models = _setup_batch(environment, bare, False, with_float_type(instance), with_float_type(policy.params), 50)
    carry = _init_batch(environment, bare, False, 2, models)
    keys = seed_keys(jax.random.key(0), np.arange(2))
    text = _advance_batch.lower(environment, bare, False, models, keys, carry, np.int32(1), np.int32(50)).as_text()
    assert "lapack" not in text and "cholesky" not in text and "triangular_solve" not in text


@pytest.mark.parametrize("devices", [0, -1, 10**6, True])
def test_devices_that_are_not_there_are_refused(devices):
    with pytest.raises(ValueError, match="devices: expected a whole number in 1"):
        count_devices(devices)


def test_one_device_and_one_process_need_nothing_special():
    assert count_devices(None) == jax.local_device_count()
    assert seed_mesh(1) is None
    assert list(parts({"a": 1}, None)) == [{"a": 1}]
    assert gather(lambda: {"a": np.ones(2)})[0]["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--devices", "0"], "devices: expected a whole number >= 1, got 0"),
        (["--num-processes", "2"], "coordinator: expected HOST:PORT or auto"),
        (["--coordinator", "localhost:1", "--num-processes", "2"], "process_id: expected one in 0..num_processes-1"),
        (["--coordinator", "localhost:1", "--num-processes", "2", "--process-id", "2"], "got 2 of 2"),
        (["--seed-chunk", "0"], "seed_chunk: expected a whole number >= 1, got 0"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, tmp_path, capsys):
    (tmp_path / "one.toml").write_text(DEFERRAL)
    assert main(["run", str(tmp_path / "one.toml"), "--out", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error
