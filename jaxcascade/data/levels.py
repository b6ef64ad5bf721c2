"""Counts per confidence level of public self-consistency logs, shipped with the package."""

import json
from collections import Counter
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

import numpy as np


class LevelTable(NamedTuple):
    """One log at one sample count: level j = 1 + size of the largest answer class, K = 1 + num_samples.

    `count` [K] int64 are the questions per level, `correct` [K] int64 those whose majority answer is right
    (both read-only); `source` is the public repository, `dataset` and `model` what was asked of whom.
    """

    log: str
    source: str
    dataset: str
    model: str
    num_samples: int
    count: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride] (tuple.count is no loss)
    correct: np.ndarray


def level_counts() -> dict[str, LevelTable]:
    """Returns the shipped `LevelTable`s by name: the log's, or `log@num_samples` if it has several counts.

    omega_j = count_j / sum(count) and h_j = correct_j / count_j are the empirical arrivals and accuracies of
    the log. The file is read at the first call; each call returns its own dict. Raises nothing.
    From: real logs in the shape of Section 6 of arXiv 2610.15128; aggregate counts, no question or answer.
    """
    return dict(_load())


@lru_cache(maxsize=1)
def _load() -> dict[str, LevelTable]:
    text = resources.files("jaxcascade.data").joinpath("level_counts.json").read_text(encoding="utf-8")
    entries = json.loads(text)
    num_sizes = Counter(entry["log"] for entry in entries)
    tables = {}
    for entry in entries:
        log, num_samples = entry["log"], entry["num_samples"]
        key = log if num_sizes[log] == 1 else f"{log}@{num_samples}"
        count, correct = _frozen(entry["count"]), _frozen(entry["correct"])
        tables[key] = LevelTable(**{**entry, "count": count, "correct": correct})
    return tables


def _frozen(values: list[int]) -> np.ndarray:
    # The arrays are shared by all callers.
    array = np.array(values, np.int64)
    array.setflags(write=False)
    return array
