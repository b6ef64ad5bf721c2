"""Instances of the queueing system: what the world is, and the ready-made ones."""

import os
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxcascade.core import closest, is_concrete, one_of
from jaxcascade.data import bin_arrivals, read_arrival_trace

_PROBES = 1 << 14
# One context in so many: below it an instance is refused. The environment tries 32 times as many a block.
LEAST_ACCEPTANCE = 1 / 2000


@register_dataclass
@dataclass(frozen=True)
class Instance:
    """One queue of queries, served by N LLMs, K of which answer at a time.

    A query with context x is accepted from LLM j of the assortment S with probability
    ``p_j = exp(u_j) / (1 + sum_{i in S} exp(u_i))`` and comes back with the rest. Contexts are uniform on
    ``[-1, 1]^d`` with ``u_j = x . theta_j``, conditioned on ``max_S R(x, S) >= arrival_rate + slackness``; or
    they are rows of a table, drawn uniformly, with utilities of their own. Arrays of the other kind are empty.

    Attributes:
      theta: ``[N, d]`` row j belongs to LLM j. With ``per_seed`` it is only a shape: every seed draws its own
        theta, uniform on ``[-1, 1]``, from its environment stream in round 1, the same for all policies.
      arrival_rate: ``[]`` lambda, probability of an arrival in a round.
      slackness: ``[]`` epsilon; contexts are drawn from those that can be served at ``lambda + epsilon``.
      embeddings: ``[P, d]`` contexts of a routing table, P = 0 without one.
      utility: ``[P, N]`` utilities u of the table's prompts.
      features: ``[N, D, d]`` public feature maps of the shared-parameter form, ``x_j = features[j] @ x``,
        N = 0 without one.
      arrivals: ``[R]`` bool, in which rounds a query arrives; R = 0 where arrivals are Bernoulli.
      chain_start: ``[C + 1]`` int32, of a replay: chain c is rows ``chain_start[c] .. chain_start[c + 1] - 1`` of
        ``embeddings``, served one by one; the i-th arrival begins chain i. Empty otherwise.
      tokens: ``[P]`` int32, of a replay: how long the first answer of a row is.
      num_llms: N, static.
      dim: d, static.
      assortment_size: K, static, 1..N.
      per_seed: whether each seed draws its own theta, static.

    Source: arXiv 2602.02061, Section 2 and 4.1.
    """

    theta: jax.Array
    arrival_rate: jax.Array
    slackness: jax.Array
    embeddings: jax.Array
    utility: jax.Array
    features: jax.Array
    arrivals: jax.Array
    chain_start: jax.Array
    tokens: jax.Array
    num_llms: int = field(metadata={"static": True})
    dim: int = field(metadata={"static": True})
    assortment_size: int = field(metadata={"static": True})
    per_seed: bool = field(metadata={"static": True})


# What no learner is told; the feature maps and the static sizes are public.
HIDDEN = ("theta", "arrival_rate", "slackness", "embeddings", "utility", "arrivals", "chain_start", "tokens")
_STATIC = ("num_llms", "dim", "assortment_size", "per_seed")
_EXTRA = ("embeddings", "utility", "features", "arrivals", "chain_start", "tokens")
_OPTIONAL = (*_EXTRA, *_STATIC)


def has_table(instance: Instance) -> bool:
    """Whether contexts come from a routing table instead of the uniform law."""
    return instance.embeddings.shape[-2] > 0


def has_trace(instance: Instance) -> bool:
    """Whether arrivals are those of a trace instead of Bernoulli's."""
    return instance.arrivals.shape[-1] > 0


def has_chains(instance: Instance) -> bool:
    """Whether queries are chains of a conversation log."""
    return instance.chain_start.shape[-1] > 0


def validate(instance: Instance) -> None:
    """Check the numbers of an instance, or of a batch of instances with leading axes.

    Raises:
      ValueError: naming the argument, what was expected and what came.
    """
    number, dim, size = (_whole(name, getattr(instance, name), 1) for name in _STATIC[:3])
    if size > number:
        raise ValueError(f"assortment_size: expected at most num_llms = {number}, got {size}")
    for name, shape in (("theta", (number, dim)), ("embeddings", (None, dim)), ("utility", (None, number))):
        value = np.asarray(getattr(instance, name), np.float64)
        if value.ndim < 2 or any(w is not None and g != w for g, w in zip(value.shape[-2:], shape, strict=True)):
            expected = ", ".join("P" if w is None else str(w) for w in shape)
            raise ValueError(f"{name}: expected shape [{expected}], got {list(value.shape)}")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{name}: expected finite numbers, got {value[~np.isfinite(value)].flat[0]}")
    if instance.embeddings.shape[-2] != instance.utility.shape[-2]:
        raise ValueError(
            f"utility: expected one row for each of {instance.embeddings.shape[-2]} embeddings,"
            f" got {instance.utility.shape[-2]}"
        )
    features = np.asarray(instance.features)
    if features.ndim < 3 or features.shape[-3] not in (0, number) or features.shape[-1] != dim:
        raise ValueError(f"features: expected shape [{number}, D, {dim}] or none, got {list(features.shape)}")
    rate = np.asarray(instance.arrival_rate, np.float64)
    if not np.all((rate >= 0) & (rate <= 1)):
        raise ValueError(f"arrival_rate: expected a probability in [0, 1], got {_first_bad(rate, 0, 1)}")
    slack = np.asarray(instance.slackness, np.float64)
    if not np.all(np.abs(slack) <= 1):
        raise ValueError(f"slackness: expected a number in [-1, 1], got {_first_bad(slack, -1, 1)}")
    if np.asarray(instance.arrivals).dtype != bool:
        raise ValueError(f"arrivals: expected bool, one a round, got {np.asarray(instance.arrivals).dtype}")
    if has_chains(instance):
        _validate_chains(instance)
    if has_table(instance):
        return
    found = acceptance(instance)
    if found < LEAST_ACCEPTANCE:
        raise ValueError(
            f"slackness: expected contexts with max_S R >= arrival_rate + slackness = {np.max(rate + slack):.6g};"
            f" {found:.3g} of {_PROBES} uniform contexts meet it, at least {LEAST_ACCEPTANCE:.3g} must"
        )


def _validate_chains(instance):
    start, rows = np.asarray(instance.chain_start), instance.embeddings.shape[-2]
    if np.any(start[..., 0] != 0) or np.any(start[..., -1] != rows) or np.any(np.diff(start, axis=-1) < 1):
        raise ValueError(f"chain_start: expected numbers that increase from 0 to {rows}, got {start.tolist()[:20]}")
    if instance.tokens.shape[-1:] != (rows,):
        raise ValueError(f"tokens: expected shape [{rows}], one a row of embeddings, got {list(instance.tokens.shape)}")
    begun = np.asarray(instance.arrivals).sum(axis=-1)
    if np.any(begun > start.shape[-1] - 1):
        raise ValueError(f"arrivals: expected at most {start.shape[-1] - 1}, one a chain, got {begun.max()}")
    if instance.num_llms != 1:
        raise ValueError(f"num_llms: expected 1 in a replay, whose answers are recorded, got {instance.num_llms}")


def acceptance(instance: Instance) -> float:
    """Share of uniform contexts that meet ``max_S R >= arrival_rate + slackness``, of 16384 fixed ones.

    The smallest over a batch of instances. With ``per_seed``, the mean over 256 drawn theta.

    Args:
      instance: an instance, or a batch of them, without a table.
    """
    theta = np.asarray(instance.theta, np.float64).reshape(-1, instance.num_llms, instance.dim)
    level = np.ravel(np.asarray(instance.arrival_rate, np.float64) + np.asarray(instance.slackness, np.float64))
    rng = np.random.default_rng(0)
    if instance.per_seed:
        theta = rng.uniform(-1, 1, (256, instance.num_llms, instance.dim))
        shares = [np.mean([_share(t, v, instance.assortment_size, 512) for t in theta]) for v in np.unique(level)]
        return float(min(shares))
    level = np.broadcast_to(level, (len(theta),)) if level.size == 1 else level
    return float(min(_share(t, v, instance.assortment_size, _PROBES) for t, v in zip(theta, level, strict=True)))


@lru_cache
def _contexts(count, dim):
    return np.random.default_rng(0).uniform(-1, 1, (count, dim))


def _share(theta, level, size, count):
    weight = np.exp(_contexts(count, theta.shape[1]) @ theta.T)
    total = weight.sum(1) if size == len(theta) else np.partition(weight, -size, axis=1)[:, -size:].sum(1)
    return np.mean(total / (1 + total) >= level)


def _first_bad(value, low, high):
    return f"{value[~((value >= low) & (value <= high))].flat[0]:.6g}"


def from_arrays(arrays: dict[str, np.ndarray]) -> Instance:
    """An instance from the arrays of an instance file, named as the attributes of ``Instance``.

    Sizes are read off the arrays; ``embeddings``, ``utility``, ``features`` and ``per_seed`` may be left out.

    Raises:
      ValueError: if a name is missing or unknown, or a number impossible.
    """
    names = [entry.name for entry in fields(Instance)]
    for name in names:
        if name not in arrays and (name not in _OPTIONAL or name == "assortment_size"):
            raise ValueError(f"{name}: expected an array, got only {', '.join(sorted(arrays))}")
    for name in arrays:
        if name not in names:
            raise ValueError(f"{name}: expected {one_of(names)}{closest(name, names)}")
    size = np.asarray(arrays["assortment_size"])
    if size.ndim or size.dtype.kind not in "iu":
        raise ValueError(f"assortment_size: expected one whole number, got {size!r}")
    theta = np.asarray(arrays["theta"])
    if theta.ndim != 2:
        raise ValueError(f"theta: expected shape [N, d], got {list(theta.shape)}")
    optional = {name: arrays[name] for name in _EXTRA if name in arrays}
    return make_instance(
        theta,
        arrays["arrival_rate"],
        arrays["slackness"],
        int(size),
        per_seed=bool(arrays.get("per_seed", False)),
        **optional,
    )


def make_instance(
    theta: Any,
    arrival_rate: Any = 0.7,
    slackness: Any = 0.03,
    assortment_size=1,
    *,
    per_seed=False,
    embeddings=None,
    utility=None,
    features=None,
    arrivals=None,
    chain_start=None,
    tokens=None,
) -> Instance:
    """An instance from its arrays, checked if they are concrete.

    Args:
      theta: ``[N, d]`` parameters, row j of LLM j.
      arrival_rate: probability of an arrival in a round.
      slackness: contexts are conditioned on ``max_S R >= arrival_rate + slackness``.
      assortment_size: K, static.
      per_seed: every seed draws its own theta, static; ``theta`` is then only a shape.
      embeddings: ``[P, d]`` contexts to draw from instead.
      utility: ``[P, N]`` utilities of the rows of ``embeddings``.
      features: ``[N, D, d]`` feature maps of the shared-parameter form.
      arrivals: ``[R]`` bool, in which rounds a query arrives, or the path of an arrival trace
        (``data.read_arrival_trace``), binned at ``arrival_rate``; by default Bernoulli. The same for all seeds.
      chain_start: ``[C + 1]`` of a replay; see ``queueing.replay``.
      tokens: ``[P]`` of a replay.

    Raises:
      FileNotFoundError: if there is no such trace.
      ValueError: naming the argument, what was expected and what came.
    """
    theta = jnp.asarray(theta, float)
    if theta.ndim < 2:
        raise ValueError(f"theta: expected shape [N, d], got {list(theta.shape)}")
    number, dim = theta.shape[-2:]
    instance = Instance(
        theta,
        jnp.asarray(arrival_rate, float),
        jnp.asarray(slackness, float),
        jnp.zeros((0, dim)) if embeddings is None else jnp.asarray(embeddings, float),
        jnp.zeros((0, number)) if utility is None else jnp.asarray(utility, float),
        jnp.zeros((0, 0, dim)) if features is None else jnp.asarray(features, float),
        _arrival_rounds(arrivals, arrival_rate),
        jnp.zeros((0,), jnp.int32) if chain_start is None else jnp.asarray(chain_start, jnp.int32),
        jnp.zeros((0,), jnp.int32) if tokens is None else jnp.asarray(tokens, jnp.int32),
        int(number),
        int(dim),
        assortment_size,
        bool(per_seed),
    )
    if is_concrete(instance):
        validate(instance)
    return instance


def _arrival_rounds(arrivals, rate):
    if arrivals is None:
        return jnp.zeros((0,), bool)
    if isinstance(arrivals, (str, os.PathLike)):
        return jnp.asarray(bin_arrivals(read_arrival_trace(arrivals), float(rate)))
    return jnp.asarray(arrivals)


def synthetic(
    num_llms=5, dim=5, arrival_rate=0.7, slackness=0.03, assortment_size=1, *, per_seed=True, seed=0, arrivals=None
) -> Instance:
    """Entries of theta and of the contexts uniform on ``[-1, 1]``, contexts that can be served with slack.

    About 36 % of uniform contexts meet the condition at the defaults with K = 1, 87 % with K = 2.

    Args:
      num_llms: N, static, >= 1.
      dim: d, static, >= 1.
      arrival_rate: probability of an arrival in a round.
      slackness: contexts are conditioned on ``max_S R >= arrival_rate + slackness``.
      assortment_size: K, static, 1..num_llms.
      per_seed: every seed of a study draws its own theta (the family of the paper), static; otherwise one
        theta is drawn here.
      seed: from which theta is drawn if not ``per_seed``.
      arrivals: as in ``make_instance``.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.1.
    """
    number, dim = _whole("num_llms", num_llms, 1), _whole("dim", dim, 1)
    shape = (number, dim)
    theta = np.zeros(shape) if per_seed else np.random.default_rng(seed).uniform(-1, 1, shape)
    return make_instance(theta, arrival_rate, slackness, assortment_size, per_seed=per_seed, arrivals=arrivals)


def shared(features, theta, arrival_rate=0.7, slackness=0.03, assortment_size=1) -> Instance:
    """An instance in the shared-parameter form: ``u_j = x_j . theta`` with ``x_j = features[j] @ x``.

    Args:
      features: ``[N, D, d]`` public feature maps.
      theta: ``[D]`` the one parameter, hidden; LLM j has ``features[j].T @ theta``.
      arrival_rate: probability of an arrival in a round.
      slackness: contexts are conditioned on ``max_S R >= arrival_rate + slackness``.
      assortment_size: K, static.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 2.
    """
    features, theta = jnp.asarray(features, float), jnp.asarray(theta, float)
    if features.ndim != 3 or theta.shape != features.shape[1:2]:
        raise ValueError(
            f"features: expected shape [N, D, d] with D = {theta.shape[0] if theta.ndim else 0} entries of theta,"
            f" got {list(features.shape)}"
        )
    rows = jnp.einsum("nDd,D->nd", features, theta)
    return make_instance(rows, arrival_rate, slackness, assortment_size, features=features)


def _whole(name, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
    return int(value)
