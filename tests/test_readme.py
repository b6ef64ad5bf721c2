"""The README's code blocks and all notebooks run as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import COMPILE_FAST

ROOT = Path(__file__).resolve().parents[1]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_python_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text("level,correct\n1,0\n2,1\n2,0\n3,1\n")
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["instance"].accuracy.shape == (3,)
    assert len(capsys.readouterr().out.splitlines()) >= 4


def test_toml_block_is_a_config(tmp_path):
    from jaxcascade.config import load_config

    path = tmp_path / "config.toml"
    path.write_text(blocks("toml")[0])
    assert load_config(path).num_steps == 200_000


def test_gate_runs_the_test_command():
    set_up_and_job, tests, *_ = blocks("sh")
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert tests.splitlines()[-1] in gate.splitlines()
    assert Path(ROOT / set_up_and_job.split()[-3]).exists()


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_notebook_runs(notebook, tmp_path):
    source = notebook.read_text(encoding="utf-8")
    source = source.replace("num_steps=2_000, num_seeds=20, snapshot=1_000", "num_steps=200, num_seeds=2, snapshot=100")
    (tmp_path / notebook.name).write_text(source, encoding="utf-8")
    flags = COMPILE_FAST | {"MPLBACKEND": "agg"}
    command = [sys.executable, "-W", "error", str(tmp_path / notebook.name)]
    run = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_shell_blocks_parse():
    for block in blocks("sh"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
