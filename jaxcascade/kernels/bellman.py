"""Finite-horizon Bellman recursion of admission to a congested queue, on the increments of its value.

In every round at most one job arrives, of class ``j`` with probability ``arrival[j]``. It is turned away
at a loss ``loss[j]`` or sent, for ``cost_expert``, to a queue of at most ``B`` waiting jobs, each of which
costs ``cost_holding`` a round; ``c`` jobs can leave with probability ``service[c]``. With ``U_t(b)`` the
value of a queue of ``b`` jobs, ``x_t(q) = U_t(q) - U_t(q-1)`` and ``M_t(b) = cost_expert + d_t(b)`` the
marginal cost of sending one more job::

    d_t(b) = sum_{c<=b} service[c] x_{t+1}(b+1-c)                          b = 0..B-1
    f_t(b) = sum_j arrival[j] min(M_t(b) - loss[j], 0)                     b = 0..B-1,   f_t(B) = 0
    x_t(q) = cost_holding + d_t(q-1) + f_t(q) - f_t(q-1)                   q = 1..B

The last line is the paper's sum of medians (of the arguments ``d_t(q-1)``, ``d_t(q)`` and
``loss[j] - cost_expert``) written as a difference, which halves the work. The increments stay of the order
of one round's cost at any horizon, so float32 serves. They grow with the number of rounds left, towards
the fixed point of the map, which serves all rounds far from the horizon.

Source: arXiv 2610.15128, Section 3.2 and Lemma 3. Array index ``i`` of ``[B]`` holds ``x(i+1)`` or ``d(i)``.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

_UNROLL = 32
_MAX_NEWTON_STEPS = 40


class Admission(NamedTuple):
    """One problem of admission to a congested queue.

    Attributes:
      loss: ``[K]`` loss of turning a job of class j away.
      arrival: ``[K]`` probability that a job of class j arrives; sums to at most 1.
      service: ``[C+1]`` probabilities of serving c jobs in a round; ``service[0] < 1``.
      cost_expert: ``[]`` cost of sending a job to the queue.
      cost_holding: ``[]`` cost of a waiting job a round.
    """

    loss: jax.Array
    arrival: jax.Array
    service: jax.Array
    cost_expert: jax.Array
    cost_holding: jax.Array


class FixedPoint(NamedTuple):
    """A solution of ``x = bellman_sweep(x)``.

    Attributes:
      increments: ``[B]`` x.
      residual: ``[]`` largest entry of ``|bellman_sweep(x) - x|``.
      iterations: ``[]`` int32, Newton steps taken.
    """

    increments: jax.Array
    residual: jax.Array
    iterations: jax.Array


def drain_increments(service: jax.Array, cost_holding: jax.Array, capacity: int) -> jax.Array:
    """Increments ``D(q) - D(q-1)`` of the cost of draining a queue, ``[B]``.

    ``g(q) = (cost_holding + sum_{1<=c<q} service[c] g(q-c)) / (1 - service[0])``, any service law.

    Args:
      service: ``[C+1]`` service law, ``service[0] < 1``.
      cost_holding: ``[]`` cost of a waiting job a round.
      capacity: B, static.

    Source: arXiv 2610.15128, Section 3.1.
    """
    reach = min(service.shape[0] - 1, capacity - 1)
    rate = 1 - service[0]
    if reach == 0:
        return jnp.full((capacity,), cost_holding / rate)

    def step(recent, _):
        increment = (cost_holding + service[1 : reach + 1] @ recent) / rate
        return jnp.concatenate([increment[None], recent[:-1]]), increment

    start = jnp.zeros((reach,), jnp.result_type(service, cost_holding))
    return lax.scan(step, start, None, length=capacity, unroll=min(capacity, _UNROLL))[1]


def drain_cost(service: jax.Array, cost_holding: jax.Array, capacity: int) -> jax.Array:
    """Expected holding cost of clearing a queue of b jobs, ``[B+1]``.

    ``D(0) = 0``, ``D(b) = cost_holding b + E[D((b - C)^+)]``; for Bernoulli(mu) service it is
    ``cost_holding b (b+1) / (2 mu)``.

    Args:
      service: ``[C+1]`` service law, ``service[0] < 1``.
      cost_holding: ``[]`` cost of a waiting job a round.
      capacity: B, static.

    Source: arXiv 2610.15128, Section 3.1.
    """
    increments = drain_increments(service, cost_holding, capacity)
    return jnp.concatenate([jnp.zeros((1,), increments.dtype), jnp.cumsum(increments)])


def expected_increment(service: jax.Array, increments: jax.Array) -> jax.Array:
    """Expected growth of the value by one more job in the queue, ``[B]``.

    ``d(b) = sum_{c<=b} service[c] x(b+1-c)``.

    Args:
      service: ``[C+1]`` service law.
      increments: ``[B]`` x of the next round.

    Source: arXiv 2610.15128, equation 7.
    """
    return _service_matrix(service, increments.shape[0]) @ increments


def marginal_cost(problem: Admission, increments: jax.Array) -> jax.Array:
    """Marginal cost ``M(b)`` of sending a job to a queue of b, ``[B]``, given the next round's increments.

    ``M(b) = cost_expert + d(b)``; at ``b = B`` it is infinite and left out.

    Args:
      problem: the admission problem.
      increments: ``[B]`` x of the next round.

    Source: arXiv 2610.15128, equation 1 and equation 6.
    """
    return problem.cost_expert + expected_increment(problem.service, increments)


def bellman_sweep(problem: Admission, increments: jax.Array) -> jax.Array:
    """One step of backward induction: the increments ``x_t``, ``[B]``, from ``x_{t+1}``.

    Args:
      problem: the admission problem.
      increments: ``[B]`` x of the next round.

    Source: arXiv 2610.15128, equations 9 and 10.
    """
    return _sweep(problem, _service_matrix(problem.service, increments.shape[0]), increments)


def backward_induction(problem: Admission, rounds: jax.Array | int, capacity: int) -> jax.Array:
    """Increments ``[B]`` with ``rounds`` rounds to go, by that many sweeps from the drain cost.

    Args:
      problem: the admission problem.
      rounds: ``[]`` int, may be traced.
      capacity: B, static.

    Source: arXiv 2610.15128, Section 3.2.
    """
    start = drain_increments(problem.service, problem.cost_holding, capacity)
    start = start.astype(_dtype(problem))
    law = _service_matrix(problem.service, capacity)
    return lax.fori_loop(0, rounds, lambda _, x: _sweep(problem, law, x), start)


def marginal_cost_table(problem: Admission, rows: int, capacity: int) -> jax.Array:
    """Marginal costs ``[rows, B]``: row n holds M(b) of the round after which n rounds are left.

    Args:
      problem: the admission problem.
      rows: number of rows, static.
      capacity: B, static.

    Source: arXiv 2610.15128, Section 3.2.
    """
    start = drain_increments(problem.service, problem.cost_holding, capacity).astype(_dtype(problem))
    law = _service_matrix(problem.service, capacity)

    def step(increments, _):
        return _sweep(problem, law, increments), problem.cost_expert + law @ increments

    return lax.scan(step, start, None, length=rows)[1]


def bellman_fixed_point(problem: Admission, start: jax.Array) -> FixedPoint:
    """Fixed point of the sweep, the increments infinitely far from the horizon, by policy iteration.

    For given decisions (which classes are sent at which queue length) the increments solve a ``B x B``
    system with one superdiagonal, eliminated from the last row upwards; the decisions follow from the
    solution, and so on until they agree (Howard's policy iteration, here also Newton's method on a
    piecewise linear map). A warm start from nearby parameters needs one or two steps. The loop ends when
    the residual is at rounding level (4 units in the last place of the largest number in play, or 64 if it
    stalls) or after 40 steps; look at ``residual`` if the problem may be degenerate. Where several fixed
    points exist (service of exactly one job a round, no holding cost) it stays at the start's.

    Args:
      problem: the admission problem.
      start: ``[B]`` first guess, for instance the last solution or ``drain_increments``.

    Source: arXiv 2610.15128, equations 9 and 10 with ``x_t = x_{t+1}``.
    """
    eps = jnp.finfo(start.dtype).eps
    law = _service_matrix(problem.service, start.shape[0])
    scale = jnp.maximum(jnp.max(jnp.abs(problem.loss)), problem.cost_expert)

    def evaluate(increments):
        growth = law @ increments
        advantage = problem.cost_expert + growth - problem.loss[:, None]
        sent = _weights(problem) @ (advantage < 0).astype(growth.dtype)
        residual = _next_increments(problem, growth, advantage) - increments
        # Rounding of one evaluation is a few units in the last place of what is added up.
        unit = eps * jnp.maximum(jnp.max(jnp.abs(increments)), scale)
        return residual, jnp.max(jnp.abs(residual)), sent, unit

    def active(state):
        _, (_, error, _, unit), before, steps = state
        stalled = (error <= 64 * unit) & (error > before / 2)
        return (error > 4 * unit) & ~stalled & (steps < _MAX_NEWTON_STEPS)

    def step(state):
        increments, (residual, error, sent, unit), _, steps = state
        increments = increments + _solve_increments(problem.service, sent, residual, 64 * unit)
        return increments, evaluate(increments), error, steps + 1

    state = (start, evaluate(start), jnp.full((), jnp.inf, start.dtype), jnp.zeros((), jnp.int32))
    increments, (_, error, _, _), _, steps = lax.while_loop(active, step, state)
    return FixedPoint(increments, error, steps)


def settle(
    problem: Admission, settled: jax.Array, tolerance: jax.Array, rounds: jax.Array | int
) -> tuple[jax.Array, jax.Array]:
    """Backward induction that stops early once it has come within ``tolerance`` of its fixed point.

    The increments only grow towards the fixed point, so the rounds left out change them by less than that.
    What is carried is the distance ``y = settled - x`` that is left, not x, whose growth would drown in rounding
    long before its end: with A(j, b) the advantage ``M(b) - loss[j]`` at the fixed point and ``e = R y``::

        y_t(q) = e(q-1) + g(q) - g(q-1),   g(b) = sum_j arrival[j] (min(A, 0) - min(A - e(b), 0))

    Args:
      problem: the admission problem.
      settled: ``[B]`` its fixed point, from ``bellman_fixed_point``.
      tolerance: ``[]`` largest difference allowed; a negative one never stops early.
      rounds: ``[]`` int, rounds of backward induction from the drain cost, may be traced.

    Returns:
      The increments ``[B]`` and the number of rounds run ``[]``.

    Source: arXiv 2610.15128, Lemma 18 (monotone convergence); checked by test.
    """
    capacity = settled.shape[0]
    law = _service_matrix(problem.service, capacity)
    start = drain_increments(problem.service, problem.cost_holding, capacity).astype(settled.dtype)
    growth = law @ settled
    advantage = problem.cost_expert + growth - problem.loss[:, None]
    short, spare = jnp.minimum(advantage, 0), jnp.maximum(advantage, 0)
    # What is no fixed point moves under the sweep; rounding is no such move.
    drift = _next_increments(problem, growth, advantage) - settled
    scale = jnp.maximum(jnp.max(jnp.abs(settled)), jnp.max(jnp.abs(problem.loss)))
    drift = jnp.where(jnp.abs(drift) > 64 * jnp.finfo(settled.dtype).eps * scale, drift, 0)

    def apart(state):
        distance, done = state
        return (done < rounds) & (jnp.max(jnp.abs(distance)) > tolerance)

    def sweep(state):
        distance, done = state
        less = law @ distance
        # min(A, 0) - min(A - e, 0) without a difference of large numbers.
        saving = jnp.maximum(short, jnp.minimum(less, jnp.maximum(less - spare, 0)))
        saving = _weights(problem) @ saving
        return less + _above(saving) - saving - drift, done + 1

    distance, done = lax.while_loop(apart, sweep, (settled - start, jnp.zeros((), jnp.int32)))
    return settled - distance, done


def _sweep(problem, law, increments):
    growth = law @ increments
    return _next_increments(problem, growth, problem.cost_expert + growth - problem.loss[:, None])


def _next_increments(problem, growth, advantage):
    """``x_t`` from ``d_t`` and ``M_t(b) - loss[j]``, ``[K, B]``; the sum over classes as a dot product."""
    saving = _weights(problem) @ jnp.minimum(advantage, 0)
    return problem.cost_holding + growth + _above(saving) - saving


def _weights(problem):
    """The arrivals, batched under vmap whenever the losses are.

    XLA's dot product of a shared vector with a batch of matrices is three times slower than of two batches.
    """
    return problem.arrival + 0 * problem.loss


def _service_matrix(service, capacity):
    """R with ``d = R x``: ``R[b, i] = service[b - i]``, ``[B, B]``."""
    lag = jnp.arange(capacity)[:, None] - jnp.arange(capacity)
    served = jnp.clip(lag, 0, service.shape[0] - 1)
    return jnp.where((lag >= 0) & (lag < service.shape[0]), service[served], 0)


def _above(values):
    """``values(b + 1)``, with 0 for the full queue, from which nothing is sent."""
    return jnp.concatenate([values[1:], jnp.zeros((1,), values.dtype)])


def _solve_increments(service, sent, residual, noise):
    """Newton step: the solution of ``(I - keep R - grow R_up) step = residual``.

    R is the service convolution, R_up its next row, ``keep = 1 - sent(b)``, ``grow = sent(b+1)``. Row i
    has entries ``-(keep_i service[o] + grow_i service[o+1])`` at column ``i - o`` (o >= 0), plus one on
    the diagonal, and ``-grow_i service[0]`` at column ``i + 1``. For decisions that send less at longer
    queues it is an M-matrix and needs no pivoting. A pivot of zero (service of exactly one job a round,
    every job sent) is lifted, and a residual below ``noise`` is then no reason to move.
    """
    keep, grow = 1 - sent, _above(sent)
    capacity = residual.shape[0]
    reach = min(service.shape[0] - 1, capacity)
    law = jnp.pad(service[: reach + 1], (0, 1))
    rows = -(keep[:, None] * law[:-1] + grow[:, None] * law[1:])
    rows = rows.at[:, 0].add(1)
    upper = -grow * service[0]
    smallest_pivot = jnp.finfo(residual.dtype).eps ** 0.5

    def eliminate(below, row):
        row_below, right_below = below
        entries, above, right = row
        factor = above / row_below[0]
        entries = entries.at[:-1].add(-factor * row_below[1:])
        right = right - factor * right_below
        right = jnp.where((entries[0] < smallest_pivot) & (jnp.abs(right) <= noise), 0, right)
        entries = entries.at[0].max(smallest_pivot)
        return (entries, right), (entries, right)

    beyond = (jnp.zeros_like(rows[0]).at[0].set(1), jnp.zeros_like(residual[0]))
    unroll = min(capacity, _UNROLL)
    _, (rows, right) = lax.scan(eliminate, beyond, (rows, upper, residual), reverse=True, unroll=unroll)

    def substitute(recent, row):
        entries, value = row
        solution = (value - entries[1:] @ recent) / entries[0]
        return jnp.concatenate([solution[None], recent])[:reach], solution

    return lax.scan(substitute, jnp.zeros((reach,), right.dtype), (rows, right), unroll=unroll)[1]


def _dtype(problem):
    return jnp.result_type(*problem)
