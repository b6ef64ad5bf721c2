"""Policies of the deferral system that do not plan: queue-blind bounds, fixed thresholds, SALMUT, baselines.

The policies that solve the Bellman recursion with an estimate of the accuracies are in ``plug_in``.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import Policy
from jaxcascade.deferral.environment import Action
from jaxcascade.deferral.labels import Labels, count_arrival, count_labels, empirical_mean, no_labels
from jaxcascade.deferral.tuning import tune_confidence_thresholds, tune_queue_thresholds
from jaxcascade.kernels import kl_upper_bound

_CRITIC_POWER, _CRITIC_PLATEAU = 0.6, 100
_ACTOR_SCALE, _ACTOR_DELAY = 10.0, 100.0
_MOST_FORCED = 0.5


class Nothing(NamedTuple):
    """The state of a policy that remembers nothing."""


def _stateless(decide, setup, hidden):
    """A policy without memory from ``decide(model, key, t, observation) -> Action``."""

    def act(model, state, key, t, observation):
        return decide(model, key, t, observation), state

    def update(model, state, t, observation, action, feedback):
        return state

    return Policy(setup, lambda model: Nothing(), act, update, hidden=hidden)


def _feasible(model, observation):
    return (observation.level > 0) & (observation.queue_length < model.queue_capacity)


def _view(params, view, horizon):
    return view


_NOT_TOLD = ("accuracy", "arrival", "service", "score")


@lru_cache
def accept_all() -> Policy:
    """The policy that gives every LLM answer out."""
    no_threshold = jnp.nan
    return _stateless(lambda *_: Action(jnp.zeros((), bool), jnp.asarray(no_threshold)), _view, _NOT_TOLD)


@lru_cache
def defer_all() -> Policy:
    """The policy that defers every query for which there is room."""
    return _stateless(
        lambda model, key, t, observation: Action(_feasible(model, observation), jnp.asarray(jnp.nan)),
        _view,
        _NOT_TOLD,
    )


def random(probability: float = 0.5) -> Policy:
    """The policy that defers a query, if there is room, with a fixed probability.

    Args:
      probability: probability of a deferral.

    Raises:
      ValueError: if it is not in [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability: expected a number in [0, 1], got {probability!r}")
    return _random()._replace(params={"probability": float(probability)})


@lru_cache
def _random():
    def decide(model, key, t, observation):
        view, probability = model
        return Action(_feasible(view, observation) & (jax.random.uniform(key) < probability), jnp.asarray(jnp.nan))

    return _stateless(decide, lambda params, view, horizon: (view, params["probability"]), _NOT_TOLD)


class LabelState(NamedTuple):
    """Labels and arrivals counted so far."""

    labels: Labels


def kl_ucb_4p() -> Policy:
    """Queue-blind rule on a KL upper bound of the error probability with budget ``log O + 3 log log O``.

    Defers iff ``cost_error * u_J >= cost_expert`` and there is room, where u is the KL upper confidence
    bound on ``1 - h_J`` from the N labels received, 1 if there is none, and O the arrivals of the level so
    far. ``log log O`` is taken as ``log max(1, log O)``.

    Source: arXiv 2610.15128, Appendix F, after Achab et al. (2018).
    """
    return _kl_ucb(False)


def kl_ucb_plus_4p() -> Policy:
    """As ``kl_ucb_4p`` with budget ``log(O / N)``.

    Source: arXiv 2610.15128, Appendix F, after Achab et al. (2018).
    """
    return _kl_ucb(True)


@lru_cache
def _kl_ucb(plus):
    def init(view):
        return LabelState(no_labels(view.score.shape[-1]))

    def act(view, state, key, t, observation):
        labels = count_arrival(state.labels, observation.level)
        index = jnp.maximum(observation.level - 1, 0)
        received, arrived = labels.received[index], jnp.maximum(labels.arrived[index], 1)
        if plus:
            budget = jnp.log(arrived.astype(float) / jnp.maximum(received, 1))
        else:
            clock = jnp.log(arrived.astype(float))
            budget = clock + 3 * jnp.log(jnp.maximum(clock, 1))
        error = kl_upper_bound(1 - empirical_mean(labels)[index], received, budget)
        defer = _feasible(view, observation) & (view.cost_error * error >= view.cost_expert)
        return Action(defer, 1 - view.cost_expert / view.cost_error), LabelState(labels)

    def update(view, state, t, observation, action, feedback):
        return LabelState(count_labels(state.labels, feedback))

    return Policy(_view, init, act, update, hidden=("accuracy", "arrival", "service"))


def fixed_confidence_threshold(estimate_arrival: bool = False) -> Policy:
    """The best rule of the form "defer iff the score is below a cut", tuned before the run as if h = p.

    All ``K + 1`` cuts are compared by their expected cost over the horizon, computed exactly; of equal
    ones the one that defers the fewest levels is taken.

    Args:
      estimate_arrival: tune under uniform arrivals instead of the true ones, static.

    Source: arXiv 2610.15128, Appendix F (FCT).
    """
    return _fixed_thresholds(tune_confidence_thresholds, bool(estimate_arrival))


def fixed_queue_threshold(estimate_arrival: bool = False) -> Policy:
    """A rule of the form "defer level j iff the queue is shorter than tau_j", tuned before the run as if h = p.

    Coordinate descent on the expected cost over the horizon, from four starts: nobody, everybody, the
    thresholds of the planned rule under h = p, and the best confidence cut.

    Args:
      estimate_arrival: tune under uniform arrivals instead of the true ones, static.

    Source: arXiv 2610.15128, Appendix F (FQT).
    """
    return _fixed_thresholds(tune_queue_thresholds, bool(estimate_arrival))


@lru_cache
def _fixed_thresholds(tune, estimate_arrival):
    def setup(params, view, horizon):
        levels = view.score.shape[-1]
        arrival = jnp.full((levels,), 1 / levels, view.score.dtype) if estimate_arrival else view.arrival[1:]
        return view, tune(view, arrival, horizon)

    def decide(model, key, t, observation):
        view, thresholds = model
        below = observation.queue_length < thresholds[jnp.maximum(observation.level - 1, 0)]
        return Action(_feasible(view, observation) & below, jnp.asarray(jnp.nan))

    return _stateless(decide, setup, ("accuracy", "arrival") if estimate_arrival else ("accuracy",))


class SalmutState(NamedTuple):
    """Labels; critic ``value [B+1]`` and its ``visits [B+1]``; actor ``thresholds [K]``."""

    labels: Labels
    value: jax.Array
    visits: jax.Array
    thresholds: jax.Array


@lru_cache
def salmut_sf() -> Policy:
    """SALMUT with selective feedback: an actor-critic on one queue threshold per level.

    Defers level j iff ``B < tau_j``, and when it would accept, is forced to defer with probability
    ``min(.5, 2 / sqrt(t))`` if there is room. The critic learns relative values of queue lengths with step
    ``(floor(n_b / 100) + 2)^-.6``; the actor moves the arriving level's threshold against the estimated
    advantage of deferring, smoothed by ``f(b, tau) = 1 / (1 + exp(-(b - tau - 1/2)))``, with step
    ``10 / (t + 100)``.

    Source: arXiv 2610.15128, Appendix F, after Roy et al. (2021).
    """

    def init(view):
        levels, capacity = view.score.shape[-1], view.queue_capacity
        zeros = jnp.zeros((capacity + 1,), view.score.dtype)
        return SalmutState(no_labels(levels), zeros, zeros, jnp.zeros((levels,), view.score.dtype))

    def act(view, state, key, t, observation):
        state = state._replace(labels=count_arrival(state.labels, observation.level))
        below = observation.queue_length < state.thresholds[jnp.maximum(observation.level - 1, 0)]
        forced = jax.random.uniform(key) < jnp.minimum(_MOST_FORCED, 2 / jnp.sqrt(t.astype(float)))
        return Action(_feasible(view, observation) & (below | forced), jnp.asarray(jnp.nan)), state

    def update(view, state, t, observation, action, feedback):
        labels = count_labels(state.labels, feedback)
        length, index = observation.queue_length, jnp.maximum(observation.level - 1, 0)
        arrives = observation.level > 0
        loss = jnp.where(arrives, view.cost_error * (1 - empirical_mean(labels)[index]), 0)
        cost = view.cost_holding * length + jnp.where(action.defer, view.cost_expert, loss)
        rate = (jnp.floor(state.visits[length] / _CRITIC_PLATEAU) + 2) ** -_CRITIC_POWER
        error = cost + state.value[feedback.queue_length] - state.value[0] - state.value[length]
        value = state.value.at[length].add(rate * error)

        capacity = view.queue_capacity
        served = jnp.arange(view.service.shape[-1])
        after = [view.service @ value[jnp.maximum(jnp.minimum(length + sent, capacity) - served, 0)] for sent in (0, 1)]
        advantage = view.cost_expert - loss + after[1] - after[0]
        slope = jax.nn.sigmoid(length - state.thresholds[index] - 0.5)
        step = _ACTOR_SCALE / (t + _ACTOR_DELAY) * slope * (1 - slope) * advantage
        moved = jnp.clip(state.thresholds[index] - step, 0, capacity)
        moves = arrives & (length < capacity)
        thresholds = state.thresholds.at[index].set(jnp.where(moves, moved, state.thresholds[index]))
        return SalmutState(labels, value, state.visits.at[length].add(1), thresholds)

    return Policy(_view, init, act, update, hidden=("accuracy", "arrival"))
