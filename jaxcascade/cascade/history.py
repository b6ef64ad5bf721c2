"""What a refitting learner remembers: the context of every period and what came of it, and when it refits."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcascade.cascade.environment import Feedback
from jaxcascade.kernels.history import padded_rows

_LANES = 8  # rows of contexts are padded to whole vector registers


def padded_size(context_size: int) -> int:
    """Length m of ``psi = (1, x)`` with zeros up to a multiple of 8."""
    return -(-(context_size + 1) // _LANES) * _LANES


def index_features(context: jax.Array, size: int) -> jax.Array:
    """``psi = (1, x, 0, ...)``, ``[size]``."""
    pad = jnp.zeros((size - context.shape[0] - 1,), context.dtype)
    return jnp.concatenate([jnp.ones((1,), context.dtype), context, pad])


class History(NamedTuple):
    """One row per period, calibration first, in buffers as long as the horizon; unused rows are 0.

    Attributes:
      psi: ``[N, m]`` contexts, stored once for all boxes.
      cost: ``[N, A]`` costs of opened boxes.
      opened: ``[N, A]`` 1 where a box was opened, else 0.
      output: ``[N, A]`` values of opened outputs if they are known, else ``[N, A d]`` their features.
      deployed: ``[N, d]`` features of the deployed output; ``[N, 0]`` if values are known.
      reward: ``[N]`` its reward.

    With unknown rewards a row takes ``m + 2 A + A d + d + 1`` numbers: 604 bytes in float32 at dx = 100, A = 3,
    d = 10, which is 18 MB a seed at T = 30,000. Contexts are stored, not drawn again: a pass over them is bound
    by memory, and drawing a context costs more than reading it.
    """

    psi: jax.Array
    cost: jax.Array
    opened: jax.Array
    output: jax.Array
    deployed: jax.Array
    reward: jax.Array


def empty_history(rows: int, size: int, boxes: int, features: int, known: bool, dtype) -> History:
    """A history for ``rows`` periods."""
    rows = padded_rows(rows)
    widths = (size, boxes, boxes, boxes if known else boxes * features, 0 if known else features)
    buffers = [jnp.zeros((rows, width), dtype) for width in widths]
    return History._make([*buffers, jnp.zeros((rows,), dtype)])


def remember(history: History, row: jax.Array, psi: jax.Array, feedback: Feedback) -> History:
    """The history with a period written to ``row``."""
    new = History(
        psi,
        feedback.cost,
        feedback.opened.astype(psi.dtype),
        feedback.features.ravel() if feedback.value is None else feedback.value,
        deployed_features(feedback)[: history.deployed.shape[1]],
        jnp.sum(feedback.reward),
    )
    return jax.tree.map(lambda buffer, entry: lax.dynamic_update_index_in_dim(buffer, entry, row, 0), history, new)


def deployed_features(feedback: Feedback) -> jax.Array:
    """Features ``[d]`` of the deployed output."""
    return jnp.sum(jnp.where(feedback.deployed[:, None], feedback.features, 0), axis=0)


@lru_cache
def refit_rounds(last_round: int, until: int, growth: float) -> np.ndarray:
    """Which rounds ``0..last_round`` end with a refit, bool ``[last_round + 1]``: a schedule common to all seeds.

    Round 0 (the end of calibration), every round to ``until``, then whenever the number of rounds has grown
    by the factor ``1 + growth``.
    """
    due = np.zeros(last_round + 1, bool)
    last = 0
    for t in range(last_round + 1):
        if t <= until or t >= (1 + growth) * last:
            due[t], last = True, t
    return due
