"""Experiments in TOML: what is read, what is refused and in which words, published numbers beside ours."""

import math
import os

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.config import as_table, build, load_config, paper_table, run_config

BASE = """
system = "deferral"
num_steps = 40
num_seeds = 3
"""
INSTANCE = '[instance]\nkind = "two_point"\nnum_levels = 3\n'
POLICIES = '[policies.accept]\nkind = "accept_all"\n[policies.kl-pbd]\nkind = "kl_pbd"\nestimate_arrival = true\n'
SWEEP = "[sweep]\ninstance.gap = [0.02, 0.04]\npolicies.kl-pbd.resolve_every = [1, 50]\n"
PLAIN = BASE + INSTANCE + POLICIES


@pytest.fixture
def write(tmp_path):
    """Writes a TOML file (or another) and returns its path."""

    def write_file(text, name="experiment.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def complaint(path, **options):
    """The one line that the file is refused with, without the file's name in front."""
    with pytest.raises(ValueError) as caught:
        load_config(path, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


# --- what is read


def test_a_small_file_gets_the_defaults(write):
    config = load_config(write(PLAIN))
    assert config.system == "deferral"
    assert (config.num_steps, config.num_seeds, config.seed, config.record) == (40, 3, 0, 50)
    assert config.title is None and config.description is None and config.snapshot is None
    assert list(config.policies) == ["accept", "kl-pbd"]
    assert config.figures == [{"kind": "curves", "metric": "regret"}]
    assert config.sweep == () and config.paper == [] and config.comparable


def test_every_key_is_read(write):
    text = (
        'title = "T"\ndescription = "D"\nseed = 7\nrecord = [10, 40]\nsnapshot = 20\n'
        + PLAIN
        + SWEEP
        + '[[figures]]\nkind = "scatter"\nx = "cost"\n'
        + '[[paper]]\npolicy = "accept"\nmetric = "regret"\nn = 100\n'
        + "cells = [{gap = 0.02, resolve_every = 1, mean = 3, ci95 = 0.5}]\n"
    )
    config = load_config(write(text))
    assert (config.title, config.description, config.seed, config.snapshot) == ("T", "D", 7, 20)
    assert config.record == [10, 40]
    assert [axis.name for axis in config.sweep] == ["gap", "resolve_every"]
    assert config.figures == [{"kind": "scatter", "x": "cost"}]
    assert config.paper[0].n == 100 and config.paper[0].cells[0].point == {"gap": 0.02, "resolve_every": 1}


def test_a_sweep_draws_a_sweep_by_default(write):
    assert load_config(write(PLAIN + SWEEP)).figures == [{"kind": "sweep", "metric": "regret"}]


def test_an_axis_has_its_whole_path_for_a_name_where_two_would_clash(write):
    text = PLAIN + "[policies.other]\nkind = 'kl_pbd'\n" + SWEEP + "policies.other.resolve_every = [2]\n"
    names = [axis.name for axis in load_config(write(text)).sweep]
    assert names == ["gap", "policies.kl-pbd.resolve_every", "policies.other.resolve_every"]


def test_a_point_of_the_grid_is_built_with_its_values(write):
    config = load_config(write(PLAIN + SWEEP))
    instance, policies = build(config, gap=0.04, resolve_every=50)
    np.testing.assert_allclose(instance.accuracy, [0.54, 0.46, 0.54], rtol=1e-6)
    assert policies["kl-pbd"] == jc.deferral.kl_pbd(estimate_arrival=True, resolve_every=50)
    assert list(policies) == ["accept", "kl-pbd"]


def test_policies_of_any_name(write):
    config = load_config(write(BASE + INSTANCE + '[policies."KL 50 %. ü/x"]\nkind = "kl_pbd"\n'))
    assert list(build(config)[1]) == ["KL 50 %. ü/x"]


QUICK = "[quick]\nnum_steps = 10\nnum_seeds = 2\nrecord = 5\nsnapshot = 4\nsweep = {instance.gap = [0.02]}\n"


def test_quick_values_count_only_when_asked_for(write):
    path = write(PLAIN + SWEEP + QUICK)
    whole, quick = load_config(path), load_config(path, quick=True)
    assert (whole.num_steps, whole.num_seeds, whole.record, whole.snapshot) == (40, 3, 50, None)
    assert (quick.num_steps, quick.num_seeds, quick.record, quick.snapshot) == (10, 2, 5, 4)
    assert [axis.values for axis in quick.sweep] == [[0.02]] and len(whole.sweep) == 2
    assert whole.comparable and not quick.comparable


def test_overrides_go_over_quick_values_and_make_a_run_incomparable_where_they_change_it(write):
    path = write(PLAIN + QUICK)
    config = load_config(path, quick=True, overrides={"num_steps": 12, "policies.kl-pbd.resolve_every": 9})
    assert config.num_steps == 12 and config.policies["kl-pbd"]["resolve_every"] == 9
    assert load_config(path, overrides={"num_seeds": 9, "seed": 1, "record": 3}).comparable
    assert load_config(path, overrides={"instance.num_levels": 3}).comparable
    assert not load_config(path, overrides={"instance.num_levels": 4}).comparable
    assert not load_config(path, overrides={"record": [1, 2]}).comparable
    added = load_config(path, overrides={'policies."a.b".kind': "oracle"})
    assert list(added.policies) == ["accept", "kl-pbd", "a.b"]


def test_the_table_of_a_config_gives_it_again(write):
    text = PLAIN + SWEEP + '[[paper]]\npolicy = "accept"\nmetric = "cost"\n'
    config = load_config(write(text + "cells = [{gap = 0.02, resolve_every = 1, mean = 0.50, ci95 = 0}]\n"))
    table = as_table(config)
    assert table["sweep"] == {"instance": {"gap": [0.02, 0.04]}, "policies": {"kl-pbd": {"resolve_every": [1, 50]}}}
    assert table["paper"][0]["cells"] == [{"gap": 0.02, "resolve_every": 1, "mean": 0.5, "ci95": 0.0, "decimals": 2}]
    again = load_config(config.path, overrides=table)
    assert again == config


# --- instances from files

LOG = "level,correct\n1,0\n2,1\n2,0\n3,1\n"


def from_log(log, more="", policies=POLICIES):
    return BASE + f'[instance]\nlog = "{log}"\n{more}' + policies


def test_a_log_beside_the_file_goes_before_one_in_the_working_directory(write, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "log.csv").write_text("level,correct\n1,1\n")
    path = write(from_log("log.csv", "queue_capacity = 3\n"))
    instance, _ = build(load_config(path))
    assert instance.accuracy.shape == (1,) and instance.queue_capacity == 3
    write(LOG, "log.csv")
    instance, _ = build(load_config(path))
    np.testing.assert_allclose(instance.arrival, [0, 0.25, 0.5, 0.25])
    np.testing.assert_allclose(instance.accuracy, [0, 0.5, 1])


def test_a_log_may_be_a_shipped_table_or_named_with_the_builder(write):
    name = next(iter(jc.deferral.levels()))
    instance, _ = build(load_config(write(from_log(name))))
    assert len(instance.accuracy) == len(jc.deferral.levels()[name].count)
    write(LOG, "log.csv")
    instance, _ = build(load_config(write(from_log("log.csv", 'kind = "from_log"\nnum_levels = 5\n'))))
    assert len(instance.accuracy) == 5


def test_a_log_can_be_put_in_place_of_another(write):
    write(LOG, "log.csv")
    name = next(iter(jc.deferral.levels()))
    config = load_config(write(from_log(name)), overrides={"instance.log": "log.csv"})
    assert len(build(config)[0].accuracy) == 3


def test_an_instance_file_lies_beside_the_toml_file(write, tmp_path):
    jc.save_instance(tmp_path / "instance.npz", jc.deferral.two_point(num_levels=5, gap=0.1))
    config = load_config(write(BASE + '[instance]\nfile = "instance.npz"\n' + POLICIES))
    np.testing.assert_allclose(build(config)[0].accuracy, [0.6, 0.4, 0.6, 0.4, 0.6], rtol=1e-6)


# --- what is refused


def replaced(old, new):
    assert old in PLAIN
    return PLAIN.replace(old, new)


MAKE = '[instance]\nkind = "make_instance"\naccuracy = [0.2, 0.8]\narrival = [0.0, 0.5, 0.5]\n'


def made(old, new):
    assert old in MAKE
    return BASE + MAKE.replace(old, new) + POLICIES


def paper(entry="", cell=""):
    entry = entry or 'policy = "accept"\nmetric = "regret"\n'
    cell = cell or "gap = 0.02, resolve_every = 1, mean = 1, ci95 = 0"
    return PLAIN + SWEEP + f"[[paper]]\n{entry}cells = [{{{cell}}}]\n"


REFUSED = {
    "unknown baseline": ('baseline = "acept"\n' + PLAIN, "baseline: ", "did you mean 'accept'"),
    "no system": (replaced('system = "deferral"\n', ""), "system: expected one of ", "got none"),
    "unknown system": (replaced('"deferral"', '"deferal"'), "system: expected one of", "did you mean 'deferral'"),
    "system is a number": (replaced('"deferral"', "3"), "system: expected a text, got 3"),
    "unknown key": ("num_sed = 3\n" + PLAIN, "num_sed: expected one of", "'num_seeds'"),
    "no steps": (replaced("num_steps = 40\n", ""), "num_steps: expected a whole number", "got none"),
    "zero steps": (replaced("num_steps = 40", "num_steps = 0"), "num_steps: expected a whole number from 1", "got 0"),
    "fraction of a step": (replaced("num_steps = 40", "num_steps = 40.0"), "num_steps:", "got 40.0"),
    "steps beyond int32": (replaced("num_steps = 40", "num_steps = 3_000_000_000"), "num_steps:", "3000000000"),
    "true seeds": (replaced("num_seeds = 3", "num_seeds = true"), "num_seeds:", "got True"),
    "negative seed": ("seed = -1\n" + PLAIN, "seed: expected a whole number from 0", "got -1"),
    "seed of 33 bits": (f"seed = {2**32}\n" + PLAIN, "seed: expected", str(2**32)),
    "record of nothing": ("record = []\n" + PLAIN, "record: expected"),
    "record too late": ("record = [41]\n" + PLAIN, "record: expected rounds within 1..40"),
    "zero records": ("record = 0\n" + PLAIN, "record: expected at least 1"),
    "record of text": ("record = ['a']\n" + PLAIN, "record: expected", "'a'"),
    "snapshot too late": ("snapshot = 41\n" + PLAIN, "snapshot: expected a whole number from 1 to 40, got 41"),
    "title is a list": ("title = []\n" + PLAIN, "title: expected a text, got []"),
    "unknown quick key": (PLAIN + "[quick]\nseed = 3\n", "quick.seed: expected one of"),
    "wrong quick value": (PLAIN + "[quick]\nnum_steps = 'x'\n", "quick.num_steps: expected"),
    "wrong quick record": (PLAIN + "[quick]\nrecord = 'x'\n", "quick.record: expected"),
    "no instance": (BASE + POLICIES, "instance: expected a table, got none"),
    "instance without kind": (BASE + "[instance]\ngap = 1\n" + POLICIES, "instance: expected one of file, kind, log"),
    "unknown instance": (replaced("two_point", "twopoint"), "instance.kind: expected one of", "'two_point'"),
    "unknown argument": (replaced("num_levels", "num_level"), "instance.num_level: expected an argument of two_point"),
    "its closest name": (replaced("num_levels", "num_level"), "did you mean 'num_levels'?"),
    "argument is text": (INSTANCE + "gap = 'big'\n", "instance.gap: expected a number, got 'big'"),
    "argument is a list": (INSTANCE + "gap = [0.1]\n", "instance.gap: expected a number, got [0.1]"),
    "argument the builder refuses": (replaced("= 3\n[p", "= 0\n[p"), "instance.num_levels: expected a whole number"),
    "gap too wide": (INSTANCE + "gap = 0.7\n", "instance: accuracy: expected numbers in [0, 1], got 1.2"),
    "missing argument": (made("arrival = [0.0, 0.5, 0.5]\n", ""), "instance.arrival: expected a value", "got none"),
    "nan accuracy": (made("[0.2, 0.8]", "[0.2, nan]"), "instance.accuracy: expected numbers in [0, 1], got nan"),
    "accuracy beyond 1": (made("[0.2, 0.8]", "[0.2, 1.8]"), "instance.accuracy: expected numbers in [0, 1], got 1.8"),
    "probabilities": (made("0.0, 0.5, 0.5", "0.1, 0.5, 0.5"), "instance.arrival: expected probabilities that sum to 1"),
    "negative cost": (made("kind", "cost_expert = -1\nkind"), "instance.cost_expert: expected a finite number >= 0"),
    "no capacity": (made("kind", "queue_capacity = 0\nkind"), "instance.queue_capacity: expected a whole number >= 1"),
    "ragged accuracy": (made("[0.2, 0.8]", "[[0.2], 0.8]"), "instance: "),
    "file and kind": (BASE + INSTANCE + "file = 'x.npz'\n" + POLICIES, "instance.kind: expected nothing beside"),
    "log and another kind": (BASE + INSTANCE + "log = 'x'\n" + POLICIES, "instance.log: expected an argument of two_"),
    "no such instance file": (BASE + "[instance]\nfile = 'no.npz'\n" + POLICIES, "instance.file: ", "no such file"),
    "no such log": (from_log("no.csv"), "instance.log: expected a file or a shipped table", "'no.csv'"),
    "mistyped table": (from_log("wang_addsub_1@10"), "did you mean 'wang_addsub_001@10'?"),
    "no policies": (BASE + INSTANCE, "policies: expected a table, got none"),
    "empty policies": (BASE + INSTANCE + "[policies]\n", "policies: expected at least one, got none"),
    "policy is text": (BASE + "policies = {a = 'oracle'}\n" + INSTANCE, "policies.a: expected a table, got 'oracle'"),
    "policy without kind": (PLAIN + "[policies.a]\n", "policies.a.kind: expected one of", "got none"),
    "unknown policy": (replaced("'accept_all'".replace("'", '"'), '"kl_pdb"'), "policies.accept.kind:", "'kl_pbd'"),
    "unknown policy argument": (PLAIN + "resolve_evry = 2\n", "policies.kl-pbd.resolve_evry: expected an", "_every'?"),
    "argument of a policy without": (
        replaced('"accept_all"', '"accept_all"\na = 1'),
        "policies.accept.a: expected none",
    ),
    "flag is a number": (replaced("true", "1"), "policies.kl-pbd.estimate_arrival: expected true or false, got 1"),
    "policy's own check": (
        PLAIN + "resolve_every = 0\n",
        "policies.kl-pbd.resolve_every: expected a whole number >= 1",
    ),
    "quoted policy name": (PLAIN + "[policies.'a b']\nkind = 'x'\n", 'policies."a b".kind: expected one of'),
    "sweep elsewhere": (PLAIN + "[sweep]\ninstanc.gap = [1]\n", "sweep.instanc: expected one of", "'instance'"),
    "sweep of another policy": (PLAIN + "[sweep]\npolicies.kl.a = [1]\n", "sweep.policies.kl: expected one of accept"),
    "sweep without a list": (PLAIN + "[sweep]\ninstance.gap = 0.1\n", "sweep.instance.gap: expected a list of values"),
    "sweep of nothing": (PLAIN + "[sweep]\ninstance.gap = []\n", "sweep.instance.gap: expected a list", "got []"),
    "sweep of a table": (PLAIN + "[sweep]\ninstance = [1]\n", "sweep.instance: expected a table of arguments"),
    "sweep of no argument": (PLAIN + "[sweep]\ninstance.gapp = [1]\n", "instance.gapp: expected an argument", "'gap'"),
    "a bad point": (PLAIN + "[sweep]\ninstance.gap = [0.1, 0.9]\n", "instance: accuracy: expected numbers in [0, 1]"),
    "figures is a table": (PLAIN + "[figures]\nkind = 'curves'\n", "figures: expected a list"),
    "figure without kind": (PLAIN + "[[figures]]\nmetric = 'cost'\n", "figures[0].kind: expected a text, got none"),
    "unknown figure": (PLAIN + "[[figures]]\nkind = 'curve'\n", "figures[0].kind: expected one of", "'curves'"),
    "unknown keyword": (PLAIN + "[[figures]]\nkind = 'curves'\nmetrc = 'cost'\n", "figures[0].metrc: ", "'metric'"),
    "unknown metric": (PLAIN + "[[figures]]\nkind = 'curves'\nmetric = 'regrets'\n", "figures[0].metric:", "'regret'"),
    "paper is a table": (PLAIN + "[paper]\npolicy = 'a'\n", "paper: expected a list"),
    "paper of no policy": (paper("policy = 'b'\nmetric = 'regret'\n"), "paper[0].policy: expected one of accept, kl"),
    "paper of no metric": (paper("policy = 'accept'\nmetric = 'x'\n"), "paper[0].metric: expected one of"),
    "unknown paper key": (paper("polcy = 'accept'\n"), "paper[0].polcy: expected one of", "'policy'"),
    "cell without axis": (paper(cell="gap = 0.02, mean = 1, ci95 = 0"), "paper[0].cells[0].resolve_every: expected"),
    "cell off the axis": (
        paper(cell="gap = 0.03, resolve_every = 1, mean = 1, ci95 = 0"),
        "paper[0].cells[0].gap: expected one of 0.02, 0.04, got 0.03",
    ),
    "cell of another axis": (
        paper(cell="gapp = 0.02, resolve_every = 1, mean = 1, ci95 = 0"),
        "paper[0].cells[0].gapp: expected one of",
        "'gap'",
    ),
    "cell without mean": (paper(cell="gap = 0.02, resolve_every = 1, ci95 = 0"), "cells[0].mean: expected a finite"),
    "negative half width": (
        paper(cell="gap = 0.02, resolve_every = 1, mean = 1, ci95 = -1.5"),
        "paper[0].cells[0].ci95: expected a finite number >= 0, got -1.5",
    ),
    "nan mean": (
        paper(cell="gap = 0.02, resolve_every = 1, mean = nan, ci95 = 0"),
        "paper[0].cells[0].mean: expected a finite number, got NaN",
    ),
    "malformed": ("system = \n", "expected TOML, got a malformed file: ", "at line 1, column 10"),
    "not text": (b"title = '\xff'\n", "expected UTF-8 text, got byte 0xff at position 9"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_in_one_line(write, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    text, *fragments = REFUSED[case]
    if isinstance(text, str) and text.startswith("[instance]"):
        text = BASE + text + POLICIES
    message = complaint(write(text))
    for fragment in fragments:
        assert fragment in message, message
    assert message.startswith(fragments[0]) or case in ("its closest name", "mistyped table") or "cells[0]" in message


LOGS = {
    "missing column": ("level,right\n1,0\n", "expected columns level and correct"),
    "empty": ("", "got an empty file"),
    "only a header": ("level,correct\n", "got none"),
    "level below": ("level,correct\n1,0\n0,1\n", "row 2, column 'level'"),
    "level above": ("level,correct\n1,0\n9,1\n", "row 2, column 'level': expected an integer from 1 to 4"),
    "not a number": ("level,correct\nhigh,0\n", "row 1, column 'level'"),
}


@pytest.mark.parametrize("case", LOGS)
def test_a_bad_log_is_refused_in_one_line(write, case):
    text, fragment = LOGS[case]
    log = write(text, "log.csv")
    message = complaint(write(from_log("log.csv", "num_levels = 4\n")))
    assert message.startswith(f"instance: {log}") and fragment in message


def test_a_damaged_instance_file_is_refused(write):
    write(b"nonsense", "instance.npz")
    message = complaint(write(BASE + '[instance]\nfile = "instance.npz"\n' + POLICIES))
    assert message.startswith("instance.file: ") and "damaged" in message


def test_an_instance_file_of_impossible_numbers_is_refused(write, tmp_path):
    instance = jc.deferral.two_point(num_levels=2)
    arrays = {name: np.asarray(value) for name, value in vars(instance).items()}
    arrays["accuracy"] = np.array([0.5, np.nan])
    np.savez(tmp_path / "instance.npz", system=np.array("deferral"), **arrays)
    message = complaint(write(BASE + '[instance]\nfile = "instance.npz"\n' + POLICIES))
    assert message.startswith("instance.file: ") and "accuracy: expected numbers in [0, 1], got nan" in message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.toml: expected a TOML file, got no such file"):
        load_config(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("overrides", "fragment"),
    [
        ({"instance.gapp": 1}, "instance.gapp: expected an argument of two_point"),
        ({"num_steps.a": 1}, "num_steps: expected a table to set a in, got 40"),
        ({"instance.num_levels.a": 1}, "instance.num_levels: expected a table to set a in, got 3"),
        ({"quick.num_steps": 1}, "quick.num_steps: expected a key outside [quick]"),
        ({"a b": 1}, "'a b': expected a dotted key"),
        ({"": 1}, "'': expected a dotted key"),
        ({"a = 1\nb": 1}, "expected a dotted key"),
        ({"num_steps": 0}, "num_steps: expected a whole number from 1"),
    ],
)
def test_overrides_are_checked_like_the_file(write, overrides, fragment):
    assert fragment in complaint(write(PLAIN), overrides=overrides)


def test_a_quick_run_needs_quick_values(write):
    assert "quick: expected a table [quick]" in complaint(write(PLAIN), quick=True)


# --- runs and published numbers


def test_a_run_is_the_study_described(write):
    text = BASE + INSTANCE + '[policies.accept]\nkind = "accept_all"\n[sweep]\ninstance.gap = [0.02, 0.04]\n'
    config = load_config(write("record = [10, 40]\n" + text))
    calls = []
    study = run_config(config, progress=lambda *call: calls.append(call))
    assert study.axes == {"gap": [0.02, 0.04]} and study.policies == ["accept"]
    assert study.steps.tolist() == [10, 40] and study.num_seeds == 3
    assert calls[-1] == ("accept", 2 * 3 * 40, 2 * 3 * 40)
    # What a round costs the rule that always accepts is its distance from .5, at odd levels.
    regret = study.final("accept", "regret")
    np.testing.assert_allclose(regret[1], 2 * regret[0], rtol=1e-4)


def fake_study(values, axes=None):
    """A study whose only metric has the given final values, ``[*axes, num_seeds]``."""
    curves = {"accept": {"regret": np.asarray(values, np.float64)[..., None]}}
    return jc.Study("deferral", np.array([40]), curves, axes or {})


def with_paper(write, cell, sweep=""):
    text = PLAIN + sweep + f'[[paper]]\npolicy = "accept"\nmetric = "regret"\nn = 9\ncells = [{cell}]\n'
    return load_config(write(text))


def test_z_is_the_difference_in_standard_errors_with_the_rounding_of_what_was_published(write):
    config = with_paper(write, "{mean = 2.0, ci95 = 0.98}")
    (row,) = paper_table(config, fake_study([1.0, 2.0, 6.0]))
    ours_error = np.std([1, 2, 6], ddof=1) / math.sqrt(3)
    assert row[:3] == ("accept", "regret", {}) and row.n == 9
    assert row.ours == 3.0 and row.ours_ci95 == pytest.approx(1.96 * ours_error, rel=1e-4)
    assert (row.paper, row.paper_ci95) == (2.0, 0.98)
    assert row.z == pytest.approx(1 / math.hypot(ours_error, 0.5, 0.1 / math.sqrt(12)), rel=1e-4)


@pytest.mark.parametrize(
    ("mean", "ours", "z"),
    [
        ("0.50", 0.504, 0.0),
        ("0.50", 0.51, math.inf),
        ("0.5", 0.54, 0.0),
        ("334", 334.4, 0.0),
        ("334.0", 334.4, math.inf),
        ("334.0, decimals = 0", 334.4, 0.0),
        ("0.125", 0.125, 0.0),
        ("1e-3", 0.0014, 0.0),
        ("3e2", 300.4, 0.0),
        ("-2", -2.5, 0.0),
        ("-2", 2.0, math.inf),
    ],
)
def test_without_any_spread_the_decimals_published_decide(write, mean, ours, z):
    config = with_paper(write, f"{{mean = {mean}, ci95 = 0}}")
    (row,) = paper_table(config, fake_study([ours, ours]))
    assert row.ours_ci95 == 0 and row.z == z


def test_z_is_undefined_for_one_seed_and_for_another_experiment(write):
    config = with_paper(write, "{mean = 2.0, ci95 = 1.0}")
    assert math.isnan(paper_table(config, fake_study([2.0]))[0].z)
    other = load_config(config.path, overrides={"instance.num_levels": 4})
    assert math.isnan(paper_table(other, fake_study([1.0, 2.0]))[0].z)


def test_cells_meet_their_grid_points_and_absent_points_are_left_out(write):
    cells = ", ".join(f"{{gap = {gap}, mean = 1.0, ci95 = 0.5}}" for gap in (0.02, 0.04))
    config = with_paper(write, cells, "[sweep]\ninstance.gap = [0.02, 0.04]\n")
    rows = paper_table(config, fake_study([[1, 3], [5, 7]], {"gap": [0.02, 0.04]}))
    assert [(row.point, row.ours) for row in rows] == [({"gap": 0.02}, 2.0), ({"gap": 0.04}, 6.0)]
    narrow = load_config(config.path, overrides={"sweep.instance.gap": [0.04]})
    rows = paper_table(narrow, fake_study([[5, 7]], {"gap": [0.04]}))
    assert [row.point for row in rows] == [{"gap": 0.04}] and not math.isnan(rows[0].z)
    assert paper_table(config, fake_study([5, 7])) == []


def test_paths_may_be_path_objects_or_text(write):
    path = write(PLAIN)
    assert load_config(path) == load_config(os.fspath(path))
