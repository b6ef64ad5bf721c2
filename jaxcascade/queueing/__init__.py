"""Queries that come back until an LLM pleases them (arXiv 2602.02061): whom to serve next, and with which LLMs."""

from jaxcascade.core import System, register_system
from jaxcascade.queueing.acqb import acqb, cqb_eps, num_samples
from jaxcascade.queueing.environment import environment
from jaxcascade.queueing.instance import (
    Instance,
    acceptance,
    from_arrays,
    make_instance,
    shared,
    synthetic,
    validate,
)
from jaxcascade.queueing.oracle import best_departure_rate, optimal_assortment
from jaxcascade.queueing.policies import fixed_routing, optimal, q_ths, q_ucb, rand, rand_rout
from jaxcascade.queueing.projected import acqb_cl, projected
from jaxcascade.queueing.projection import Projection, neighbour_agreement, project, train_projection
from jaxcascade.queueing.replay import replay
from jaxcascade.queueing.rounds import Action, Feedback, Observation
from jaxcascade.queueing.routers import (
    Router,
    RouterQuality,
    routed,
    router,
    router_quality,
    router_scores,
    train_router,
)
from jaxcascade.queueing.table import from_table

_LABELLED_LLMS = 16
_POLICIES = (acqb, acqb_cl, cqb_eps, q_ucb, q_ths, rand, rand_rout, fixed_routing, router, optimal)

SYSTEM = register_system(
    System(
        name="queueing",
        instance_type=Instance,
        environment=environment,
        validate=validate,
        from_arrays=from_arrays,
        builders={f.__name__: f for f in (synthetic, from_table, replay, shared, make_instance)},
        policies={f.__name__: f for f in _POLICIES},
        ratios={
            "queue_gap_mean": ("queue_gap_sum", "rounds"),
            "throughput": ("departures", "rounds"),
            "retrials_per_departure": ("departed_retrials", "departures"),
            "sojourn_mean": ("sojourn", "departures"),
        },
        labels={
            "regret": "cumulative regret (departures)",
            "queue_length": "queue length (queries)",
            "queue_length_mean": "mean queue length (queries)",
            "queue_gap": "queue length above optimal (queries)",
            "queue_gap_sum": "summed queue length above optimal (query rounds)",
            "waiting": "queries waiting after the round",
            "arrivals": "queries arrived",
            "services": "rounds in which a query was served",
            "departures": "queries departed",
            "retrials": "retrials",
            "departed_retrials": "retrials of departed queries",
            "sojourn": "summed sojourn of departed queries (rounds)",
            "sojourn_p95": "95th percentile of the sojourn (rounds)",
            "queue_gap_mean": "mean queue length above optimal (queries)",
            "throughput": "departures per round",
            "retrials_per_departure": "retrials per departed query",
            "sojourn_mean": "mean sojourn (rounds)",
            **{f"offers_{j}": f"rounds that offered LLM {j}" for j in range(1, _LABELLED_LLMS + 1)},
        },
    )
)

__all__ = [
    "SYSTEM",
    "Action",
    "Feedback",
    "Instance",
    "Observation",
    "Projection",
    "Router",
    "RouterQuality",
    "acceptance",
    "acqb",
    "acqb_cl",
    "best_departure_rate",
    "cqb_eps",
    "environment",
    "fixed_routing",
    "from_table",
    "make_instance",
    "neighbour_agreement",
    "num_samples",
    "optimal",
    "optimal_assortment",
    "project",
    "projected",
    "q_ths",
    "q_ucb",
    "rand",
    "rand_rout",
    "replay",
    "routed",
    "router",
    "router_quality",
    "router_scores",
    "shared",
    "synthetic",
    "train_projection",
    "train_router",
    "validate",
]
