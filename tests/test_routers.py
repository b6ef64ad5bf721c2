"""Routers trained offline: what they learn, how good they are on other prompts, and as policies."""

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import queueing
from jaxcascade.config import build, load_config
from jaxcascade.queueing.routers import ROUTERS
from jaxcascade.queueing.table import read_part

COST = np.array([0.1, 0.2, 0.5, 1.0])


def clustered(rows, seed=0):
    """Prompts of four kinds, for each of which another model is good; single answers are 0 or 1."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(4, 12))
    kind = rng.integers(4, size=rows)
    skill = np.where(np.eye(4, dtype=bool), 0.95, 0.3)
    embeddings = centres[kind] + 0.4 * rng.normal(size=(rows, 12))
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings, (rng.random((rows, 4)) < skill[kind]).astype(float), np.tile(COST, (rows, 1))


@pytest.fixture(scope="module")
def trained():
    return {method: queueing.train_router(method, *clustered(160)) for method in ROUTERS}


@pytest.mark.parametrize("method", ROUTERS)
def test_routers_beat_the_best_fixed_model_where_prompts_differ(trained, method):
    quality = queueing.router_quality(trained[method], *clustered(400, seed=1))
    assert quality.utility <= quality.oracle
    if method == "zero":
        scores = queueing.router_scores(trained[method], clustered(400, seed=1)[0])
        assert len(np.unique(np.argmax(scores, axis=1))) == 1
    else:  # the right model for every kind earns about .8, a fixed one about .4
        assert quality.utility > quality.best_fixed + 0.25


@pytest.mark.parametrize("method", ["mlp", "umr"])
def test_training_is_seeded_and_descends(trained, method):
    again = queueing.train_router(method, *clustered(160))
    data = clustered(50, seed=2)[0]
    scores = queueing.router_scores(trained[method], data)
    np.testing.assert_array_equal(scores, queueing.router_scores(again, data))
    other = queueing.train_router(method, *clustered(160), seed=1)
    assert not np.array_equal(scores, queueing.router_scores(other, data))
    if method != "umr":
        assert trained[method].loss.min() < 0.8 * trained[method].loss[0]


def test_a_router_serves_the_oldest_query_with_the_model_it_scores_highest(trained):
    embeddings, performance, cost = clustered(30, seed=3)
    instance = queueing.from_table(embeddings, performance, cost, arrival_rate=0.4)
    policies = {method: queueing.routed(trained[method]) for method in ("zero", "mlp")}
    study = jc.compare(instance, policies, num_steps=400, num_seeds=3, record=1)
    favourite = int(np.argmax(trained["zero"].params)) + 1
    np.testing.assert_array_equal(study.final("zero", f"offers_{favourite}"), study.final("zero", "services"))
    assert study.interval("mlp", "regret").mean[-1] < study.interval("zero", "regret").mean[-1]
    offers = [study.final("mlp", f"offers_{j}").sum() for j in range(1, 5)]
    assert np.count_nonzero(offers) >= 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: queueing.train_router("knnn", *clustered(9)), r"method: expected one of .* \(did you mean 'knn'"),
        (lambda: queueing.train_router("knn", np.zeros((8, 2)), *clustered(9)[1:]), r"shape \[9, d\], got shape \[8"),
        (lambda: queueing.train_router("knn", *clustered(9)[:2], -clustered(9)[2]), "cost: expected numbers >= 0"),
        (lambda: queueing.from_table(np.eye(3)), "embeddings: expected embeddings, performance and cost, or tables"),
        (lambda: queueing.from_table(np.eye(3), tables="x.csv"), "tables: expected nothing beside"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def write_table(folder, name, rows, seed, models="abcd", embedded=True):
    embeddings, performance, cost = clustered(rows, seed)
    lines = ["sample_id,eval_name,prompt," + ",".join([*models, *(f"{m}|total_cost" for m in models)])]
    for i in range(rows):
        numbers = [*performance[i], *cost[i]]
        # Two rows of every ten are the same prompt, met again under another id.
        lines.append(f"{name}{i},g,{name} prompt {i - (i % 10 == 1)}," + ",".join(f"{n:g}" for n in numbers))
    (folder / f"{name}.csv").write_text("\n".join(lines))
    if embedded:
        np.save(folder / f"{name}.minilm.npy", embeddings.astype(np.float32))
    return str(folder / f"{name}.csv")


def test_a_split_keeps_a_prompt_on_one_side(tmp_path):
    path = write_table(tmp_path, "one", 60, 4)
    train, evaluation = read_part(path, "train"), read_part(path, "evaluation")
    assert not set(train.prompt) & set(evaluation.prompt)
    assert len(train.prompt) + len(evaluation.prompt) == 60
    assert len(set(train.prompt)) == len(set(evaluation.prompt)) == 27
    whole = read_part(path)
    for part in (train, evaluation):
        rows = [whole.prompt_id.index(name) for name in part.prompt_id]
        np.testing.assert_array_equal(part.embeddings, whole.embeddings[rows])
        np.testing.assert_array_equal(part.performance, whole.performance[rows])
    other = read_part(path, "train", split_seed=1)
    assert set(other.prompt) != set(train.prompt)
    with pytest.raises(ValueError, match="train_share: expected a share in"):
        read_part(path, "train", train_share=1.0)


def test_tables_are_joined_by_model(tmp_path):
    first, second = write_table(tmp_path, "one", 20, 4), write_table(tmp_path, "two", 30, 5)
    both = read_part([first, second])
    assert both.embeddings.shape == (50, 12) and both.models == tuple("abcd")
    odd = write_table(tmp_path, "odd", 10, 6, models="abce")
    with pytest.raises(ValueError, match=r"tables\[1\]: expected the models of the first table, differs in d, e"):
        read_part([first, odd])
    bare = write_table(tmp_path, "bare", 10, 6, embedded=False)
    with pytest.raises(ValueError, match=r"bare.csv: expected embeddings beside it"):
        read_part(bare)


def test_instance_and_routers_come_from_a_toml_file(tmp_path):
    table = write_table(tmp_path, "one", 80, 4)
    text = f"""
system = "queueing"
num_steps = 60
num_seeds = 2
[instance]
kind = "from_table"
tables = "{table}"
part = "evaluation"
arrival_rate = 0.4
[policies.knn]
kind = "router"
method = "knn"
tables = "{table}"
"""
    (tmp_path / "x.toml").write_text(text)
    instance, policies = build(load_config(tmp_path / "x.toml"))
    assert instance.embeddings.shape == (read_part(table, "evaluation").embeddings.shape)
    study = jc.compare(instance, policies, num_steps=60, num_seeds=2, record=1)
    assert np.all(study.final("knn", "departures") + study.final("knn", "waiting") == study.final("knn", "arrivals"))
