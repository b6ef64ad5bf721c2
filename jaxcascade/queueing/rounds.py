"""What passes between the queueing system and its policies in a round, and the metrics of a round."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade.core import MEAN, NOW, SUM

_EXACT_SOJOURN = 32
_BINS_PER_DOUBLING = 8

_METRICS = (
    ("regret", SUM),
    ("queue_length", NOW),
    ("queue_length_mean", MEAN),
    ("queue_gap", NOW),
    ("queue_gap_sum", SUM),
    ("waiting", NOW),
    ("arrivals", SUM),
    ("services", SUM),
    ("departures", SUM),
    ("retrials", SUM),
    ("departed_retrials", SUM),
    ("sojourn", SUM),
    ("sojourn_p95", NOW),
)


class Observation(NamedTuple):
    """What a policy sees before it decides.

    Attributes:
      context: ``[slots, d]`` contexts; those of free slots mean nothing.
      arrived: ``[slots]`` int32, number that grows with the time at which the query joined, which is its name;
        ``FREE`` for a free slot.
      served: ``[slots]`` int32, how often the query was served.
      length: ``[]`` int32, Q(t).
      newcomer: ``[]`` int32, the query that joined at the end of the last round, ``FREE`` if none.
      tokens: ``[slots]`` int32, how long the answer takes to write, or None where that is not known.
    """

    context: jax.Array
    arrived: jax.Array
    served: jax.Array
    length: jax.Array
    newcomer: jax.Array
    tokens: jax.Array | None = None


class Action(NamedTuple):
    """Which query to serve with which LLMs; both None to do what the optimal policy does, which knows theta.

    Attributes:
      query: ``[]`` int32, its name; one that does not wait wastes the round.
      servers: ``[K]`` int32, different LLMs, increasing.
    """

    query: jax.Array | None
    servers: jax.Array | None


class Feedback(NamedTuple):
    """What a policy sees after the round.

    Attributes:
      served: ``[]`` bool, whether a query was served; without one the rest means nothing.
      context: ``[d]`` x_t.
      servers: ``[K]`` int32 S_t, increasing.
      chosen: ``[K]`` bool, whose answer was accepted; none is a retrial.
    """

    served: jax.Array
    context: jax.Array
    servers: jax.Array
    chosen: jax.Array


def metrics_of(num_llms: int) -> tuple[tuple[str, str], ...]:
    """Names and kinds of the metrics with N LLMs."""
    return _METRICS + tuple((f"offers_{j + 1}", SUM) for j in range(num_llms))


def sojourn_edges(num_steps: int) -> np.ndarray:
    """Upper ends ``[bins]`` int32 of the bins in which sojourns are counted: exact to 32 rounds, then by ninths."""
    last = max(num_steps, _EXACT_SOJOURN)
    doublings = math.log2(last / _EXACT_SOJOURN)
    steps = np.arange(1, math.ceil(doublings * _BINS_PER_DOUBLING) + 1)
    long = np.ceil(_EXACT_SOJOURN * 2 ** (steps / _BINS_PER_DOUBLING)).astype(np.int32)
    return np.concatenate([np.arange(1, _EXACT_SOJOURN + 1, dtype=np.int32), long])


def round_metrics(
    edges: np.ndarray,
    valid: jax.Array,
    *,
    regret: jax.Array,
    length: jax.Array,
    oracle_length: jax.Array,
    arrives: jax.Array,
    served: jax.Array,
    leaves: jax.Array,
    stayed: jax.Array,
    tries: jax.Array,
    within: jax.Array,
    departures: jax.Array,
    offered: jax.Array,
) -> dict[str, jax.Array]:
    """The metrics of a round, each ``[]``.

    Args:
      edges: ``[bins]`` of ``sojourn_edges``.
      valid: ``[]`` bool; without it regret and queue lengths are nan.
      regret: ``[]`` of the round.
      length: ``[]`` int32 Q(t), at the start of the round.
      oracle_length: ``[]`` int32 Q*(t).
      arrives: ``[]`` bool, whether a query joined.
      served: ``[]`` bool, whether one was served.
      leaves: ``[]`` bool, whether it left.
      stayed: ``[]`` int32, rounds since it joined.
      tries: ``[]`` int32, how often it had been served before.
      within: ``[bins]`` int32, departed queries that stayed at most so many rounds, this round included.
      departures: ``[]`` int32, likewise.
      offered: ``[N]`` bool.
    """

    def number_or_nan(value):
        return jnp.where(valid, value, jnp.nan)

    below = jnp.sum(within < 0.95 * departures, dtype=jnp.int32)
    percentile = jnp.where(departures > 0, jnp.asarray(edges)[jnp.minimum(below, len(edges) - 1)], jnp.nan)
    offers = (offered & served).astype(jnp.int32)
    return {
        "regret": number_or_nan(regret),
        "queue_length": number_or_nan(length),
        "queue_length_mean": length,
        "queue_gap": number_or_nan(length - oracle_length),
        "queue_gap_sum": length - oracle_length,
        "waiting": number_or_nan(length - leaves + arrives),
        "arrivals": arrives.astype(jnp.int32),
        "services": served.astype(jnp.int32),
        "departures": leaves.astype(jnp.int32),
        "retrials": (served & ~leaves).astype(jnp.int32),
        "departed_retrials": jnp.where(leaves, tries, 0),
        "sojourn": jnp.where(leaves, stayed, 0),
        "sojourn_p95": percentile,
        **{f"offers_{j + 1}": offers[j] for j in range(offered.shape[0])},
    }
