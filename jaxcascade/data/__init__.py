"""Readers of public file formats."""

from jaxcascade.data.confidence import (
    ConfidenceLog,
    ConfidenceSignals,
    LevelCounts,
    confidence_signals,
    read_confidence_log,
    summarise_log,
)
from jaxcascade.data.levels import LevelTable, level_counts

__all__ = [
    "ConfidenceLog",
    "ConfidenceSignals",
    "LevelCounts",
    "LevelTable",
    "confidence_signals",
    "level_counts",
    "read_confidence_log",
    "summarise_log",
]
