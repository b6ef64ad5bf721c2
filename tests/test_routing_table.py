"""The reader of routing tables: every published format, every complaint, and pickles that must not run."""

import csv
import os
import pickle
import sys

import numpy as np
import pytest

from jaxcascade.data.routing import read_routing_table, summarise_table

MODELS = ("gpt-3.5-turbo-1106", "mistralai/mixtral-8x7b-chat")
SCORES = [[0.0, 1.0], [1.0, 0.5], [0.25, 1.0]]
DOLLARS = [[1e-4, 2e-4], [3e-4, 0.0], [5e-5, 6e-4]]
PRICES = {MODELS[0]: (1.0, 2.0), MODELS[1]: (0.5, 4.0)}


def routerbench_columns():
    """A table in RouterBench's columns, by column."""
    table = {
        "sample_id": ["mmlu.1", "mmlu.2", "gsm.7"],
        "prompt": ["['first line\\nsecond', \"it's\"]", "plain [text]", "[not a list"],
        "eval_name": ["mmlu", "mmlu", "gsm"],
    }
    for j, model in enumerate(MODELS):
        table[model] = [row[j] for row in SCORES]
    for j, model in enumerate(MODELS):
        table[f"{model}|model_response"] = ["A", "é", "1"]
        table[f"{model}|total_cost"] = [row[j] for row in DOLLARS]
        table[f"{model}|response_chars"] = [1, 20, 300 + j]
    table["oracle_model_to_route_to"] = [MODELS[1], MODELS[0], MODELS[1]]
    return table


def cascade_columns():
    table = {"qid": [0, 1, 2], "prompt": ["p", "q", "r"]}
    for j, model in enumerate(MODELS):
        table |= {
            f"{model}|correct": [int(row[j] > 0.4) for row in SCORES],
            f"{model}|answer": ["7", "8", "9"],
            f"{model}|confidence": [-0.5 - j, "", -1e-5],
            f"{model}|cost_usd": [row[j] for row in DOLLARS],
            f"{model}|note": ["1", "none", "slow"],
        }
    return table


def sprout_columns():
    table = {
        "key": [5, 5, 5],
        "dataset": ["math", "math", "rag"],
        "prompt": ["p", "q", "r"],
        "golden_answer": ["1", "2", "3"],
    }
    for j, model in enumerate(MODELS):
        table[model] = [
            {"num_input_tokens": 10 + i, "num_output_tokens": 100 * (j + 1), "response": "...", "score": SCORES[i][j]}
            for i in range(3)
        ]
    return table


def embedllm_rows(pairs):
    """EmbedLLM's long rows of (prompt id, model id, label)."""
    return [
        {
            "prompt_id": prompt,
            "model_id": model,
            "category_id": 0,
            "label": label,
            "prompt": f"question {prompt}",
            "model_name": f"org/model-{model}",
            "category": "mmlu",
        }
        for prompt, model, label in pairs
    ]


def by_row(table):
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]


@pytest.fixture
def write(tmp_path):
    """Writes columns, rows, text or bytes as a CSV file of the given name and returns its path."""

    def write_file(content, name="table.csv"):
        path = tmp_path / name
        if isinstance(content, str | bytes):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            return path
        rows = by_row(content) if isinstance(content, dict) else content
        with open(path, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write_file


@pytest.fixture
def write_parquet(tmp_path):
    """Writes columns as a Parquet file and returns its path."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write_file(table, name="table.parquet", **options):
        parquet.write_table(pyarrow.table(table), tmp_path / name, **options)
        return tmp_path / name

    return write_file


def complaint(path, **options):
    """The one line that reading `path` raises, without the path it starts with."""
    with pytest.raises(ValueError) as caught:
        read_routing_table(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError
    assert "\n" not in message and len(message) < 1500
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def changed(table, column, row, value):
    """The columns with one cell replaced; `row` counts from 1."""
    return table | {column: [*table[column][: row - 1], value, *table[column][row:]]}


def check_routerbench(table):
    assert table.prompt_id == ("mmlu.1", "mmlu.2", "gsm.7")
    assert table.prompt == ("first line\nsecond\nit's", "plain [text]", "[not a list")
    assert table.group == ("mmlu", "mmlu", "gsm")
    assert table.models == MODELS
    assert table.performance.dtype == table.cost.dtype == np.float64
    np.testing.assert_array_equal(table.performance, SCORES)
    np.testing.assert_array_equal(table.cost, DOLLARS)
    assert list(table.features) == ["response_chars"]
    np.testing.assert_array_equal(table.features["response_chars"], [[1, 1], [20, 20], [300, 301]])
    assert table.embeddings.shape == (3, 0)


# --- RouterBench


def test_routerbench_csv(write):
    path = write(routerbench_columns())
    check_routerbench(read_routing_table(path))
    check_routerbench(read_routing_table(str(path), format="routerbench"))


def test_routerbench_parquet(write_parquet):
    check_routerbench(read_routing_table(write_parquet(routerbench_columns())))
    check_routerbench(read_routing_table(write_parquet(routerbench_columns(), "no_ending", row_group_size=2)))


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("storage", ["pyarrow", "python", "object"])
def test_routerbench_pickle(tmp_path, protocol, storage):
    pandas = pytest.importorskip("pandas")
    if storage == "pyarrow":
        pytest.importorskip("pyarrow")
    path = tmp_path / "routerbench_0shot.pkl"
    if storage == "object":
        frame = pandas.DataFrame(routerbench_columns(), dtype=object)
        frame.columns = pandas.Index(list(frame.columns), dtype=object)
    else:
        with pandas.option_context("mode.string_storage", storage):
            frame = pandas.DataFrame(routerbench_columns())
    frame.to_pickle(path, protocol=protocol)
    check_routerbench(read_routing_table(path))


def test_pickle_of_other_shapes(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(routerbench_columns())
    path = tmp_path / "table.pkl"
    # A selection has an index of its own and blocks in another memory order; a float32 column has its own block.
    mixed = pandas.concat([frame, frame[::-1]], ignore_index=True).astype({MODELS[0]: np.float32})
    mixed[::-1][:3].assign(sample_id=["x", None, "z"]).dropna().to_pickle(path)
    table = read_routing_table(path)
    assert table.prompt_id == ("x", "z")
    np.testing.assert_array_equal(table.performance, [SCORES[0], SCORES[2]])
    np.testing.assert_array_equal(table.cost, [DOLLARS[0], DOLLARS[2]])
    scalars = frame.astype({MODELS[0]: object})
    scalars[MODELS[0]] = pandas.Series([np.float64(0), np.bool_(True), 0.25], dtype=object)
    scalars.to_pickle(path)
    np.testing.assert_array_equal(read_routing_table(path).performance, SCORES)


def test_routerbench_gives_an_id_to_two_prompts(write):
    table = changed(routerbench_columns(), "sample_id", 3, "mmlu.1")
    assert read_routing_table(write(table)).prompt_id == ("mmlu.1", "mmlu.2", "mmlu.1#2")
    table["prompt"] = ["p", "q", "p"]
    assert complaint(write(table)) == (
        ", row 3, column 'sample_id': expected an id and prompt that no other row has (row 1 has it), got 'mmlu.1'"
    )


def test_prompts_that_look_like_lists(write):
    table = routerbench_columns()
    table["prompt"] = ["['\\d', 'x']", "[1, 2]", "[" * 3000 + "]" * 3000]
    assert read_routing_table(write(table)).prompt == ("\\d\nx", "[1, 2]", "[" * 3000 + "]" * 3000)
    table["prompt"] = ["[__import__('os').getcwd()]", "[]", "['a' 'b']"]
    assert read_routing_table(write(table)).prompt == ("[__import__('os').getcwd()]", "[]", "ab")


# --- SPROUT


def test_sprout(write_parquet):
    table = read_routing_table(write_parquet(sprout_columns()), prices=PRICES | {"other": (1, 1)})
    assert table.models == MODELS and table.prompt == ("p", "q", "r") and table.group == ("math", "math", "rag")
    assert table.prompt_id == ("1", "2", "3")
    np.testing.assert_array_equal(table.performance, SCORES)
    dollars = [[(10 + i + 200) / 1e6, (0.5 * (10 + i) + 800) / 1e6] for i in range(3)]
    np.testing.assert_allclose(table.cost, dollars, rtol=1e-12)
    assert table.features == {}


def test_sprout_reads_only_the_fields_it_needs(write_parquet, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    asked = []

    class Spy(parquet.ParquetFile):
        def iter_batches(self, *args, **options):
            asked.extend(options["columns"])
            return super().iter_batches(*args, **options)

    path = write_parquet(sprout_columns())
    monkeypatch.setattr(parquet, "ParquetFile", Spy)
    read_routing_table(path, prices=PRICES)
    assert sorted(asked) == sorted(
        ["prompt", "dataset"]
        + [f"{model}.{part}" for model in MODELS for part in ("score", "num_input_tokens", "num_output_tokens")]
    )


def test_sprout_prices(write_parquet):
    path = write_parquet(sprout_columns())
    for prices in (None, {}, {MODELS[0]: (1, 2)}):
        with pytest.raises(ValueError, match=f"^prices: expected .*got none for .*'{MODELS[1]}'$"):
            read_routing_table(path, prices=prices)
    for bad, message in (((1,), "two prices"), (3.0, "two prices"), ((1, -2), "0 or more"), ((1, "2"), "0 or more")):
        with pytest.raises(ValueError, match=f"^prices: expected .*{message}"):
            read_routing_table(path, prices=PRICES | {MODELS[1]: bad})


def test_sprout_missing_and_bad(write_parquet):
    table = sprout_columns()
    table = changed(table, MODELS[1], 2, None)
    assert complaint(write_parquet(table), prices=PRICES) == (
        f", row 2, column '{MODELS[1]}.score': expected a number for every prompt and model, got none;"
        " 1 of 3 prompts lack one (drop_missing=True leaves them out)"
    )
    kept = read_routing_table(write_parquet(table), prices=PRICES, drop_missing=True)
    assert kept.prompt_id == ("1", "3") and np.isfinite(kept.cost).all()
    cell = {"num_input_tokens": 10, "num_output_tokens": -1, "response": "", "score": 1.0}
    message = complaint(write_parquet(changed(sprout_columns(), MODELS[0], 3, cell)), prices=PRICES)
    assert message == (
        f", row 3, column '{MODELS[0]}.num_output_tokens': expected a number of tokens, 0 or more, got -1"
    )
    message = complaint(write_parquet({"prompt": ["p"], "m": [{"score": 1.0}]}), format="sprout")
    assert message.endswith("got 'm' with score")


# --- EmbedLLM


def test_embedllm(write):
    pairs = [("9", 10, 1), ("9", 2, 0), ("4", 2, 1), ("4", 10, 0), ("4", 10, 1), ("4", 10, 1)]
    path = write(embedllm_rows(pairs))
    table = read_routing_table(path)
    # Models by number, not by text; prompts as they come.
    assert table.models == ("org/model-2", "org/model-10")
    assert table.prompt_id == ("9", "4") and table.prompt == ("question 9", "question 4")
    assert table.group == ("mmlu", "mmlu")
    np.testing.assert_allclose(table.performance, [[0, 1], [1, 2 / 3]])
    np.testing.assert_array_equal(table.cost, np.zeros((2, 2)))
    priced = read_routing_table(path, prices={"org/model-10": 0.002})
    np.testing.assert_array_equal(priced.cost, [[0, 0.002]] * 2)
    with pytest.raises(ValueError, match=r"^prices: .*got 'org/model-1' \(did you mean"):
        read_routing_table(path, prices={"org/model-1": 0.002})


def test_embedllm_missing(write):
    path = write(embedllm_rows([("a", 0, 1), ("a", 1, 1), ("b", 1, 0), ("c", 0, 0), ("c", 1, ""), ("d", 0, 1)]))
    assert complaint(path) == (
        ", row 3, column 'label of org/model-0': expected a number for every prompt and model, got none;"
        " 3 of 4 prompts lack one (drop_missing=True leaves them out)"
    )
    table = read_routing_table(path, drop_missing=True, embeddings=np.arange(8).reshape(4, 2))
    assert table.prompt_id == ("a",)
    np.testing.assert_array_equal(table.embeddings, [[0, 1]])
    path = write(embedllm_rows([("a", 0, 1), ("b", 1, 0)]))
    assert complaint(path, drop_missing=True) == ": expected a row with every score and cost, got none in 2 rows"


def test_embedllm_bad(write):
    rows = embedllm_rows([("a", 0, 1), ("a", 1, 2)])
    assert complaint(write(rows)) == ", row 2, column 'label': expected a score in [0, 1], got '2'"
    rows[1] |= {"label": 1, "prompt": "another"}
    assert complaint(write(rows)) == (
        ", row 2, column 'prompt': expected the prompt that row 1 has under the id 'a', got 'another'"
    )
    rows[1]["prompt_id"] = ""
    assert complaint(write(rows)) == ", row 2, column 'prompt_id': expected an id, got ''"


# --- cascade and wide tables


def test_cascade(write, write_parquet):
    for path in (write(cascade_columns()), write_parquet(changed_confidence())):
        table = read_routing_table(path)
        assert table.models == MODELS and table.prompt_id == ("0", "1", "2") and table.group == ("",) * 3
        np.testing.assert_array_equal(table.performance, [[0, 1], [1, 1], [0, 1]])
        np.testing.assert_array_equal(table.cost, DOLLARS)
        # Answers are no feature though they are numbers here; a note is none as one of them is no number.
        assert list(table.features) == ["confidence"]
        np.testing.assert_array_equal(table.features["confidence"], [[-0.5, -1.5], [np.nan] * 2, [-1e-5] * 2])


def changed_confidence():
    """The cascade table with gaps as Parquet has them."""
    table = cascade_columns()
    return {name: [None if cell == "" else cell for cell in cells] for name, cells in table.items()}


def test_wide(write, write_parquet):
    content = {"text": ["p", "q"], "set": ["s", "t"], "a": [True, False], "b": [0.5, 1], "price a": [0.1, 0.2]}
    options = {"score": {"A": "a", "B": "b"}, "cost": {"A": "price a", "B": 0.3}, "prompt": "text", "group": "set"}
    for path in (write(content), write_parquet(content)):
        table = read_routing_table(path, **options)
        assert table.models == ("A", "B") and table.prompt_id == ("1", "2")
        assert table.prompt == ("p", "q") and table.group == ("s", "t")
        np.testing.assert_array_equal(table.performance, [[1, 0.5], [0, 1]])
        np.testing.assert_array_equal(table.cost, [[0.1, 0.3], [0.2, 0.3]])
    bare = read_routing_table(path, score={"B": "b"}, prompt_id="text")
    assert bare.prompt_id == ("p", "q") and bare.prompt == ("", "") and not bare.cost.any()
    assert "expected a column 'b2' (did you mean 'b'?), got 'text', 'set'" in complaint(path, score={"B": "b2"})
    assert "expected a column 'no'" in complaint(path, score={"B": "b"}, group="no")
    for more in ({"cost": {"C": 1.0}}, {"cost": {"B": -1.0}}, {"prices": {}}, {"format": "cascade"}, {"score": {}}):
        with pytest.raises(ValueError, match=r"^(cost|prices|score): expected"):
            read_routing_table(path, **({"score": {"B": "b"}} | more))


def test_unknown(write, tmp_path):
    path = write({"prompt": ["p"], "a": [1]})
    assert complaint(path).startswith(": expected columns MODEL|total_cost (RouterBench)")
    assert complaint(path).endswith("got 'prompt', 'a'")
    with pytest.raises(ValueError, match=r"^format: expected one of .*got 'sprot' \(did you mean 'sprout'\?\)"):
        read_routing_table(path, format="sprot")
    for name in ("routerbench", "sprout", "embedllm", "cascade"):
        assert ": expected" in complaint(path, format=name)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_routing_table(tmp_path / "none.csv")


# --- what is wrong with a table


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (MODELS[0], "1.5", "expected a score in [0, 1], got '1.5'"),
        (MODELS[0], "-0.1", "expected a score in [0, 1], got '-0.1'"),
        (MODELS[1], "good", "expected a score in [0, 1], got 'good'"),
        (MODELS[1], "inf", "expected a score in [0, 1], got 'inf'"),
        (f"{MODELS[0]}|total_cost", "-1e-9", "expected a cost in USD, 0 or more, got '-1e-9'"),
        ("sample_id", "", "expected an id, got ''"),
    ],
)
def test_bad_cells(write, column, value, expected):
    path = write(changed(routerbench_columns(), column, 2, value))
    assert complaint(path) == f", row 2, column {column!r}: {expected}"


def test_missing_columns(write):
    table = routerbench_columns()
    for column in ("sample_id", "prompt", "eval_name", MODELS[1], f"{MODELS[1]}|total_cost"):
        path = write({name: cells for name, cells in table.items() if name != column})
        assert complaint(path).startswith(f": expected a column {column!r}")
    assert complaint(write("a,b,a\n1,2,3\n")) == ", header: expected every column once, got 'a' twice"


def test_repeated_ids(write):
    path = write(changed(cascade_columns(), "qid", 3, 0))
    assert complaint(path) == ", row 3, column 'qid': expected an id that no other row has (row 1 has it), got '0'"


@pytest.mark.parametrize("gap", ["", "nan", "None"])
def test_missing_numbers(write, gap):
    table = changed(changed(routerbench_columns(), MODELS[1], 3, gap), f"{MODELS[0]}|total_cost", 2, gap)
    path = write(table)
    assert complaint(path) == (
        f", row 2, column '{MODELS[0]}|total_cost': expected a number for every prompt and model, got none;"
        " 2 of 3 prompts lack one (drop_missing=True leaves them out)"
    )
    kept = read_routing_table(path, drop_missing=True, embeddings=np.eye(3, dtype=np.float16))
    assert kept.prompt_id == ("mmlu.1",) and kept.group == ("mmlu",)
    assert kept.features["response_chars"].shape == (1, 2)
    np.testing.assert_array_equal(kept.embeddings, [[1, 0, 0]])
    assert kept.embeddings.dtype == np.float32


def test_broken_files(write, write_parquet):
    assert complaint(write("")) == ": expected a header and rows, got an empty file"
    assert complaint(write("", "empty.parquet")) == ": expected a header and rows, got an empty file"
    assert complaint(write("qid,prompt,m|correct,m|cost_usd\n")) == ": expected rows below the header, got none"
    latin = write("qid,prompt,m|correct,m|cost_usd\n1,p,1,0\n2,caf\xe9,1,0\n".encode("latin1"))
    assert complaint(latin) == ", row 2: expected UTF-8 text, got byte 0xe9"
    assert "expected 4 fields, got 3" in complaint(write("qid,prompt,m|correct,m|cost_usd\n1,p,1\n"))
    whole = write_parquet(routerbench_columns()).read_bytes()
    for size in (4, 200, len(whole) - 1):
        message = complaint(write(whole[:size], "cut.parquet"))
        assert message.startswith(": expected a whole Parquet file, got a damaged or shortened one (")
    assert "expected a whole Parquet file" in complaint(write("qid,prompt\n", "text.parquet"))
    message = complaint(write(whole[:20] + bytes(200) + whole[220:], "hole.parquet"))
    assert "expected a whole Parquet file" in message
    empty = {name: cells[:0] for name, cells in cascade_columns().items()}
    assert complaint(write_parquet(empty)) == ": expected rows, got none"


def test_parquet_without_pyarrow(write_parquet, monkeypatch):
    path = write_parquet(routerbench_columns())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"Parquet needs pyarrow: pip install 'jaxcascade\[parquet\]'"):
        read_routing_table(path)


# --- embeddings


def test_embeddings(write, tmp_path):
    path = write(routerbench_columns(), "bench.csv")
    vectors = np.random.default_rng(0).normal(size=(3, 4))
    np.testing.assert_array_equal(read_routing_table(path, embeddings=vectors).embeddings, vectors)
    np.save(tmp_path / "bench.csv.npy", vectors)
    np.testing.assert_array_equal(read_routing_table(path).embeddings, vectors)
    np.save(tmp_path / "bench.minilm.npy", vectors.astype(np.float16))
    beside = read_routing_table(path).embeddings
    np.testing.assert_array_equal(beside, vectors.astype(np.float16))
    assert beside.dtype == np.float32
    np.save(tmp_path / "bench.minilm.npy", vectors[:2])
    with pytest.raises(ValueError, match=r"minilm\.npy: expected shape \(3, d\), .*bench\.csv, got \(2, 4\)"):
        read_routing_table(path)


def test_bad_embeddings(write, tmp_path):
    path = write(routerbench_columns())
    for bad in (np.ones(3), np.ones((3, 2, 2)), [["a"]] * 3, [[1], [2, 3], [4]], np.ones((3, 1), complex)):
        with pytest.raises(ValueError, match=r"^embeddings: expected"):
            read_routing_table(path, embeddings=bad)
    with pytest.raises(ValueError, match=r"^embeddings, row 2: expected finite numbers"):
        read_routing_table(path, embeddings=[[1.0], [np.nan], [2.0]])
    np.save(tmp_path / "objects.npy", np.array([{}, {}, {}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    for name in ("objects.npy", "text.npy"):
        with pytest.raises(ValueError, match=rf"{name}: expected a \.npy file of numbers"):
            read_routing_table(path, embeddings=tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_routing_table(path, embeddings=tmp_path / "none.npy")


# --- pickles that are no table


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def test_forbidden_pickles_do_nothing(write, tmp_path):
    target = tmp_path / "made_by_the_pickle"
    command = f"touch {target}"
    calls = [
        (Call(os.system, command), f"{os.system.__module__}.system"),
        (Call(exec, f"open({str(target)!r}, 'w')"), "builtins.exec"),
        (Call(eval, f"open({str(target)!r}, 'w')"), "builtins.eval"),
        (Call(open, str(target), "w"), "o.open"),
        (Call(getattr, 1, "real"), "builtins.getattr"),
        ({"a": [Call(os.system, command)]}, f"{os.system.__module__}.system"),
    ]
    for call, name in calls:
        for protocol in (2, 4):
            path = write(pickle.dumps(call, protocol=protocol), "bad.pkl")
            message = complaint(path).replace("__builtin__.", "builtins.").replace("io.open", "o.open")
            assert message.startswith(": expected a pickled pandas table of numbers and texts, got the name ")
            assert name in message and message.endswith("; nothing of the pickle was run")
    assert not target.exists()
    # The same payloads do run without the guard: the test would notice.
    with open(os.devnull, "w"):
        pickle.loads(pickle.dumps(calls[3][0])).close()
    assert target.exists()


def test_dotted_names_and_allowed_names_out_of_place(write):
    def stack_global(module, name, arguments=b")"):
        parts = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
        return b"\x80\x04" + parts[0] + parts[1] + b"\x93" + arguments + b"R."

    assert "the name pandas.DataFrame.eval" in complaint(write(stack_global("pandas", "DataFrame.eval"), "a.pkl"))
    assert "the name numpy.load" in complaint(write(stack_global("numpy", "load"), "a.pkl"))
    assert "numpy.dtype out of place as the whole" in complaint(write(stack_global("numpy", "dtype"), "a.pkl"))
    # State set on a class or function of the library would outlive the file.
    poison = stack_global("pandas", "DataFrame")[:-2].removesuffix(b")") + b"N}\x8c\x01x\x8c\x01ys\x86b."
    assert "expected a pickled pandas table" in complaint(write(poison, "a.pkl"))


def test_not_a_pickle(write, tmp_path):
    for content in (b"no pickle at all", b"\x80\x04", b"\x80\x04K\x01", b"PK\x03\x04", b"\x80\x04j\xff\xff\xff\x7f."):
        assert ": expected a pickled pandas table" in complaint(write(content, "bad.pkl"))
    # Slot numbers and lengths that would fill the memory: 2^32 - 1 of a memo, 2^40 of texts, bytes and a frame.
    for opcode in (
        b"Nr\xff\xff\xff\xff",
        *(code + b"\0\0\0\0\0\1\0\0" for code in (b"\x8d", b"\x8e", b"\x95", b"\x96")),
    ):
        assert ": expected a pickled pandas table" in complaint(write(b"\x80\x05" + opcode + b".", "bad.pkl"))
    assert "got a dict as the whole" in complaint(write(pickle.dumps({"a": 1}), "bad.pkl"))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(routerbench_columns())
    frame[MODELS[0]].to_pickle(tmp_path / "bad.pkl")
    assert "got the name pandas" in complaint(tmp_path / "bad.pkl")
    frame.assign(day=pandas.Timestamp("2024-01-01")).to_pickle(tmp_path / "bad.pkl")
    assert "expected a pickled pandas table" in complaint(tmp_path / "bad.pkl")
    frame.assign(prompt=[["a", ["b"]]] * 3).to_pickle(tmp_path / "bad.pkl")
    assert "got a list; nothing of the pickle was run" in complaint(tmp_path / "bad.pkl")
    pandas.DataFrame(np.ones((2, 2))).to_pickle(tmp_path / "bad.pkl")
    assert "got columns without names" in complaint(tmp_path / "bad.pkl")
    frame[:0].to_pickle(tmp_path / "bad.pkl")
    assert complaint(tmp_path / "bad.pkl") == ": expected rows, got none"


def test_damaged_pickles_are_answered_by_a_line(write, tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(routerbench_columns()).to_pickle(tmp_path / "whole.pkl")
    whole = (tmp_path / "whole.pkl").read_bytes()
    random = np.random.default_rng(1)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] = random.integers(256)
        path = write(bytes(damaged[: random.integers(len(whole) // 2, 2 * len(whole))]), "bad.pkl")
        try:
            read_routing_table(path)
        except ValueError as error:
            assert str(error).startswith(str(path)) and "\n" not in str(error)


# --- summary


def test_summary(write):
    summary = summarise_table(read_routing_table(write(routerbench_columns())))
    assert summary.models == MODELS and summary.rows == 3
    np.testing.assert_array_equal(summary.missing, [0, 0])
    np.testing.assert_allclose(summary.mean_score, [1.25 / 3, 2.5 / 3])
    np.testing.assert_allclose(summary.mean_cost, [4.5e-4 / 3, 8e-4 / 3])
    assert summary.best_model == summary.best_net_model == MODELS[1]
    assert summary.oracle_score == 1.0
    assert summarise_table(read_routing_table(write(routerbench_columns())), weight=5).best_net_model == MODELS[0]


def test_summary_of_gaps(write):
    table = read_routing_table(write(routerbench_columns()))
    performance = table.performance.copy()
    performance[1] = np.nan
    performance[:, 0] = np.nan
    summary = summarise_table(table._replace(performance=performance))
    np.testing.assert_array_equal(summary.missing, [3, 1])
    np.testing.assert_array_equal(summary.mean_score, [np.nan, 1.0])
    assert summary.best_model == MODELS[1] and summary.oracle_score == 1.0
    with pytest.raises(ValueError, match=r"^table: expected at least one score"):
        summarise_table(table._replace(performance=np.full((3, 2), np.nan)))


# --- the real files


@pytest.mark.parametrize("name", ["arc_challenge_train", "arc_challenge_test", "winograde_test"])
def test_real_routerbench(shared, name):
    path = shared / "data" / "routing" / f"routerbench_{name}.csv"
    whole, rows = {
        "arc_challenge_train": (1039, 1019),
        "arc_challenge_test": (445, 437),
        "winograde_test": (380, 380),
    }[name]
    if rows < whole:
        assert f"{whole - rows} of {whole} prompts lack one" in complaint(path)
    table = read_routing_table(path, drop_missing=True)
    assert table.performance.shape == table.cost.shape == (rows, 11)
    assert table.embeddings.shape == (rows, 384)
    np.testing.assert_allclose(np.linalg.norm(table.embeddings, axis=1), 1, atol=2e-3)
    assert len(set(table.prompt_id)) == rows and len(set(table.group)) == 1
    assert list(table.features) == ["response_chars"]
    assert not any(prompt.startswith("['") for prompt in table.prompt)
    summary = summarise_table(table)
    assert summary.best_model == "gpt-4-1106-preview"
    assert summary.oracle_score > summary.mean_score.max()


def test_real_cascade(shared):
    for name, rows, models in (
        ("medmcqa_llama_train", 300, 5),
        ("medmcqa_qwen_oai_test", 1000, 4),
        ("mmlu_llama_train", 285, 5),
    ):
        table = read_routing_table(shared / "data" / "cascade" / f"{name}.csv")
        assert table.performance.shape == (rows, models) and table.embeddings.shape == (rows, 384)
        assert list(table.features) == ["confidence", "latency_ms", "in_tok", "out_tok"]
        assert (table.cost > 0).all() and (table.features["confidence"] <= 0).all()


def test_real_routellm_as_a_wide_table(shared):
    models = ("mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview")
    table = read_routing_table(
        shared / "data" / "routing" / "routellm_gsm8k.csv",
        score={model: model for model in models},
        cost={models[0]: 0.0002, models[1]: 0.01},
    )
    assert table.performance.shape == (1319, 2) and table.embeddings.shape == (1319, 384)
    assert summarise_table(table).best_model == models[1]
