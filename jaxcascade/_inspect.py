"""What a data file is and what it holds, as text."""

import os
from collections import Counter

import numpy as np

from jaxcascade._tables import text_table
from jaxcascade.data import (
    build_chains,
    read_arrival_trace,
    read_confidence_log,
    read_conversation_log,
    summarise_chains,
    summarise_log,
    summarise_table,
)
from jaxcascade.data._source import open_source
from jaxcascade.data.routing import read_incomplete_table

_CONFIDENCE = ({"level", "correct"}, {"largest_class", "n_samples"}, {"answers", "gold"}, {"class_sizes"})
_COST_WEIGHT = 0.3


def describe(path: str) -> str:
    """The kind of a file, told by its columns, and its counts, missing values, means and best models.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: in one line, as the reader of that kind words it.
    """
    if os.path.isdir(path):  # WildChat comes as a folder of parts
        return _conversations(path)
    with open_source(path) as source:
        columns = set(source.columns)
    if "conversation" in columns:
        return _conversations(path)
    if "TIMESTAMP" in columns:
        return _arrivals(path)
    if any(needed <= columns for needed in _CONFIDENCE):
        return _confidence(path)
    return _routing(path)


def _routing(path):
    table = read_incomplete_table(path)
    found = summarise_table(table, weight=_COST_WEIGHT)
    groups = Counter(group for group in table.group if group)
    gaps = np.isnan(table.performance) | np.isnan(table.cost)
    lines = [
        f"{path}: routing table, {found.rows} prompts, {len(found.models)} models",
        f"prompts with a missing score or cost: {int(gaps.any(axis=1).sum())}",
    ]
    if groups:
        lines.append("groups: " + ", ".join(f"{name} ({count})" for name, count in groups.most_common(8)))
    if table.features:
        lines.append("features of the answers: " + ", ".join(table.features))
    rows = [
        [name, str(missing), f"{score:.4f}", f"{cost:.6g}"]
        for name, missing, score, cost in zip(
            found.models, found.missing, found.mean_score, found.mean_cost, strict=True
        )
    ]
    lines += [
        "",
        text_table(["model", "missing", "mean score", "mean cost (USD)"], rows, 1),
        "",
        f"best fixed model: {found.best_model}",
        f"best with {_COST_WEIGHT} of a score given up for the largest cost: {found.best_net_model}",
        f"oracle (best score of each prompt): {found.oracle_score:.4f}",
    ]
    return "\n".join(lines)


def _confidence(path):
    log = read_confidence_log(path)
    counts = summarise_log(log)
    rows = [
        [str(level + 1), f"{log.score[level]:.3f}", str(count), f"{correct / count:.4f}"]
        for level, (count, correct) in enumerate(zip(*counts, strict=True))
        if count
    ]
    return "\n".join(
        [
            f"{path}: confidence log, {len(log.level)} questions, {log.num_levels} levels,"
            f" accuracy {log.correct.mean():.4f}",
            "",
            text_table(["level", "score", "questions", "accuracy"], rows, 1),
        ]
    )


def _conversations(path):
    log = read_conversation_log(path, model=None, keep_prompts=False)
    chains = summarise_chains(build_chains(log))
    hours = (log.arrival[-1] - log.arrival[0]) / 3600 if len(log.arrival) else 0.0
    facts = [f"{name.replace('_', ' ')}: {value}" for name, value in chains._asdict().items()]
    head = f"{path}: conversation log, {len(log.arrival)} conversations of {len(np.unique(log.user))} users"
    return "\n".join([f"{head} over {hours:.1f} hours", "chains of retries, by identical first prompts", *facts])


def _arrivals(path):
    trace = read_arrival_trace(path)
    between = np.diff(trace.seconds)
    lines = [f"{path}: arrival trace, {len(trace.seconds)} requests in {trace.seconds[-1]:.1f} s"]
    if np.any(between > 0):
        variation = between.std() / between.mean()
        lines.append(f"seconds between requests: mean {between.mean():.4f}, coefficient of variation {variation:.2f}")
    for name in ("context_tokens", "generated_tokens"):
        tokens = getattr(trace, name)
        if tokens is not None and len(tokens):
            lines.append(f"{name.replace('_', ' ')}: mean {tokens.mean():.1f}, largest {tokens.max()}")
    return "\n".join(lines)
