"""The optimal policy of a known instance: its marginal costs, thresholds and decisions."""

import jax
import jax.numpy as jnp

from jaxcascade.core import Audit
from jaxcascade.deferral.instance import Instance
from jaxcascade.kernels import (
    Admission,
    backward_induction,
    bellman_fixed_point,
    drain_increments,
    marginal_cost,
    marginal_cost_table,
)

# The recursion settles in 70-250 rounds on the paper's instances, in 400-2000 with holding costs near 0.
# One size for every horizon, so that another horizon compiles nothing.
TABLE_ROWS = 4096


def admission_problem(instance: Instance, accuracy: jax.Array, arrival: jax.Array) -> Admission:
    """The kernel's problem with given accuracies ``[K]`` and arrivals ``[K]`` of levels 1..K.

    ``loss_j = cost_error (1 - accuracy_j)``.

    Source: arXiv 2610.15128, Section 3.2.
    """
    return Admission(
        instance.cost_error * (1 - accuracy),
        arrival,
        instance.service,
        instance.cost_expert,
        instance.cost_holding,
    )


def oracle_table(instance: Instance, accuracy: jax.Array, rows: int) -> tuple[jax.Array, Audit]:
    """Marginal costs ``M(b)`` by rounds left, ``[rows + 1, B + 1]``, and how far the last rows are apart.

    Row n serves the round after which n rounds are left; the last row is the fixed point and serves all
    earlier rounds. Column B is infinite: a full queue takes nobody. The audit's value is the largest
    difference between the fixed point and the recursion where the exact rows end.

    Args:
      instance: the instance.
      accuracy: ``[K]`` accuracies to plan with.
      rows: number of exact rows, static; ``TABLE_ROWS`` serves every horizon.

    Source: arXiv 2610.15128, Section 3.2.
    """
    problem = admission_problem(instance, accuracy, instance.arrival[1:])
    capacity = instance.queue_capacity
    exact = marginal_cost_table(problem, rows, capacity)
    settled = _settled_cost(problem, capacity)
    gap = jnp.max(jnp.abs(settled - exact[-1]))
    table = jnp.concatenate([exact, settled[None]])
    full = jnp.full((rows + 1, 1), jnp.inf, table.dtype)
    return jnp.concatenate([table, full], axis=1), Audit(gap, gap_limit(instance))


def gap_limit(instance: Instance, service_known: bool = True) -> jax.Array:
    """How far a marginal cost may be from full backward induction: 1e-6 in float64, 1e-4 in float32, of cost_error.

    And 16 units in the last place of what a marginal cost may come to, where the service law is known: with slow
    service that is far above cost_error.
    """
    tolerance = 1e-6 if jnp.result_type(float) == jnp.float64 else 1e-4
    if not service_known:
        return tolerance * instance.cost_error
    longest_wait = instance.queue_capacity / (1 - instance.service[0])
    largest = instance.cost_expert + instance.cost_holding * longest_wait
    return tolerance * instance.cost_error + 16 * jnp.finfo(largest.dtype).eps * largest


def marginal_costs_at(table: jax.Array, rounds_left: jax.Array) -> jax.Array:
    """The row ``[B + 1]`` of an oracle table for a round after which ``rounds_left`` rounds are left."""
    return table[jnp.clip(rounds_left, 0, table.shape[0] - 1)]


def decision_map(instance: Instance, num_steps: int, t: int, accuracy: jax.Array | None = None) -> dict[str, jax.Array]:
    """The optimal rule of round t: thresholds ``[B + 1]`` and decisions ``[K, B + 1]`` (True defers).

    ``threshold(b) = 1 - M_t(b) / cost_error``, ``-inf`` at the full queue; level j is deferred iff its
    accuracy is below it.

    Args:
      instance: the instance.
      num_steps: horizon T.
      t: round, 1..T.
      accuracy: ``[K]`` accuracies to plan with, by default the instance's own.

    Source: arXiv 2610.15128, Lemma 1; drawn in its Figures 4, 8 and 11.
    """
    accuracy = instance.accuracy if accuracy is None else accuracy
    problem = admission_problem(instance, accuracy, instance.arrival[1:])
    increments = backward_induction(problem, num_steps - t, instance.queue_capacity)
    cost = jnp.append(marginal_cost(problem, increments), jnp.inf)
    return rule_in_force(instance.cost_error, accuracy, cost)


def rule_in_force(cost_error: jax.Array, accuracy: jax.Array, cost: jax.Array) -> dict[str, jax.Array]:
    """Thresholds ``[B + 1]`` and decisions ``[K, B + 1]`` of the plug-in rule with marginal costs ``[B + 1]``."""
    return {
        "threshold": 1 - cost / cost_error,
        "decision": cost_error * (1 - accuracy)[:, None] > cost[None, :],
    }


def settled_threshold(instance: Instance) -> jax.Array:
    """Threshold at the empty queue infinitely far from the horizon, ``[]``: the paper's ``taubar``.

    Args:
      instance: the instance.

    Source: arXiv 2610.15128, Section 5.
    """
    problem = admission_problem(instance, instance.accuracy, instance.arrival[1:])
    return 1 - _settled_cost(problem, instance.queue_capacity)[0] / instance.cost_error


def _settled_cost(problem, capacity):
    """Marginal costs ``[B]`` infinitely far from the horizon."""
    start = drain_increments(problem.service, problem.cost_holding, capacity).astype(jnp.result_type(*problem))
    return marginal_cost(problem, bellman_fixed_point(problem, start).increments)
