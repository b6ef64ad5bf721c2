"""Readers of public file formats."""

from jaxcascade.data.arrivals import ArrivalTrace, bin_arrivals, read_arrival_trace
from jaxcascade.data.confidence import (
    ConfidenceLog,
    ConfidenceSignals,
    LevelCounts,
    confidence_signals,
    read_confidence_log,
    summarise_log,
)
from jaxcascade.data.conversations import (
    Chains,
    ChainSummary,
    ConversationLog,
    build_chains,
    read_conversation_log,
    subsample_singletons,
    summarise_chains,
)
from jaxcascade.data.embedding import distinct_endings, embed_prompts, principal_components
from jaxcascade.data.levels import LevelTable, level_counts
from jaxcascade.data.routing import (
    RoutingTable,
    TableSummary,
    join_tables,
    read_routing_table,
    split_table,
    summarise_table,
)

__all__ = [
    "ArrivalTrace",
    "ChainSummary",
    "Chains",
    "ConfidenceLog",
    "ConfidenceSignals",
    "ConversationLog",
    "LevelCounts",
    "LevelTable",
    "RoutingTable",
    "TableSummary",
    "bin_arrivals",
    "build_chains",
    "confidence_signals",
    "distinct_endings",
    "embed_prompts",
    "join_tables",
    "level_counts",
    "principal_components",
    "read_arrival_trace",
    "read_confidence_log",
    "read_conversation_log",
    "read_routing_table",
    "split_table",
    "subsample_singletons",
    "summarise_chains",
    "summarise_log",
    "summarise_table",
]
