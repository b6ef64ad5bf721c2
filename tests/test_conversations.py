"""Readers of conversation logs and arrival traces, the chains of retries, and every complaint they make."""

import json
import math
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta, timezone

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jaxcascade.data.arrivals import ArrivalTrace, bin_arrivals, read_arrival_trace
from jaxcascade.data.conversations import (
    ConversationLog,
    build_chains,
    read_conversation_log,
    subsample_singletons,
    summarise_chains,
)
from tests.conftest import PEAK_KIB

MODEL = "gpt-4-1106-preview"
START = datetime(2024, 1, 1, 12, 0, 0, tzinfo=UTC)
FORMATS = ["jsonl", "parquet"]
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def turn(role, content, timestamp=None, **more):
    return {"role": role, "content": content, "timestamp": timestamp, **more}


def conversation(seconds, prompt="hello there", answer="a b c", user="u1", model=MODEL, **more):
    """A row with one assistant turn for each of `seconds` after START."""
    turns = []
    for number, second in enumerate(seconds):
        turns.append(turn("user", prompt if number == 0 else f"more {number}"))
        turns.append(turn("assistant", answer, (START + timedelta(seconds=second)).isoformat()))
    return {"conversation_hash": "h", "model": model, "hashed_ip": user, "conversation": turns, **more}


@pytest.fixture
def write(tmp_path):
    """Writes rows as JSON lines or Parquet, or text or bytes as they are, and returns the path."""

    def write_file(content, name="log.jsonl"):
        path = tmp_path / name
        if isinstance(content, list) and name.endswith(".parquet"):
            pyarrow = pytest.importorskip("pyarrow")
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pyarrow.Table.from_pylist(content), path)
            return path
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def complaint(read, path, **options):
    """The one line that reading `path` raises, without the path."""
    with pytest.raises(ValueError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError
    assert "\n" not in message and len(message) < 600
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


# --- the reader of conversations


@pytest.mark.parametrize("ending", FORMATS)
def test_arrivals_are_inferred_and_sorted(write, ending):
    rows = [
        conversation([100.0, 160.0], "second", "one two three four"),
        conversation([50.0], " first\n prompt ", "word " * 30, user="u2"),
        conversation([7.0], model="gpt-3.5-turbo"),
        conversation([200.0], "first prompt", ""),
    ]
    log = read_conversation_log(write(rows, f"log.{ending}"))
    # 4/3 of 4, 30 and 0 words, rounded up; arrival = answer - 2.84 - tokens/30.
    assert log.tokens.tolist() == [40, 6, 0]
    arrival = np.array([50 - 2.84 - 40 / 30, 100 - 2.84 - 6 / 30, 200 - 2.84])
    np.testing.assert_allclose(log.arrival, arrival - arrival[0], atol=1e-5)
    np.testing.assert_allclose(log.answered, np.array([50, 100, 200]) - arrival[0], atol=1e-5)
    np.testing.assert_allclose(log.last_answer, np.array([50, 160, 200]) - arrival[0], atol=1e-5)
    assert log.user.tolist() == [1, 0, 0] and log.user.dtype == np.int64
    assert log.prompt == (" first\n prompt ", "second", "first prompt")
    # White space apart, the first and the last prompt are one.
    assert log.first_prompt_hash.dtype == np.uint64
    assert log.first_prompt_hash[0] == log.first_prompt_hash[2] != log.first_prompt_hash[1]
    assert log.model == MODEL and log.arrival[0] == 0


@pytest.mark.parametrize("ending", FORMATS)
def test_all_models_no_prompts_and_progress(write, ending):
    rows = [conversation([k], model=f"m{k % 3}") for k in range(2500)]
    calls = []
    log = read_conversation_log(write(rows, f"log.{ending}"), model=None, keep_prompts=False, progress=calls.append)
    assert len(log.user) == 2500 and log.prompt == () and log.model is None
    assert calls == [1000, 1000, 500]
    assert len(read_conversation_log(write(rows, f"log.{ending}"), model="m0").user) == 834


@pytest.mark.parametrize("ending", FORMATS)
def test_hashed_ip_on_the_user_turns(write, ending):
    rows = []
    for k, user in enumerate(["a", "b", "a"]):
        row = conversation([10.0 * k, 10.0 * k + 5])
        del row["hashed_ip"]
        row["conversation"][0]["hashed_ip"] = user
        row["conversation"][1]["hashed_ip"] = None
        rows.append(row)
    assert read_conversation_log(write(rows, f"log.{ending}")).user.tolist() == [0, 1, 0]


def test_mixed_kinds_of_timestamps(write):
    east = START.astimezone(timezone(timedelta(hours=9)))
    same = [
        START.isoformat(),
        east.isoformat(),
        START.replace(tzinfo=None).isoformat(sep=" "),
        "2024-01-01T12:00:00Z",
        "2024-01-01 12:00:00 UTC",
        "2024-01-01 12:00:00.000000000",
        int(START.timestamp()),
        START.timestamp() * 1e3,
        int(START.timestamp()) * 10**6,
        int(START.timestamp()) * 10**9,
        str(int(START.timestamp())),
    ]
    rows = []
    for stamp in same:
        row = conversation([0.0])
        row["conversation"][1]["timestamp"] = stamp
        rows.append(row)
    np.testing.assert_allclose(read_conversation_log(write(rows)).arrival, 0, atol=1e-6)


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_timestamps(tmp_path, zone, unit):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = [START, START + timedelta(seconds=30)]
    if zone is None:
        times = [moment.replace(tzinfo=None) for moment in times]
    fields = [("role", pyarrow.string()), ("content", pyarrow.string()), ("timestamp", pyarrow.timestamp(unit, zone))]
    fields.append(("header", pyarrow.struct([("accept-language", pyarrow.string())])))
    turns_type = pyarrow.list_(pyarrow.struct(fields))
    text = pyarrow.string()
    schema = pyarrow.schema([("model", text), ("hashed_ip", text), ("conversation", turns_type)])
    rows = []
    for moment in times:
        turns = [turn("user", "q", header={"accept-language": "en"}), turn("assistant", "a", moment, header=None)]
        rows.append({"model": MODEL, "hashed_ip": "u", "conversation": turns})
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)
    np.testing.assert_allclose(read_conversation_log(path).arrival, [0, 30])


def test_parquet_reads_only_what_it_needs(write, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    asked = []
    original = parquet.ParquetFile.iter_batches

    def spy(self, *arguments, columns, **named):
        asked.extend(columns)
        return original(self, *arguments, columns=columns, **named)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", spy)
    row = conversation([1.0], language="English", toxic=False)
    row["conversation"][0]["header"] = {"user-agent": "x" * 100}
    row["conversation"][0]["toxic"] = False
    read_conversation_log(write([row], "log.parquet"))
    assert {name.split(".")[0] for name in asked} == {"conversation", "model", "hashed_ip"}
    assert {name.split(".")[-1] for name in asked} == {"role", "content", "timestamp", "model", "hashed_ip"}


@pytest.mark.parametrize("place", ["turn", "row"])
def test_token_counts_that_are_there(write, place):
    row = conversation([1.0, 9.0])
    (row["conversation"][1] if place == "turn" else row)["token_count"] = 300
    assert read_conversation_log(write([row])).tokens.tolist() == [300]
    (row["conversation"][1] if place == "turn" else row)["token_count"] = -1
    column = "conversation[1].token_count" if place == "turn" else "token_count"
    assert complaint(read_conversation_log, write([row])).startswith(f", row 1, column '{column}': expected an integer")


def test_a_folder_is_one_log(write, tmp_path):
    write([conversation([9.0], user="b")], "train-0.jsonl")
    write([conversation([1.0], user="a")], "train-1.ndjson")
    write("not a log", "README.md")
    assert read_conversation_log(tmp_path).user.tolist() == [1, 0]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert ": expected a folder with .parquet" in complaint(read_conversation_log, empty)


def test_what_is_skipped_is_counted(write):
    silent, timeless, endless = conversation([]), conversation([3.0]), conversation([3.0, 4.0])
    silent["conversation"] = [turn("user", "q")]
    timeless["conversation"][1]["timestamp"] = None
    endless["conversation"][3]["timestamp"] = ""
    nobody, unasked = conversation([5.0], user=None), conversation([5.0])
    unasked["conversation"] = unasked["conversation"][1:]
    rows = [silent, timeless, endless, nobody, unasked, conversation([1.0]), conversation([2.0])]
    with pytest.warns(UserWarning) as caught:
        log = read_conversation_log(write(rows))
    assert len(log.user) == 2 and len(caught) == 1
    message = str(caught[0].message)
    assert "skipped 5 of 7 conversations: 2 without a timestamp, 1 without an assistant turn" in message
    assert "1 without hashed_ip" in message and "1 without a user turn" in message
    # The row's timestamp stands in where it can only mean the one answer.
    timeless["timestamp"] = endless["timestamp"] = START.isoformat()
    with pytest.warns(UserWarning, match="skipped 1 of 2"):
        assert len(read_conversation_log(write([timeless, endless])).user) == 1


def test_odd_texts_are_read(write):
    rows = [conversation([1.0], prompt) for prompt in ("e\u0301", "\u00e9", "\ud800", "", "\u4f60\u597d")]
    rows.append(conversation([1.0]))
    rows[-1]["conversation"][0]["content"] = rows[-1]["conversation"][1]["content"] = None
    log = read_conversation_log(write(rows))
    assert log.first_prompt_hash[0] == log.first_prompt_hash[1]
    assert len(set(log.first_prompt_hash.tolist())) == 4  # null is the empty text
    assert 0 in log.tokens


def broken(path, value):
    """A good row with the cell at `path` replaced."""
    row = conversation([1.0, 2.0])
    inner = row
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return row


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["conversation"], "text", "'conversation': expected a list of turns, each with role and content, got 'text'"),
        (
            ["conversation", 1, "timestamp"],
            "yesterday",
            "'conversation[1].timestamp': expected a time (ISO text or epoch seconds), got 'yesterday'",
        ),
        (
            ["conversation", 3, "timestamp"],
            "2024-01-01T12:00:00.5Z",
            "'conversation[3].timestamp': expected a time not before that of an earlier turn, "
            "got '2024-01-01T12:00:00.5Z'",
        ),
        (["conversation", 0, "role"], None, "'conversation[0].role': expected user or assistant, got None"),
    ],
)
def test_a_bad_cell_is_named(write, ending, path, value, expected):
    rows = [broken(path, value)]
    if value != "text":
        rows.insert(0, conversation([0.0]))
    said = complaint(read_conversation_log, write(rows, f"log.{ending}"))
    assert said == f", row {len(rows)}, column {expected}"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["conversation", 0], "text"),
        (["conversation", 0, "content"], 3),
        (["conversation", 1, "content"], ["a"]),
        (["conversation", 1, "timestamp"], True),
        (["conversation", 1, "timestamp"], float("nan")),
        (["conversation", 1, "timestamp"], 10**400),
        (["conversation", 1, "timestamp"], {"$date": 0}),
        (["conversation", 1, "timestamp"], "1_000"),
        (["conversation", 1, "timestamp"], "9" * 300),
    ],
)
def test_bad_json_cells(write, path, value):
    said = complaint(read_conversation_log, write([conversation([0.0]), broken(path, value)]))
    assert said.startswith(", row 2, column 'conversation") and "expected" in said


def test_missing_columns_and_files(write, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl: no such file"):
        read_conversation_log(tmp_path / "none.jsonl")
    assert complaint(read_conversation_log, write("")) == ": expected one JSON object a line, got an empty file"
    assert complaint(read_conversation_log, write("a,b", "log.csv")).startswith(": expected a name ending in .parquet")
    row = conversation([1.0])
    del row["model"]
    said = complaint(read_conversation_log, write([row]))
    assert said == ": expected column 'model', found columns: conversation_hash, hashed_ip, conversation"
    assert len(read_conversation_log(write([row]), model=None).user) == 1
    del row["conversation"]
    assert complaint(read_conversation_log, write([row]), model=None).startswith(": expected column 'conversation'")
    said = complaint(read_conversation_log, write([conversation([1.0]), row]))
    assert said == ", row 2, column 'model': expected a model's name, got no such key"
    said = complaint(read_conversation_log, write([conversation([1.0], model="gpt-4")]))
    assert said == f": expected conversations of {MODEL}, got none in 1 rows: models 'gpt-4'"
    said = complaint(read_conversation_log, write([conversation([1.0], user=None)]))
    assert said.endswith("got none in 1 rows: 1 without hashed_ip")
    said = complaint(read_conversation_log, write(json.dumps(conversation([1.0])).encode() + b'\n{"model": "\xff"}\n'))
    assert said == ", row 2: expected UTF-8 text, got byte 0xff"
    said = complaint(read_conversation_log, write(json.dumps(conversation([1.0])) + '\n{"model": '))
    assert said.startswith(", row 2: expected a JSON object, got a bad line")


def test_damaged_parquet(write, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with pytest.raises(FileNotFoundError, match=r"none\.parquet: no such file"):
        read_conversation_log(tmp_path / "none.parquet")
    whole = write([conversation([float(k)], prompt=f"prompt {k}") for k in range(600)], "log.parquet").read_bytes()
    for cut in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        said = complaint(read_conversation_log, write(whole[:cut], "log.parquet"))
        assert said.startswith(": expected a Parquet file, got a damaged one (")
    # The footer is whole and the data are not.
    torn = whole[:200] + bytes(300) + whole[500:]
    assert "expected Parquet data, got damage" in complaint(read_conversation_log, write(torn, "log.parquet"))
    row = conversation([1.0])
    del row["conversation"]
    assert ": expected column 'conversation'" in complaint(read_conversation_log, write([row], "log.parquet"))
    table = pyarrow.Table.from_pylist([conversation([1.0])])
    parquet.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    assert complaint(read_conversation_log, tmp_path / "empty.parquet") == ": expected rows, got an empty file"
    # A string column of bytes that are none, which pyarrow does not check.
    names = pyarrow.Array.from_buffers(pyarrow.string(), 1, pyarrow.array([b"\xff"]).buffers())
    bad = table.set_column(table.schema.get_field_index("model"), "model", names)
    parquet.write_table(bad, tmp_path / "bytes.parquet")
    said = complaint(read_conversation_log, tmp_path / "bytes.parquet")
    assert said.startswith(", row 1 or one of the 255 after it: expected Parquet data, got damage ('utf-8' codec")


def test_parquet_without_pyarrow(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxcascade\[parquet\]'"):
        read_conversation_log(write(b"PAR1", "log.parquet"))


# --- chains


def make_log(user, arrival, last_answer, prompt, keep_prompts=True, hashes=None):
    prompt = [str(text) for text in prompt]
    arrival, last_answer = np.asarray(arrival, float), np.asarray(last_answer, float)
    hashes = [sum(text.encode()) for text in prompt] if hashes is None else hashes
    return ConversationLog(
        np.asarray(user, np.int64),
        arrival,
        last_answer,
        last_answer,
        np.ones(len(arrival), np.int64),
        np.asarray(hashes, np.uint64),
        tuple(prompt) if keep_prompts else (),
        None,
    )


def slow_chains(log, embeddings=None, threshold=0.995):
    """The rule, one pair at a time."""
    previous, link = [], []
    for now in range(len(log.user)):
        previous.append(-1)
        link.append(0)
        for before in reversed(range(now)):
            same = log.first_prompt_hash[now] == log.first_prompt_hash[before]
            if log.prompt:
                same = same and log.prompt[now].split() == log.prompt[before].split()
            close = embeddings is not None and embeddings[now] @ embeddings[before] >= threshold
            if log.user[now] != log.user[before] or before in previous or not (same or close):
                continue
            if log.arrival[now] > log.last_answer[before]:
                previous[now], link[now] = before, 1 if same else 2
                break
    chain, position = [], []
    for before in previous:
        chain.append(max(chain, default=-1) + 1 if before < 0 else chain[before])
        position.append(0 if before < 0 else position[before] + 1)
    return chain, position, link


def check_chains(chains, expected):
    chain, position, link = expected
    assert chains.chain.tolist() == chain
    assert chains.position.tolist() == position
    assert chains.link.tolist() == link
    assert chains.length.tolist() == np.bincount(chain).tolist()
    # Members in order are 0, 1, ... in each chain.
    assert chains.length.sum() == len(chain)


def random_log(seed, num, num_users, num_prompts, wait, keep_prompts=True, collide=False):
    rng = np.random.default_rng(seed)
    # Whole seconds, so that arrivals and last answers tie.
    arrival = np.sort(rng.integers(0, 60, num))
    prompt = rng.integers(0, num_prompts, num)
    hashes = prompt // 2 if collide else prompt
    last = arrival + rng.integers(1, wait + 1, num)
    return make_log(rng.integers(0, num_users, num), arrival, last, prompt, keep_prompts, hashes)


@quick
@given(st.integers(0, 10**9), st.integers(1, 60), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 5, 60]))
def test_chains_agree_with_the_slow_rule(seed, num, num_users, num_prompts, wait):
    for keep_prompts in (True, False):
        for collide in (True, False):
            log = random_log(seed, num, num_users, num_prompts, wait, keep_prompts, collide)
            check_chains(build_chains(log), slow_chains(log))


@quick
@given(st.integers(0, 10**9), st.integers(1, 60), st.integers(1, 3), st.integers(1, 6), st.sampled_from([1, 5, 60]))
def test_chains_by_embeddings_agree_with_the_slow_rule(seed, num, num_users, num_prompts, wait):
    log = random_log(seed, num, num_users, num_prompts, wait, collide=seed % 2 == 0)
    rng = np.random.default_rng(seed)
    angle = rng.choice([0.0, 0.05, 0.15, 0.5, 2.0], num)  # cos .05 = .9988, cos .1 = .995004
    embeddings = np.stack([np.cos(angle), np.sin(angle), np.zeros(num)], 1)
    for threshold in (0.995, 0.9):
        check_chains(build_chains(log, embeddings, threshold), slow_chains(log, embeddings, threshold))
    # Embeddings of which none is close change nothing.
    check_chains(build_chains(log, np.eye(num)), slow_chains(log))


def test_chains_over_several_blocks():
    log = random_log(3, 600, 1, 40, 5)
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(60, 8))[rng.integers(0, 60, 600)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = slow_chains(log, vectors)
    for dtype in (np.float64, np.float32, np.float16):
        # float16 rounds norms by some 1e-4.
        check_chains(build_chains(log, vectors.astype(dtype)), expected)


def test_the_rule_by_hand():
    user = [0, 0, 0, 0, 1, 0]
    arrival = [0, 5, 10, 20, 30, 40]
    last = [5, 12, 30, 25, 35, 45]
    # 1 arrives at the very time of 0's answer: not after it. 2 continues 0 (1 is unanswered), 3 continues 1 (2 is
    # unanswered), 4 is another user, 5 continues 3, more recent than 2.
    chains = build_chains(make_log(user, arrival, last, ["p"] * 6))
    assert chains.chain.tolist() == [0, 1, 0, 1, 2, 1]
    assert chains.position.tolist() == [0, 0, 1, 1, 0, 2]
    assert chains.link.tolist() == [0, 0, 1, 1, 0, 1]
    assert chains.length.tolist() == [2, 3, 1]
    summary = summarise_chains(chains)
    assert summary.length.tolist() == [1, 2, 3] and summary.num_chains.tolist() == [1, 1, 1]
    assert summary.singleton_share == pytest.approx(1 / 3)
    assert (summary.exact_links, summary.embedding_links) == (3, 0)


def test_chains_of_a_log_that_was_read(write):
    rows = [
        conversation([10.0], "Write  a poem"),
        conversation([100.0], "write a poem please"),
        conversation([200.0], "Write a poem\n"),
    ]
    log = read_conversation_log(write(rows))
    assert build_chains(log).chain.tolist() == [0, 1, 0]
    close = np.array([[1.0, 0], [0.999, math.sqrt(1 - 0.999**2)], [1, 0]])
    chains = build_chains(log, close)
    assert chains.chain.tolist() == [0, 0, 0] and chains.link.tolist() == [0, 2, 2]
    assert summarise_chains(chains).embedding_links == 2


def test_chains_refuse_what_does_not_fit():
    log = make_log([0, 0], [0, 5], [1, 6], ["p", "q"])
    for embeddings in (np.ones(2), np.ones((3, 2)), np.ones((2, 2), int)):
        with pytest.raises(ValueError, match=r"embeddings: expected floats of shape \(2, d\)"):
            build_chains(log, embeddings)
    with pytest.raises(ValueError, match=r"embeddings, row 1: expected norm 1, got 2"):
        build_chains(log, np.array([[1.0, 0], [2.0, 0]]))
    with pytest.raises(ValueError, match=r"embeddings, row 0: expected norm 1, got nan"):
        build_chains(log, np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match=r"threshold: expected a cosine"):
        build_chains(log, threshold=1.5)
    with pytest.raises(ValueError, match=r"log: expected conversations in order of arrival"):
        build_chains(log._replace(arrival=np.array([5.0, 0.0])))
    with pytest.raises(ValueError, match=r"log: expected no prompts or 2, got 1"):
        build_chains(log._replace(prompt=("p",)))


def test_no_conversations_no_chains():
    log = make_log([], [], [], [])
    for chains in (build_chains(log), build_chains(log, np.zeros((0, 3)))):
        assert chains.chain.shape == chains.length.shape == (0,)
        assert math.isnan(summarise_chains(chains).singleton_share)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.8, 0.9])
def test_singletons_are_a_fraction_of_the_kept(fraction):
    rng = np.random.default_rng(0)
    prompt = np.where(np.arange(5000) % 10 == 0, rng.integers(0, 100, 5000), 1000 + np.arange(5000))
    chains = build_chains(make_log(np.zeros(5000), np.arange(5000), np.arange(5000) + 0.5, prompt, hashes=prompt))
    kept = subsample_singletons(chains, fraction, seed=1)
    assert np.all(np.diff(kept) > 0)
    longer = np.flatnonzero(chains.length > 1)
    assert set(longer) <= set(kept)
    assert np.mean(chains.length[kept] == 1) == pytest.approx(fraction, abs=0.5 / len(kept))
    np.testing.assert_array_equal(kept, subsample_singletons(chains, fraction, seed=1))
    assert fraction == 0 or not np.array_equal(kept, subsample_singletons(chains, fraction, seed=2))


def test_singletons_that_do_not_suffice():
    chains = build_chains(make_log([0, 0, 1], [0, 5, 6], [1, 6, 7], "ppp"))
    with pytest.warns(UserWarning, match=r"singletons are 0\.5 of the chains kept, expected 0\.8"):
        assert subsample_singletons(chains).tolist() == [0, 1]
    for fraction in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="fraction: expected a share from 0 to below 1"):
            subsample_singletons(chains, fraction)
    with pytest.raises(ValueError, match="expected some longer than one, got 1 of length one"):
        subsample_singletons(build_chains(make_log([0], [0], [1], "p")))


# --- arrival traces


def test_an_arrival_trace(write):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01.5000000,374,44\n2023-11-16 18:00:03,1,0\n"
    trace = read_arrival_trace(write(text, "trace.csv"))
    assert trace.seconds.tolist() == [0, 1.5] and trace.seconds.dtype == np.float64
    assert trace.context_tokens.tolist() == [374, 1] and trace.generated_tokens.tolist() == [44, 0]
    assert trace.context_tokens.dtype == np.int64
    trace = read_arrival_trace(write([{"at": 1.25}, {"at": 3}]), column="at")
    assert trace.seconds.tolist() == [0, 1.75] and trace.context_tokens is trace.generated_tokens is None
    text = "TIMESTAMP,GeneratedTokens\n20231117,3\n20231116,4\n20231116,5\n"
    trace = read_arrival_trace(write(text, "trace.csv"), sort=True)
    assert trace.seconds.tolist() == [0, 0, 1] and trace.generated_tokens.tolist() == [4, 5, 3]
    assert trace.context_tokens is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ": expected a header and rows, got an empty file"),
        ("TIMESTAMP\n", ": expected rows below the header, got none"),
        ("time,tokens\n1,2\n", ": expected column 'TIMESTAMP', found columns: time, tokens"),
        (
            "TIMESTAMP\n1\nnoon\n",
            ", row 2, column 'TIMESTAMP': expected a time (ISO text or epoch seconds), got 'noon'",
        ),
        ("TIMESTAMP,x\n1,2\n,3\n", ", row 2, column 'TIMESTAMP': expected a time, got ''"),
        (
            "TIMESTAMP\n1\n3\n2\n",
            ", row 3, column 'TIMESTAMP': expected a time not before that of row 2 (or sort=True), got '2'",
        ),
        (
            "TIMESTAMP,ContextTokens\n1,-2\n",
            ", row 1, column 'ContextTokens': expected an integer from 0 to 1000000000000, got '-2'",
        ),
        (b"TIMESTAMP\n1\n\xff\n", ", row 2: expected UTF-8 text, got byte 0xff"),
        ("TIMESTAMP,x\n1\n", ", row 1, column 'x': expected 2 fields, got 1"),
    ],
)
def test_bad_traces(write, text, expected):
    assert complaint(read_arrival_trace, write(text, "trace.csv")) == expected


def test_the_azure_trace(shared):
    path = shared / "data" / "arrivals" / "AzureLLMInferenceTrace_conv.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    trace = read_arrival_trace(path)
    num = len(trace.seconds)
    assert num == path.read_bytes().rstrip().count(b"\n")
    assert trace.seconds[0] == 0 and 3000 < trace.seconds[-1] < 4000 and np.all(np.diff(trace.seconds) >= 0)
    assert trace.context_tokens.shape == trace.generated_tokens.shape == (num,)
    assert trace.context_tokens.min() >= 0
    arrived = bin_arrivals(trace, 0.7)
    assert arrived.sum() == num and arrived.mean() == pytest.approx(0.7, abs=0.01)


def slow_slots(seconds, rate):
    num_slots = math.ceil(len(seconds) / rate)
    taken = []
    for second in seconds:
        share = (second - seconds[0]) / (seconds[-1] - seconds[0])
        slot = min(math.floor(share * num_slots), num_slots - 1)
        while slot in taken:
            slot += 1
        taken.append(slot)
    arrived = [False] * max(num_slots, max(taken) + 1)
    for slot in taken:
        arrived[slot] = True
    return arrived


@quick
@given(st.lists(st.integers(0, 30), min_size=2, max_size=40), st.sampled_from([0.05, 0.3, 0.7, 0.99]))
def test_slots_hold_one_arrival_each(times, rate):
    seconds = np.sort(np.array(times, float))
    if seconds[0] == seconds[-1]:
        return
    arrived = bin_arrivals(seconds, rate)
    assert arrived.dtype == bool and arrived.tolist() == slow_slots(seconds, rate)
    assert arrived.sum() == len(times)
    np.testing.assert_array_equal(arrived, bin_arrivals(ArrivalTrace(seconds, None, None), rate))


def test_slots_keep_the_rate():
    seconds = np.cumsum(np.random.default_rng(0).exponential(3.0, 20_000))
    for rate in (0.1, 0.7):
        arrived = bin_arrivals(seconds, rate)
        assert arrived.mean() == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("rate", [0, 1, 1.5, -0.1, float("nan"), True, "0.7"])
def test_bad_rates(rate):
    with pytest.raises(ValueError, match="rate: expected a number"):
        bin_arrivals(np.array([0.0, 1.0]), rate)


@pytest.mark.parametrize("seconds", [[], [1.0], [2.0, 2.0]])
def test_too_few_times(seconds):
    with pytest.raises(ValueError, match="trace: expected arrivals at two times or more"):
        bin_arrivals(np.array(seconds), 0.5)


@pytest.mark.parametrize("seconds", [[2.0, 1.0], [0.0, np.inf], [[0.0, 1.0]]])
def test_bad_times(seconds):
    with pytest.raises(ValueError, match="trace: expected finite increasing seconds"):
        bin_arrivals(np.array(seconds), 0.5)


# --- a million conversations


@pytest.mark.slow
def test_a_million_conversations(tmp_path):
    """Read below 2 GiB, and chained in a time that grows as their number does."""
    path = tmp_path / "million.jsonl"
    num = 1_000_000
    rng = np.random.default_rng(0)
    # Few users have very many conversations, as in the published log.
    users = np.floor(200_000 * rng.random(num) ** 3).astype(int)
    prompts = rng.integers(0, 4, num)
    filler = "some words of an answer that goes on " * 8
    with open(path, "w") as stream:
        for number in range(num):
            row = conversation([3 * number], f"prompt {prompts[number]}", filler, user=f"{users[number]:064x}")
            stream.write(json.dumps(row) + "\n")
    program = textwrap.dedent("""
        import sys, time
        import numpy as np
        from jaxcascade.data.conversations import ConversationLog, build_chains, read_conversation_log
        start = time.process_time()
        log = read_conversation_log(sys.argv[1], keep_prompts=False)
        read = time.process_time() - start
        def seconds(kept):
            part = ConversationLog(*(field[kept] for field in log[:6]), (), None)
            times = []
            for _ in range(2):
                start = time.process_time()
                chains = build_chains(part)
                times.append(time.process_time() - start)
            assert len(chains.chain) == kept.sum() and chains.length.max() > 1
            return min(times)
        # Half of the users, by turns: the first half of the rows would also hold fewer conversations a user.
        in_half = log.user % 2 == 0
        whole = seconds(np.ones(len(log.user), bool))
        half = seconds(in_half) * len(log.user) / (2 * in_half.sum())
        peak = PEAK / 2**20
        print(len(log.user), peak, read, half, whole)
    """)
    program = program.replace("PEAK", PEAK_KIB)
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    path.unlink()  # most of a gigabyte, which pytest would keep
    number, peak, read, half, whole = map(float, done.stdout.split())
    print(f"peak {peak:.2f} GiB, read {read:.1f} s, chains {half:.2f} and {whole:.2f} s")
    assert number == num
    assert peak < 2
    assert whole < 2.5 * half
