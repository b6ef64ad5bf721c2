"""The projection of ACQB-CL: prompts that agree on the models come closer, on prompts it never saw too."""

import warnings

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade import queueing
from jaxcascade.queueing.table import read_part


def prompts(rows, seed):
    """Embeddings in which what decides the best model is drowned by what does not."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(4, size=rows)
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])[kind]
    embeddings = np.concatenate([0.5 * signs, rng.normal(size=(rows, 14))], axis=1)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    performance = np.where(np.arange(4) == kind[:, None], 0.9, 0.2) + 0.05 * rng.random((rows, 4))
    return embeddings, performance, np.ones((rows, 4))


@pytest.fixture(scope="module")
def trained():
    return queueing.train_projection(*prompts(600, 0), per_model=60, epochs=60)


def test_neighbours_agree_more_after_the_projection_on_new_prompts(trained):
    embeddings, *answers = prompts(300, 1)
    before = queueing.neighbour_agreement(embeddings, *answers)
    projected = np.asarray(queueing.project(trained, embeddings))
    assert projected.shape == embeddings.shape
    np.testing.assert_allclose(np.linalg.norm(projected, axis=1), 1, rtol=1e-4)
    assert queueing.neighbour_agreement(projected, *answers) > before + 0.2
    assert trained.loss[-1] < 0.6 * trained.loss[0]


def test_the_sample_is_balanced_and_seeded(trained):
    _, performance, cost = prompts(600, 0)
    best = np.argmax(performance[trained.prompts] - 0.3 * cost[trained.prompts], axis=1)
    np.testing.assert_array_equal(np.bincount(best), [60] * 4)
    few = [queueing.train_projection(*prompts(100, 0), epochs=3, seed=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(few[0].layers[0], few[1].layers[0])
    assert not np.array_equal(few[0].prompts, few[2].prompts)
    assert len(few[0].prompts) == 20


def test_agreement_is_that_of_a_plain_loop():
    embeddings, performance, cost = prompts(25, 3)
    utility = performance - 0.3 * cost
    centred = utility - utility.mean(axis=1, keepdims=True)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    found = []
    for i in range(25):
        others = sorted((j for j in range(25) if j != i), key=lambda j: -embeddings[i] @ embeddings[j])[:10]
        found += [centred[i] @ centred[j] for j in others]
    assert queueing.neighbour_agreement(embeddings, performance, cost) == pytest.approx(np.mean(found))


@pytest.mark.parametrize(
    "options", [{"estimator": "one_pass"}, pytest.param({"estimator": "mle"}, marks=pytest.mark.slow)]
)
def test_a_policy_on_projected_contexts_does_what_it_does_where_the_contexts_are_such(trained, options):
    embeddings, *answers = prompts(40, 4)
    plain = queueing.from_table(embeddings, *answers, arrival_rate=0.4)
    there = queueing.from_table(queueing.project(trained, embeddings), *answers, arrival_rate=0.4)
    policy = queueing.acqb(**options)
    own = jc.compare(plain, {"cl": queueing.projected(policy, trained), "acqb": policy}, num_steps=80, num_seeds=2)
    other = jc.compare(there, {"cl": policy}, num_steps=80, num_seeds=2)
    for metric in ("arrivals", "departures", "regret", "offers_2"):
        np.testing.assert_allclose(own.curve("cl", metric), other.curve("cl", metric), atol=1e-5)
    assert not np.array_equal(own.curve("cl", "regret"), own.curve("acqb", "regret"))


def test_acqb_cl_trains_on_the_other_part_of_the_split(tmp_path):
    embeddings, performance, cost = prompts(120, 5)
    names = "abcd"
    header = ",".join(["sample_id", "prompt", "eval_name", *names, *(f"{name}|total_cost" for name in names)])
    rows = [
        ",".join([f"{i}", f"p{i}", "g", *(f"{x:.4f}" for x in (*performance[i], *cost[i]))])
        for i in range(len(embeddings))
    ]
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]))
    np.save(tmp_path / "t.minilm.npy", embeddings.astype(np.float32))
    path = str(tmp_path / "t.csv")
    train = read_part(path, "train")
    evaluation = set(read_part(path, "evaluation").prompt)
    projection = queueing.train_projection(train.embeddings, train.performance, train.cost)
    assert not {train.prompt[row] for row in projection.prompts} & evaluation
    policy = queueing.acqb_cl(path)
    np.testing.assert_array_equal(policy.params[1][0], projection.layers[0])
    assert queueing.acqb_cl(path)._replace(params=None) == policy._replace(params=None)
    study = jc.compare(queueing.from_table(tables=path, part="evaluation"), {"cl": policy}, num_steps=40, num_seeds=2)
    assert np.isfinite(study.final("cl", "regret")).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive": 0.2, "negative": 0.3}, "positive: expected -1 <= negative <= positive <= 1"),
        ({"per_model": 0}, "per_model: expected a whole number >= 1"),
        ({"epochs": 1.5}, "epochs: expected a whole number >= 1"),
        ({"cost_weight": -1}, "cost_weight: expected a finite number >= 0"),
        ({"per_model": 1}, "positive: expected a pair of 4 prompts of cosine >= 0.5, got none"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        queueing.train_projection(*prompts(60, 0), **options)


def test_embeddings_that_are_all_the_same_are_warned_of(tmp_path):
    lines = ["sample_id,prompt,eval_name,a,b,a|total_cost,b|total_cost"] + [f"{i},p{i},g,1,0,1,1" for i in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    np.save(tmp_path / "t.minilm.npy", np.ones((4, 3), np.float32))
    with pytest.warns(UserWarning, match="embeddings of all 4 prompts are the same"):
        read_part(tmp_path / "t.csv")
    np.save(tmp_path / "t.minilm.npy", np.eye(4, 3, dtype=np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_part(tmp_path / "t.csv")
