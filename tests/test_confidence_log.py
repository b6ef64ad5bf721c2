"""The reader of confidence logs, every complaint it makes, and the shipped counts per level."""

import csv
import json
import os
import pathlib
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from jaxcascade.data import confidence_signals, level_counts, read_confidence_log, summarise_log
from jaxcascade.data.confidence import MOST_LEVELS, ConfidenceLog

SHARED = pathlib.Path(os.environ.get("JAXCASCADE_SHARED") or pathlib.Path(__file__).resolve().parents[2] / "shared")
REAL_LOGS = SHARED / "data" / "selfconsistency"
needs_real_logs = pytest.mark.skipif(
    not (REAL_LOGS / "levels.csv").is_file(), reason=f"no real logs under {REAL_LOGS} (set JAXCASCADE_SHARED)"
)
quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def write(tmp_path):
    """Writes a file of the given content (text, bytes, or objects as JSON lines) and returns its path."""

    def write_file(content, name="log.csv"):
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def complaint(path, **options):
    """The one line that reading `path` raises."""
    with pytest.raises(ValueError) as caught:
        read_confidence_log(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError
    assert "\n" not in message
    assert len(message) < 1500
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


def check_log(log, level, correct, score):
    assert isinstance(log, ConfidenceLog)
    assert log.level.dtype == np.int32 and log.correct.dtype == np.int32 and log.score.dtype == np.float64
    np.testing.assert_array_equal(log.level, level)
    np.testing.assert_array_equal(log.correct, correct)
    assert type(log.num_levels) is int and log.num_levels == len(score)
    np.testing.assert_allclose(log.score, score, rtol=0, atol=1e-12)


# --- shape (a): level, correct


def test_levels_take_the_largest_as_their_number(write):
    log = read_confidence_log(write("level,correct\n1,0\n3,1\n3,0\n"))
    check_log(log, [1, 3, 3], [0, 1, 0], [0, 0.5, 1])


def test_levels_within_a_given_number(write):
    path = write("level,correct\n1,0\n3,1\n")
    check_log(read_confidence_log(path, num_levels=5), [1, 3], [0, 1], [0, 0.25, 0.5, 0.75, 1])


def test_one_level_has_score_one_half(write):
    check_log(read_confidence_log(write("level,correct\n1,1\n")), [1], [1], [0.5])


def test_path_may_be_text(write):
    assert read_confidence_log(str(write("level,correct\n1,1\n"))).num_levels == 1


@pytest.mark.parametrize("text", ["1", "true", "True", "TRUE", " 1 ", "0", "false", "False"])
def test_booleans(write, text):
    log = read_confidence_log(write(f"level,correct\n1,{text}\n"))
    assert log.correct.tolist() == [int(text.strip().lower() in ("1", "true"))]


@pytest.mark.parametrize("value", [1, True, "1", "true"])
def test_booleans_in_json(write, value):
    log = read_confidence_log(write([{"level": 1, "correct": value}], "log.jsonl"))
    assert log.correct.tolist() == [1]


def test_renamed_and_foreign_columns(write):
    path = write('level,bucket,is_right,note\n9,1,0,x\n9,2,1,"y, z"\n')
    log = read_confidence_log(path, columns={"level": "bucket", "correct": "is_right"})
    check_log(log, [1, 2], [0, 1], [0, 1])


def test_quirks_of_csv_files(write):
    """Byte order mark, CRLF, spaces after commas, cells over two lines, blank lines, no last newline."""
    content = '\ufefflevel, correct,note\r\n1, 0,"two\r\nlines"\r\n\r\n 2.0,1,\r\n\r\n2,1,end'
    check_log(read_confidence_log(write(content)), [1, 2, 2], [0, 1, 1], [0, 1])


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson", "LOG.JSONL"])
def test_json_lines(write, name):
    path = write('{"level": 2, "correct": true}\n\n{"correct": 0, "level": "1", "other": [1]}', name)
    check_log(read_confidence_log(path), [2, 1], [1, 0], [0, 1])


@quick
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1)), min_size=1, max_size=40),
    extra=st.integers(0, 5),
    as_json=st.booleans(),
)
def test_round_trip(write, rows, extra, as_json):
    if as_json:
        path = write([{"level": level, "correct": bool(right)} for level, right in rows], "log.jsonl")
    else:
        path = write("level,correct\n" + "".join(f"{level},{right}\n" for level, right in rows))
    levels, rights = zip(*rows, strict=True)
    num_levels = max(levels) + extra
    log = read_confidence_log(path, num_levels=num_levels)
    scores = np.linspace(0, 1, num_levels) if num_levels > 1 else [0.5]
    check_log(log, levels, rights, scores)
    counts = summarise_log(log)
    assert counts.count.tolist() == [levels.count(j + 1) for j in range(num_levels)]
    assert counts.correct.tolist() == [rows.count((j + 1, 1)) for j in range(num_levels)]


# --- shape (b): largest_class, n_samples, correct


def test_largest_class(write):
    path = write("largest_class,n_samples,correct\n4,4,1\n0,4,0\n2,4,1\n")
    check_log(read_confidence_log(path), [5, 1, 3], [1, 0, 1], [0, 0.25, 0.5, 0.75, 1])


def test_majority_correct_stands_in_for_correct(write):
    path = write("largest_class,n_samples,majority_correct\n1,1,1\n0,1,0\n")
    check_log(read_confidence_log(path), [2, 1], [1, 0], [0, 1])


def test_correct_is_preferred_unless_the_caller_says_otherwise(write):
    path = write("level,correct,majority_correct,mine\n1,1,0,0\n")
    assert read_confidence_log(path).correct.tolist() == [1]
    mine = {"majority_correct": "mine"}
    assert read_confidence_log(path, columns=mine).correct.tolist() == [0]
    assert read_confidence_log(path, columns={**mine, "correct": "correct"}).correct.tolist() == [1]


def test_level_comes_before_largest_class(write):
    path = write("level,largest_class,n_samples,correct\n2,0,4,1\n")
    assert read_confidence_log(path).level.tolist() == [2]


def test_class_sizes_suffice(write):
    path = write("class_sizes,n_samples,correct\n1|3,5,1\n,5,0\n0,5,0\n5,5,1\n")
    check_log(read_confidence_log(path), [4, 1, 1, 6], [1, 0, 0, 1], np.arange(6) / 5)
    log = read_confidence_log(path, signal="margin")
    check_log(log, [3, 1, 1, 6], [1, 0, 0, 1], np.arange(6) / 5)


def test_class_sizes_as_a_json_list(write):
    rows = [
        {"class_sizes": [2, 1], "n_samples": 3, "correct": 1},
        {"class_sizes": [], "n_samples": 3, "correct": 0},
    ]
    assert read_confidence_log(write(rows, "log.jsonl")).level.tolist() == [3, 1]


# --- shape (c): answers, gold


@pytest.mark.parametrize(
    ("answers", "gold", "level", "correct"),
    [
        ("A|A|B|B", "A", 3, 1),  # a tie goes to the first to appear
        ("B|A|A|B", "A", 3, 0),
        ("C|A|A|B|B|A", "A", 4, 1),
        ("||x|", "x", 2, 1),  # unparsed answers cast no vote
        ("|||", "x", 1, 0),
        (" ||", "x", 1, 0),
        ("", "x", 1, 0),
        (" x | x|x", " x", 4, 1),
        ("18|18.0", "18.0", 2, 0),  # answers are text
        ("nan|nan", "nan", 3, 1),
        ("a", "a", 2, 1),
    ],
)
def test_vote(write, answers, gold, level, correct):
    log = read_confidence_log(write(f"gold,answers\n{gold},{answers}\n"))
    num_samples = answers.count("|") + 1
    check_log(log, [level], [correct], np.arange(num_samples + 1) / num_samples)


@pytest.mark.parametrize(
    ("answers", "gold", "level", "correct"),
    [
        (["b", None, "", "b"], "b", 3, 1),
        (["a|b", "a|b"], "a|b", 3, 1),
        ("a|b|b", "b", 3, 1),
        ([18, 18.0, None], 18, 3, 1),
        ([True, False, True], True, 3, 1),
        ([None], "x", 1, 0),
    ],
)
def test_vote_in_json(write, answers, gold, level, correct):
    log = read_confidence_log(write([{"answers": answers, "gold": gold}], "log.jsonl"))
    assert (log.level.tolist(), log.correct.tolist()) == ([level], [correct])


@quick
@given(
    num_samples=st.integers(1, 8),
    data=st.data(),
)
def test_vote_against_a_plain_count(write, num_samples, data):
    answers = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=num_samples, max_size=num_samples)
    rows = data.draw(st.lists(st.tuples(answers, st.sampled_from("abc")), min_size=1, max_size=6))
    log = read_confidence_log(write("answers,gold\n" + "".join(f"{'|'.join(votes)},{gold}\n" for votes, gold in rows)))
    for (votes, gold), level, correct in zip(rows, log.level, log.correct, strict=True):
        best, size = "", 0
        for vote in votes:
            if vote and votes.count(vote) > size:
                best, size = vote, votes.count(vote)
        assert (level, correct) == (1 + size, int(size > 0 and best == gold))
    assert log.num_levels == num_samples + 1


@pytest.mark.parametrize("options", [{}, {"signal": "margin"}, {"signal": "score", "num_levels": 3}])
def test_questions_without_gold_are_wrong_and_told(write, options):
    path = write("answers,gold,score\na|a,a,3\n|,,1\na|a,,2\n")
    with pytest.warns(UserWarning) as caught:
        log = read_confidence_log(path, **options)
    assert (log.level.tolist(), log.correct.tolist()) == (
        [3, 1, 2 if "num_levels" in options else 3],
        [1, 0, 0],
    )
    [warning] = caught
    told = f"{path}, column 'gold': 2 of 3 questions have no gold answer and count as wrong"
    assert str(warning.message) == told
    assert warning.filename == __file__


# --- other signals


def test_margin(write):
    log = read_confidence_log(write("answers,gold\na|a|a|b,a\na|b||,a\n|||,a\na|a|a|a,a\n"), signal="margin")
    check_log(log, [3, 1, 1, 5], [1, 1, 0, 1], [0, 0.25, 0.5, 0.75, 1])


def test_entropy(write):
    path = write("class_sizes,n_samples,correct\n4,4,1\n2|2,4,0\n1|1|1|1,4,0\n,4,0\n2|1|1,4,1\n")
    # Confidences 1, .5, 0, 0, .25: an edge belongs to the bin above it, 1 to the last bin.
    log = read_confidence_log(path, signal="entropy", num_levels=4)
    check_log(log, [4, 3, 1, 1, 2], [1, 0, 0, 0, 1], [0.125, 0.375, 0.625, 0.875])
    assert read_confidence_log(path, signal="entropy").num_levels == 5
    assert read_confidence_log(path, signal="entropy", num_levels=1).score.tolist() == [0.5]


def test_signals_prefer_class_sizes_and_its_correct(write):
    path = write("class_sizes,n_samples,correct,answers,gold\n2,3,1,a|b|c,d\n")
    log = read_confidence_log(path, signal="margin")
    assert (log.level.tolist(), log.correct.tolist()) == ([3], [1])


def test_score_column(write):
    path = write("logprob,correct\n-4,0\n-2,1\n0,1\n-1.01,0\n")
    log = read_confidence_log(path, signal="logprob", num_levels=4)
    check_log(log, [1, 3, 4, 3], [0, 1, 1, 0], [0.125, 0.375, 0.625, 0.875])
    assert read_confidence_log(path, signal="logprob").num_levels == 10


def test_score_column_judged_by_the_vote(write):
    path = write("answers,gold,score\na|a,a,1\nb|a,a,2\n")
    log = read_confidence_log(path, signal="score", num_levels=2)
    check_log(log, [1, 2], [1, 0], [0.25, 0.75])


def test_score_column_named_like_a_signal(write):
    path = write("entropy,correct\n.1,1\n.2,0\n")
    log = read_confidence_log(path, signal="mine", columns={"mine": "entropy"}, num_levels=2)
    assert log.level.tolist() == [1, 2]


def test_scores_on_an_edge_go_up(write):
    """i/100 in 100 bins: 29/100*100 is 28.999...96 in floating point."""
    path = write("score,correct\n" + "".join(f"{i / 100},1\n" for i in range(101)))
    log = read_confidence_log(path, signal="score", num_levels=100)
    assert log.level.tolist() == [*range(1, 101), 100]


@quick
@given(
    scores=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30).filter(lambda s: max(s) - min(s) > 1e-3),
    num_levels=st.integers(1, 12),
)
def test_score_levels_are_monotone_and_reach_both_ends(write, scores, num_levels):
    path = write("score,correct\n" + "".join(f"{score!r},0\n" for score in scores))
    log = read_confidence_log(path, signal="score", num_levels=num_levels)
    assert np.all(np.diff(log.level[np.argsort(scores)]) >= 0)
    assert (log.level.min(), log.level.max()) == (1, num_levels)
    assert np.all(np.diff(log.score) > 0)
    assert np.all((log.score > 0) & (log.score < 1))


@quick
@given(sizes=st.lists(st.integers(0, 6), max_size=6), unparsed=st.integers(0, 6))
def test_confidence_signals(sizes, unparsed):
    num_samples = max(1, sum(sizes) + unparsed)
    signals = confidence_signals([sizes], num_samples)
    ordered = sorted([*sizes, 0, 0], reverse=True)
    unparsed = num_samples - sum(sizes)
    classes = [size / num_samples for size in [*sizes, *[1] * unparsed] if size]
    entropy = -sum(q * np.log(q) for q in classes)
    assert all(value.shape == (1,) for value in signals)
    assert signals.agreement[0] == pytest.approx(ordered[0] / num_samples)
    assert signals.margin[0] == pytest.approx((ordered[0] - ordered[1]) / num_samples)
    if num_samples > 1:
        assert signals.entropy[0] == pytest.approx(1 - entropy / np.log(num_samples), abs=1e-12)
    assert all(0 <= value[0] <= 1 for value in signals)


def test_confidence_signals_shapes_and_extremes():
    signals = confidence_signals(np.array([[[4, 0], [0, 0]], [[2, 2], [1, 0]]]), 4)
    assert signals.entropy.shape == (2, 2)
    np.testing.assert_allclose(signals.entropy, [[1, 0], [0.5, 0]], atol=1e-12)
    np.testing.assert_array_equal(signals.agreement, [[1, 0], [0.5, 0.25]])
    np.testing.assert_array_equal(signals.margin, [[1, 0], [0, 0.25]])
    one = confidence_signals([[1], [0]], 1)
    assert all(value.tolist() == [1, 0] for value in one)


@pytest.mark.parametrize(
    ("sizes", "num_samples"),
    [
        ([3, 2], 4),
        ([-1], 4),
        ([0.5], 4),
        ([np.nan], 4),
        ([np.inf], 4),
        (3, 4),
        ([1], 0),
        ([1], 2.0),
        ([1], True),
    ],
)
def test_confidence_signals_refuse(sizes, num_samples):
    with pytest.raises(ValueError, match=r"\A(class_sizes|n_samples): expected [^\n]*, got [^\n]*\Z"):
        confidence_signals(sizes, num_samples)


# --- complaints


def test_missing_file(tmp_path):
    path = tmp_path / "none.csv"
    with pytest.raises(FileNotFoundError) as caught:
        read_confidence_log(path)
    assert str(caught.value) == f"{path}: no such file"


CELLS = "level,correct\n1,1\n"
LEVEL, BOOLEAN, NUMBER = "an integer from 1 to 1000000", "0, 1, true or false", "a finite number"
SIZES = "class sizes, integers from 0 to 4, separated by |"
AGREEMENT_COLUMNS = (
    ": expected columns level and correct, or largest_class, n_samples and correct, or answers and gold; "
    "found columns: "
)


def at(row, column, expected, got):
    """The complaint about one cell."""
    return f", row {row}, column '{column}': expected {expected}, got {got}"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        # files without rows
        ("", {}, ": expected a header and rows, got an empty file"),
        ("\n\n", {}, ": expected a header and rows, got an empty file"),
        ("level,correct\n", {}, ": expected rows below the header, got none"),
        ("answers,gold\n\n", {}, ": expected rows below the header, got none"),
        ("score,correct\n", {"signal": "score"}, ": expected rows below the header, got none"),
        # columns
        ("lvl,right\n1,1\n", {}, AGREEMENT_COLUMNS + "lvl, right"),
        ("level,right\n1,1\n", {}, AGREEMENT_COLUMNS + "level, right"),
        (
            "largest_class,n_samples,correct\n1,1,1\n",
            {"signal": "entropy"},
            ": expected columns class_sizes, n_samples and correct, or answers and gold; "
            "found columns: largest_class, n_samples, correct",
        ),
        (
            CELLS,
            {"signal": "conf"},
            ": expected signal agreement, entropy, margin or a column, got 'conf'; found columns: level, correct",
        ),
        (
            "level,score\n1,1\n",
            {"signal": "score"},
            ": expected column correct, or answers and gold; found columns: level, score",
        ),
        (
            CELLS,
            {"columns": {"level": "bucket"}},
            ": expected column 'bucket' for level, found columns: level, correct",
        ),
        (
            CELLS,
            {"columns": {"lvl": "level"}},
            ": expected columns to map level, correct, largest_class, n_samples, majority_correct, "
            "class_sizes, answers, gold, got 'lvl'",
        ),
        (
            "level,correct,level\n1,1,2\n",
            {},
            ": expected one column 'level', found columns: level, correct, level",
        ),
        # level
        (CELLS + "x,1\n", {}, at(2, "level", LEVEL, "'x'")),
        (CELLS + ",1\n", {}, at(2, "level", LEVEL, "''")),
        (CELLS + "nan,1\n", {}, at(2, "level", LEVEL, "'nan'")),
        (CELLS + "inf,1\n", {}, at(2, "level", LEVEL, "'inf'")),
        (CELLS + "1.5,1\n", {}, at(2, "level", LEVEL, "'1.5'")),
        (CELLS + "1_0,1\n", {}, at(2, "level", LEVEL, "'1_0'")),
        (CELLS + "0,1\n", {}, at(2, "level", LEVEL, "'0'")),
        (CELLS + "-3,1\n", {}, at(2, "level", LEVEL, "'-3'")),
        (CELLS + "3,1\n", {"num_levels": 2}, at(2, "level", "an integer from 1 to 2", "'3'")),
        ("bucket,correct\nx,1\n", {"columns": {"level": "bucket"}}, at(1, "bucket", LEVEL, "'x'")),
        (CELLS + '"a\nb",1\n', {}, at(2, "level", LEVEL, "'a\\nb'")),
        # correct
        (CELLS + "1,2\n", {}, at(2, "correct", BOOLEAN, "'2'")),
        (CELLS + "1,\n", {}, at(2, "correct", BOOLEAN, "''")),
        (CELLS + "1,yes\n", {}, at(2, "correct", BOOLEAN, "'yes'")),
        (CELLS + "1,1.0\n", {}, at(2, "correct", BOOLEAN, "'1.0'")),
        (CELLS + "1,nan\n", {}, at(2, "correct", BOOLEAN, "'nan'")),
        # rows; a blank line is no row
        (CELLS + "\n2\n", {}, at(2, "correct", "2 fields", "1")),
        (CELLS + "2,1,1\n", {}, ", row 2: expected 2 fields, got 3"),
        (CELLS + '2,"1\n2,1\n', {}, ", row 2: expected CSV, got a malformed row (unexpected end of data)"),
        ('level,"correct\n', {}, ", header: expected CSV, got a malformed line (unexpected end of data)"),
        (CELLS.encode() + b"1,\xff\n", {}, ", row 2: expected UTF-8 text, got byte 0xff"),
        (b"lev\xe9l,correct\n1,1\n", {}, ", header: expected UTF-8 text, got byte 0xe9"),
        # largest_class, n_samples
        (
            "largest_class,n_samples,correct\n5,4,1\n",
            {},
            at(1, "largest_class", "an integer from 0 to 4", "'5'"),
        ),
        (
            "largest_class,n_samples,correct\n-1,4,1\n",
            {},
            at(1, "largest_class", "an integer from 0 to 4", "'-1'"),
        ),
        (
            "largest_class,n_samples,correct\n0,0,1\n",
            {},
            at(1, "n_samples", "an integer from 1 to 999999", "'0'"),
        ),
        (
            "largest_class,n_samples,correct\n3,4,1\n3,4,1\n3,5,1\n3,6,1\n",
            {},
            at(3, "n_samples", "4 samples as in row 1", "5"),
        ),
        (
            "largest_class,n_samples,correct\n3,4,1\n",
            {"num_levels": 4},
            ": expected num_levels = 5 (1 + n_samples) for agreement, got 4",
        ),
        # class_sizes
        ("class_sizes,n_samples,correct\n3|x,4,1\n", {}, at(1, "class_sizes", SIZES, "'3|x'")),
        ("class_sizes,n_samples,correct\n-1|2,4,1\n", {}, at(1, "class_sizes", SIZES, "'-1|2'")),
        (
            "class_sizes,n_samples,correct\n3|2,4,1\n",
            {"signal": "margin"},
            at(1, "class_sizes", "class sizes that sum to at most 4", "'3|2'"),
        ),
        # answers, gold
        ("answers,gold\na|b,a\na|b|c,a\n", {}, at(2, "answers", "2 samples as in row 1", "3")),
        ("answers,gold\na|b,\nb|b, \n", {}, ", column 'gold': expected gold answers, got none in 2 rows"),
        ("answers,gold,n_samples\na|b,a,3\n", {}, at(1, "n_samples", "the number of answers, 2", "'3'")),
        (
            "answers,gold\na|b,a\n",
            {"signal": "margin", "num_levels": 9},
            ": expected num_levels = 3 (1 + n_samples) for margin, got 9",
        ),
        # scores
        ("score,correct\n1,1\nhigh,0\n", {"signal": "score"}, at(2, "score", NUMBER, "'high'")),
        ("score,correct\n1,1\nNaN,0\n", {"signal": "score"}, at(2, "score", NUMBER, "'NaN'")),
        ("score,correct\n1,1\n1e400,0\n", {"signal": "score"}, at(2, "score", NUMBER, "'1e400'")),
        ("score,correct\n1,1\n2,maybe\n", {"signal": "score"}, at(2, "correct", BOOLEAN, "'maybe'")),
        (
            "score,correct\n.5,1\n.5,0\n",
            {"signal": "score"},
            ", column 'score': expected a score that varies, got 0.5 in every row",
        ),
        (
            "score,correct\n1e308,1\n-1e308,0\n",
            {"signal": "score"},
            ", column 'score': expected a range within float64, got -1e+308 to 1e+308",
        ),
        # num_levels
        (CELLS, {"num_levels": 0}, ": expected num_levels from 1 to 1000000, got 0"),
        (CELLS, {"num_levels": 2.0}, ": expected num_levels from 1 to 1000000, got 2.0"),
        (CELLS, {"num_levels": True}, ": expected num_levels from 1 to 1000000, got True"),
        (CELLS, {"num_levels": MOST_LEVELS + 1}, ": expected num_levels from 1 to 1000000, got 1000001"),
    ],
)
def test_complaint(write, content, options, message):
    assert complaint(write(content), **options) == message


ROW = {"level": 1, "correct": 1}
VOTE = {"answers": ["a", "b"], "gold": "a"}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, ": expected one JSON object a line, got an empty file"),
        ("\n \n", {}, ": expected one JSON object a line, got an empty file"),
        (
            '{"level": 1, "correct": 1}\n{"level": 1,\n',
            {},
            ", row 2: expected a JSON object, got a bad line "
            "(Expecting property name enclosed in double quotes at character 13)",
        ),
        ("[1, 1]\n", {}, ", row 1: expected a JSON object, got [1, 1]"),
        ("[" * 99999 + "\n", {}, ", row 1: expected a JSON object, got '" + "[" * 56 + "..."),
        (
            '{"a": ' + "9" * 5000 + "}\n",
            {},
            """, row 1: expected a JSON object, got '{"a": """ + "9" * 50 + "...",
        ),
        (b'{"level": 1, "correct": 1}\n{"\xc3": 1}\n', {}, ", row 2: expected UTF-8 text, got byte 0xc3"),
        ([{"lvl": 1}], {}, AGREEMENT_COLUMNS + "lvl"),
        ([ROW, {"level": 1}], {}, at(2, "correct", BOOLEAN, "no such key")),
        ([ROW, {"correct": 1}], {}, at(2, "level", LEVEL, "no such key")),
        ([ROW, {"level": None, "correct": 1}], {}, at(2, "level", LEVEL, "None")),
        ([ROW, {"level": True, "correct": 1}], {}, at(2, "level", LEVEL, "True")),
        ([ROW, {"level": float("nan"), "correct": 1}], {}, at(2, "level", LEVEL, "nan")),
        ([ROW, {"level": 10**400, "correct": 1}], {}, at(2, "level", LEVEL, "1" + "0" * 56 + "...")),
        ([ROW, {"level": 1, "correct": 1.0}], {}, at(2, "correct", BOOLEAN, "1.0")),
        ([ROW, {"level": 1, "correct": None}], {}, at(2, "correct", BOOLEAN, "None")),
        ([VOTE, {"answers": ["a", "b"]}], {}, at(2, "gold", "a gold answer", "no such key")),
        ([VOTE, {"gold": "a"}], {}, at(2, "answers", "a list, or text separated by |", "no such key")),
        ([{"answers": 3, "gold": "a"}], {}, at(1, "answers", "a list, or text separated by |", "3")),
        ([{"answers": [], "gold": "a"}], {}, at(1, "answers", "1 to 999999 sampled answers", "[]")),
        (
            [{"answers": [["a"]], "gold": "a"}],
            {},
            at(1, "answers", "answers that are text, numbers or null", "[['a']]"),
        ),
        (
            [{"answers": "18.0|18.0", "gold": 18.0}],
            {},
            at(1, "gold", "gold of the same kind as the answers (as '18.0')", "18.0"),
        ),
        (
            [{"answers": [1, True], "gold": 1}],
            {},
            at(1, "gold", "gold of the same kind as the answers (as True)", "1"),
        ),
        ([{"answers": [float("nan")], "gold": 1}], {}, at(1, "answers", NUMBER, "nan")),
        (
            [{"class_sizes": [2, True], "n_samples": 4, "correct": 1}],
            {},
            at(1, "class_sizes", SIZES, "[2, True]"),
        ),
    ],
)
def test_complaint_json(write, content, options, message):
    assert complaint(write(content, "log.jsonl"), **options) == message


def test_complaint_stays_short(write):
    wide = ",".join(f"column_number_{i}" for i in range(5000))
    message = complaint(write(wide + "\n" + "1," * 4999 + "1\n"))
    assert message.endswith("column_number_39, ...")
    assert len(complaint(write(f"level,correct\n{'x' * 100_000},1\n"))) < 150


def test_old_mac_line_ends_and_huge_cells_are_refused(write):
    assert complaint(write("level,correct\r1,1\r")).startswith(", header: expected CSV, got a malformed line")
    huge = "answers,gold\n" + "x" * 200_000 + ",x\n"
    assert complaint(write(huge)).startswith(", row 1: expected CSV, got a malformed row (field larger")


@quick
@given(content=st.binary(max_size=60), name=st.sampled_from(["log.csv", "log.jsonl"]), headed=st.booleans())
def test_any_bytes_are_read_or_refused_in_one_line(write, content, name, headed):
    path = write((b"level,correct\n" if headed else b"") + content, name)
    try:
        log = read_confidence_log(path)
    except ValueError as error:
        message = str(error)
        assert type(error) is ValueError
        assert message.startswith(str(path))
        assert "\n" not in message
    else:
        assert len(log.level) == len(log.correct) > 0


def test_a_refused_file_is_closed(write):
    path = write(CELLS + "x,1\n")
    complaint(path)
    open_files = pathlib.Path("/proc/self/fd")
    if not open_files.is_dir():
        pytest.skip("no /proc to count open files with")
    assert str(path) not in [os.readlink(link) for link in open_files.iterdir() if link.is_symlink()]


def test_summarise_log_refuses_levels_outside():
    log = ConfidenceLog(np.array([1, 3], np.int32), np.array([1, 0], np.int32), 2, np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"\Alevel: expected 1 to 2, got values from 1 to 3\Z"):
        summarise_log(log)


def test_many_rows_are_read_in_a_moment(write):
    num_rows = 50_000
    path = write("answers,gold\n" + "a|b|a||c|a|d|b,a\n" * num_rows)
    start = time.process_time()
    log = read_confidence_log(path, signal="entropy")
    assert len(log.level) == num_rows
    assert time.process_time() - start < 10  # .5 s where it was written


# --- shipped counts


def test_shipped_counts_are_consistent():
    tables = level_counts()
    assert len(tables) > 30
    for key, table in tables.items():
        assert key in (table.log, f"{table.log}@{table.num_samples}")
        assert table.source and table.dataset and table.model
        assert table.count.shape == table.correct.shape == (table.num_samples + 1,)
        assert table.count.dtype == table.correct.dtype == np.int64
        assert np.all((table.correct >= 0) & (table.correct <= table.count)) and table.count.sum() > 0
        # No valid answer, no right answer.
        assert table.correct[0] == 0


def test_shipped_names_tell_sample_counts_apart():
    tables = level_counts()
    assert "mot_gpt4_gsm_mix12" in tables
    assert {"wang_addsub_001@10", "wang_addsub_001@20", "wang_addsub_001@40"} <= tables.keys()
    assert "wang_addsub_001" not in tables
    logs = [table.log for table in tables.values()]
    assert all((key == table.log) == (logs.count(table.log) == 1) for key, table in tables.items())


def test_shipped_counts_cannot_be_spoilt():
    level_counts().clear()
    table = level_counts()["mot_gpt4_gsm_mix12"]
    with pytest.raises(ValueError, match="read-only"):
        table.count[0] = 7


# --- real logs


@needs_real_logs
def test_shipped_counts_equal_the_published_ones():
    with open(REAL_LOGS / "levels.csv", newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    tables = {(table.log, table.num_samples): table for table in level_counts().values()}
    assert sum(len(table.count) for table in tables.values()) == len(rows)
    for row in rows:
        table = tables[row["log"], int(row["n_samples"])]
        assert (table.source, table.dataset, table.model) == (row["source"], row["dataset"], row["model"])
        assert table.count.sum() == int(row["n_questions"])
        j = int(row["level_j"]) - 1
        assert (table.count[j], table.correct[j]) == (int(row["count"]), int(row["n_correct"]))


@pytest.fixture(params=sorted(path.stem for path in REAL_LOGS.glob("*.csv") if path.stem != "levels") or [None])
def real_log(request):
    """One real log: its name, its path, its rows."""
    if request.param is None:
        pytest.skip(f"no real logs under {REAL_LOGS} (set JAXCASCADE_SHARED)")
    path = REAL_LOGS / f"{request.param}.csv"
    with open(path, newline="", encoding="utf-8") as stream:
        return request.param, path, list(csv.DictReader(stream))


def only(rows, names, path):
    """Writes the named columns of the rows to a CSV file."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def same(log, other):
    check_log(log, other.level, other.correct, other.score)


def read_votes(path, rows, signal="agreement"):
    """Reads a file of answers and gold; the rows without gold, if any, must be told."""
    if all(row["gold"] for row in rows):
        return read_confidence_log(path, signal=signal)
    with pytest.warns(UserWarning, match="questions have no gold answer"):
        return read_confidence_log(path, signal=signal)


def test_real_log_votes_equal_its_columns(real_log, tmp_path):
    _, path, rows = real_log
    log = read_confidence_log(path)
    assert log.level.tolist() == [1 + int(row["largest_class"]) for row in rows]
    assert log.correct.tolist() == [int(row["majority_correct"]) for row in rows]
    votes = only(rows, ["qid", "gold", "answers"], tmp_path / "votes.csv")
    same(read_votes(votes, rows), log)
    # The majority itself: judged against it, every question with a valid answer is right.
    own = [{**row, "gold": row["majority"] or "none"} for row in rows]
    judged = read_confidence_log(only(own, ["gold", "answers"], tmp_path / "own.csv"))
    assert judged.correct.tolist() == [int(row["n_valid"] != "0") for row in rows]
    for signal in ("margin", "entropy"):
        same(read_votes(votes, rows, signal), read_confidence_log(path, signal=signal))


def test_real_log_as_json_lines(real_log, tmp_path):
    _, path, rows = real_log
    lines = [{"gold": row["gold"], "answers": [a or None for a in row["answers"].split("|")]} for row in rows]
    json_path = tmp_path / "votes.jsonl"
    json_path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    same(read_votes(json_path, rows), read_confidence_log(path))


def test_real_log_counts_equal_the_shipped_ones(real_log):
    name, path, rows = real_log
    counts = summarise_log(read_confidence_log(path))
    tables = {(table.log, table.num_samples): table for table in level_counts().values()}
    shipped = tables[name, int(rows[0]["n_samples"])]
    np.testing.assert_array_equal(counts.count, shipped.count)
    np.testing.assert_array_equal(counts.correct, shipped.correct)


def test_real_log_scores_agree_with_accuracy(real_log):
    """Confidence is worth something: the upper half of the questions is right more often than the lower."""
    _, path, _ = real_log
    for signal in ("agreement", "margin", "entropy", "largest_class"):
        log = read_confidence_log(path, signal=signal)
        order = np.argsort(log.level, kind="stable")
        half = len(order) // 2
        assert log.correct[order[half:]].mean() > log.correct[order[:half]].mean()
