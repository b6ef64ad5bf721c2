"""LLM cascades as a contextual Pandora's box (arXiv 2606.07392): which APIs to query, when to stop."""

from jaxcascade.cascade.environment import Action, Feedback, Observation, environment
from jaxcascade.cascade.instance import Instance, discrete, from_arrays, make_instance, synthetic, validate
from jaxcascade.cascade.oracle import play, population, reservation_indices
from jaxcascade.cascade.policies import best_single, cheapest, frugal_gpt, lin_ucb, open_all, random_box
from jaxcascade.cascade.table import from_table
from jaxcascade.cascade.weitzman import Solver, dow, online_plugin, oracle, probe_contexts, static_plugin
from jaxcascade.core import System, register_system

_POLICIES = (
    dow,
    online_plugin,
    static_plugin,
    lin_ucb,
    frugal_gpt,
    oracle,
    cheapest,
    best_single,
    open_all,
    random_box,
)
_LABELLED_BOXES = 16

SYSTEM = register_system(
    System(
        name="cascade",
        instance_type=Instance,
        environment=environment,
        validate=validate,
        from_arrays=from_arrays,
        builders={f.__name__: f for f in (synthetic, discrete, from_table, make_instance)},
        policies={f.__name__: f for f in _POLICIES},
        ratios={
            "opened_mean": ("opened", "rounds"),
            "utility_mean": ("utility", "rounds"),
            "reward_mean": ("reward", "rounds"),
            "cost_mean": ("cost", "rounds"),
            "regret_mean": ("regret", "rounds"),
        },
        labels={
            "regret": "cumulative regret (reward units)",
            "utility": "cumulative utility (reward units)",
            "reward": "cumulative reward",
            "cost": "cumulative cost (reward units)",
            "opened": "boxes opened",
            "regret_single": "cumulative regret against the best single box (reward units)",
            "opened_mean": "boxes opened per period",
            "utility_mean": "utility per period (reward units)",
            "reward_mean": "reward per period",
            "cost_mean": "cost per period (reward units)",
            "regret_mean": "regret per period (reward units)",
            **{f"opened_{a}": f"share of periods that open box {a}" for a in range(1, _LABELLED_BOXES + 1)},
            **{f"deployed_{a}": f"share of periods that deploy box {a}" for a in range(1, _LABELLED_BOXES + 1)},
        },
    )
)

__all__ = [
    "SYSTEM",
    "Action",
    "Feedback",
    "Instance",
    "Observation",
    "Solver",
    "best_single",
    "cheapest",
    "discrete",
    "dow",
    "environment",
    "from_arrays",
    "from_table",
    "frugal_gpt",
    "lin_ucb",
    "make_instance",
    "online_plugin",
    "open_all",
    "oracle",
    "play",
    "population",
    "probe_contexts",
    "random_box",
    "reservation_indices",
    "static_plugin",
    "synthetic",
    "validate",
]
