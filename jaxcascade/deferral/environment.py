"""The deferral system: levels arrive, the policy answers or defers, the expert serves and reveals labels."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import MEAN, NOW, SUM, Audit, Environment
from jaxcascade.deferral.instance import Instance
from jaxcascade.deferral.oracle import TABLE_ROWS, marginal_costs_at, oracle_table
from jaxcascade.kernels import Fifo, drain_cost, fifo_init, fifo_pop, fifo_push

METRICS = (
    ("regret", SUM),
    ("cost", SUM),
    ("queue_length", NOW),
    ("queue_length_mean", MEAN),
    ("threshold_mean", MEAN),
    ("arrivals", SUM),
    ("deferrals", SUM),
    ("labels", SUM),
    ("correct", SUM),
    ("accepted", SUM),
    ("accepted_correct", SUM),
    ("full_queue", SUM),
)


class Model(NamedTuple):
    """What all seeds share: the instance, ``cost_table [rows+1, B+1]``, ``drain [B+1]`` and the last round T."""

    instance: Instance
    cost_table: jax.Array
    drain: jax.Array
    horizon: jax.Array
    audit: Audit


class Noise(NamedTuple):
    """Draws of one round: level (0 = no query), whether the LLM is right, how many the expert can serve."""

    level: jax.Array
    label: jax.Array
    capacity: jax.Array


class State(NamedTuple):
    """The expert's queue; a waiting query is the code ``2 * level + label``."""

    queue: Fifo


class Observation(NamedTuple):
    """What a policy sees before it decides.

    Attributes:
      queue_length: ``[]`` int32 ``B_t``.
      level: ``[]`` int32 ``J_t``, from 1; 0 = no query.
    """

    queue_length: jax.Array
    level: jax.Array


class Action(NamedTuple):
    """Whether to defer, and the accuracy threshold in force (nan for rules that have none)."""

    defer: jax.Array
    threshold: jax.Array


class Feedback(NamedTuple):
    """What a policy sees after the round.

    Attributes:
      level: ``[L]`` levels of the queries served, ``L = min(C, B)``.
      label: ``[L]`` bool, whether the LLM had been right.
      served: ``[L]`` bool, which entries are real.
      queue_length: ``[]`` ``B_{t+1}``.
      capacity: ``[]`` how many the expert could have served.
    """

    level: jax.Array
    label: jax.Array
    served: jax.Array
    queue_length: jax.Array
    capacity: jax.Array


def environment(instance: Instance, num_steps: int) -> Environment:
    """The deferral system's environment; regret is measured against the optimal policy of the instance.

    Metrics: ``regret`` is the sum of decision gaps ``|L_J - M_t(B)|`` over rounds with another action than
    the oracle's; ``cost`` is what was paid plus the expected cost of draining the queue that is left; their
    mean differences to the oracle are the same (Lemma 2). ``correct`` counts deferred queries as right,
    ``full_queue`` the rounds that began with a full queue, ``threshold_mean`` averages ``max(tau, 0)``.

    Args:
      instance: the instance; one environment serves all.
      num_steps: horizon T, likewise.

    Source: arXiv 2610.15128, Section 3.
    """
    del instance, num_steps
    return Environment(_setup, _noise, _init, _observe, _step, METRICS, audit=_audit)


def _setup(instance, horizon):
    table, audit = oracle_table(instance, instance.accuracy, TABLE_ROWS)
    drain = drain_cost(instance.service, instance.cost_holding, instance.queue_capacity)
    # A table that holds every round needs no fixed point.
    gap = jnp.where(horizon > TABLE_ROWS, audit.value, 0)
    return Model(instance, table, drain, jnp.asarray(horizon, jnp.int32), audit._replace(value=gap))


def _audit(model):
    return {"oracle_gap": model.audit}


def _noise(key, model):
    instance = model.instance
    draw = jax.random.uniform(key, (3,), instance.arrival.dtype)
    level = jnp.sum(draw[0] >= jnp.cumsum(instance.arrival)[:-1], dtype=jnp.int32)
    accuracy = jnp.append(1.0, instance.accuracy)[level]
    capacity = jnp.sum(draw[2] >= jnp.cumsum(instance.service)[:-1], dtype=jnp.int32)
    return Noise(level, draw[1] < accuracy, capacity)


def _init(model):
    return State(fifo_init(model.instance.queue_capacity, jnp.int32(0)))


def _observe(model, state, noise, t):
    return Observation(state.queue.size, noise.level)


def _step(model, state, action, noise, t):
    instance, queue = model.instance, state.queue
    length, arrives = queue.size, noise.level > 0
    full = length >= instance.queue_capacity
    defer = jnp.asarray(action.defer, bool) & arrives & ~full
    loss = instance.cost_error * (1 - instance.accuracy[jnp.maximum(noise.level - 1, 0)])
    marginal = marginal_costs_at(model.cost_table, model.horizon - t)[length]
    oracle_defers = loss > marginal
    gap = jnp.where(arrives & ~full & (defer != oracle_defers), jnp.abs(loss - marginal), 0)

    queue, _ = fifo_push(queue, 2 * noise.level + noise.label, defer)
    limit = min(instance.service.shape[-1] - 1, instance.queue_capacity)
    queue, code, served = fifo_pop(queue, noise.capacity, limit)
    accepted = arrives & ~defer
    wrong = accepted & ~noise.label
    paid = instance.cost_holding * length + instance.cost_expert * defer + instance.cost_error * wrong
    metrics = {
        "regret": gap,
        "cost": paid + model.drain[queue.size] - model.drain[length],
        "queue_length": queue.size,
        "queue_length_mean": length,
        "threshold_mean": jnp.where(full, 0, jnp.maximum(action.threshold, 0)),
        "arrivals": arrives.astype(jnp.int32),
        "deferrals": defer.astype(jnp.int32),
        "labels": jnp.sum(served, dtype=jnp.int32),
        "correct": (arrives & ~wrong).astype(jnp.int32),
        "accepted": accepted.astype(jnp.int32),
        "accepted_correct": (accepted & noise.label).astype(jnp.int32),
        "full_queue": full.astype(jnp.int32),
    }
    feedback = Feedback(code // 2, code % 2 == 1, served, queue.size, noise.capacity)
    return State(queue), feedback, metrics
