"""The cascade system: instances, output laws, oracle, the query phase, policies, tables."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcascade as jc
from jaxcascade import cascade
from jaxcascade.cascade import laws
from jaxcascade.cascade.environment import Feedback
from jaxcascade.cascade.oracle import index_table
from jaxcascade.core import MEAN, SUM, hide, system_of
from tests.conftest import float32_mode, float64_mode
from tests.reference import cascade_numpy as reference

SIZES = {"context_size": 6, "output_size": 5, "feature_size": 3}


# ----------------------------------------------------------------------------------------------------------
# Weitzman's rule


@jax.jit
def _expected_utility(probability, value, cost):
    """Expected utility of Weitzman's rule on boxes with four outputs each, by enumeration."""
    boxes = value.shape[0]
    index = jc.kernels.reservation_index(value, jnp.sum(probability * cost, axis=1), probability)
    outputs = jnp.asarray(list(itertools.product(range(4), repeat=boxes)))

    def one(place):
        v, c = (a[jnp.arange(boxes), place] for a in (value, cost))
        opened, deployed = cascade.play(index, index, v)
        utility = jnp.sum(jnp.where(deployed, v, 0)) - jnp.sum(jnp.where(opened, c, 0))
        return utility * jnp.prod(probability[jnp.arange(boxes), place])

    return jnp.sum(jax.vmap(one)(outputs))


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(0, 2**32 - 1), st.booleans())
def test_weitzmans_rule_is_optimal_among_all_adaptive_policies(boxes, seed, coarse):
    rng = np.random.default_rng(seed)
    weights = rng.random((boxes, 4)) * (rng.random((boxes, 4)) < 0.8) + 1e-3
    probability = weights / weights.sum(1, keepdims=True)
    value = rng.integers(0, 5, (boxes, 4)) / 4 if coarse else rng.random((boxes, 4))
    cost = rng.uniform(0, 0.3, (boxes, 4))
    with float64_mode():
        found = float(_expected_utility(*(jnp.asarray(a) for a in (probability, value, cost))))
    lists = [tuple(map(tuple, (p, v, c))) for p, v, c in zip(probability, value, cost, strict=True)]
    # An output's cost is paid whatever it is: dynamic programming may use the expected cost.
    assert abs(found - reference.best_adaptive_value(lists)) < 1e-9
    assert abs(found - reference.weitzman_value(lists)) < 1e-9


def example():
    return cascade.discrete([[1.0], [1.0, 0.0]], [0.5, 0.01], [[1.0], [0.1, 0.9]])


def test_the_papers_example_earns_54_hundredths_and_a_single_box_half(x64):
    instance = example()
    boxes = [([1.0], [1.0], [0.5]), ([0.1, 0.9], [1.0, 0.0], [0.01, 0.01])]
    assert reference.weitzman_value(boxes) == pytest.approx(0.54, abs=1e-12)
    means = cascade.population(instance)
    np.testing.assert_allclose(np.max(means.value - means.cost), 0.5, atol=1e-12)
    np.testing.assert_allclose(cascade.reservation_indices(instance, None), [[0.5, 0.9]], atol=1e-12)
    study = jc.compare(instance, {"oracle": cascade.oracle(), "single": cascade.best_single()}, num_steps=4000,
                       num_seeds=8, record=1)  # fmt: skip
    utility = study.final("oracle", "utility") / 4000
    assert abs(utility.mean() - 0.54) < 5 * 0.15 / np.sqrt(32_000)
    np.testing.assert_allclose(study.final("single", "utility") / 4000, 0.5, atol=1e-9)
    np.testing.assert_allclose(study.final("single", "regret_single"), 0, atol=1e-9)
    assert not study.final("oracle", "regret").any()


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.booleans())
def test_the_query_phase_equals_a_loop_over_boxes(seed, stop_on_last, deploy_last, ties):
    rng = np.random.default_rng(seed)
    order, threshold, value = (rng.integers(0, 4, 5) / 4 if ties else rng.random(5) for _ in range(3))
    threshold = order if rng.random() < 0.5 else threshold
    opened, deployed = cascade.play(
        *(jnp.asarray(a, jnp.float32) for a in (order, threshold, value)), stop_on_last, deploy_last
    )
    wanted, box = reference.play(*(np.float32(a) for a in (order, threshold, value)), stop_on_last, deploy_last)
    assert sorted(np.flatnonzero(opened)) == sorted(wanted)
    assert list(np.flatnonzero(deployed)) == [box]


# ----------------------------------------------------------------------------------------------------------
# The synthetic family


def _by_rejection(law, size, count, rng):
    if law == "uniform":
        return rng.uniform(-1, 1, (count, size))
    kept, edge = np.empty((0, size)), laws.radius(law, size)
    while len(kept) < count:
        shape = (count, size)
        xi = rng.normal(size=shape) if law == "truncated_gaussian" else np.sqrt(0.6) * rng.standard_t(5, shape)
        kept = np.concatenate([kept, xi[np.sum(xi**2, axis=1) <= edge**2]])
    return kept[:count]


@pytest.mark.parametrize("law", laws.LAWS)
@pytest.mark.parametrize("size", [2, 100])
def test_output_laws_agree_with_rejection_sampling(law, size):
    count = 40_000 if size == 100 else 200_000
    ours = np.asarray(jax.jit(lambda key: laws.sample_many(law, size, key, count))(jax.random.key(5)), np.float64)
    theirs = _by_rejection(law, size, count, np.random.default_rng(6))
    assert np.all(np.isfinite(ours))
    assert np.linalg.norm(ours, axis=1).max() <= laws.radius(law, size) * (1 + 1e-5)
    direction = np.linspace(1, 2, size) / np.linalg.norm(np.linspace(1, 2, size))

    def moments(xi):
        length = np.linalg.norm(xi, axis=1)
        edge = np.quantile(np.linalg.norm(theirs, axis=1), [0.05, 0.5, 0.95, 0.99])
        columns = [xi[:, 0], np.abs(xi[:, 0]), xi[:, 0] ** 2, xi[:, -1] ** 4, xi[:, 0] * xi[:, 1], length, length**2]
        columns += [(length > e).astype(float) for e in edge] + [np.maximum(xi @ direction - 0.5, 0)]
        return np.stack(columns, axis=1)

    a, b = moments(ours), moments(theirs)
    error = np.sqrt(a.var(axis=0) / count + b.var(axis=0) / count)
    assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 4.5 * error + 1e-12)


def test_radii_are_those_of_the_paper():
    assert laws.radius("truncated_gaussian", 100) == pytest.approx(11.65, abs=0.005)
    assert laws.radius("truncated_student", 100) == pytest.approx(13.56, abs=0.01)


@pytest.mark.parametrize("law", laws.LAWS)
def test_projection_nodes_have_the_law_of_a_projected_output(law, float_mode):
    direction = jnp.linspace(0.2, 1, 20)
    nodes = np.asarray(laws.projection_nodes(law, direction, 64))
    xi = _by_rejection(law, 20, 200_000, np.random.default_rng(7)) @ np.asarray(direction)
    assert np.all(np.diff(nodes) > 0)
    np.testing.assert_allclose(nodes, -nodes[::-1], atol=2e-3 * xi.std())
    for level in (-1, 0, 0.5, 1.5):
        excess = np.maximum(xi - level, 0)
        error = excess.std() / np.sqrt(len(xi))
        # bins lose at most what the kink of the excess cuts off inside one of them
        assert abs(np.maximum(nodes - level, 0).mean() - excess.mean()) < 5 * error + 1e-3 * xi.std()


def test_zero_direction_gives_zero_nodes():
    np.testing.assert_array_equal(laws.projection_nodes("uniform", jnp.zeros(4), 8), 0)


@pytest.mark.parametrize(
    ("law", "wanted"),
    [
        ("truncated_gaussian", [0.85849, 0.78438, 0.695422]),
        ("truncated_student", [0.857223, 0.782793, 0.693663]),
        ("uniform", [0.76774, 0.687335, 0.599549]),
    ],
)
def test_indices_of_the_fixed_instance(law, wanted, shared):
    arrays = dict(np.load(shared / "instances" / "cascade_A.npz"))
    arrays.pop("system")
    instance = cascade.from_arrays(arrays | {"output_law": np.array(law)})
    found = cascade.reservation_indices(instance, jnp.zeros((2, 100)))
    np.testing.assert_allclose(found, [wanted, wanted], atol=2e-4)


def test_indices_of_regime_b_agree_with_a_large_sample():
    instance = cascade.synthetic("B", key=1)
    context = jax.random.uniform(jax.random.key(2), (5, 100), minval=-1, maxval=1)
    found = np.asarray(cascade.reservation_indices(instance, context))
    i = {name: np.asarray(getattr(instance, name), np.float64) for name in ("alpha", "Q", "D", "theta", "c0", "c1",
         "beta0", "beta1")}  # fmt: skip
    xi = _by_rejection(instance.output_law, 100, 100_000, np.random.default_rng(3))
    for row, x in enumerate(np.asarray(context, np.float64)):
        for a in range(3):
            omega = (0.5 + reference.sigmoid(i["alpha"][a] @ x)) * xi
            value = reference.sigmoid(i["theta"] @ (i["Q"] @ x) + omega @ (i["theta"] @ i["D"]))
            cost = i["c0"][a] * reference.sigmoid(i["beta0"][a] @ x)
            cost += (i["c1"][a] * reference.sigmoid(np.abs(omega) @ i["beta1"][a])).mean()
            value.sort()
            excess = np.cumsum(value[::-1])
            wanted = np.max((excess - cost * len(value)) / np.arange(1, len(value) + 1))
            assert abs(found[row, a] - wanted) < 2.5e-3  # the sample's own error is about 5e-4


def test_regime_b_is_scaled_as_stated_and_its_order_varies():
    instance = cascade.synthetic("B", key=4)
    norms = [np.linalg.norm(getattr(instance, name), axis=-1) for name in ("alpha", "beta0", "beta1")]
    np.testing.assert_allclose(norms, [[3] * 3, [2] * 3, [1] * 3], rtol=1e-5)
    np.testing.assert_allclose(instance.D @ instance.D.T, np.eye(10), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(instance.theta), 2.5, rtol=1e-5)
    context = jax.random.uniform(jax.random.key(2), (4000, 100), minval=-1, maxval=1)
    assert np.std(context @ (instance.theta @ instance.Q)) == pytest.approx(0.5, rel=0.08)
    index = cascade.reservation_indices(instance, context)
    orders, counts = np.unique(np.argsort(-np.asarray(index), axis=1), axis=0, return_counts=True)
    assert len(orders) == 6
    assert 0.3 < counts[np.all(orders == [0, 1, 2], axis=1)][0] / 4000 < 0.6


def test_population_numbers_of_the_fixed_instance(shared):
    instance = jc.load_instance(shared / "instances" / "cascade_A.npz")
    policies = {"oracle": cascade.oracle(), "all": cascade.open_all(), "single": cascade.best_single()}
    study = jc.compare(instance, policies, num_steps=1000, num_seeds=64, record=1)

    def close(values, wanted, error):
        assert abs(values.mean() - wanted) < 3 * np.hypot(values.std() / 8, error)

    close(study.final("oracle", "utility") / 1000, 0.70917, 0.00078)
    close(study.final("oracle", "opened") / 1000, 2.0913, 0.0026)
    close(study.final("all", "regret") / 1000, 0.04137, 0.0003)
    close(study.final("single", "regret") / 1000, 0.2279, 0.0008)
    np.testing.assert_allclose(study.final("all", "opened"), 3000)
    np.testing.assert_allclose(study.final("single", "deployed_1"), 1)


def test_context_free_regime_has_one_index_and_setup_tables_are_small():
    table = index_table(cascade.synthetic("A", **SIZES))
    assert table.cost.shape == (3, 65)
    np.testing.assert_allclose(table.cost, 0.5, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------
# Environment and runner


def test_metrics_add_up_and_every_policy_meets_the_same_periods():
    instance = cascade.synthetic("B", **SIZES)
    policies = {
        "dow": cascade.dow(calibration=5),
        "all": cascade.open_all(),
        "oracle": cascade.oracle(),
    }
    study = jc.compare(instance, policies, num_steps=60, num_seeds=4, record=3)
    oracle = study.final("oracle", "utility")
    for name in policies:
        np.testing.assert_allclose(study.final(name, "regret") + study.final(name, "utility"), oracle, atol=2e-5)
        opened = sum(study.final(name, f"opened_{a}") for a in (1, 2, 3)) * 60
        np.testing.assert_allclose(opened, study.final(name, "opened"), rtol=1e-5)
        np.testing.assert_allclose(sum(study.final(name, f"deployed_{a}") for a in (1, 2, 3)), 1, rtol=1e-5)
    single = [study.final(n, "regret_single") + study.final(n, "utility") for n in policies]
    np.testing.assert_allclose(single, [single[0]] * len(single), atol=2e-5)


def test_longer_horizons_and_more_seeds_leave_the_noise_as_it_was():
    instance = cascade.synthetic("A", **SIZES)
    policies = {"single": cascade.cheapest()}
    short = jc.compare(instance, policies, num_steps=20, num_seeds=2, record=[20])
    long = jc.compare(instance, policies, num_steps=40, num_seeds=5, record=[20, 40])
    # The draws are the same to the last bit; products over more seeds at once may round otherwise.
    np.testing.assert_allclose(short.final("single", "utility"), long.curve("single", "utility")[:2, 0], rtol=1e-6)


@pytest.mark.parametrize("name", ["dow", "static_plugin", "lin_ucb", "frugal_gpt", "oracle"])
def test_policies_run_in_both_float_types_and_their_numbers_are_finite(name, float_mode):
    factory = cascade.SYSTEM.policies[name]
    arguments = {"calibration": 4} if name in ("static_plugin", "frugal_gpt") else {}
    study = jc.compare(cascade.synthetic("B", **SIZES), {"p": factory(**arguments)}, num_steps=12, num_seeds=2)
    for metric in study.metrics:
        assert np.all(np.isfinite(study.curve("p", metric))), metric
    assert np.all(study.final("p", "opened") >= 12) and np.all(study.final("p", "opened") <= 36)
    assert np.all(study.final("p", "regret") < 12)


def test_no_learner_is_shown_the_instance():
    instance = cascade.synthetic("A", **SIZES)
    for name in ("dow", "online_plugin", "static_plugin", "lin_ucb", "frugal_gpt", "random_box", "open_all"):
        policy = cascade.SYSTEM.policies[name]()
        assert jax.tree.leaves(hide(instance, policy.hidden)) == []
    assert cascade.best_single(10).hidden and not cascade.best_single().hidden


@pytest.mark.parametrize("known", [True, False])
def test_true_values_are_shown_only_to_a_policy_that_is_told_them(known):
    instance = cascade.synthetic("A", **SIZES)
    environment, policy = cascade.environment(instance, 5), cascade.dow(known)
    model = environment.setup(instance, 5)
    memory = policy.init(policy.setup(policy.params, hide(instance, policy.hidden), 5))
    noise = environment.noise(jax.random.key(0), model)
    observation = environment.observe(model, environment.init(model), noise, 1)
    memory_model = policy.setup(policy.params, hide(instance, policy.hidden), 5)
    action, _ = policy.act(memory_model, memory, jax.random.key(1), 1, observation)
    _, feedback, _ = environment.step(model, environment.init(model), action, noise, jnp.int32(1))
    assert isinstance(feedback, Feedback)
    assert (feedback.value is not None) == known
    closed = ~np.asarray(feedback.opened)
    assert closed.any() or feedback.opened.all()
    np.testing.assert_array_equal(np.asarray(feedback.features)[closed], 0)
    np.testing.assert_array_equal(np.asarray(feedback.cost)[closed], 0)
    np.testing.assert_array_equal(feedback.rewarded, feedback.deployed)


def test_width_sweep_is_one_program_and_equals_single_runs():
    instance = cascade.synthetic("A", **SIZES)
    grid = {"index_width": [0.0, 0.6, 2.0]}
    swept = jc.sweep(lambda index_width: (instance, {"dow": cascade.dow(index_width=index_width, value_width=0.3)}),
                     grid, num_steps=30, num_seeds=2, record=2)  # fmt: skip
    one = jc.compare(instance, {"dow": cascade.dow(index_width=0.6)}, num_steps=30, num_seeds=2, record=2)
    found, wanted = swept.select(index_width=0.6).curve("dow", "regret"), one.curve("dow", "regret")
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_dow_bends_and_rules_that_do_not_learn_are_linear():
    instance = cascade.synthetic("A", key=2)
    policies = {"dow": cascade.dow(True), "single": cascade.random_box()}
    # Within the first 600 periods, of 101 coefficients a box, DOW still learns at a steady cost (slope .95).
    study = jc.compare(instance, policies, num_steps=3000, num_seeds=8, record=[1000, 3000])
    dow, single = (study.interval(name, "regret").mean for name in policies)
    assert dow[1] < 0.25 * single[1]
    assert np.log(dow[1] / dow[0]) / np.log(3) < 0.8
    assert 0.95 < np.log(single[1] / single[0]) / np.log(3) < 1.05


# ----------------------------------------------------------------------------------------------------------
# Files and bad input


@pytest.mark.parametrize("make", [lambda: cascade.synthetic("B", **SIZES), example])
def test_instances_are_saved_and_loaded(make, tmp_path):
    instance = make()
    jc.save_instance(tmp_path / "i.npz", instance)
    again = jc.load_instance(tmp_path / "i.npz")
    assert again.output_law == instance.output_law and again.sizes == instance.sizes
    assert system_of(again).name == "cascade"
    jax.tree.map(np.testing.assert_array_equal, again, instance)


def _arrays(**changes):
    names = ("alpha", "Q", "D", "theta", "c0", "c1", "beta0", "beta1")
    instance = cascade.synthetic("B", **SIZES)
    return {name: np.asarray(getattr(instance, name)) for name in names} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"D": np.zeros((4, 5))}, r"D: expected 3 entries on axis 0, as many as theta .*got shape \(4, 5\)"),
        ({"alpha": np.zeros((3, 7))}, r"alpha: expected 6 entries on axis 1, as many as Q .*got shape \(3, 7\)"),
        ({"beta1": np.zeros((2, 5))}, r"beta1: expected 3 entries on axis 0, as many as c0"),
        ({"c0": np.array([0.1, -0.2, 0.1])}, r"c0: expected a finite number >= 0, got -0.2"),
        ({"theta": np.array([1.0, np.nan, 0])}, "theta: expected finite numbers, got nan"),
        ({"c0": np.zeros(0), "c1": np.zeros(0)}, "c0: expected at least one box, got none"),
        ({"output_law": "cauchy"}, "output_law: expected one of"),
    ],
)
def test_bad_arrays_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        cascade.make_instance(**_arrays(**changes))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cascade.synthetic("C"), "regime: expected one of A, B, got 'C'"),
        (lambda: cascade.synthetic(output_law="uniforme"), "did you mean 'uniform'"),
        (lambda: cascade.synthetic(c0=[0.1], c1=[0.1, 0.2]), "c1: expected 1 costs, as many as c0, got 2"),
        (lambda: cascade.synthetic(output_size=4, feature_size=5), "output_size: expected a whole number >= 5"),
        (lambda: cascade.discrete([[1.5]], [0.1]), "value: expected numbers in"),
        (lambda: cascade.discrete([[0.5]], [-0.1]), "cost: expected a finite number >= 0, got -0.1"),
        (lambda: cascade.discrete([[0.5, 0.1]], [0.1], [[0.5, 0.4]]), "probability: expected probabilities that sum"),
        (lambda: cascade.discrete([[0.5, 0.1]], [0.1], [[1.0]]), "probability: expected shape"),
        (lambda: cascade.discrete(np.zeros((0, 2)), np.zeros(0)), "value: expected at least one box"),
        (lambda: cascade.static_plugin(0), "calibration: expected at least 1 period for static_plugin"),
        (lambda: cascade.frugal_gpt(0), "calibration: expected at least 1 period for frugal_gpt"),
        (lambda: cascade.frugal_gpt(5, "last"), "deploy: expected one of best, stopped"),
        (lambda: cascade.dow(estimator="refits"), "did you mean 'refit'"),
        (lambda: cascade.dow(index_width=-1), "index_width: expected a number >= 0, got -1"),
        (lambda: cascade.dow(calibration=1.5), "calibration: expected a whole number >= 0, got 1.5"),
        (lambda: cascade.dow(refit_growth=0), "refit_growth: expected a number > 0, got 0"),
        (lambda: cascade.dow(known_reward=1), "known_reward: expected true or false"),
        (lambda: cascade.lin_ucb(ridge=0), "ridge: expected a number > 0, got 0"),
        (lambda: cascade.best_single(-1), "calibration: expected a whole number >= 0, got -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ----------------------------------------------------------------------------------------------------------
# Tables


def small_table(prompts=12, boxes=3):
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(prompts, 4))
    scores = (rng.random((prompts, boxes)) < 0.6).astype(float)
    return embeddings, scores, rng.uniform(0, 0.001, (prompts, boxes))


def test_table_is_replayed_and_the_oracle_knows_the_best_net_score(x64):
    embeddings, scores, costs = small_table()
    instance = cascade.from_table(embeddings, scores, costs, exchange_rate=100.0)
    best = np.max(scores - 100 * costs, axis=1)
    np.testing.assert_allclose(cascade.reservation_indices(instance, None), scores - 100 * costs, atol=1e-12)
    policies = {"oracle": cascade.oracle(), "dow": cascade.dow(), "single": cascade.best_single()}
    study = jc.compare(instance, policies, num_steps=3000, num_seeds=4, record=1)
    utility = study.final("oracle", "utility") / 3000
    assert abs(utility.mean() - best.mean()) < 5 * best.std() / np.sqrt(12_000)
    single = (scores - 100 * costs).mean(axis=0).max()
    assert abs(study.final("single", "utility").mean() / 3000 - single) < 5 * 0.5 / np.sqrt(12_000)


def test_prompts_with_missing_numbers_are_counted_and_refused_unless_dropped():
    embeddings, scores, costs = small_table()
    scores[3, 1] = costs[7, 0] = np.nan
    with pytest.raises(ValueError, match=r"2 of 12 rows have a missing .*first: row 4\); drop_missing"):
        cascade.from_table(embeddings, scores, costs)
    assert cascade.from_table(embeddings, scores, costs, drop_missing=True).value.shape == (10, 3, 1)


def test_mismatched_tables_name_both_arrays():
    embeddings, scores, costs = small_table()
    with pytest.raises(ValueError, match=r"embeddings: expected 12 rows, as many as scores of shape \(12, 3\)"):
        cascade.from_table(embeddings[:5], scores, costs)
    with pytest.raises(ValueError, match=r"costs: expected shape \(12, 3\) as scores, got \(12, 2\)"):
        cascade.from_table(embeddings, scores, costs[:, :2])
    with pytest.raises(ValueError, match="cost: expected a finite number >= 0"):
        cascade.from_table(embeddings, scores, costs - 1)
    with pytest.raises(ValueError, match="dimensions: expected a whole number from 1 to 4, got 9"):
        cascade.from_table(embeddings, scores, costs, dimensions=9)


def test_table_files_are_put_side_by_side(tmp_path):
    embeddings, scores, costs = small_table()
    np.save(tmp_path / "e.npy", embeddings)
    for name, apis in (("one.csv", (0, 1)), ("two.csv", (2,))):
        lines = ["qid,prompt," + ",".join(f"api{a}|correct,api{a}|cost_usd" for a in apis)]
        for p in range(12):
            lines.append(f"{p},p{p}," + ",".join(f"{scores[p, a]:g},{float(costs[p, a])!r}" for a in apis))
        (tmp_path / name).write_text("\n".join(lines))
    paths = [str(tmp_path / "one.csv"), str(tmp_path / "two.csv")]
    found = cascade.from_table(str(tmp_path / "e.npy"), tables=paths, exchange_rate=50.0, dimensions=2)
    np.testing.assert_allclose(found.value[..., 0], scores)
    np.testing.assert_allclose(found.cost[..., 0], 50 * costs, rtol=1e-6)
    norm = np.mean(np.sum(np.asarray(found.context) ** 2, axis=1))
    assert norm == pytest.approx(2 / 3, rel=1e-4)
    with pytest.raises(ValueError, match=r"one.csv: feature_columns: expected one of"):
        cascade.from_table(embeddings, tables=paths, feature_columns=["confidence"])
    (tmp_path / "two.csv").write_text("\n".join([*lines[:2], lines[3], lines[2], *lines[4:]]))
    with pytest.raises(ValueError, match=r"two.csv: expected the 12 prompts of .*one.csv in the same order, .*row 2"):
        cascade.from_table(embeddings, tables=paths)


def test_second_call_with_other_seeds_does_not_compile():
    from tests.conftest import compilations

    instance = cascade.synthetic("A", **SIZES)
    with float32_mode():
        jc.compare(instance, {"dow": cascade.dow()}, num_steps=10, num_seeds=2, seed=0)
        with compilations() as found:
            jc.compare(instance, {"dow": cascade.dow(index_width=0.5)}, num_steps=10, num_seeds=2, seed=1)
    assert not found


def test_metric_kinds_are_as_the_registry_says():
    metrics = dict(cascade.environment(cascade.synthetic("A", **SIZES), 5).metrics)
    assert metrics["regret"] == SUM and metrics["opened_1"] == MEAN
    assert set(metrics) <= set(cascade.SYSTEM.labels)
