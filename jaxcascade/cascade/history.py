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
      record: ``[N, 2 A + 1 + (A or A d)]`` per row: costs, opened, reward, then values (if they are known)
        or the features of every opened output.
      deployed: ``[N, d]`` features of the deployed output, or ``[N, 0]`` if values are known.

    With unknown rewards a row takes ``m + 2 A + 1 + A d + d`` numbers: 604 bytes in float32 at dx = 100, A = 3,
    d = 10, which is 18 MB a seed at T = 30,000. Contexts are stored, not drawn again: a pass over them is bound
    by memory, and drawing a context costs more than reading it.
    """

    psi: jax.Array
    record: jax.Array
    deployed: jax.Array


def empty_history(rows: int, size: int, boxes: int, features: int, known: bool, dtype) -> History:
    """A history for ``rows`` periods."""
    rows = padded_rows(rows)
    width = 2 * boxes + 1 + (boxes if known else boxes * features)
    shapes = (rows, size), (rows, width), (rows, 0 if known else features)
    return History(*(jnp.zeros(shape, dtype) for shape in shapes))


def remember(history: History, row: jax.Array, psi: jax.Array, feedback: Feedback) -> History:
    """The history with a period written to ``row``."""
    known = history.deployed.shape[1] == 0
    parts = [feedback.cost, feedback.opened.astype(psi.dtype), jnp.sum(feedback.reward, keepdims=True)]
    parts.append(feedback.value if known else feedback.features.ravel())
    new = (psi, jnp.concatenate(parts), deployed_features(feedback)[: history.deployed.shape[1]])
    return History(*(lax.dynamic_update_slice(a, b[None], (row, 0)) for a, b in zip(history, new, strict=True)))


def deployed_features(feedback: Feedback) -> jax.Array:
    """Features ``[d]`` of the deployed output."""
    return jnp.sum(jnp.where(feedback.deployed[:, None], feedback.features, 0), axis=0)


class Columns(NamedTuple):
    """Views of a history's record: ``cost [N, A]``, ``opened [N, A]``, ``reward [N]``, ``rest [N, ...]``."""

    cost: jax.Array
    opened: jax.Array
    reward: jax.Array
    rest: jax.Array


def columns(record: jax.Array, boxes: int) -> Columns:
    """The columns of ``record``."""
    return Columns(
        record[..., :boxes], record[..., boxes : 2 * boxes], record[..., 2 * boxes], record[..., 2 * boxes + 1 :]
    )


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
