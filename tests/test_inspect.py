"""``jaxcascade inspect``: files of every kind, told by their columns."""

import json

import numpy as np
import pytest

import jaxcascade as jc
from jaxcascade.cli import main


@pytest.fixture
def inspect(tmp_path, capsys):
    """Writes a file, inspects it, and returns exit status, output and complaint."""

    def run(name, text):
        path = tmp_path / name
        path.write_text(text)
        status = main(["inspect", str(path)])
        return status, *capsys.readouterr()

    return run


def test_a_routing_table_shows_models_gaps_and_the_best(inspect):
    text = "sample_id,eval_name,prompt,a,b,a|total_cost,b|total_cost\n"
    text += "1,x,p,1,0,0.5,0.1\n2,x,q,1,1,0.5,0.1\n3,y,r,0,1,0.5,0.1\n4,y,s,1,,0.5,\n"
    status, out, _ = inspect("table.csv", text)
    assert status == 0
    assert "routing table, 4 prompts, 2 models" in out and "missing score or cost: 1" in out
    assert "x (2), y (2)" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("a ", "b "))}
    assert rows == {"a": ["0", "0.7500", "0.5"], "b": ["1", "0.6667", "0.1"]}
    assert "best fixed model: a" in out and "largest cost: b" in out and "each prompt): 1.0000" in out


def test_a_confidence_log_shows_its_levels(inspect):
    status, out, _ = inspect("log.csv", "level,correct\n1,0\n2,1\n2,0\n3,1\n")
    assert status == 0 and "confidence log, 4 questions, 3 levels, accuracy 0.5000" in out
    assert [line.split() for line in out.splitlines()[-3:]] == [
        ["1", "0.000", "1", "0.0000"],
        ["2", "0.500", "2", "0.5000"],
        ["3", "1.000", "1", "1.0000"],
    ]


def test_a_trace_and_conversations_are_told_apart(inspect):
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,10,5\n2023-11-16 18:00:02,30,7\n"
    status, out, _ = inspect("trace.csv", trace)
    assert status == 0 and "2 requests in 2.0 s" in out and "context tokens: mean 20.0, largest 30" in out

    def conversation(minute):
        turns = [
            {"role": "user", "content": "how?", "hashed_ip": "u"},
            {"role": "assistant", "content": "so", "timestamp": f"2023-11-16T18:{minute:02d}:00+00:00"},
        ]
        return json.dumps({"conversation_hash": str(minute), "model": "m", "conversation": turns})

    status, out, _ = inspect("talk.jsonl", "\n".join(map(conversation, (0, 10, 20))))
    assert status == 0 and "conversation log, 3 conversations of 1 users over 0.3 hours" in out


@pytest.mark.parametrize(("name", "text"), [("empty.csv", ""), ("odd.csv", "x,y\n1,2\n"), ("cut.parquet", "PAR1xx")])
def test_what_cannot_be_told_is_one_line(inspect, name, text):
    status, out, complaint = inspect(name, text)
    assert status == 2 and out == "" and complaint.startswith("jaxcascade: error: ") and complaint.count("\n") == 1
    assert name in complaint


def test_real_files_are_recognised(shared, capsys):
    for folder, kind in (("routing/routerbench_winograde_test.csv", "380 prompts, 11 models"),
                         ("cascade/medmcqa_llama_test.csv", "1000 prompts, 5 models"),
                         ("arrivals/AzureLLMInferenceTrace_conv.csv", "19366 requests")):  # fmt: skip
        assert main(["inspect", str(shared / "data" / folder)]) == 0
        assert kind in capsys.readouterr().out


def test_the_readers_are_public():
    table = jc.data.RoutingTable((), (), (), (), np.zeros((0, 0)), np.zeros((0, 0)), {}, np.zeros((0, 0)))
    assert table.models == () and all(hasattr(jc.data, name) for name in jc.data.__all__)
