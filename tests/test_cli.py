"""The command line: a run's folder and tables, drawing again, comparing, and one line for whatever is wrong."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import _run_folder, config, plotting, results
from jaxcascade._tables import number, text_table
from jaxcascade.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
OWN = {"manifest.json", "summary.json", "curves.npz"}

TOML = """
title = "Two points"
system = "deferral"
num_steps = 40
num_seeds = 3
record = 4
[quick]
num_steps = 20
num_seeds = 2
[instance]
kind = "two_point"
num_levels = 3
[policies.accept]
kind = "accept_all"
[[figures]]
kind = "curves"
metric = "regret"
[[figures]]
kind = "curves"
metric = "cost"
[[paper]]
policy = "accept"
metric = "regret"
n = 100
cells = [{mean = 1.60, ci95 = 0.2}]
"""
SWEEP = "[sweep]\ninstance.gap = [0.02, 0.04]\n"


@pytest.fixture
def write(tmp_path):
    """Writes a file and returns its path as text."""

    def write_file(text, name="two_point.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_file


@pytest.fixture
def drawn(monkeypatch):
    """Puts a list of what was asked for in place of the drawing, which writes files of one byte."""
    calls = []

    def draw(study, figures, directory, title=None):
        calls.append((study, figures, title))
        names = [figure.get("file", f"{figure['kind']}_{figure['metric']}.png") for figure in figures]
        paths = [pathlib.Path(directory) / name for name in names]
        for path in paths:
            path.write_text("x")
        return paths

    monkeypatch.setattr(plotting, "draw", draw)
    return calls


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run made once, without figures; copy it to change it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "two_point.toml").write_text(TOML)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plotting, "draw", lambda study, figures, directory, title=None: [])
        assert main(["run", str(folder / "two_point.toml"), "--out", str(folder / "out"), "--quiet"]) == 0
    return folder / "out"


def failure(capsys, arguments, status=2):
    """The one line on stderr of a command that fails."""
    assert main([str(argument) for argument in arguments]) == status
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.err.startswith("jaxcascade: "), captured.err
    assert "Traceback" not in captured.err
    return captured.err.strip().removeprefix("jaxcascade: error: ")


def strict_json(path):
    def refuse(constant):
        raise AssertionError(f"{path} holds {constant}")

    return json.loads(path.read_text(), parse_constant=refuse)


# --- run


@pytest.mark.usefixtures("single")
def test_a_run_writes_its_folder_and_prints_its_tables(write, drawn, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["run", write(TOML), "--out", str(out), "--seed", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert all(len(line) <= 120 for line in captured.out.splitlines())
    assert "Two points: round 40, 3 seeds" in captured.out
    for word in ("policy", "regret", "cost", "deferral_rate", "accepted_accuracy", "±", "published", "1.60 ± 0.20"):
        assert word in captured.out
    assert {path.name for path in out.iterdir()} == OWN | {"curves_regret.png", "curves_cost.png"}

    found = jc.load_study(out / "curves.npz")
    assert found.num_seeds == 3 and found.steps.tolist() == [10, 20, 30, 40] and found.meta["seed"] == 5
    summary = strict_json(out / "summary.json")
    assert summary["steps"] == [10, 20, 30, 40]
    assert summary["policies"]["accept"]["regret"]["n"] == 3
    assert summary["policies"]["accept"]["threshold_mean"]["mean"] == [None] * 4
    np.testing.assert_allclose(
        summary["policies"]["accept"]["regret"]["mean"][-1], found.final("accept", "regret").mean()
    )

    manifest = strict_json(out / "manifest.json")
    assert manifest["config_file"] == "two_point.toml"
    assert manifest["config"]["seed"] == 5 and manifest["config"]["record"] == 4
    assert manifest["config"]["instance"] == {"kind": "two_point", "num_levels": 3}
    assert set(manifest["versions"]) == {"jaxcascade", "python", "jax", "jaxlib", "numpy"}
    assert manifest["devices"][0]["platform"] == jax.devices()[0].platform
    assert manifest["prng"] == str(jax.random.key_impl(jax.random.key(0)))
    times = manifest["times"]
    assert times["policies"]["accept"]["compile_seconds"] > 0 and times["policies"]["accept"]["run_seconds"] > 0
    assert times["wall_seconds"] >= times["policies"]["accept"]["compile_seconds"]
    assert manifest["float_type"] == "float32" and manifest["date"].startswith("20")
    assert manifest["figures"] == ["curves_regret.png", "curves_cost.png"]
    ((_, figures, title),) = drawn
    assert figures == manifest["config"]["figures"] and title == "Two points"


def test_flags_and_settings_replace_values(write, drawn, tmp_path, capsys):
    flags = ["--seeds", "2", "--steps", "20", "--set", "record=[20]", "--set", "policies.accept.kind=defer_all"]
    assert main(["run", write(TOML), "--out", str(tmp_path / "out"), "--quiet", *flags]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == ""
    found = jc.load_study(tmp_path / "out" / "curves.npz")
    assert found.num_seeds == 2 and found.steps.tolist() == [20]
    np.testing.assert_array_equal(found.final("accept", "deferrals"), 20)
    assert strict_json(tmp_path / "out" / "manifest.json")["config"]["policies"]["accept"]["kind"] == "defer_all"


def test_a_quick_run_has_no_z(write, drawn, tmp_path, capsys):
    assert main(["run", write(TOML), "--out", str(tmp_path / "out"), "--quick"]) == 0
    captured = capsys.readouterr().out
    assert "round 20, 2 seeds" in captured
    assert "no z: horizon, instance or policies are not those of the file" in captured


def test_a_log_is_given_as_a_bare_path(write, drawn, finished, tmp_path, monkeypatch):
    asked = []

    def run(config, progress, **options):
        asked.append(config)
        return jc.load_study(finished / "curves.npz")

    monkeypatch.setattr(config, "run_config", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text("level,correct\n1,0\n2,1\n3,1\n")
    (tmp_path / "configs").mkdir()
    name = next(iter(jc.deferral.levels()))
    path = write(TOML.replace('kind = "two_point"\nnum_levels = 3', f'log = "{name}"'), "configs/log.toml")
    assert main(["run", path, "--out", "out", "--quiet", "--set", "instance.log=my.csv"]) == 0
    np.testing.assert_array_equal(config.build(asked[0])[0].accuracy, [0, 1, 1])
    assert strict_json(tmp_path / "out" / "manifest.json")["config"]["instance"] == {"log": "my.csv"}


def test_a_sweep_prints_a_row_per_point_and_policy(write, drawn, tmp_path, capsys):
    path = write(TOML.split("[[figures]]")[0] + SWEEP)
    assert main(["run", path, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("gap"))
    assert [line.split()[:2] for line in lines[header + 1 : header + 3]] == [["0.02", "accept"], ["0.04", "accept"]]
    assert drawn[0][1] == [{"kind": "sweep", "metric": "regret"}]
    assert strict_json(tmp_path / "out" / "summary.json")["axes"] == {"gap": [0.02, 0.04]}


def test_a_baseline_prints_paired_differences(write, drawn, tmp_path, capsys):
    text = 'baseline = "accept"\n' + TOML + '[policies.defer]\nkind = "defer_all"\n'
    assert main(["run", write(text), "--out", str(tmp_path / "out")]) == 0
    table = capsys.readouterr().out.split("minus accept, paired by seed\n\n")[1].split("\n\n")[0]
    header, row = (line.split("  ") for line in table.splitlines())
    assert header[0] == "policy" and row[0] == "defer"
    found = jc.load_study(tmp_path / "out" / "curves.npz")
    gap = found.final("defer", "regret") - found.final("accept", "regret")
    assert number(gap.mean(), 1.96 * gap.std(ddof=1) / np.sqrt(len(gap))) in table


def test_64_bit_floats_for_one_run_only(write, drawn, tmp_path):
    before = jax.config.jax_enable_x64
    flags = ["--quiet", "--x64", "--set", "instance.gap=0.1"]
    assert main(["run", write(TOML), "--out", str(tmp_path / "out"), *flags]) == 0
    assert jax.config.jax_enable_x64 == before
    assert strict_json(tmp_path / "out" / "manifest.json")["float_type"] == "float64"
    regret = jc.load_study(tmp_path / "out" / "curves.npz").final("accept", "regret")
    np.testing.assert_allclose(regret * 10, np.round(regret * 10), rtol=1e-12)


def test_a_folder_with_files_is_refused_unless_told_otherwise(write, drawn, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    path = write(TOML)
    assert f"{out}: expected a new or empty folder" in failure(capsys, ["run", path, "--out", out])
    assert main(["run", path, "--out", str(out), "--overwrite", "--quiet"]) == 0
    (out / "curves_mine.png").write_text("mine")
    first = (out / "curves.npz").read_bytes()
    only = path.replace("two_point", "other")
    pathlib.Path(only).write_text(TOML.replace('[[figures]]\nkind = "curves"\nmetric = "cost"\n', ""))
    assert main(["run", only, "--out", str(out), "--overwrite", "--quiet", "--seed", "9"]) == 0
    assert {path.name for path in out.iterdir()} == OWN | {"curves_regret.png", "notes.txt", "curves_mine.png"}
    assert (out / "curves.npz").read_bytes() != first
    assert strict_json(out / "manifest.json")["config_file"] == "other.toml"


def test_an_empty_folder_is_taken(write, drawn, tmp_path):
    (tmp_path / "out").mkdir()
    assert main(["run", write(TOML), "--out", str(tmp_path / "out"), "--quiet"]) == 0


@pytest.mark.parametrize("error", [ValueError("no such curve"), RuntimeError("out of ink")])
def test_a_failing_figure_loses_nothing(write, tmp_path, monkeypatch, capsys, error):
    def draw(study, figures, directory, title=None):
        (pathlib.Path(directory) / "half.png").write_text("x")
        raise error

    monkeypatch.setattr(plotting, "draw", draw)
    out = tmp_path / "out"
    message = failure(capsys, ["run", write(TOML), "--out", out, "--quiet"])
    assert message.startswith("figures: ") and str(error) in message and str(out) in message
    assert {path.name for path in out.iterdir()} == OWN
    assert jc.load_study(out / "curves.npz").num_seeds == 3


def test_a_failing_write_leaves_the_earlier_results(write, finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(path, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_run_folder, "_write_json", full)
    message = failure(capsys, ["run", write(TOML), "--out", out, "--overwrite", "--quiet", "--seed", "9"])
    assert "No space left on device" in message
    assert (out / ".checkpoint").is_dir()  # --resume writes what was found once there is room
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_an_interrupt_is_one_line(write, tmp_path, monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    arguments = ["run", write(TOML), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(config, "run_config", interrupt)
    assert main(arguments) == 130
    way = f"jaxcascade run {arguments[1]} --out {arguments[3]} --resume"
    assert capsys.readouterr().err == f"jaxcascade: interrupted (go on with: {way})\n"
    # A program must not wait for, or be brought down by, what XLA still computes.
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(sys, "argv", ["jaxcascade", *arguments])
    main()
    assert left == [130]


def test_a_failed_audit_is_one_line(write, tmp_path, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise FloatingPointError("kl: bellman_gap is 1,\nat most 0 was promised")

    monkeypatch.setattr(config, "run_config", fail)
    message = failure(capsys, ["run", write(TOML), "--out", tmp_path / "out"])
    assert message == "kl: bellman_gap is 1, at most 0 was promised"


@pytest.mark.parametrize("library", ["tqdm", None])
def test_progress_is_shown_on_a_terminal(write, drawn, finished, tmp_path, monkeypatch, capsys, library):
    def run(config, progress, **options):
        for done in (60, 120) if progress else ():
            time.sleep(0.15)  # tqdm shows nothing more often than every tenth of a second
            progress("accept", done, 120)
        return jc.load_study(finished / "curves.npz")

    if library:
        pytest.importorskip(library)
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(config, "run_config", run)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    path = write(TOML)
    assert main(["run", path, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().err
    assert "accept" in shown and "\r" in shown and "50%" in shown and "100%" in shown
    assert main(["run", path, "--out", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


# --- everything that can be wrong

MAKE = 'kind = "make_instance"\naccuracy = [0.2, 0.8]\narrival = [0.0, 0.5, 0.5]\n'


def made(old, new):
    assert old in MAKE
    return TOML.replace('kind = "two_point"\nnum_levels = 3\n', MAKE.replace(old, new))


WRONG = {
    "nan accuracy": (made("0.2, 0.8", "0.2, nan"), "instance.accuracy: expected numbers in [0, 1], got nan"),
    "accuracy beyond 1": (made("0.2, 0.8", "0.2, 1.8"), "instance.accuracy: expected numbers in [0, 1], got 1.8"),
    "sum": (made("0.0, 0.5", "0.1, 0.5"), "instance.arrival: expected probabilities that sum to 1, got a sum of 1.1"),
    "negative cost": (made("kind", "cost_holding = -1\nkind"), "instance.cost_holding: expected a finite number >= 0"),
    "no capacity": (made("kind", "queue_capacity = 0\nkind"), "instance.queue_capacity: expected a whole number >= 1"),
    "no steps": (TOML.replace("num_steps = 40", "num_steps = 0"), "num_steps: expected a whole number from 1"),
    "policy": (TOML.replace("accept_all", "acept_all"), "policies.accept.kind: expected one of", "'accept_all'"),
    "instance": (TOML.replace("two_point", "two_points"), "instance.kind: expected one of", "'two_point'"),
    "argument": (TOML.replace("num_levels", "num_level"), "instance.num_level: expected an argument", "'num_levels'"),
    "key": (TOML.replace("record", "recrd"), "recrd: expected one of", "'record'"),
    "malformed": ("system = deferral", "expected TOML, got a malformed file", "at line 1, column 10"),
    "metric": (TOML.replace('"cost"', '"costs"'), "figures[1].metric: expected one of", "'cost'"),
    "no log": (TOML.replace('kind = "two_point"\nnum_levels = 3', 'log = "no.csv"'), "instance.log: expected a file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_config_is_one_line_and_makes_no_folder(write, tmp_path, capsys, case):
    text, *fragments = WRONG[case]
    path = write(text)
    message = failure(capsys, ["run", path, "--out", tmp_path / "out"])
    assert message.startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment in message
    assert not (tmp_path / "out").exists()


LOGS = {
    "missing column": ("level,right\n1,0\n", "expected columns level and correct"),
    "empty": ("", "got an empty file"),
    "level": ("level,correct\n0,1\n", "row 1, column 'level': expected an integer from 1"),
}


@pytest.mark.parametrize("case", LOGS)
def test_a_bad_log_is_one_line(write, tmp_path, capsys, case):
    text, fragment = LOGS[case]
    write(text, "log.csv")
    path = write(TOML.replace('kind = "two_point"\nnum_levels = 3', 'log = "log.csv"'))
    assert fragment in failure(capsys, ["run", path, "--out", tmp_path / "out"])


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(write, tmp_path, monkeypatch, capsys, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "run_config", lambda *arguments: pytest.fail("it ran"))
    message = failure(capsys, ["run", write(TOML), "--out", tmp_path / place])
    assert message.startswith(f"{tmp_path / place}: expected a folder that can be written")


FLAGS = {
    "no steps": (["--steps", "0"], "num_steps: expected a whole number from 1"),
    "negative seeds": (["--seeds", "-1"], "num_seeds: expected a whole number from 1"),
    "steps as text": (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
    "unknown flag": (["--stepz", "3"], "unrecognized arguments: --stepz 3"),
    "abbreviated flag": (["--over"], "unrecognized arguments: --over"),
    "unknown key": (["--set", "instance.gapp=1"], "instance.gapp: expected an argument of two_point"),
    "no value": (["--set", "instance.gap"], "argument --set: expected KEY=VALUE, got 'instance.gap'"),
    "open list": (["--set", "instance.gap=[1"], "argument --set: expected a TOML value for instance.gap, got '[1'"),
    "no key": (["--set", "a b=1"], "'a b': expected a dotted key"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_wrong_flag_is_one_line(write, tmp_path, capsys, case):
    flags, fragment = FLAGS[case]
    assert fragment in failure(capsys, ["run", write(TOML), "--out", tmp_path / "out", *flags])
    assert not (tmp_path / "out").exists()


def test_a_missing_config_is_one_line(tmp_path, capsys):
    message = failure(capsys, ["run", tmp_path / "no.toml", "--out", tmp_path / "out"])
    assert message == f"{tmp_path / 'no.toml'}: expected a TOML file, got no such file"


def test_a_folder_for_a_config_is_one_line(tmp_path, capsys):
    assert "Is a directory" in failure(capsys, ["run", tmp_path, "--out", tmp_path / "out"])


@pytest.mark.parametrize("arguments", [[], ["rum"], ["run"], ["plot"], ["compare"]])
def test_a_wrong_command_is_one_line(capsys, arguments):
    assert "--help" in failure(capsys, arguments)


# --- list, plot, compare


def test_list_names_what_there_is(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 120 for line in text.splitlines())
    for system in jc.systems().values():
        assert f'system = "{system.name}"' in text
        for name in (*system.builders, *system.policies, *system.labels):
            assert name in text
    assert "two_point(num_levels=10, gap=0.08" in text
    assert "The policy that gives every LLM answer out." in text
    for name in jc.deferral.levels():
        assert name in text


def test_plot_draws_the_figures_of_the_run_again(finished, drawn, tmp_path, capsys):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    assert main(["plot", str(out)]) == 0
    assert [figure["metric"] for figure in drawn[0][1]] == ["regret", "cost"] and drawn[0][2] == "Two points"
    assert capsys.readouterr().out.split() == [str(out / "curves_regret.png"), str(out / "curves_cost.png")]
    assert main(["plot", str(out), "--metric", "accuracy"]) == 0
    assert drawn[1][1] == [{"kind": "curves", "metric": "accuracy"}]
    names = ["curves_regret.png", "curves_cost.png", "curves_accuracy.png"]
    assert strict_json(out / "manifest.json")["figures"] == names
    assert {path.name for path in out.iterdir()} == OWN | set(names)


def test_plot_puts_one_figure_where_it_is_wanted(finished, drawn, tmp_path, capsys):
    target = tmp_path / "cost.pdf"
    assert main(["plot", str(finished), "--metric", "cost", "--out", str(target)]) == 0
    assert target.is_file() and capsys.readouterr().out == f"{target}\n"
    assert {path.name for path in finished.iterdir()} == OWN
    assert "got 2 figures" in failure(capsys, ["plot", finished, "--out", target])
    assert "No such file" in failure(capsys, ["plot", finished, "--metric", "cost", "--out", tmp_path / "no" / "a.png"])


def test_plot_refuses_what_is_not_there(finished, tmp_path, capsys):
    message = failure(capsys, ["plot", finished, "--metric", "regrets"])
    assert message.startswith("--metric: expected one of") and "did you mean 'regret'?" in message
    assert f"{tmp_path / 'no'}" in failure(capsys, ["plot", tmp_path / "no"])
    shutil.copy(finished / "curves.npz", tmp_path)
    assert "manifest.json: expected the manifest of a run, got no such file" in failure(capsys, ["plot", tmp_path])
    (tmp_path / "manifest.json").write_text("{")
    assert "manifest.json: expected the manifest of a run as JSON" in failure(capsys, ["plot", tmp_path])
    (tmp_path / "manifest.json").write_text("[]")
    assert "manifest.json: expected the manifest of a run" in failure(capsys, ["plot", tmp_path])


def test_compare_sets_runs_side_by_side(finished, write, drawn, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(finished.parent)
    path = write(TOML.replace("[policies.accept]", "[policies.defer]\nkind = 'defer_all'\n[policies.accept]"))
    assert main(["run", path, "--out", str(tmp_path / "b"), "--quiet"]) == 0
    assert main(["compare", "out", str(tmp_path / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "out: two_point.toml, round 40, 3 seeds"
    assert lines[1] == f"{tmp_path / 'b'}: two_point.toml, round 40, 3 seeds"
    rows = [line.split() for line in lines]
    same = next(row for row in rows if row[:2] == ["accept", "regret"])
    assert same[2:5] == same[5:8] and same[3] == "±"
    assert next(row for row in rows if row[:2] == ["defer", "regret"])[2] == "-"


def test_compare_needs_runs_of_one_system(finished, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other"
    shutil.copytree(finished, other)
    original = results.load_study
    monkeypatch.setattr(
        _run_folder,
        "load_study",
        lambda path: dataclasses.replace(original(path), system="deferral" if "finished" in str(path) else "queueing"),
    )
    message = failure(capsys, ["compare", finished, other])
    assert message.startswith("compare: expected runs of one system, got deferral in ") and "queueing in" in message


# --- text


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (334.123, 23.4, "334 ± 23"),
        (334.123, 2.345, "334.1 ± 2.3"),
        (0.12345, 0.00211, "0.1235 ± 0.0021"),
        (123456.7, 1234.5, "123457 ± 1234"),
        (5.0, 0.0, "5 ± 0"),
        (5.25, float("nan"), "5.25"),
        (float("nan"), float("nan"), "-"),
        (float("inf"), float("nan"), "inf"),
    ],
)
def test_numbers_have_two_digits_of_their_half_width(mean, half, text):
    assert number(mean, half) == text


def test_a_table_that_is_too_wide_goes_on_below():
    header = ["policy", *(f"metric_{i:02}" for i in range(20))]
    text = text_table(header, [["a", *("1.0 ± 0.1" for _ in range(20))]], 1)
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("policy") == text.count("\n\n") + 1 == 2
    assert all(f"metric_{i:02}" in text for i in range(20))


# --- as a program


def test_the_module_runs_as_a_program_and_draws(write, tmp_path):
    command = [sys.executable, "-W", "error", "-m", "jaxcascade", "run", write(TOML), "--out", "out", "--quick"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "results and 2 figure(s) in out" in done.stdout
    for name in ("curves_regret.png", "curves_cost.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_all_experiments_of_a_folder_become_a_page(tmp_path, capsys):
    source = tmp_path / "experiments"
    source.mkdir()
    text = """
title = "Two <levels>"
description = "What it asks."
system = "deferral"
num_steps = 30
num_seeds = 2
record = 2
[instance]
kind = "two_point"
num_levels = 3
gap = 0.1
[policies.all]
kind = "accept_all"
"""
    (source / "a.toml").write_text(text)
    (source / "b.toml").write_text(text.replace("accept_all", "no_such_rule"))
    arguments = ["run", "--all", str(source), "--out", str(tmp_path / "out"), "--quiet"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "1 of 2 experiments not run: b (" in captured.err and "no_such_rule" in captured.err
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert captured.out.strip() == str(tmp_path / "out" / "index.html")
    assert "Two &lt;levels&gt;" in page and "What it asks." in page and "no_such_rule" in page
    for name in re.findall(r'src="([^"]+)"', page):
        assert (tmp_path / "out" / name).stat().st_size > 5_000
    assert "http" not in page and "2 seeds, 30 rounds" in page
    (source / "b.toml").unlink()
    assert main([*arguments, "--resume"]) == 0
    assert main(["run", "--all", str(tmp_path / "none"), "--out", str(tmp_path / "o")]) == 2
    assert "expected a folder of experiments" in capsys.readouterr().err
    assert main(["run", "--out", str(tmp_path / "o")]) == 2
