"""Policies that plan with an estimate of the accuracies: KL-PBD and its relatives, and the oracle.

All defer level j iff ``cost_error (1 - g_j) > M_t(B)``, with M the marginal cost of deferral computed by
the Bellman recursion with g in the place of the accuracies; they differ in g.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade.core import Audit, Policy
from jaxcascade.deferral.environment import Action
from jaxcascade.deferral.labels import Labels, count_arrival, count_labels, empirical_mean, no_labels
from jaxcascade.deferral.oracle import (
    TABLE_ROWS,
    gap_limit,
    marginal_costs_at,
    oracle_table,
    rule_in_force,
)
from jaxcascade.kernels import (
    Admission,
    bellman_fixed_point,
    drain_increments,
    kl_lower_bound,
    marginal_cost,
    settle,
)

_PROBES = 64
_SETTLED = 1 / 8  # share of the permitted gap at which backward induction may stop
_LONGEST_WINDOW = 65_536
_UNPROBED_WINDOW = 4096


def kl_pbd(estimate_arrival: bool = False, estimate_service: bool = False, resolve_every: int = 1) -> Policy:
    """KL-PBD, pessimistic Bellman deferral: g is the KL lower confidence bound with a budget in the horizon.

    ``g_j = inf {q <= mean_j : N_j kl(mean_j, q) <= log T + log log T}``, 0 without a label.

    Args:
      estimate_arrival: plan with the empirical frequencies ``O_j / t`` instead of the true ones, static.
      estimate_service: plan with the empirical service law, truncated at the queue's capacity, static;
        accepts while no service was seen.
      resolve_every: refresh g inside the recursion once so many labels have come since the last time; the
        decision always uses the current bound of its own level.

    Raises:
      ValueError: if ``resolve_every`` is not a whole number >= 1.

    Source: arXiv 2610.15128, Algorithm 1; Appendix B.6 for estimated distributions; Appendix G.2 for
    ``resolve_every`` (50 in its Table 4).
    """
    return _plug_in(_lower_bound, estimate_arrival, estimate_service, resolve_every)


def kl_pbd_plus(estimate_arrival: bool = False, estimate_service: bool = False, resolve_every: int = 1) -> Policy:
    """KL-PBD+: as ``kl_pbd`` with the budget ``log(O_j / N_j)``, O_j the arrivals of the level so far.

    Args:
      estimate_arrival: as in ``kl_pbd``.
      estimate_service: as in ``kl_pbd``.
      resolve_every: as in ``kl_pbd``.

    Raises:
      ValueError: if ``resolve_every`` is not a whole number >= 1.

    Source: arXiv 2610.15128, Appendix F.
    """
    return _plug_in(_lower_bound_plus, estimate_arrival, estimate_service, resolve_every)


def greedy_bellman(estimate_arrival: bool = False, estimate_service: bool = False, resolve_every: int = 1) -> Policy:
    """GBD, greedy Bellman deferral: g is the empirical mean, 0 without a label.

    Args:
      estimate_arrival: as in ``kl_pbd``.
      estimate_service: as in ``kl_pbd``.
      resolve_every: as in ``kl_pbd``.

    Raises:
      ValueError: if ``resolve_every`` is not a whole number >= 1.

    Source: arXiv 2610.15128, Appendix F.
    """
    return _plug_in(_mean, estimate_arrival, estimate_service, resolve_every)


def naive_bellman(estimate_arrival: bool = False, estimate_service: bool = False) -> Policy:
    """NBD, naive Bellman deferral: g is the LLM's own score, nothing is learned about the accuracies.

    Args:
      estimate_arrival: as in ``kl_pbd``.
      estimate_service: as in ``kl_pbd``.

    Source: arXiv 2610.15128, Appendix F.
    """
    if not estimate_arrival and not estimate_service:
        return _planned("score")
    return _plug_in(_score, estimate_arrival, estimate_service, 1)


def oracle() -> Policy:
    """The optimal policy of the instance: g is the true accuracy, everything is known.

    Source: arXiv 2610.15128, Lemma 1.
    """
    return _planned("accuracy")


class PlugInState(NamedTuple):
    """Memory of a planning learner.

    Attributes:
      labels: counts per level.
      capacities: ``[B+1]`` int32, how often the expert could have served c (the last entry: B or more).
      bound: ``[K]`` g.
      planned: ``[K]`` g inside the recursion.
      served: ``[L]`` levels whose labels came in the last round, 0 where none did.
      pending: ``[]`` int32, labels received since ``planned`` was refreshed.
      increments: ``[B]`` last fixed point, the next one's warm start.
      gap: ``[]`` largest distance seen between a fixed point and the recursion it stands for.
    """

    labels: Labels
    capacities: jax.Array
    bound: jax.Array
    planned: jax.Array
    served: jax.Array
    pending: jax.Array
    increments: jax.Array
    gap: jax.Array


class PlugInModel(NamedTuple):
    """What all seeds share: the view, ``budget``, horizon, ``resolve_every``, ``window``, ``short``, ``limit``.

    The recursion is run exactly in the last ``window`` rounds; before, its fixed point stands for it. ``short``
    is how far the two are apart there on the problems probed, where the longest window is not long enough, ``limit``
    how far they may be.
    """

    view: object
    budget: jax.Array
    horizon: jax.Array
    resolve_every: jax.Array
    window: jax.Array
    short: jax.Array
    limit: jax.Array


def _lower_bound(model, labels):
    return kl_lower_bound(empirical_mean(labels), labels.received, model.budget)


def _lower_bound_plus(model, labels):
    budget = jnp.log(jnp.maximum(labels.arrived, 1).astype(float) / jnp.maximum(labels.received, 1))
    return kl_lower_bound(empirical_mean(labels), labels.received, budget)


def _mean(model, labels):
    return empirical_mean(labels)


def _score(model, labels):
    return model.view.score


def _refresh(estimate, model, bound, labels, levels):
    """The estimates ``[K]``, computed anew for the ``levels`` alone (0 = none) where these are few."""
    if estimate is _score or len(levels) >= bound.shape[0]:
        return estimate(model, labels)
    fresh = estimate(model, jax.tree.map(lambda counts: counts[jnp.maximum(levels - 1, 0)], labels))
    here = levels[:, None] == jnp.arange(1, bound.shape[0] + 1)
    return jnp.where(jnp.any(here, axis=0), jnp.max(jnp.where(here, fresh[:, None], 0), axis=0), bound)


def _plug_in(estimate, estimate_arrival, estimate_service, resolve_every):
    if isinstance(resolve_every, bool) or int(resolve_every) != resolve_every or resolve_every < 1:
        raise ValueError(f"resolve_every: expected a whole number >= 1, got {resolve_every!r}")
    policy = _plug_in_functions(estimate, bool(estimate_arrival), bool(estimate_service))
    return policy._replace(params={"resolve_every": int(resolve_every)})


@lru_cache
def _plug_in_functions(estimate, estimate_arrival, estimate_service):
    def arrival_law(model, labels, t):
        return labels.arrived.astype(float) / t if estimate_arrival else model.view.arrival[1:]

    def service_law(model, state, t):
        """The law to plan with and whether it is fit for planning."""
        if not estimate_service:
            return model.view.service, jnp.ones((), bool)
        seen = state.capacities.astype(float) / jnp.maximum(t - 1, 1)
        known = state.capacities[0] < t - 1
        always_one = jnp.zeros_like(seen).at[1].set(1)
        return jnp.where(known, seen, always_one), known

    def problem_at(model, state, t):
        service, known = service_law(model, state, t)
        view = model.view
        loss = view.cost_error * (1 - state.planned)
        arrival = arrival_law(model, state.labels, t)
        return Admission(loss, arrival, service, view.cost_expert, view.cost_holding), known

    def setup(params, view, horizon):
        horizon = jnp.asarray(horizon, jnp.int32)
        rounds = jnp.maximum(horizon, 3).astype(float)
        budget = jnp.log(rounds) + jnp.log(jnp.log(rounds))
        limit = gap_limit(view, service_known=not estimate_service)
        window, short = _exact_window(view, horizon, estimate_arrival, estimate_service, limit)
        return PlugInModel(view, budget, horizon, params["resolve_every"], window, short, limit)

    def init(model):
        capacity, levels = model.view.queue_capacity, model.view.score.shape[-1]
        zeros = jnp.zeros((capacity,), model.view.score.dtype)
        # Who does not know the service law cannot know how many labels a round may bring.
        most_served = levels if estimate_service else min(model.view.service.shape[-1] - 1, capacity)
        return PlugInState(
            no_labels(levels),
            jnp.zeros((capacity + 1 if estimate_service else 0,), jnp.int32),
            jnp.zeros_like(model.view.score),
            jnp.zeros_like(model.view.score),
            jnp.zeros((most_served,), jnp.int32),
            jnp.zeros((), jnp.int32),
            zeros,
            model.short,
        )

    def act(model, state, key, t, observation):
        view = model.view
        labels = count_arrival(state.labels, observation.level)
        # Only this budget moves with an arrival; the other estimates change with labels alone.
        changed = jnp.append(state.served, observation.level) if estimate is _lower_bound_plus else state.served
        bound = _refresh(estimate, model, state.bound, labels, changed)
        refresh = state.pending >= jnp.where(model.resolve_every > 1, model.resolve_every, 0)
        state = state._replace(
            labels=labels,
            bound=bound,
            planned=jnp.where(refresh, bound, state.planned),
            pending=jnp.where(refresh, 0, state.pending),
        )
        problem, known = problem_at(model, state, t)
        increments, state = _plan(model, problem, state, t)
        cost = jnp.append(marginal_cost(problem, increments), jnp.inf)[observation.queue_length]
        loss = view.cost_error * (1 - bound[jnp.maximum(observation.level - 1, 0)])
        defer = (observation.level > 0) & (loss > cost) & known
        threshold = jnp.where(known, 1 - cost / view.cost_error, 0)
        return Action(defer, threshold), state

    def update(model, state, t, observation, action, feedback):
        state = state._replace(
            labels=count_labels(state.labels, feedback),
            pending=state.pending + jnp.sum(feedback.served, dtype=jnp.int32),
        )
        if not estimate_service:
            return state._replace(served=jnp.where(feedback.served, feedback.level, 0))
        last = model.view.queue_capacity
        here = jnp.arange(last + 1) == jnp.minimum(feedback.capacity, last)
        return state._replace(capacities=state.capacities + here.astype(jnp.int32))

    def inspect(model, state, t):
        problem, _ = problem_at(model, state, t)
        increments, _ = _plan(model, problem, state, t)
        cost = jnp.append(marginal_cost(problem, increments), jnp.inf)
        return rule_in_force(model.view.cost_error, estimate(model, state.labels), cost)

    hidden = ("accuracy",) + ("arrival",) * estimate_arrival + ("service",) * estimate_service
    return Policy(setup, init, act, update, hidden=hidden, audit=_audit, inspect=inspect)


def _plan(model, problem, state, t):
    """Increments of the rounds after t, and the state with the warm start and the gap seen."""
    left = model.horizon - t
    fixed = bellman_fixed_point(problem, state.increments)
    near = left < model.window
    # At rounds window, 2 window, 4 window, ... before the end, the fixed point is held against the
    # recursion run for one window: the recursion grows towards it, so their distance bounds its error.
    ratio = left // model.window
    checked = ~near & (left % model.window == 0) & ((ratio & (ratio - 1)) == 0)
    sweeps = jnp.where(near, left, jnp.where(checked, model.window, 0))
    exact, _ = settle(problem, fixed.increments, model.limit * _SETTLED, sweeps)
    distance = jnp.maximum(jnp.max(jnp.abs(fixed.increments - exact)), fixed.residual)
    gap = jnp.maximum(state.gap, jnp.where(checked, distance, 0))
    return jnp.where(near, exact, fixed.increments), state._replace(increments=fixed.increments, gap=gap)


def _audit(model, state):
    return {"bellman_gap": Audit(state.gap, model.limit)}


def _exact_window(view, horizon, estimate_arrival, estimate_service, limit):
    """Rounds before the end in which the recursion is run exactly, ``[]`` int32, and what it falls short, ``[]``.

    Twice the rounds that the recursion takes to settle on the slowest of a spread of problems that a
    learner may face: all accuracies equal, random ones, and, where they are estimated, random arrivals.
    With a free queue and a long or slow one that may exceed the longest window, which the second value tells.
    An estimated service law has no prior to probe, so a fixed window is exact.
    """
    dtype = view.score.dtype
    if estimate_service:
        return jnp.minimum(horizon, _UNPROBED_WINDOW), jnp.zeros((), dtype)
    longest = jnp.minimum(horizon, _LONGEST_WINDOW)
    random = np.random.default_rng(0)  # a fixed spread of probes, no part of the simulation's randomness
    levels = view.score.shape[-1]
    flat = np.linspace(0, 1, _PROBES // 2)[:, None] * np.ones(levels)
    accuracy = jnp.asarray(np.concatenate([flat, random.random((_PROBES - len(flat), levels))]), dtype)
    arrival = np.broadcast_to(np.full(levels, 1 / levels), accuracy.shape)
    if estimate_arrival:
        arrival = random.dirichlet(np.full(levels, 0.3), _PROBES)
    known = jnp.asarray(arrival, dtype) if estimate_arrival else jnp.broadcast_to(view.arrival[1:], accuracy.shape)

    def probe(accuracy, arrival):
        loss = view.cost_error * (1 - accuracy)
        return Admission(loss, arrival, view.service, view.cost_expert, view.cost_holding)

    problems = jax.vmap(probe)(accuracy, known)

    def settling(problem):
        start = drain_increments(problem.service, problem.cost_holding, view.queue_capacity).astype(dtype)
        fixed = bellman_fixed_point(problem, start).increments
        exact, rounds = settle(problem, fixed, limit * _SETTLED, longest)
        return rounds, jnp.max(jnp.abs(fixed - exact))

    rounds, apart = jax.vmap(settling)(problems)
    short = jnp.where(longest < horizon, jnp.max(apart), 0)
    return jnp.minimum(2 * jnp.max(rounds) + 1, longest), short


class PlannedModel(NamedTuple):
    """What all seeds share: the view, the marginal costs ``[rows+1, B+1]`` and the horizon."""

    view: object
    accuracy: jax.Array
    cost_table: jax.Array
    horizon: jax.Array
    audit: Audit


class PlannedState(NamedTuple):
    """A plan made before the run needs no memory."""


@lru_cache
def _planned(accuracy_name):
    def setup(params, view, horizon):
        accuracy = getattr(view, accuracy_name)
        table, audit = oracle_table(view, accuracy, TABLE_ROWS)
        return PlannedModel(view, accuracy, table, horizon, audit)

    def costs(model, t):
        return marginal_costs_at(model.cost_table, model.horizon - t)

    def act(model, state, key, t, observation):
        cost = costs(model, t)[observation.queue_length]
        accuracy = model.accuracy[jnp.maximum(observation.level - 1, 0)]
        defer = (observation.level > 0) & (model.view.cost_error * (1 - accuracy) > cost)
        return Action(defer, 1 - cost / model.view.cost_error), state

    def update(model, state, t, observation, action, feedback):
        return state

    def inspect(model, state, t):
        return rule_in_force(model.view.cost_error, model.accuracy, costs(model, t))

    def audit(model, state):
        exact = model.horizon < model.cost_table.shape[0]
        return {"bellman_gap": model.audit._replace(value=jnp.where(exact, 0, model.audit.value))}

    hidden = () if accuracy_name == "accuracy" else ("accuracy",)
    return Policy(setup, lambda model: PlannedState(), act, update, hidden=hidden, audit=audit, inspect=inspect)
