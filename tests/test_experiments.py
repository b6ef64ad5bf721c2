"""The experiments' files: every one is a valid configuration, and the paper's study of cascades runs in small."""

import json
from pathlib import Path

import pytest

import jaxcascade as jc
from jaxcascade.cli import main
from jaxcascade.config import load_config

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"
FILES = sorted(EXPERIMENTS.glob("*.toml"))
# Reads tables by paths from the checkout's folder, which are there for some only.
REAL = "cascade_real_table"


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != REAL], ids=lambda path: path.stem)
def test_every_file_is_valid_in_full_and_in_small(path):
    whole, quick = load_config(path), load_config(path, quick=True)
    assert whole.title and len(whole.description) > 80
    assert quick.num_steps <= whole.num_steps and quick.num_seeds <= whole.num_seeds
    assert whole.figures and set(quick.policies) == set(whole.policies)


def test_the_study_of_cascades_runs_in_small(tmp_path, capsys):
    policies = ("online-plugin-known", "online-plugin", "lin-ucb", "open-all")
    text = (EXPERIMENTS / "cascade_calibration_0.toml").read_text(encoding="utf-8")
    kept = [
        part for part in text.split("\n\n") if not part.startswith(tuple(f"[policies.{name}]" for name in policies))
    ]
    (tmp_path / "small.toml").write_text("\n\n".join(kept), encoding="utf-8")
    out = tmp_path / "out"
    assert main(["run", str(tmp_path / "small.toml"), "--quick", "--out", str(out)]) == 0
    assert "truncated_gaussian" in capsys.readouterr().out
    study = jc.load_study(out / "curves.npz")
    assert set(study.policies) == {"dow-known", "dow", "oracle"}
    assert not study.final("oracle", "regret").any() and study.final("dow", "regret").min() > 0
    figures = json.loads((out / "manifest.json").read_text())["figures"]
    assert figures and all((out / name).stat().st_size > 10_000 for name in figures)
