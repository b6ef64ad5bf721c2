"""Numbers at the edges of what is allowed, over very many rounds, and in both float types."""

import math

import jax
import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import cascade, deferral, queueing
from tests.conftest import float32_mode, float64_mode
from tests.deferral_runs import bare

UNDEFINED = {"threshold_mean", "sojourn_p95"}  # nan where a policy has no threshold, or no query has departed
ROUNDING = 1e-4


def recorded(study):
    """Policy and its recorded metrics, each ``[*axes, seeds]`` at the last round, which are finite."""
    for policy, table in study.curves.items():
        for metric, values in table.items():
            assert np.isfinite(values).all() or metric in UNDEFINED, (policy, metric)
        yield policy, {metric: values[..., -1] for metric, values in table.items()}


# ----------------------------------------------------------------------------------------------------------
# Deferral

DEFERRAL = {
    "kl-pbd": deferral.kl_pbd(estimate_arrival=True),
    "oracle": deferral.oracle(),
    "accept": deferral.accept_all(),
    "defer": deferral.defer_all(),
}
COSTS = {"cost_expert": [0.0, 1.0], "cost_holding": [0.0, 1.0]}
# Levels, capacity, the slow expert's rate and the float type.
SIZES = {
    "1 level, capacity 1": (1, 1, 0.001, float32_mode),
    "500 levels, capacity 1": (500, 1, 0.02, float32_mode),
    "1 level, capacity 500": (1, 500, 0.1, float64_mode),
}


@pytest.fixture(scope="module", params=SIZES)
def edges(request):
    """Costs of 0 and 1 and experts who hardly ever or always serve, all in one program."""
    levels, capacity, slow, mode = SIZES[request.param]
    accuracy = np.linspace(0.2, 0.9, levels) if levels > 1 else np.array([0.3])
    arrival = np.full(levels, 1 / levels)

    def make(**costs):
        return deferral.make_instance(accuracy, arrival, queue_capacity=capacity, **costs), policies

    policies, grid = DEFERRAL, COSTS | {"service_rate": [slow, 1.0]}
    if capacity > 1:  # whose tables take seconds
        policies, grid = {name: DEFERRAL[name] for name in ("kl-pbd", "oracle")}, grid | {"cost_expert": [1.0]}
    with mode():
        study = jc.sweep(make, grid, num_steps=30, num_seeds=3, record=2)
    return study, accuracy, capacity


def test_deferral_keeps_count_of_every_query(edges):
    study, _, capacity = edges
    for policy, found in recorded(study):
        assert np.all(found["arrivals"] == 30)  # a query every round
        np.testing.assert_array_equal(found["arrivals"], found["accepted"] + found["deferrals"])
        np.testing.assert_array_equal(found["deferrals"], found["labels"] + found["queue_length"])
        np.testing.assert_array_equal(found["correct"], found["accepted_correct"] + found["deferrals"])
        assert np.all(found["queue_length"] <= capacity) and np.all(found["full_queue"] <= 30)
        assert np.all(found["regret"] >= 0) and (policy != "oracle" or np.all(found["regret"] == 0))


def test_deferral_costs_are_what_was_paid_and_the_drain(edges):
    study, _, _ = edges
    for point in study.points():
        part, rate, holding = study.select(**point), point["service_rate"], point["cost_holding"]
        for policy, found in recorded(part):
            waiting = found["queue_length"]
            drain = holding * waiting * (waiting + 1) / (2 * rate)  # D(b) = D(b - 1) + holding b / rate
            paid = holding * 30 * found["queue_length_mean"] + point["cost_expert"] * found["deferrals"]
            paid = paid + found["accepted"] - found["accepted_correct"]
            # The cost of a round has the difference of two drains, which are large where the expert hardly serves.
            scale = 1 + holding / rate
            np.testing.assert_allclose(found["cost"], paid + drain, rtol=1e-5, atol=1e-5 * scale, err_msg=policy)


@pytest.mark.parametrize("edges", list(SIZES)[:2], indirect=True, scope="module")
def test_deferral_with_an_expert_who_is_free_or_too_dear(edges):
    study, accuracy, _ = edges
    always = study.select(service_rate=1.0, cost_holding=0.0)
    free, dear = (always.select(cost_expert=cost) for cost in (0.0, 1.0))
    # Nobody waits: the marginal cost is the expert's fee, and an answer's expected loss is at most 1.
    assert np.all(free.final("oracle", "deferrals") == 30) and np.all(dear.final("oracle", "deferrals") == 0)
    assert np.all(free.final("oracle", "cost") == 0) and np.all(free.final("defer", "regret") == 0)
    assert np.all(dear.final("accept", "regret") == 0)
    if len(accuracy) == 1:
        np.testing.assert_allclose(free.final("accept", "regret"), 30 * 0.7, rtol=1e-5)
        np.testing.assert_allclose(dear.final("defer", "regret"), 30 * 0.3, rtol=1e-5)


# ----------------------------------------------------------------------------------------------------------
# Queueing

QUEUEING = {
    "mle": queueing.acqb(),
    "one pass": queueing.acqb(estimator="one_pass"),
    "optimal": queueing.optimal(),
    "random": queueing.rand(),
}
WORLDS = {
    "accepts": [50.0, 50.0],
    "refuses": [-50.0, -50.0],
    "one accepts": [-50.0, 50.0],
    "the same": [0.3, 0.3],
}


SLOW = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(1, marks=SLOW), 2], ids=lambda n: f"{n} LLMs")
def queues(request):
    """LLMs that always or never please, or are the same; an arrival in no round and in every one."""
    number = request.param
    embeddings = np.array([[1.0, -1.0], [0.5, 0.2], [0.0, 0.0]])

    def make(world, arrival_rate):
        utility = np.tile(WORLDS[world][:number], (3, 1))
        theta = np.zeros((number, 2))
        return queueing.make_instance(theta, arrival_rate, embeddings=embeddings, utility=utility), policies

    policies = QUEUEING if number > 1 else {name: QUEUEING[name] for name in ("mle", "optimal")}
    grid = {"world": list(WORLDS), "arrival_rate": [0.0, 1.0]}
    return jc.sweep(make, grid, num_steps=50, num_seeds=3, record=2), number


def test_queueing_keeps_count_of_every_query(queues):
    study, number = queues
    for _, found in recorded(study):
        np.testing.assert_array_equal(found["arrivals"], found["departures"] + found["waiting"])
        np.testing.assert_array_equal(found["services"], found["departures"] + found["retrials"])
        np.testing.assert_array_equal(found["services"], sum(found[f"offers_{j + 1}"] for j in range(number)))
        assert np.all(found["regret"] >= 0) and np.all(found["departed_retrials"] <= found["retrials"])
        assert np.all(found["arrivals"][:, 0] == 0) and np.all(found["arrivals"][:, 1] == 50)


def test_queueing_where_users_always_or_never_accept(queues):
    study, number = queues
    busy = study.select(arrival_rate=1.0)
    for policy, found in recorded(busy.select(world="accepts")):
        assert np.all(found["departures"] == 49) and np.all(found["retrials"] == 0), policy  # the last has just come
        assert np.all(found["sojourn"] == 49) and np.all(found["sojourn_p95"] == 1)
        assert np.all(found["regret"] == 0) and np.all(found["queue_gap_sum"] == 0)
    for policy, found in recorded(busy.select(world="refuses")):
        assert np.all(found["departures"] == 0) and np.all(found["waiting"] == 50), policy
        assert np.all(found["retrials"] == 49) and np.all(found["queue_length_mean"] == 49 / 2)
        assert np.all(found["regret"] == 0)
    for policy, found in recorded(busy.select(world="the same")):
        assert np.all(found["regret"] == 0), policy
    one = busy.select(world="one accepts")
    assert np.all(one.final("optimal", "regret") == 0)
    if number == 2:  # regret counts the rounds that offered the one who never pleases
        for policy, found in recorded(one):
            np.testing.assert_allclose(found["regret"], found["offers_1"], rtol=1e-6, err_msg=policy)


# ----------------------------------------------------------------------------------------------------------
# Cascade

CASCADE = {
    "dow": cascade.dow(),
    "one pass": cascade.dow(estimator="one_pass"),
    "oracle": cascade.oracle(),
    "all": cascade.open_all(),
}
# Values of two outputs and costs, the same for all boxes.
BOXES = {
    "worthless": ([0.0, 0.0], 0.0),
    "perfect": ([1.0, 1.0], 0.0),
    "either": ([0.0, 1.0], 0.0),
    "dear": ([0.7, 0.7], 0.1),
    "not worth it": ([0.1, 0.1], 2.0),
}


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=SLOW)], ids=lambda n: f"{n} boxes")
def boxes(request):
    number = request.param

    def make(world):
        value, cost = BOXES[world]
        return cascade.discrete(np.tile(value, (number, 1)), np.full((number, 2), cost)), CASCADE

    return jc.sweep(make, {"world": list(BOXES)}, num_steps=40, num_seeds=3, record=2), number


def test_cascades_open_and_deploy_what_they_say(boxes):
    study, number = boxes
    for policy, found in recorded(study):
        opened = sum(found[f"opened_{a + 1}"] for a in range(number))
        np.testing.assert_allclose(40 * opened, found["opened"], rtol=1e-6)
        np.testing.assert_allclose(sum(found[f"deployed_{a + 1}"] for a in range(number)), 1, rtol=1e-6)
        assert np.all(found["opened"] >= 40) and np.all(found["opened"] <= 40 * number)
        cost = np.array([BOXES[world][1] for world in study.axes["world"]])[:, None]
        np.testing.assert_allclose(found["cost"], cost * found["opened"], rtol=1e-5)
        # Free boxes are all opened by the oracle, and boxes without chance have one right order: no luck.
        assert np.all(found["regret"] >= -ROUNDING), policy
        if number == 1 or policy == "oracle":
            assert np.all(np.abs(found["regret"]) <= ROUNDING), policy


def test_cascades_whose_utility_is_plain(boxes):
    study, number = boxes
    for policy in CASCADE:
        opened, utility = study.curve(policy, "opened")[..., -1], study.curve(policy, "utility")[..., -1]
        for world, value, cost in (("worthless", 0.0, 0.0), ("perfect", 1.0, 0.0), ("dear", 0.7, 0.1)):
            i = study.axes["world"].index(world)
            np.testing.assert_allclose(utility[i], 40 * value - cost * opened[i], rtol=1e-5, atol=1e-6)
        assert np.all(study.select(world="perfect").final(policy, "reward") == 40)
        assert np.all(study.select(world="worthless").final(policy, "reward") == 0)
    wasted = study.select(world="dear").final("all", "regret")
    np.testing.assert_allclose(wasted, 40 * (number - 1) * 0.1, rtol=1e-4, atol=1e-5)


def test_cascades_with_utilities_of_fifty():
    """mu* is 0 or 1 to the last digit: logits of +-50 in rewards, learned features and the oracle's table."""
    plain = cascade.synthetic("A", context_size=4, output_size=4, feature_size=2, c0=(0.1, 0.2), c1=(0.0, 0.0))
    policies = {name: CASCADE[name] for name in ("dow", "one pass", "oracle")}

    def make(scale):
        from dataclasses import replace

        return replace(plain, theta=plain.theta * scale), policies

    study = jc.sweep(make, {"scale": [0.0, 50.0]}, num_steps=40, num_seeds=3, record=2)
    for policy, found in recorded(study):
        assert np.all(found["reward"] <= 40) and np.all(found["opened"] >= 40)
        # With theta = 0 every output is worth 1/2: the oracle opens the cheapest box and no other.
        assert policy != "oracle" or np.all(found["opened"][0] == 40)
        assert policy == "oracle" or np.all(found["regret"][0] >= -ROUNDING)
        assert policy != "oracle" or np.all(found["regret"] == 0)


# ----------------------------------------------------------------------------------------------------------
# One round, one seed


@pytest.mark.parametrize(
    ("instance", "policy"),
    [
        (deferral.two_point(num_levels=1), deferral.kl_pbd()),
        (queueing.synthetic(1, 1, arrival_rate=0.3), queueing.acqb(estimator="one_pass")),
        (cascade.discrete([[0.5]], [[0.0]]), cascade.dow(estimator="one_pass")),
    ],
    ids=["deferral", "queueing", "cascade"],
)
def test_one_round_of_one_seed(instance, policy):
    study = jc.compare(instance, {"one": policy}, num_steps=1, num_seeds=1)
    ((_, found),) = recorded(study)
    assert study.steps.tolist() == [1] and found["regret"].shape == (1,) and found["regret"] >= 0
    if study.system == "queueing":
        assert found["queue_length"] == found["services"] == found["regret"] == 0
    if study.system == "cascade":
        assert found["opened"] == 1 and abs(found["regret"]) < ROUNDING


# ----------------------------------------------------------------------------------------------------------
# A million rounds

MILLION = 10**6


def million(policy, **costs):
    with float32_mode():
        instance = deferral.make_instance([0.3, 0.8], [0.5, 0.5], queue_capacity=3, **costs)
        study = jc.compare(instance, {"it": policy}, num_steps=MILLION, num_seeds=2, record=[MILLION // 2, MILLION])
    return dict(recorded(study))["it"]


def test_a_million_rounds_are_counted_exactly():
    found = million(deferral.accept_all(), cost_expert=0.25)
    assert np.all(found["arrivals"] == MILLION) and np.all(found["accepted"] == MILLION)
    assert np.all(found["correct"] == found["accepted_correct"])
    # One for every wrong answer: above 2^24, where float32 would stop counting, if it were summed in one go.
    assert np.all(found["cost"] == MILLION - found["correct"])
    assert np.all(np.abs(found["correct"] - 0.55 * MILLION) < 5 * math.sqrt(MILLION / 4))


def test_a_million_rounds_of_a_queue_lose_no_query():
    found = million(deferral.random(0.6), service_rate=0.4, cost_expert=0.25, cost_holding=0.0)
    assert np.all(found["arrivals"] == found["accepted"] + found["deferrals"]) and np.all(found["deferrals"] > 2e5)
    assert np.all(found["deferrals"] == found["labels"] + found["queue_length"])
    assert np.all(found["correct"] == found["accepted_correct"] + found["deferrals"])
    # Fees of a quarter are exact in binary.
    assert np.all(found["cost"] == found["deferrals"] / 4 + found["accepted"] - found["accepted_correct"])


def test_regret_of_a_million_rounds_is_a_sum_in_float64():
    """Of equal gaps, whose sum is known; in float32 a block's 10,000 rounds are rounded as float32 rounds."""

    def regret():
        instance = deferral.make_instance([0.3], [1.0], cost_expert=0.0)
        found = jc.compare(instance, {"it": deferral.accept_all()}, num_steps=MILLION, num_seeds=2, record=100)
        return found.steps, found.curves["it"]["regret"]

    with float64_mode():
        steps, exact = regret()
    np.testing.assert_allclose(exact, 0.7 * np.broadcast_to(steps, exact.shape), rtol=1e-9)
    with float32_mode():
        steps, single = regret()
    blocks = np.diff(single, axis=1, prepend=0)
    np.testing.assert_allclose(single[:, -1], np.sum(blocks, axis=1), rtol=1e-12)
    np.testing.assert_allclose(blocks, 7000, rtol=1e-3)
    assert np.all(blocks == blocks[0, 0])  # no block is worse than the first


def test_the_mean_of_a_very_long_queue_does_not_wrap():
    """Its summed lengths are above 2^31, where int32 ends."""
    rounds = 70_000
    instance = deferral.make_instance([0.3], [1.0], queue_capacity=rounds, service_rate=2e-7, cost_holding=0.0)
    options = {"num_steps": rounds, "num_seeds": 1, "record": 1, "environment": bare(deferral.environment(instance, 1))}
    found = jc.simulate(instance, deferral.defer_all(), key=jax.random.key(0), **options)
    assert found.metrics["queue_length"] == rounds
    np.testing.assert_allclose(found.metrics["queue_length_mean"], (rounds - 1) / 2, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------
# float32 and float64

# System, policy, rounds and seeds, of a quick comparison and of one at the paper's horizon.
PRECISION = {
    "deferral": (deferral.monotone, deferral.kl_pbd, (400, 48), (20_000, 64)),
    "cascade": (
        lambda: cascade.synthetic("B", context_size=10, output_size=10, feature_size=3),
        lambda: cascade.dow(estimator="one_pass"),
        (200, 32),
        None,
    ),
    "cascade, refit": (lambda: cascade.synthetic("B"), cascade.dow, None, (30_000, 12)),
    "queueing": (queueing.synthetic, lambda: queueing.acqb(estimator="one_pass"), (200, 64), None),
    "queueing, exact": (queueing.synthetic, queueing.acqb, None, (4000, 64)),
}
COMPARED = {
    "deferral": ("regret", "cost", "deferrals", "queue_length_mean"),
    "cascade": ("regret", "utility", "cost", "opened"),
    "queueing": ("regret", "departures", "queue_gap_sum", "retrials"),
}


def z_scores(make, policy, rounds, seeds):
    """Of the difference in mean between float32 and float64, by metric; the draws of the two are independent."""
    tables = []
    with float32_mode():
        instance = make()  # one for both: in float64 its random numbers would be others
    for mode in (float32_mode(), float64_mode()):
        with mode:
            study = jc.compare(instance, {"it": policy()}, num_steps=rounds, num_seeds=seeds, record=1)
            tables.append((study.system, dict(recorded(study))["it"]))
    (system, single), (_, double) = tables
    found = {}
    for metric in COMPARED[system]:
        one, other = single[metric], double[metric]
        error = math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / seeds)
        found[metric] = (one.mean() - other.mean()) / error
        assert not np.array_equal(one, other)  # or the test would see nothing
    return found


@pytest.mark.parametrize("name", [name for name, (_, _, quick, _) in PRECISION.items() if quick])
def test_float32_and_float64_agree_within_chance(name):
    make, policy, sizes, _ = PRECISION[name]
    found = z_scores(make, policy, *sizes)
    assert max(map(abs, found.values())) < 3.5, found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (*_, long) in PRECISION.items() if long])
def test_float32_and_float64_agree_at_the_papers_horizons(name, record_property):
    make, policy, _, sizes = PRECISION[name]
    found = z_scores(make, policy, *sizes)
    for metric, z in found.items():
        record_property(metric, z)
    assert max(map(abs, found.values())) < 3.5, found
