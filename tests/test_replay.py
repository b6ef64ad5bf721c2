"""Replay of conversation logs and arrival traces, against a plain loop."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import queueing
from tests.test_queueing_system import block

RULES = ("fifo", "lifo", "sjf")


def write_log(path, users=60, seed=0):
    """A log in which some users ask the same again after they got an answer."""
    rng = np.random.default_rng(seed)
    rows, start = [], datetime(2024, 1, 1, tzinfo=UTC)
    for user in range(users):
        second = float(rng.integers(0, 5000))
        for again in range(int(rng.choice([1, 1, 1, 2, 3]))):
            words = int(rng.integers(3, 90))
            turns = [
                {"role": "user", "content": f"question of user {user}"},
                {
                    "role": "assistant",
                    "content": "w " * words,
                    "timestamp": (start + timedelta(seconds=second + 200 * again + words)).isoformat(),
                },
            ]
            rows.append({"model": "gpt-4-1106-preview", "hashed_ip": f"u{user}", "conversation": turns})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("log") / "log.jsonl")


@pytest.fixture(scope="module")
def instance(log):
    return queueing.replay(log, arrival_rate=0.5, singletons=0.5)


def loop(instance, rule, rounds):
    """Queue lengths at the start of every round, departures and summed sojourn, by a loop over lists."""
    start, tokens = np.asarray(instance.chain_start), np.asarray(instance.tokens)
    waiting, begun, lengths, departed, sojourn = [], 0, [], 0, 0
    for t in range(1, rounds + 1):
        lengths.append(len(waiting))
        if waiting:
            if rule == "fifo":
                pick = 0
            elif rule == "lifo":
                pick = len(waiting) - 1
            elif rule == "sjf":
                pick = min(range(len(waiting)), key=lambda i: (tokens[waiting[i]["node"]], i))
            else:
                pick = min(range(len(waiting)), key=lambda i: (waiting[i]["end"] - waiting[i]["node"], i))
            chain = waiting.pop(pick)
            if chain["node"] + 1 == chain["end"]:
                departed, sojourn = departed + 1, sojourn + t - chain["joined"]
            else:
                waiting.append({**chain, "node": chain["node"] + 1})
        if instance.arrivals[t - 1]:
            waiting.append({"node": start[begun], "end": start[begun + 1], "joined": t})
            begun += 1
    return np.array(lengths), departed, sojourn


@pytest.mark.parametrize("rule", [*RULES, "optimal"])
def test_schedules_agree_with_a_loop_over_lists(instance, rule):
    rounds = len(instance.arrivals)
    policy = queueing.optimal() if rule == "optimal" else queueing.fixed_routing(rule)
    study = jc.compare(instance, {"policy": policy}, num_steps=rounds, num_seeds=1, record=list(range(1, rounds + 1)))
    lengths, departed, sojourn = loop(instance, rule, rounds)
    np.testing.assert_array_equal(study.curve("policy", "queue_length")[0], lengths)
    assert study.final("policy", "departures")[0] == departed > 5
    assert study.final("policy", "sojourn")[0] == sojourn
    best, _, _ = loop(instance, "optimal", rounds)
    np.testing.assert_array_equal(study.curve("policy", "queue_gap")[0], lengths - best)
    assert lengths.mean() >= best.mean()


@pytest.mark.parametrize(
    "policy",
    [
        queueing.acqb(estimator="one_pass"),
        queueing.fixed_routing("round_robin"),
        queueing.rand(),
    ],
    ids=["acqb", "fixed", "rand"],
)
def test_chains_are_conserved(instance, policy):
    rounds = len(instance.arrivals)
    study = jc.compare(instance, {"policy": policy}, num_steps=rounds, num_seeds=3, record=10)
    arrivals, departures, waiting, services, retrials = (
        study.curve("policy", name) for name in ("arrivals", "departures", "waiting", "services", "retrials")
    )
    np.testing.assert_array_equal(arrivals, departures + waiting)
    np.testing.assert_array_equal(services, departures + retrials)
    np.testing.assert_array_equal(arrivals[0], np.cumsum(instance.arrivals)[study.steps - 1])
    assert not study.final("policy", "regret").any()


def test_a_small_buffer_grows_and_changes_nothing(instance):
    rounds = len(instance.arrivals)
    sizes = {"num_steps": rounds, "num_seeds": 1, "steps": [rounds // 2, rounds]}
    small = block(instance, queueing.fixed_routing("lifo"), **sizes, slots=1, oracle_slots=1)
    large = block(instance, queueing.fixed_routing("lifo"), **sizes)
    for name, values in large.items():
        np.testing.assert_array_equal(small[name], values)


def test_contexts_hold_the_chains_state_and_the_embedding(log):
    conversations = jc.data.read_conversation_log(log)
    vectors = np.random.default_rng(0).normal(size=(len(conversations.user), 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    instance = queueing.replay(log, embeddings=vectors, arrival_rate=0.5, singletons=0.5, dimensions=3)
    assert instance.dim == 5 and instance.embeddings.shape[1] == 5
    assert np.mean(np.sum(np.asarray(instance.embeddings) ** 2, axis=1)) == pytest.approx(1, rel=1e-5)
    environment = queueing.environment(instance, 20)
    state = environment.init(instance)
    at = 1 + int(np.flatnonzero(np.asarray(instance.arrivals))[0])
    for t in range(1, at + 3):
        seen = environment.observe(instance, state, (), t)
        if t == at + 1:
            assert int(seen.newcomer) == 2 * at + 1
            np.testing.assert_allclose(seen.context[0, -2:], [1, np.log(2) / 5], rtol=1e-6)
            np.testing.assert_allclose(seen.context[0, :3], instance.embeddings[0, :3])
            assert int(seen.tokens[0]) == int(instance.tokens[0])
        state, _, _ = environment.step(instance, state, queueing.rounds.Action(np.int32(-1), np.zeros(1, int)), (), t)


def test_instances_are_saved_and_loaded(instance, tmp_path):
    jc.save_instance(tmp_path / "i.npz", instance)
    again = jc.load_instance(tmp_path / "i.npz")
    np.testing.assert_array_equal(again.chain_start, instance.chain_start)
    np.testing.assert_array_equal(again.arrivals, instance.arrivals)
    assert again.dim == instance.dim


@pytest.fixture
def trace(tmp_path):
    seconds = np.cumsum(np.random.default_rng(1).exponential(1, 40))
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP", *(f"{1e9 + s:.3f}" for s in seconds)]))
    return str(tmp_path / "trace.csv")


def test_any_instance_takes_its_arrivals_from_a_trace(trace):
    expected = jc.data.bin_arrivals(jc.data.read_arrival_trace(trace), 0.4)
    table = np.random.default_rng(0)
    rows = table.normal(size=(9, 4)), table.random((9, 3)), table.random((9, 3))
    for instance in (
        queueing.synthetic(arrival_rate=0.4, arrivals=trace),
        queueing.from_table(*rows, arrival_rate=0.4, arrivals=trace),
    ):
        rounds = len(expected)
        study = jc.compare(
            instance,
            {"rand": queueing.rand(), "fifo": queueing.rand_rout()},
            num_steps=rounds,
            num_seeds=2,
            record=list(range(1, rounds + 1)),
        )
        for policy in study.policies:
            np.testing.assert_array_equal(study.curve(policy, "arrivals"), np.cumsum(expected)[None].repeat(2, 0))
            waiting = study.curve(policy, "arrivals") - study.curve(policy, "departures")
            np.testing.assert_array_equal(study.curve(policy, "waiting"), waiting)
        with pytest.raises(ValueError, match=f"num_steps: expected at most {rounds}, the rounds of the arrival trace"):
            jc.compare(instance, {"rand": queueing.rand()}, num_steps=rounds + 1, num_seeds=1)


def test_bad_input_is_named(log, instance, tmp_path):
    with pytest.raises(ValueError, match="scheduling: expected queries with token counts"):
        policy = {"p": queueing.fixed_routing("sjf")}
        jc.compare(queueing.synthetic(), policy, num_steps=5, num_seeds=1)
    with pytest.raises(ValueError, match=r"scheduling: expected one of .*got 'sfj'.*did you mean 'sjf'"):
        queueing.fixed_routing("sfj")
    with pytest.raises(ValueError, match=r"dimensions: expected a whole number >= 0, got 1\.5"):
        queueing.replay(log, dimensions=1.5)
    with pytest.raises(ValueError, match="encoder: expected nothing beside embeddings"):
        queueing.replay(log, encoder="x", embeddings=np.eye(3))
    with pytest.raises(ValueError, match="arrivals: expected bool, one a round"):
        queueing.synthetic(arrivals=np.ones(5))
    arrays = {name: np.asarray(value) for name, value in vars(instance).items()}
    for change, message in (
        ({"chain_start": arrays["chain_start"][::-1]}, "chain_start: expected numbers that increase from 0 to"),
        ({"tokens": arrays["tokens"][:-1]}, r"tokens: expected shape \["),
        ({"arrivals": np.ones(500, bool)}, "arrivals: expected at most"),
    ):
        with pytest.raises(ValueError, match=message):
            queueing.from_arrays(arrays | change)
    assert queueing.replay(write_log(tmp_path / "l.jsonl", 20), arrival_rate=0.3, singletons=0.1).num_llms == 1
