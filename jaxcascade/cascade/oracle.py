"""What is computed from a known instance: reservation indices, Weitzman's rule, population means."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcascade.cascade.instance import TABULATED, Instance
from jaxcascade.cascade.laws import projection_nodes, sample_many
from jaxcascade.kernels.design_matrix import row_sums
from jaxcascade.kernels.reservation_index import reservation_index

# 64 nodes leave 1e-4 of an index, 128 half of that; the rest is the table's own.
NODES = 128
_SCALES = 65
_COST_SAMPLE = 2**15
_POPULATION, _POPULATION_BLOCK = 2**15, 2**10


class IndexTable(NamedTuple):
    """What reservation indices of the synthetic family are computed from; empty arrays for a table.

    Attributes:
      nodes: ``[M]`` equally probable values of ``theta . D xi``, rising.
      cost: ``[A, 65]`` mean of ``L(beta1_a . |s xi|)`` at scales s from .5 to 1.5.
      listed: ``[X, A]`` the indices themselves, for a table of contexts.
    """

    nodes: jax.Array
    cost: jax.Array
    listed: jax.Array


def index_table(instance: Instance, nodes: int = NODES) -> IndexTable:
    """Quantiles and mean costs from which ``reservation_indices`` are computed; once per instance.

    Args:
      instance: the instance.
      nodes: number of nodes, static.

    Source: arXiv 2606.07392, Section 6 (computation of the oracle indices).
    """
    if instance.output_law == TABULATED:
        cost = jnp.sum(instance.probability * instance.cost, axis=-1)
        index = reservation_index(instance.value, cost, instance.probability)
        return IndexTable(jnp.zeros((0,)), jnp.zeros((0,)), index)
    law, size = instance.output_law, instance.D.shape[1]
    xi = jnp.abs(sample_many(law, size, jax.random.key(22), _COST_SAMPLE))
    sums = instance.beta1 @ xi.T
    scales = jnp.linspace(0.5, 1.5, _SCALES)
    cost = lax.map(lambda s: jnp.mean(jax.nn.sigmoid(s * sums), axis=1), scales).T
    return IndexTable(projection_nodes(law, instance.theta @ instance.D, nodes), cost, jnp.zeros((0,)))


class ContextTerms(NamedTuple):
    """What a context contributes: ``shift [d]`` to features, ``scale [A]`` of outputs, ``cost [A]``."""

    shift: jax.Array
    scale: jax.Array
    cost: jax.Array


def context_terms(instance: Instance, context: jax.Array) -> ContextTerms:
    """The terms of a context ``[dx]`` of the synthetic family."""
    boxes = instance.sizes.boxes
    linear = jnp.concatenate([instance.alpha, instance.beta0, instance.Q]) @ context
    scale = 0.5 + jax.nn.sigmoid(linear[:boxes])
    return ContextTerms(linear[2 * boxes :], scale, instance.c0 * jax.nn.sigmoid(linear[boxes : 2 * boxes]))


def indices_at(instance: Instance, table: IndexTable, terms: ContextTerms) -> jax.Array:
    """Reservation indices ``[A]`` at a context with the given terms.

    Source: arXiv 2606.07392, Section 6: ``E[(G(l(x) + s_a(x) theta.D xi) - sigma)^+] = cost_a(x)``.
    """
    place = (terms.scale - 0.5) * (_SCALES - 1)
    hats = jnp.maximum(1 - jnp.abs(place[:, None] - jnp.arange(_SCALES)), 0)  # linear interpolation as a product
    cost = terms.cost + instance.c1 * row_sums(hats * table.cost)
    value = jax.nn.sigmoid(instance.theta @ terms.shift + terms.scale[:, None] * table.nodes)
    return reservation_index(value, cost, ascending=True)


def reservation_indices(instance: Instance, contexts: jax.Array, nodes: int = NODES) -> jax.Array:
    """Oracle indices ``[..., A]`` at contexts ``[..., dx]`` of the synthetic family, or all ``[X, A]`` of a table.

    Args:
      instance: the instance.
      contexts: ``[..., dx]``; ignored for a table.
      nodes: number of quadrature nodes, static.

    Source: arXiv 2606.07392, Sections 3 and 6.
    """
    table = index_table(instance, nodes)
    if instance.output_law == TABULATED:
        return table.listed
    flat = contexts.reshape(-1, contexts.shape[-1])
    index = jax.vmap(lambda x: indices_at(instance, table, context_terms(instance, x)))(flat)
    return index.reshape(*contexts.shape[:-1], -1)


class Outcome(NamedTuple):
    """What a play came to: ``opened [A]`` bool and ``deployed [A]`` bool, one True."""

    opened: jax.Array
    deployed: jax.Array


def play(order, threshold, value, stop_on_last=False, deploy_last=False) -> Outcome:
    """The query and the selection phase: which boxes are opened, which output is deployed.

    Boxes come in decreasing ``order`` (ties to the lowest box). The first is always opened, every other one
    only while the best value so far is below its threshold; after the first refusal nothing more is opened.
    The best opened output is deployed (ties to the lowest box). With ``order = threshold`` this is
    Weitzman's rule. All boxes are decided at once by comparing pairs, which equals going through them.

    Args:
      order: ``[A]``.
      threshold: ``[A]``.
      value: ``[A]`` value of each box's output; of boxes not opened it has no influence.
      stop_on_last: ``[]`` compare the last opened value, not the best so far, with the threshold.
      deploy_last: ``[]`` deploy the last opened output, not the best.

    Source: Weitzman (1979); arXiv 2606.07392, Section 3 and Algorithm 1.
    """
    box = jnp.arange(order.shape[0])
    lower = box[:, None] > box
    # before[b, a]: box a comes before box b
    before = (order > order[:, None]) | ((order == order[:, None]) & lower)
    rank = jnp.sum(before, axis=1)
    best = jnp.max(jnp.where(before, value, -jnp.inf), axis=1)
    last = jnp.max(jnp.where(rank == rank[:, None] - 1, value, -jnp.inf), axis=1)
    goes_on = (rank == 0) | (jnp.where(stop_on_last, last, best) < threshold)
    opened = jnp.all(goes_on | ~(before | (box[:, None] == box)), axis=1)
    score = jnp.where(opened, jnp.where(deploy_last, rank.astype(value.dtype), value), -jnp.inf)
    beaten = (score > score[:, None]) | ((score == score[:, None]) & lower)
    return Outcome(opened, opened & ~jnp.any(beaten, axis=1))


class Population(NamedTuple):
    """Means over contexts and outputs, each ``[A]``: ``value`` mu*, ``cost``."""

    value: jax.Array
    cost: jax.Array


def population(instance: Instance) -> Population:
    """Mean value and cost of every box: exact for a table, from 32,768 fixed periods for the family.

    Args:
      instance: the instance.
    """
    if instance.output_law == TABULATED:
        weight = instance.context_probability[:, None, None] * instance.probability
        return Population(*(jnp.sum(weight * part, axis=(0, 2)) for part in (instance.value, instance.cost)))
    from jaxcascade.cascade.environment import draw_period  # the environment needs this module's oracle
    from jaxcascade.cascade.laws import tables

    lookup = tables(instance.output_law, instance.D.shape[1])

    def block(key):
        keys = jax.random.split(key, _POPULATION_BLOCK)
        period = jax.vmap(lambda k: draw_period(k, instance, lookup, None))(keys)
        return jnp.mean(period.value, axis=0), jnp.mean(period.cost, axis=0)

    blocks = lax.map(block, jax.random.split(jax.random.key(23), _POPULATION // _POPULATION_BLOCK))
    return Population(*(jnp.mean(part, axis=0) for part in blocks))
