"""Instances of the deferral system: what the world is, and the ready-made ones."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxcascade.core import closest, is_concrete, one_of
from jaxcascade.data import LevelTable, level_counts, read_confidence_log, summarise_log

# Appendix E.1's figure of the arrival rates is lost; a bump at score .78 over a floor was recovered from
# Tables 3 and 4 (52 of their 58 cells within 1.96 standard errors, the worst at 2.5).
_MONOTONE_ACCURACY = (0.04, 0.13, 0.23, 0.33, 0.43, 0.54, 0.64, 0.75, 0.86, 0.94)
_MONOTONE_FLOOR, _MONOTONE_CENTRE, _MONOTONE_WIDTH = 0.1, 0.78, 0.18


@register_dataclass
@dataclass(frozen=True)
class Instance:
    """A stream of queries answered by an LLM, with an expert queue to defer to.

    Attributes:
      accuracy: ``[K]`` h, probability that the LLM is right given confidence level j.
      arrival: ``[K+1]`` omega, probability of each level; entry 0 for no query. Sums to 1.
      service: ``[C+1]`` rho, probability that the expert can serve c queries in a round; ``service[0] < 1``.
      cost_error: ``[]`` cost of a wrong answer, > 0.
      cost_expert: ``[]`` cost of a deferral, >= 0.
      cost_holding: ``[]`` cost of a waiting query a round, >= 0.
      score: ``[K]`` p, the LLM's own confidence at each level, used by rules that take it at its word.
      queue_capacity: most queries that can wait, static, >= 1.

    Source: arXiv 2610.15128, Section 3.1. Levels are numbered 1..K, level j at index j-1.
    """

    accuracy: jax.Array
    arrival: jax.Array
    service: jax.Array
    cost_error: jax.Array
    cost_expert: jax.Array
    cost_holding: jax.Array
    score: jax.Array
    queue_capacity: int = field(metadata={"static": True})


def validate(instance: Instance) -> None:
    """Check the numbers of an instance, or of a batch of instances with leading axes.

    Raises:
      ValueError: naming the argument, what was expected and what came.
    """
    capacity = instance.queue_capacity
    if not isinstance(capacity, (int, np.integer)) or isinstance(capacity, bool) or capacity < 1:
        raise ValueError(f"queue_capacity: expected a whole number >= 1, got {capacity!r}")
    accuracy, arrival, service, score = (
        np.asarray(getattr(instance, name), np.float64) for name in ("accuracy", "arrival", "service", "score")
    )
    if accuracy.ndim < 1 or accuracy.shape[-1] < 1:
        raise ValueError(f"accuracy: expected one entry per level, got shape {accuracy.shape}")
    levels = accuracy.shape[-1]
    for name, value, size in (("arrival", arrival, levels + 1), ("score", score, levels)):
        if value.ndim < 1 or value.shape[-1] != size:
            raise ValueError(f"{name}: expected {size} entries for {levels} levels, got shape {value.shape}")
    if service.ndim < 1 or service.shape[-1] < 2:
        raise ValueError(f"service: expected probabilities of 0, 1, ... served, got shape {service.shape}")
    for name, value in (("accuracy", accuracy), ("score", score), ("arrival", arrival), ("service", service)):
        _check_range(name, value, 0, 1)
    for name, value in (("arrival", arrival), ("service", service)):
        total = value.sum(-1)
        if np.any(np.abs(total - 1) > 1e-4):
            raise ValueError(f"{name}: expected probabilities that sum to 1, got a sum of {_worst(total, 1):.6g}")
    if np.any(service[..., 0] >= 1):
        raise ValueError("service: expected a positive probability of serving a query, got service[0] = 1")
    for name in ("cost_error", "cost_expert", "cost_holding"):
        _check_range(name, np.asarray(getattr(instance, name), np.float64), 0, np.inf)
    if np.any(np.asarray(instance.cost_error) <= 0):
        raise ValueError(f"cost_error: expected a cost > 0, got {np.min(instance.cost_error):.6g}")


def _check_range(name, value, low, high):
    bad = ~((value >= low) & (value <= high) & np.isfinite(value))
    if np.any(bad):
        expected = f"numbers in [{low}, {high}]" if high < np.inf else f"a finite number >= {low}"
        raise ValueError(f"{name}: expected {expected}, got {value[bad].flat[0]:.6g}")


def _worst(value, target):
    return value.flat[np.argmax(np.abs(value - target))]


def from_arrays(arrays: dict[str, np.ndarray]) -> Instance:
    """An instance from the arrays of an instance file, named as the attributes of ``Instance``.

    Raises:
      ValueError: if a name is missing or unknown, or a number impossible.
    """
    names = [entry.name for entry in fields(Instance)]
    for name in names:
        if name not in arrays:
            raise ValueError(f"{name}: expected an array, got only {', '.join(sorted(arrays))}")
    for name in arrays:
        if name not in names:
            raise ValueError(f"{name}: expected {one_of(names)}{closest(name, names)}")
    capacity = np.asarray(arrays["queue_capacity"])
    if capacity.ndim or capacity.dtype.kind not in "iu":
        raise ValueError(f"queue_capacity: expected one whole number, got {capacity!r}")
    floats = {}
    for name in names[:-1]:
        array, axes = np.asarray(arrays[name]), 0 if name.startswith("cost") else 1
        if array.dtype.kind not in "iuf" or array.ndim != axes:
            expected = "one number" if axes == 0 else "a list of numbers"
            raise ValueError(f"{name}: expected {expected}, got {array.dtype} of shape {array.shape}")
        floats[name] = jnp.asarray(array, float)
    instance = Instance(**floats, queue_capacity=int(capacity))
    validate(instance)
    return instance


def bernoulli_service(rate: float | jax.Array) -> jax.Array:
    """Service law ``[2]`` of an expert who serves one query a round with probability ``rate``.

    Raises:
      ValueError: if ``rate`` is concrete and not in (0, 1].
    """
    rate = jnp.asarray(rate, float)
    if is_concrete(rate) and not bool(jnp.all((rate > 0) & (rate <= 1))):
        raise ValueError(f"service_rate: expected a probability in (0, 1], got {float(jnp.min(rate)):.6g}")
    return jnp.stack([1 - rate, rate], axis=-1)


def make_instance(
    accuracy,
    arrival,
    *,
    service=None,
    service_rate=1.0,
    cost_error=1.0,
    cost_expert=0.25,
    cost_holding=0.03,
    queue_capacity=8,
    score=None,
) -> Instance:
    """An instance from its arrays, checked if they are concrete.

    Args:
      accuracy: ``[K]`` probability of a right answer per level.
      arrival: ``[K+1]`` level probabilities with entry 0 for no query, or ``[K]`` if a query always comes.
      service: ``[C+1]`` service law; by default Bernoulli with ``service_rate``.
      service_rate: probability of serving one query a round, used when ``service`` is not given.
      cost_error: cost of a wrong answer.
      cost_expert: cost of a deferral.
      cost_holding: cost of a waiting query a round.
      queue_capacity: most queries that can wait.
      score: ``[K]`` the LLM's own confidence, by default evenly spaced from 0 to 1.

    Raises:
      ValueError: naming the argument, what was expected and what came.
    """
    accuracy, arrival = jnp.asarray(accuracy, float), jnp.asarray(arrival, float)
    if accuracy.ndim == 1 and arrival.shape == accuracy.shape:
        arrival = jnp.concatenate([jnp.zeros((1,), arrival.dtype), arrival])
    if score is None:
        score = _even_scores(accuracy.shape[-1] if accuracy.ndim else 0)
    instance = Instance(
        accuracy,
        arrival,
        bernoulli_service(service_rate) if service is None else jnp.asarray(service, float),
        jnp.asarray(cost_error, float),
        jnp.asarray(cost_expert, float),
        jnp.asarray(cost_holding, float),
        jnp.asarray(score, float),
        queue_capacity,
    )
    if is_concrete(instance):
        validate(instance)
    return instance


def two_point(
    num_levels=10,
    gap=0.08,
    *,
    service_rate=1.0,
    cost_error=1.0,
    cost_expert=0.5,
    cost_holding=0.0,
    queue_capacity=1,
) -> Instance:
    """Uniform arrivals; accuracies alternate ``.5 + gap`` (level 1), ``.5 - gap``, ...

    Args:
      num_levels: K, static, >= 1.
      gap: distance of every accuracy from .5, which is the oracle's threshold at the default costs.
      service_rate: probability of serving one query a round.
      cost_error: cost of a wrong answer.
      cost_expert: cost of a deferral.
      cost_holding: cost of a waiting query a round.
      queue_capacity: most queries that can wait.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2610.15128, Appendix E.1.
    """
    num_levels = _whole("num_levels", num_levels, 1)
    sign = jnp.where(jnp.arange(num_levels) % 2 == 0, 1.0, -1.0)
    return make_instance(
        0.5 + jnp.asarray(gap, float) * sign,
        jnp.full((num_levels,), 1 / num_levels),
        service_rate=service_rate,
        cost_error=cost_error,
        cost_expert=cost_expert,
        cost_holding=cost_holding,
        queue_capacity=queue_capacity,
    )


def skewed(
    num_levels=10,
    concentration=0.0,
    horizon=200_000,
    *,
    service_rate=1.0,
    cost_error=1.0,
    cost_expert=0.5,
    cost_holding=0.0,
    queue_capacity=1,
) -> Instance:
    """Arrivals concentrated on level 1, each accuracy above .5 by just what the horizon can resolve.

    ``omega_1 = 1/K + c (1 - 1/K)``, other levels ``(1 - c)/K``; ``h_j = .5 + sqrt(phi / (2 omega_j T))``
    with ``phi = log T + log log T``.

    Args:
      num_levels: K, static, >= 1.
      concentration: c in [0, 1).
      horizon: T that the gaps are made for, >= 3.
      service_rate: probability of serving one query a round.
      cost_error: cost of a wrong answer.
      cost_expert: cost of a deferral.
      cost_holding: cost of a waiting query a round.
      queue_capacity: most queries that can wait.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2610.15128, Appendix G.1 (right panel of Figure 7).
    """
    num_levels = _whole("num_levels", num_levels, 1)
    horizon = _whole("horizon", horizon, 3)
    concentration = jnp.asarray(concentration, float)
    if is_concrete(concentration) and not bool(jnp.all((concentration >= 0) & (concentration < 1))):
        raise ValueError(f"concentration: expected a number in [0, 1), got {float(jnp.max(concentration)):.6g}")
    first = jnp.arange(num_levels) == 0
    arrival = (1 - concentration) / num_levels + jnp.where(first, concentration, 0)
    budget = np.log(horizon) + np.log(np.log(horizon))
    return make_instance(
        0.5 + jnp.sqrt(budget / (2 * arrival * horizon)),
        arrival,
        service_rate=service_rate,
        cost_error=cost_error,
        cost_expert=cost_expert,
        cost_holding=cost_holding,
        queue_capacity=queue_capacity,
    )


def monotone(*, service_rate=0.5, cost_error=2.0, cost_expert=0.25, cost_holding=0.1, queue_capacity=20) -> Instance:
    """Ten levels whose accuracy rises with the score, arrivals concentrated on the high ones.

    Scores ``p_j = (j-1)/9``, arrivals proportional to ``.1 + exp(-(p_j - .78)^2 / (2 * .18^2))``.

    Args:
      service_rate: probability of serving one query a round.
      cost_error: cost of a wrong answer.
      cost_expert: cost of a deferral.
      cost_holding: cost of a waiting query a round.
      queue_capacity: most queries that can wait.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2610.15128, Appendix E.1; the arrival rates were recovered from its Tables 3 and 4.
    """
    score = _even_scores(10)
    weight = _MONOTONE_FLOOR + jnp.exp(-((score - _MONOTONE_CENTRE) ** 2) / (2 * _MONOTONE_WIDTH**2))
    return make_instance(
        jnp.asarray(_MONOTONE_ACCURACY),
        weight / weight.sum(),
        service_rate=service_rate,
        cost_error=cost_error,
        cost_expert=cost_expert,
        cost_holding=cost_holding,
        queue_capacity=queue_capacity,
        score=score,
    )


def from_log(
    log: str | os.PathLike,
    *,
    signal: str = "agreement",
    num_levels: int | None = None,
    columns: Mapping[str, str] | None = None,
    service=None,
    service_rate=0.35,
    cost_error=1.0,
    cost_expert=0.25,
    cost_holding=0.03,
    queue_capacity=8,
) -> Instance:
    """The empirical instance of a log of answered questions: its frequencies and accuracies per level.

    Queries drawn from it are the log's questions resampled with replacement; one comes every round. A
    level that the log never shows has arrival rate 0 and accuracy .5, which no number depends on.

    Args:
      log: path of a CSV or JSONL log, as ``jaxcascade.data.read_confidence_log`` reads it, or the name of
        a table of ``jaxcascade.deferral.levels()``.
      signal: confidence signal that makes the levels.
      num_levels: number of levels, where the signal leaves it open.
      columns: our column name -> the file's.
      service: ``[C+1]`` service law; by default Bernoulli with ``service_rate``.
      service_rate: probability of serving one query a round.
      cost_error: cost of a wrong answer.
      cost_expert: cost of a deferral.
      cost_holding: cost of a waiting query a round.
      queue_capacity: most queries that can wait.

    Raises:
      FileNotFoundError: if there is neither such a file nor such a table.
      ValueError: naming file, row and column, or the argument, what was expected and what came.

    Source: arXiv 2610.15128, Section 6 (Instances).
    """
    tables = levels()
    if isinstance(log, str) and log in tables and not os.path.exists(log):
        count, correct = tables[log].count, tables[log].correct
        score = _even_scores(len(count))
    else:
        read = read_confidence_log(log, signal=signal, num_levels=num_levels, columns=columns)
        count, correct = summarise_log(read)
        score = read.score
    count, correct = np.asarray(count, np.float64), np.asarray(correct, np.float64)
    return make_instance(
        np.where(count > 0, correct / np.maximum(count, 1), 0.5),
        count / count.sum(),
        service=service,
        service_rate=service_rate,
        cost_error=cost_error,
        cost_expert=cost_expert,
        cost_holding=cost_holding,
        queue_capacity=queue_capacity,
        score=score,
    )


def levels() -> dict[str, LevelTable]:
    """Tables of real self-consistency logs shipped with the package: questions and right answers per level.

    Returns:
      Name -> ``LevelTable``, with its source named; ``from_log(name)`` makes the instance.
    """
    return level_counts()


def _even_scores(num_levels):
    return jnp.linspace(0, 1, num_levels) if num_levels > 1 else jnp.full((num_levels,), 0.5)


def _whole(name, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
    return int(value)
