"""The cascade system: a context arrives, boxes are opened one by one, one opened output is deployed."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.cascade.instance import TABULATED, Instance
from jaxcascade.cascade.laws import num_uniforms, sample, tables, uniforms
from jaxcascade.cascade.oracle import IndexTable, context_terms, index_table, indices_at, play, population
from jaxcascade.core import MEAN, SUM, Environment
from jaxcascade.kernels.design_matrix import row_sums

_TOTALS = (
    ("regret", SUM),
    ("utility", SUM),
    ("reward", SUM),
    ("cost", SUM),
    ("opened", SUM),
    ("regret_single", SUM),
)


class Model(NamedTuple):
    """What all seeds share.

    Attributes:
      instance: the instance.
      lookup: what the output law's sampling looks up.
      table: what oracle indices are computed from.
      single: ``[A]`` bool, the box of the greatest mean utility when it is the only one opened.
    """

    instance: Instance
    lookup: jax.Array
    table: IndexTable
    single: jax.Array


class Noise(NamedTuple):
    """One period, whatever is done in it.

    Attributes:
      context: ``[dx]`` x.
      features: ``[A, d]`` phi of each box's output.
      value: ``[A]`` mu* of each box's output.
      cost: ``[A]`` cost of opening each box.
      sigma: ``[A]`` oracle reservation indices.
      uniform: ``[A]`` a deployed output of value v has reward ``uniform[0] < v``; in calibration, where
        several rewards can be seen, box a's is ``uniform[a] < v_a``.
    """

    context: jax.Array
    features: jax.Array
    value: jax.Array
    cost: jax.Array
    sigma: jax.Array
    uniform: jax.Array


class State(NamedTuple):
    """Periods are independent; there is nothing to carry."""


class Observation(NamedTuple):
    """What a policy sees before it opens anything: the context ``[dx]``."""

    context: jax.Array


class Action(NamedTuple):
    """A rule for the query and the selection phase, as ``jaxcascade.cascade.play`` takes it.

    Attributes:
      order: ``[A]`` boxes are opened in decreasing order; None, with ``threshold``, for the true reservation
        indices, which only the oracle asks for.
      threshold: ``[A]`` a box after the first is opened only while the value held is below its threshold.
      value: ``features [A, d] -> [A]``, what the policy thinks opened outputs are worth; None if it is told
        the true mu*.
      stop_on_last: ``[]`` hold the last output against the threshold, not the best.
      deploy_last: ``[]`` deploy the last output, not the best.
    """

    order: jax.Array | None
    threshold: jax.Array | None
    value: Callable[[jax.Array], jax.Array] | None
    stop_on_last: Any = False
    deploy_last: Any = False


class Feedback(NamedTuple):
    """What a policy sees of a period; entries of boxes not opened are 0.

    Attributes:
      opened: ``[A]`` bool.
      deployed: ``[A]`` bool.
      features: ``[A, d]``.
      cost: ``[A]``.
      value: ``[A]`` mu*, only for a policy that is told it, else None.
      reward: ``[A]`` 0 or 1, where it was seen.
      rewarded: ``[A]`` bool: the deployed box; in calibration periods (t <= 0) every opened one.
    """

    opened: jax.Array
    deployed: jax.Array
    features: jax.Array
    cost: jax.Array
    value: jax.Array | None
    reward: jax.Array
    rewarded: jax.Array


def metrics_of(boxes: int) -> tuple[tuple[str, str], ...]:
    """Names and kinds of the metrics of an instance with so many boxes."""
    each = [(f"{name}_{a + 1}", MEAN) for name in ("opened", "deployed") for a in range(boxes)]
    return (*_TOTALS, *each)


def environment(instance: Instance, num_steps: int) -> Environment:
    """The cascade system's environment; regret is the utility of Weitzman's rule less the policy's, same noise.

    Utility is ``mu*`` of the deployed output less the costs of all opened ones, reward units; ``reward`` is
    the realised one; ``opened`` counts boxes, which is also the stage at which the search stopped;
    ``regret_single`` is against the one box that is best on average; ``opened_a`` and ``deployed_a`` are the
    shares of periods in which box a was opened and deployed. For a table with one output per prompt the
    oracle knows the answers: its utility is the best net score of each prompt.

    Args:
      instance: the instance, for its static sizes.
      num_steps: horizon T, of no influence.

    Source: arXiv 2606.07392, Sections 2 and 3.
    """
    del num_steps
    return _make(instance.sizes.boxes)


@lru_cache
def _make(boxes):
    return Environment(_setup, _noise, _init, _observe, _step, metrics_of(boxes))


def _setup(instance, horizon):
    lookup = jnp.zeros((0,))
    if instance.output_law != TABULATED:
        lookup = tables(instance.output_law, instance.D.shape[1])
    means = population(instance)
    best = jnp.argmax(means.value - means.cost)
    return Model(instance, lookup, index_table(instance), jnp.arange(instance.sizes.boxes) == best)


def _noise(key, model):
    return draw_period(key, model.instance, model.lookup, model.table)


def draw_period(key: jax.Array, instance: Instance, lookup: jax.Array, table: IndexTable | None) -> Noise:
    """One period drawn from the instance; without a table of the oracle its indices are nan.

    Args:
      key: typed key.
      instance: the instance.
      lookup: from ``laws.tables``.
      table: from ``oracle.index_table``, or None.
    """
    draw = _draw_listed if instance.output_law == TABULATED else _draw_family
    return draw(key, instance, lookup, table)


def _draw_family(key, instance, lookup, table):
    boxes, dx, _ = instance.sizes
    law, dw = instance.output_law, instance.D.shape[1]
    each = num_uniforms(law, dw)
    draws = uniforms(key, dx + boxes * each + boxes)
    context, rewards = draws[:dx], draws[dx + boxes * each :]
    xi = sample(law, lookup, draws[dx : dx + boxes * each].reshape(boxes, each))
    terms = context_terms(instance, context)
    features = terms.shift + terms.scale[:, None] * (xi @ instance.D.T)
    value = jax.nn.sigmoid(features @ instance.theta)
    sums = terms.scale * row_sums(instance.beta1 * jnp.abs(xi))
    cost = terms.cost + instance.c1 * jax.nn.sigmoid(sums)
    index = jnp.full((boxes,), jnp.nan, value.dtype) if table is None else indices_at(instance, table, terms)
    return Noise(context, features, value, cost, index, (rewards + 1) / 2)


def _draw_listed(key, instance, lookup, table):
    boxes = instance.sizes.boxes
    draws = (uniforms(key, 1 + 2 * boxes) + 1) / 2
    row = jnp.sum(draws[0] >= jnp.cumsum(instance.context_probability)[:-1])
    below = draws[1 : 1 + boxes, None] >= jnp.cumsum(instance.probability[row], axis=-1)[:, :-1]
    place = (row, jnp.arange(boxes), jnp.sum(below, axis=-1))
    index = jnp.full((boxes,), jnp.nan, draws.dtype) if table is None else table.listed[row]
    return Noise(
        instance.context[row],
        instance.features[place],
        instance.value[place],
        instance.cost[place],
        index,
        draws[1 + boxes :],
    )


def _init(model):
    return State()


def _observe(model, state, noise, t):
    return Observation(noise.context)


def _step(model, state, action, noise, t):
    value = noise.value if action.value is None else action.value(noise.features)
    order = noise.sigma if action.order is None else action.order
    threshold = noise.sigma if action.threshold is None else action.threshold
    opened, deployed = play(order, threshold, value, action.stop_on_last, action.deploy_last)
    best = play(noise.sigma, noise.sigma, noise.value)
    paid = jnp.sum(jnp.where(opened, noise.cost, 0))
    utility = jnp.sum(jnp.where(deployed, noise.value, 0)) - paid
    # Summed in the same order, so that the oracle's own regret is 0 and no rounding.
    oracle = jnp.sum(jnp.where(best.deployed, noise.value, 0)) - jnp.sum(jnp.where(best.opened, noise.cost, 0))
    single = jnp.sum(jnp.where(model.single, noise.value - noise.cost, 0))
    calibrating = t <= 0
    rewarded = deployed | (opened & calibrating)
    reward = rewarded & (jnp.where(calibrating, noise.uniform, noise.uniform[0]) < noise.value)
    number = value.dtype
    metrics = {
        "regret": oracle - utility,
        "utility": utility,
        "reward": jnp.sum((reward & deployed).astype(number)),
        "cost": paid,
        "opened": jnp.sum(opened, dtype=jnp.int32),
        "regret_single": single - utility,
    }
    for a in range(opened.shape[0]):
        metrics[f"opened_{a + 1}"] = opened[a].astype(number)
        metrics[f"deployed_{a + 1}"] = deployed[a].astype(number)
    feedback = Feedback(
        opened,
        deployed,
        jnp.where(opened[:, None], noise.features, 0),
        jnp.where(opened, noise.cost, 0),
        jnp.where(opened, noise.value, 0) if action.value is None else None,
        reward.astype(number),
        rewarded,
    )
    return State(), feedback, metrics
