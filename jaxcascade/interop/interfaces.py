"""How an agent that knows only vectors and numbers sees and steers a system."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade import cascade, deferral
from jaxcascade.core import choose
from jaxcascade.kernels import FREE
from jaxcascade.queueing.rounds import Action as QueueingAction

_MOST_SUBSETS = 4096


class Box(NamedTuple):
    """A space of vectors: ``low`` and ``high``, numbers, and the ``shape``."""

    low: float
    high: float
    shape: tuple[int, ...]


class Interface(NamedTuple):
    """A system's observations and actions as arrays, and its metrics as a reward.

    Attributes:
      observation: ``(model, observation) -> [n]`` float, ``model`` the environment's.
      action: ``(model, observation, action) -> Action`` of the system, from a number or a vector.
      observation_space: ``(instance) -> Box``.
      action_space: ``(instance) -> int``, how many actions there are, or a ``Box``.
      reward: ``(metrics) -> []``, from the round's metrics.
    """

    observation: Callable[..., jax.Array]
    action: Callable[..., Any]
    observation_space: Callable[[Any], Box]
    action_space: Callable[[Any], int | Box]
    reward: Callable[[dict[str, jax.Array]], jax.Array]


def deferral_interface() -> Interface:
    """The deferral system for agents: ``[1 + K + 1]`` observations, actions 0 (accept) and 1 (defer), minus the cost.

    An observation is the share of the queue that is taken, then the level, one-hot, with entry 0 for no query. A
    reward is minus what the round cost, counting the waiting queries by what it will cost to drain them; it is
    paid for accepted answers too, so it tells an agent what the system's own policies learn from deferred queries
    alone.

    Source: arXiv 2610.15128, Section 3.
    """

    def observation(model, seen):
        instance = model.instance
        level = jnp.arange(instance.score.shape[-1] + 1) == seen.level
        return jnp.append(seen.queue_length / instance.queue_capacity, level)

    def action(model, seen, number):
        return deferral.Action(number == 1, jnp.full((), jnp.nan))

    return Interface(
        observation,
        action,
        lambda instance: Box(0.0, 1.0, (instance.score.shape[-1] + 2,)),
        lambda instance: 2,
        lambda metrics: -metrics["cost"],
    )


def cascade_interface(actions: str = "index") -> Interface:
    """The cascade system for agents: the context ``[dx]``, one action a period, the period's utility.

    With "index" an action is a vector ``[A]`` in [-1, 1]: boxes are opened in decreasing order while the value held
    is below the next box's entry, as Weitzman's rule does with its reservation indices. With "subset" it is one of
    ``2^A - 1`` numbers: box a is opened if bit a of the number plus one is set. Of the opened outputs the truly
    best is deployed, as by policies that are told the rewards.

    Args:
      actions: "index" or "subset".

    Raises:
      ValueError: if there are no such actions.

    Source: arXiv 2606.07392, Section 3.
    """
    subset = choose("actions", actions, {"index": False, "subset": True})

    def action(model, seen, given):
        if not subset:
            return cascade.Action(given, given, None)
        opened = (given + 1) >> jnp.arange(model.instance.sizes.boxes) & 1 == 1
        return cascade.Action(opened.astype(float), jnp.where(opened, jnp.inf, -jnp.inf), None)

    def action_space(instance):
        boxes = instance.sizes.boxes
        if not subset:
            return Box(-1.0, 1.0, (boxes,))
        return _at_most(2**boxes - 1, f"subsets of {boxes} boxes")

    return Interface(
        lambda model, seen: seen.context,
        action,
        lambda instance: Box(-np.inf, np.inf, (instance.sizes.context,)),
        action_space,
        lambda metrics: metrics["utility"],
    )


def queueing_interface(window: int = 1) -> Interface:
    """The queueing system for agents: the oldest queries ``[1 + window (2 + d)]``, minus the queue that is left.

    An observation is the queue's length, then for each of the oldest ``window`` queries whether there is one, how
    often it was served, and its context. Action ``i M + s`` serves the i-th oldest with the s-th of the M
    assortments, in lexicographic order; to serve a query that is not there wastes the round. A reward is minus
    the number of queries that wait after the round, so that the return is minus the summed queue.

    Args:
      window: how many of the oldest queries can be seen and served.

    Raises:
      ValueError: if ``window`` is not a whole number >= 1.

    Source: arXiv 2602.02061, Section 2.
    """
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise ValueError(f"window: expected a whole number >= 1, got {window!r}")

    def oldest(seen):
        slots = seen.arrived.shape[0]
        order = jnp.argsort(seen.arrived)[: min(window, slots)]
        return jnp.pad(order, (0, max(window - slots, 0))), jnp.arange(window) < seen.length

    def observation(model, seen):
        order, here = oldest(seen)
        each = jnp.column_stack([jnp.ones((window,)), seen.served[order], seen.context[order]])
        return jnp.append(seen.length.astype(each.dtype), jnp.where(here[:, None], each, 0))

    def action(model, seen, number):
        order, here = oldest(seen)
        servers = jnp.asarray(_assortments(model.instance))
        place = number // servers.shape[0]
        query = jnp.where(here[place], seen.arrived[order[place]], FREE)
        return QueueingAction(query, servers[number % servers.shape[0]])

    return Interface(
        observation,
        action,
        lambda instance: Box(-np.inf, np.inf, (1 + window * (2 + instance.dim),)),
        lambda instance: _at_most(window * len(_assortments(instance)), "queries times assortments"),
        # Not ``waiting``, which is nan once a buffer was too small.
        lambda metrics: (metrics["departures"] - metrics["arrivals"] - metrics["queue_length_mean"]).astype(float),
    )


INTERFACES = {"deferral": deferral_interface, "cascade": cascade_interface, "queueing": queueing_interface}


def _assortments(instance):
    lists = itertools.combinations(range(instance.num_llms), instance.assortment_size)
    return np.array(list(lists), np.int32)


def _at_most(count, what):
    if count > _MOST_SUBSETS:
        raise ValueError(f"actions: expected at most {_MOST_SUBSETS} {what}, got {count}")
    return count
