"""Studies: their numbers, their files, their grids, and that a second one compiles nothing."""

import contextlib
import json
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import deferral
from jaxcascade.simulate import _init_batch, _setup_batch, record_steps
from tests.conftest import PEAK_KIB, compilations, quick_jit

ROUNDS, SEEDS = 300, 4
POLICIES = {
    "accept": deferral.accept_all(),
    "coin": deferral.random(0.3),
    "kl-pbd": deferral.kl_pbd(),
    "oracle": deferral.oracle(),
}
WORLDS = {
    "calm": ([0.35, 0.8], [0.2, 0.4, 0.4], 0.6, 0.02),
    "busy": ([0.25, 0.55], [0.0, 0.5, 0.5], 0.3, 0.05),
    "free": ([0.6, 0.4], [0.1, 0.3, 0.6], 0.9, 0.0),
}


def world(name):
    accuracy, arrival, rate, holding = WORLDS[name]
    costs = {"cost_expert": 0.23, "cost_holding": holding}
    return deferral.make_instance(accuracy, arrival, service_rate=rate, queue_capacity=2, **costs)


def stacked(names=WORLDS):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(world(name) for name in names))


def compare(instance, policies=POLICIES, **changes):
    options = {"num_steps": ROUNDS, "num_seeds": SEEDS, "seed": 3, "record": [60, 150, 300]} | changes
    return jc.compare(instance, policies, **options)


@contextlib.contextmanager
def programs():
    """The names of the runner's programs that are compiled inside the block (array arithmetic is none of them)."""
    found = []
    with compilations() as compiled:
        yield found
    found.extend(name for name in compiled if name.startswith("jit(_"))


@pytest.fixture(scope="module")
def study():
    return compare(world("calm"), snapshot=200)


@pytest.fixture(scope="module")
def grid():
    """All policies on three worlds at once, many seeds: a batch for Lemma 2 and for comparison one by one."""
    return compare(stacked(), num_seeds=168, axis=("world", list(WORLDS)))


# ----------------------------------------------------------------------------------------------------------
# What a study says


def test_curves_are_what_the_metrics_mean(study):
    assert study.system == "deferral"
    assert study.policies == list(POLICIES)
    assert study.num_seeds == SEEDS
    np.testing.assert_array_equal(study.steps, [60, 150, 300])
    for policy in POLICIES:
        for metric in study.metrics:
            curve = study.curve(policy, metric)
            assert curve.shape == (SEEDS, 3) and curve.dtype == np.float64
            np.testing.assert_array_equal(study.final(policy, metric), curve[:, -1])
        arrivals, deferrals = (study.curve(policy, metric) for metric in ("arrivals", "deferrals"))
        np.testing.assert_array_equal(arrivals, study.curve("accept", "arrivals"))
        np.testing.assert_array_equal(study.curve(policy, "deferral_rate"), deferrals / arrivals)
        np.testing.assert_array_equal(
            study.curve(policy, "full_queue_rate"), study.curve(policy, "full_queue") / study.steps
        )
        assert np.all(np.diff(study.curve(policy, "regret")) >= 0)
        assert np.all(study.curve(policy, "queue_length") <= 2)
    assert np.all(study.curve("oracle", "regret") == 0)
    assert np.all(study.final("accept", "deferrals") == 0)
    assert np.isnan(study.curve("coin", "threshold_mean")).all()
    assert np.all((study.curve("kl-pbd", "threshold_mean") >= 0) & (study.curve("kl-pbd", "threshold_mean") <= 1))


def test_intervals_are_the_textbooks(study):
    values = study.curve("coin", "cost")
    found = study.interval("coin", "cost")
    assert found.n == SEEDS
    np.testing.assert_allclose(found.mean, values.mean(0))
    np.testing.assert_allclose(found.sd, values.std(0, ddof=1))
    np.testing.assert_allclose(found.ci95, 1.959964 * values.std(0, ddof=1) / 2, rtol=1e-6)
    difference = study.paired("coin", "oracle", "cost")
    np.testing.assert_allclose(difference.mean, (values - study.curve("oracle", "cost")).mean(0))
    np.testing.assert_allclose(difference.sd, (values - study.curve("oracle", "cost")).std(0, ddof=1))
    nothing = study.paired("coin", "coin", "cost")
    np.testing.assert_array_equal(nothing.mean, 0)
    np.testing.assert_array_equal(nothing.ci95, 0)


def test_the_summary_is_plain_json(study):
    table = json.loads(json.dumps(study.summary(), allow_nan=False))
    assert table["steps"] == [60, 150, 300]
    assert list(table["policies"]) == list(POLICIES)
    entry = table["policies"]["kl-pbd"]["regret"]
    assert set(entry) == {"mean", "sd", "ci95", "n"} and entry["n"] == SEEDS
    np.testing.assert_allclose(entry["mean"], study.interval("kl-pbd", "regret").mean)
    assert table["policies"]["coin"]["threshold_mean"]["mean"] == [None] * 3
    assert set(table["policies"]["kl-pbd"]) == set(study.metrics)


def test_one_seed_has_no_spread(study):
    one = compare(world("calm"), {"accept": POLICIES["accept"]}, num_seeds=1, seed_chunk=SEEDS)
    assert np.isnan(one.interval("accept", "cost").sd).all()
    assert one.summary()["policies"]["accept"]["cost"]["sd"] == [None] * 3
    np.testing.assert_allclose(one.curve("accept", "cost"), study.curve("accept", "cost")[:1], rtol=1e-5)


def test_snapshots_hold_the_rule_in_force(study):
    assert set(study.snapshots) == {"kl-pbd", "oracle"}
    threshold, decision = study.snapshots["oracle"]["threshold"], study.snapshots["oracle"]["decision"]
    assert threshold.shape == (SEEDS, 3) and decision.shape == (SEEDS, 2, 3)
    exact = jax.device_get(jax.jit(lambda i: deferral.decision_map(i, ROUNDS, 200))(world("calm")))
    np.testing.assert_array_equal(decision, np.broadcast_to(exact["decision"], decision.shape))
    np.testing.assert_allclose(threshold[:, :2], np.broadcast_to(exact["threshold"][:2], (SEEDS, 2)), atol=1e-4)
    assert np.all(threshold[:, 2] == -np.inf) and not decision[:, :, 2].any()
    learned = study.snapshots["kl-pbd"]["threshold"]
    assert len(np.unique(learned[:, 0])) > 1  # each seed has its own


def test_a_table_for_pandas(study, grid):
    pandas = pytest.importorskip("pandas")
    table = study.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert len(table) == len(POLICIES) * SEEDS * 3
    row = table[(table.policy == "kl-pbd") & (table.seed == 2) & (table.step == 150)]
    assert row["regret"].item() == study.curve("kl-pbd", "regret")[2, 1]
    table = grid.to_pandas()
    assert set(table.world) == set(WORLDS)
    means = table[(table.world == "busy") & (table.policy == "coin")].groupby("step")["cost"].mean()
    np.testing.assert_allclose(means, grid.select(world="busy").interval("coin", "cost").mean)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.curve("kl_pbd", "regret"), "policy: expected one of .*'kl_pbd' .did you mean 'kl-pbd'"),
        (lambda s: s.final("coin", "regrets"), "metric: .*'regrets' .did you mean 'regret'"),
        (lambda s: s.paired("coin", "oracl", "cost"), "policy: .*did you mean 'oracle'"),
        (lambda s: s.select(gap=0.1), "axis: "),
    ],
)
def test_wrong_names_are_answered_with_the_closest(study, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(study)


# ----------------------------------------------------------------------------------------------------------
# Files


def assert_same(first, second):
    assert (first.system, first.policies, first.axes, first.meta) == (
        second.system,
        second.policies,
        second.axes,
        second.meta,
    )
    np.testing.assert_array_equal(first.steps, second.steps)
    for tables in ("curves", "snapshots"):
        mine, other = getattr(first, tables), getattr(second, tables)
        assert {p: set(t) for p, t in mine.items()} == {p: set(t) for p, t in other.items()}
        for policy, table in mine.items():
            for name, array in table.items():
                np.testing.assert_array_equal(array, other[policy][name])


def test_a_saved_study_comes_back_whole(study, grid, tmp_path):
    for name, original in (("study.npz", study), ("no suffix", grid)):
        original.save(tmp_path / name)
        assert_same(jc.load_study(tmp_path / name), original)
        assert_same(jc.load_study(str(tmp_path / name)), original)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["no suffix", "study.npz"]


def test_policies_may_have_any_name(tmp_path):
    names = ["a/b", "KL-PBD (ours)", "π, µ = ½", "steps"]
    one = compare(world("calm"), dict.fromkeys(names, POLICIES["accept"]))
    one.save(tmp_path / "study.npz")
    assert_same(jc.load_study(tmp_path / "study.npz"), one)


@pytest.mark.parametrize(
    "values",
    [
        [0.1, 0.2, 0.3],
        (1, 2, 3),
        np.array([0.1, 0.2, 0.3], np.float32),
        np.array([4, 5, 6]),
        jnp.asarray([0.1, 0.2, 0.3]),
        jnp.arange(3),
        ["low", "middle", "high"],
    ],
    ids=lambda values: f"{type(values).__name__} of {getattr(values, 'dtype', type(values[0]).__name__)}",
)
def test_an_axis_may_have_values_of_any_kind(values, tmp_path):
    found = compare(stacked(), {"accept": POLICIES["accept"]}, axis=("value", values))
    found.save(tmp_path / "study.npz")
    loaded = jc.load_study(tmp_path / "study.npz")
    for option in (found, loaded):
        chosen = option.select(value=values[1])
        assert chosen.axes == {}
        np.testing.assert_array_equal(chosen.final("accept", "cost"), found.final("accept", "cost")[1])
    json.dumps(found.summary(), allow_nan=False)


def test_a_failed_write_leaves_the_old_file(study, tmp_path, monkeypatch):
    path = tmp_path / "study.npz"
    study.save(path)
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        study.save(path)
    assert path.read_bytes() == before


def damage(path, kind):
    whole = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("not an archive")
    elif kind == "flipped":
        middle = whole.index(b"curve/kl-pbd/regret") + 200 if b"curve/kl-pbd/regret" in whole else len(whole) // 3
        path.write_bytes(
            whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :]
        )
    elif kind == "pickle":
        np.savez(path, about=np.array({"system": "deferral"}, dtype=object), steps=np.arange(3))
    elif kind == "one array":
        with open(path, "wb") as file:
            np.save(file, np.arange(3))
    elif kind == "foreign":
        np.savez(path, something=np.arange(3))
    elif kind == "no json":
        np.savez(path, about=np.array("{half"), steps=np.arange(3))
    elif kind == "other json":
        np.savez(path, about=np.array("{}"), steps=np.arange(3))


DAMAGES = ["truncated", "empty", "text", "flipped", "pickle", "one array", "foreign", "no json", "other json"]


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_study_is_named(study, tmp_path, kind):
    path = tmp_path / "study.npz"
    study.save(path)
    damage(path, kind)
    with pytest.raises(ValueError, match=r"study.npz: expected"):
        jc.load_study(path)


def test_flipped_bytes_are_noticed_wherever_they_are(study, tmp_path):
    path = tmp_path / "study.npz"
    study.save(path)
    whole = path.read_bytes()
    refused = 0
    for start in range(0, len(whole), 211):
        flipped = bytes(255 - byte for byte in whole[start : start + 8])
        path.write_bytes(whole[:start] + flipped + whole[start + 8 :])
        try:
            loaded = jc.load_study(path)
        except ValueError as error:
            refused += 1
            assert str(error).startswith(f"{path}: expected a study")
        else:  # a byte that says nothing, such as a time of writing
            assert_same(loaded, study)
    assert refused > 20


@pytest.mark.parametrize("kind", DAMAGES[:7])
def test_a_damaged_instance_is_named(tmp_path, kind):
    path = tmp_path / "instance.npz"
    jc.save_instance(path, world("calm"))
    damage(path, kind)
    with pytest.raises(ValueError, match=r"instance.npz: expected"):
        jc.load_instance(path)


def test_files_that_are_not_there(tmp_path):
    for load in (jc.load_study, jc.load_instance):
        with pytest.raises(FileNotFoundError, match=r"nowhere.npz: expected .*, got no such file"):
            load(tmp_path / "nowhere.npz")
        with pytest.raises((ValueError, OSError)):
            load(tmp_path)
    with pytest.raises(ValueError, match="expected an instance"):
        study_file = tmp_path / "study.npz"
        np.savez(study_file, steps=np.arange(2))
        jc.load_instance(study_file)


@pytest.mark.parametrize("name", WORLDS)
def test_a_saved_instance_comes_back(tmp_path, name, float_mode):
    original = world(name)
    jc.save_instance(tmp_path / "instance.npz", original)
    loaded = jc.load_instance(tmp_path / "instance.npz")
    assert jax.tree.structure(loaded) == jax.tree.structure(original)
    for mine, other in zip(jax.tree.leaves(loaded), jax.tree.leaves(original), strict=True):
        assert mine.dtype == other.dtype == float_mode
        np.testing.assert_array_equal(mine, other)
    with np.load(tmp_path / "instance.npz") as file:
        assert str(file["system"]) == "deferral"
        assert {"accuracy", "arrival", "service", "cost_error", "queue_capacity", "score"} <= set(file.files)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accuracy": None}, "accuracy: expected an array"),
        ({"acuracy": np.zeros(2)}, "acuracy: .*did you mean 'accuracy'"),
        ({"accuracy": np.array([0.5, np.nan])}, "accuracy: .*got nan"),
        ({"accuracy": np.array([0.5, 1.5])}, "accuracy: expected numbers in .0, 1., got 1.5"),
        ({"arrival": np.array([0.5, 0.2, 0.2])}, "arrival: .*sum to 1"),
        ({"arrival": np.array([0.5, 0.5])}, "arrival: expected 3 entries for 2 levels"),
        ({"service": np.array([1.0, 0.0])}, "service: "),
        ({"cost_error": np.array(0.0)}, "cost_error: "),
        ({"queue_capacity": np.array(2.0)}, "queue_capacity: "),
        ({"queue_capacity": np.array(0)}, "queue_capacity: "),
        ({"system": np.array("deferal")}, "system: .*did you mean 'deferral'"),
        ({"accuracy": np.array(["a", "b"])}, "accuracy: "),
        ({"accuracy": np.zeros((2, 2, 2))}, "instance.npz"),
        ({"cost_error": np.ones(3)}, "cost_error: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_instance_file_of_impossible_numbers_is_refused(tmp_path, changes, message):
    arrays = {name: np.asarray(value) for name, value in vars(world("calm")).items()} | {"system": np.array("deferral")}
    arrays = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez(tmp_path / "instance.npz", **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        jc.load_instance(tmp_path / "instance.npz")
    assert str(caught.value).startswith(f"{tmp_path}")
    assert "\n" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------------
# Arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_seeds": 0}, "num_seeds: .*got 0"),
        ({"num_seeds": 2.5}, "num_seeds: .*got 2.5"),
        ({"num_seeds": True}, "num_seeds: "),
        ({"num_steps": 0}, "num_steps: .*got 0"),
        ({"num_steps": 1e3}, "num_steps: .*got 1000.0"),
        ({"record": 0}, "record: .*got 0"),
        ({"record": [0, 5]}, "record: "),
        ({"record": [5, 301]}, "record: expected rounds within 1..300"),
        ({"record": []}, "record: "),
        ({"record": [1.5]}, "record: "),
        ({"snapshot": 301}, "snapshot: .*got 301"),
        ({"snapshot": 0}, "snapshot: .*got 0"),
        ({"axis": ("world", [1, 2])}, "axis: .*2 entries"),
        ({"seed": -1}, "seed: .*got -1"),
        ({"seed_chunk": 0}, "seed_chunk: "),
        ({"seed_chunk": -2}, "seed_chunk: "),
    ],
    ids=str,
)
def test_impossible_arguments_are_refused_before_anything_runs(changes, message):
    ran = []
    with programs() as compiled, pytest.raises(ValueError, match=message):
        compare(world("calm"), progress=lambda *_: ran.append(1), **changes)
    assert not ran and not compiled


def test_no_policy_and_no_instance_are_refused():
    with pytest.raises(ValueError, match="policies: expected at least one"):
        compare(world("calm"), {})
    with pytest.raises(ValueError, match=r"instance: expected one of .*got dict"):
        compare({}, POLICIES)


def test_records(study):
    np.testing.assert_array_equal(record_steps(4, 10), [2, 5, 8, 10])
    np.testing.assert_array_equal(record_steps(50, 3), [1, 2, 3])
    np.testing.assert_array_equal(record_steps(1, 7), [7])
    np.testing.assert_array_equal(record_steps([9, 2, 9], 10), [2, 9])
    every = compare(world("calm"), {"coin": POLICIES["coin"]}, record=ROUNDS)
    np.testing.assert_array_equal(every.steps, np.arange(1, ROUNDS + 1))
    for metric in every.curves["coin"]:
        # float32 sums are carried in blocks between records, so other records round differently
        np.testing.assert_allclose(
            every.curve("coin", metric)[:, study.steps - 1], study.curve("coin", metric), rtol=1e-5, atol=1e-6
        )
    short = compare(world("calm"), {"coin": POLICIES["coin"]}, record=[60])
    np.testing.assert_allclose(short.final("coin", "cost"), study.curve("coin", "cost")[:, 0], rtol=1e-6)


def test_progress_reaches_its_end():
    seen = []
    compare(world("calm"), {name: POLICIES[name] for name in ("accept", "coin")}, progress=lambda *a: seen.append(a))
    assert {total for _, _, total in seen} == {2 * SEEDS * ROUNDS}
    done = [count for _, count, _ in seen]
    assert done == sorted(done) and done[-1] == 2 * SEEDS * ROUNDS
    assert [name for name, _, _ in seen] == ["accept"] * 3 + ["coin"] * 3


# ----------------------------------------------------------------------------------------------------------
# Grids


def test_a_batch_equals_its_members_one_by_one(grid, study):
    for name in WORLDS:
        alone = study if name == "calm" else compare(world(name))
        part = grid.select(world=name)
        for policy in POLICIES:
            for metric, values in part.curves[policy].items():
                np.testing.assert_allclose(
                    values[:SEEDS],
                    alone.curve(policy, metric),
                    rtol=1e-4,
                    atol=1e-4,
                    err_msg=f"{name} {policy} {metric}",
                )
                if metric in ("deferrals", "labels", "correct", "queue_length", "full_queue"):
                    np.testing.assert_array_equal(values[:SEEDS], alone.curve(policy, metric))


def test_a_sweep_over_shapes_and_policy_arguments():
    def make(num_levels, probability):
        instance = deferral.two_point(num_levels=num_levels, gap=0.1)
        return instance, {"coin": deferral.random(probability)}

    found = jc.sweep(make, {"num_levels": [2, 3], "probability": [0.1, 0.9]}, num_steps=40, num_seeds=3, record=2)
    assert found.axes == {"num_levels": [2, 3], "probability": [0.1, 0.9]}
    assert found.curve("coin", "regret").shape == (2, 2, 3, 2)
    assert [point["num_levels"] for point in found.points()] == [2, 2, 3, 3]
    deferrals = found.final("coin", "deferrals")
    assert np.all(deferrals[:, 0] < deferrals[:, 1])
    np.testing.assert_array_equal(found.final("coin", "arrivals")[:, 0], found.final("coin", "arrivals")[:, 1])
    part = found.select(probability=0.9)
    assert part.axes == {"num_levels": [2, 3]}
    np.testing.assert_array_equal(part.final("coin", "deferrals"), deferrals[:, 1])
    np.testing.assert_array_equal(part.select(num_levels=3).final("coin", "deferrals"), deferrals[1, 1])
    with pytest.raises(ValueError, match=r"probability: expected one of 0.1, 0.9, got 0.5"):
        found.select(probability=0.5)
    table = found.summary()
    assert table["axes"] == {"num_levels": [2, 3], "probability": [0.1, 0.9]}
    assert np.shape(table["policies"]["coin"]["cost"]["mean"]) == (2, 2, 2)


def test_grids_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="gap: expected at least one value"):
        jc.sweep(lambda gap: (deferral.two_point(gap=gap), POLICIES), {"gap": []}, num_steps=5, num_seeds=1)
    with pytest.raises(ValueError, match="policies: expected the same names"):
        jc.sweep(
            lambda gap: (deferral.two_point(gap=gap), {str(gap): POLICIES["accept"]}),
            {"gap": [0.1, 0.2]},
            num_steps=5,
            num_seeds=1,
        )


# ----------------------------------------------------------------------------------------------------------
# Compilation and memory


def test_other_seeds_numbers_and_records_compile_nothing(study):
    other = {**POLICIES, "coin": deferral.random(0.8), "kl-pbd": deferral.kl_pbd(resolve_every=5)}
    with programs() as compiled:
        found = compare(world("busy"), other, seed=77, record=[5, 299], snapshot=10)
        compare(world("free"), other, seed=78, num_seeds=3 * SEEDS, seed_chunk=SEEDS)
    assert not compiled
    assert found.final("coin", "cost").shape == (SEEDS,)


def test_another_long_horizon_compiles_nothing():
    policies = {"kl-pbd": POLICIES["kl-pbd"]}
    compare(world("calm"), policies, num_steps=4200, record=1)
    with programs() as compiled:
        compare(world("calm"), policies, num_steps=4500, record=2)
    assert not compiled


def test_another_short_horizon_compiles_nothing(study):
    with programs() as compiled:
        compare(world("calm"), {"accept": POLICIES["accept"]}, num_steps=ROUNDS + 20)
    assert not compiled


@pytest.mark.parametrize("policy", ["kl-pbd", "oracle"])
def test_the_state_of_a_run_does_not_grow_with_the_horizon(policy):
    """What is carried, and what is shared by all seeds: same shapes at a hundred times the rounds."""

    def shapes(num_steps):
        instance, rule = world("calm"), POLICIES[policy]
        environment = deferral.environment(instance, num_steps)
        models = jax.eval_shape(
            lambda i, p: _setup_batch(environment, rule._replace(params=None), False, i, p, num_steps),
            instance,
            rule.params,
        )
        carry = jax.eval_shape(lambda m: _init_batch(environment, rule._replace(params=None), False, SEEDS, m), models)
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (models, carry))

    assert shapes(20_000) == shapes(2_000_000)


_MEMORY = f"""
import sys
import jaxcascade as jc
rounds = int(sys.argv[1])
instance = jc.deferral.two_point(num_levels=4, gap=0.1)
policies = dict(a=jc.deferral.accept_all(), k=jc.deferral.kl_pbd())
jc.compare(instance, policies, num_steps=rounds, num_seeds=32, record=10)
print({PEAK_KIB})
"""


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_horizon():
    few, many = (
        int(subprocess.run([sys.executable, "-c", _MEMORY, str(n)], check=True, capture_output=True, text=True).stdout)
        for n in (10_000, 300_000)
    )
    assert many - few < 30_000, (few, many)  # KiB


def test_a_name_in_the_place_of_a_policy_is_told():
    with pytest.raises(ValueError, match=r"policies\['kl'\]: expected a policy such as jaxcascade.deferral makes, got"):
        jc.compare(jc.deferral.two_point(num_levels=2), {"kl": "kl_pbd"}, num_steps=5, num_seeds=2)


def test_a_study_says_in_a_line_what_it_is(study):
    assert "\n" not in repr(study) and "seeds to round" in repr(study) and len(repr(study)) < 300


# ----------------------------------------------------------------------------------------------------------
# simulate, and Lemma 2


def test_simulate_inside_other_peoples_programs_equals_compare(study, grid):
    options = {"num_steps": ROUNDS, "num_seeds": SEEDS, "record": [60, 150, 300]}

    def total(policy):
        return lambda instance: jc.simulate(instance, policy, key=jax.random.key(3), **options).metrics

    single = jax.device_get(quick_jit(total(POLICIES["kl-pbd"]))(world("calm")))
    batch = jax.device_get(quick_jit(jax.vmap(total(POLICIES["coin"])))(stacked()))
    for metric in study.curves["coin"]:
        np.testing.assert_allclose(single[metric], study.curve("kl-pbd", metric), rtol=1e-4, atol=1e-4, err_msg=metric)
        np.testing.assert_allclose(
            batch[metric], grid.curve("coin", metric)[:, :SEEDS], rtol=1e-4, atol=1e-4, err_msg=metric
        )


@pytest.mark.parametrize("name", WORLDS)
def test_summed_gaps_are_the_cost_above_the_oracles(grid, name):
    """Lemma 2: regret and the cost difference have one mean, within 3 standard errors, in every world."""
    part = grid.select(world=name)
    for policy in ("accept", "coin", "kl-pbd"):
        difference = part.final(policy, "cost") - part.final("oracle", "cost") - part.final(policy, "regret")
        error = difference.std(ddof=1) / math.sqrt(len(difference))
        assert abs(difference.mean()) <= 3 * error, (policy, difference.mean(), error)
    assert part.final("accept", "regret").mean() > 20 * error  # so that the test can see something
