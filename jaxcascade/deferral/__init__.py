"""Deferral to a congested expert (arXiv 2610.15128): answer, or defer to a queue whose labels come late."""

from jaxcascade.core import System, register_system
from jaxcascade.deferral import theory
from jaxcascade.deferral.environment import Action, Feedback, Observation, environment
from jaxcascade.deferral.instance import (
    Instance,
    from_arrays,
    from_log,
    levels,
    make_instance,
    monotone,
    skewed,
    two_point,
    validate,
)
from jaxcascade.deferral.oracle import decision_map, settled_threshold
from jaxcascade.deferral.plug_in import greedy_bellman, kl_pbd, kl_pbd_plus, naive_bellman, oracle
from jaxcascade.deferral.policies import (
    accept_all,
    defer_all,
    fixed_confidence_threshold,
    fixed_queue_threshold,
    kl_ucb_4p,
    kl_ucb_plus_4p,
    random,
    salmut_sf,
)

_POLICIES = (
    kl_pbd,
    kl_pbd_plus,
    greedy_bellman,
    naive_bellman,
    salmut_sf,
    kl_ucb_4p,
    kl_ucb_plus_4p,
    fixed_confidence_threshold,
    fixed_queue_threshold,
    oracle,
    accept_all,
    defer_all,
    random,
)

SYSTEM = register_system(
    System(
        name="deferral",
        instance_type=Instance,
        environment=environment,
        validate=validate,
        from_arrays=from_arrays,
        builders={f.__name__: f for f in (two_point, skewed, monotone, from_log, make_instance)},
        policies={f.__name__: f for f in _POLICIES},
        ratios={
            "deferral_rate": ("deferrals", "arrivals"),
            "accuracy": ("correct", "arrivals"),
            "accepted_accuracy": ("accepted_correct", "accepted"),
            "full_queue_rate": ("full_queue", "rounds"),
        },
        labels={
            "regret": "cumulative regret (cost units)",
            "cost": "cumulative cost (cost units)",
            "queue_length": "queue length (queries)",
            "queue_length_mean": "mean queue length (queries)",
            "threshold_mean": "mean accuracy threshold",
            "arrivals": "queries arrived",
            "deferrals": "queries deferred",
            "labels": "expert labels completed",
            "correct": "queries answered right (deferred ones count)",
            "accepted": "LLM answers given out",
            "accepted_correct": "right LLM answers given out",
            "full_queue": "rounds with a full queue",
            "deferral_rate": "share of queries deferred",
            "accuracy": "response accuracy",
            "accepted_accuracy": "accuracy of the answers given out",
            "full_queue_rate": "share of rounds with a full queue",
        },
    )
)

__all__ = [
    "SYSTEM",
    "Action",
    "Feedback",
    "Instance",
    "Observation",
    "accept_all",
    "decision_map",
    "defer_all",
    "environment",
    "fixed_confidence_threshold",
    "fixed_queue_threshold",
    "from_log",
    "greedy_bellman",
    "kl_pbd",
    "kl_pbd_plus",
    "kl_ucb_4p",
    "kl_ucb_plus_4p",
    "levels",
    "make_instance",
    "monotone",
    "naive_bellman",
    "oracle",
    "random",
    "salmut_sf",
    "settled_threshold",
    "skewed",
    "theory",
    "two_point",
    "validate",
]
