"""Instances of the cascade system: what the boxes give and cost, and the ready-made ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import register_dataclass

from jaxcascade.cascade.laws import LAWS
from jaxcascade.core import choose, closest, is_concrete, one_of

TABULATED = "table"  # output_law of an instance whose outputs are listed

_REGIMES = ("A", "B")
_THETA_NORM, _ALPHA_NORM, _BETA0_NORM, _BETA1_NORM, _CONTEXT_SD = 2.5, 3.0, 2.0, 1.0, 0.5
_COSTS = {"A": ((0.02, 0.04, 0.06), (0.02, 0.04, 0.08)), "B": ((0.06, 0.08, 0.10), (0.02, 0.03, 0.04))}

_FAMILY = ("alpha", "Q", "D", "theta", "c0", "c1", "beta0", "beta1")
_TABLE = ("context", "context_probability", "features", "value", "cost", "probability")

HIDDEN = (*_FAMILY, *_TABLE)
"""Fields that no learner is told: all arrays. A learner knows the sizes, the contexts and what it opened."""


class Sizes(NamedTuple):
    """Static sizes: boxes A, context entries dx, output features d."""

    boxes: int
    context: int
    features: int


@register_dataclass
@dataclass(frozen=True)
class Instance:
    """A portfolio of boxes (LLM APIs) to open on a stream of contexts.

    Either the synthetic family (the first eight arrays; the table's are empty) or a table of contexts and
    outputs with probabilities (``output_law`` is "table"; the family's arrays are empty).

    In the family, contexts are uniform on ``[-1, 1]^dx``; box a gives ``omega = (.5 + L(alpha_a.x)) xi`` with
    L logistic and xi of the output law, at cost ``c0_a L(beta0_a.x) + c1_a L(beta1_a.|omega|)``; an output has
    features ``phi = Q x + D omega`` and value ``mu* = L(theta.phi)``, the probability of reward 1.

    Attributes:
      alpha: ``[A, dx]`` what scales the outputs.
      Q: ``[d, dx]`` context's part of the features.
      D: ``[d, dw]`` output's part of the features.
      theta: ``[d]`` reward parameter.
      c0: ``[A]`` cost that depends on the context, reward units, >= 0.
      c1: ``[A]`` cost that depends on the output, reward units, >= 0.
      beta0: ``[A, dx]``.
      beta1: ``[A, dw]``.
      context: ``[X, dx]`` contexts of a table.
      context_probability: ``[X]`` their probabilities.
      features: ``[X, A, K, d]`` features of the K possible outputs of each box.
      value: ``[X, A, K]`` their values in [0, 1].
      cost: ``[X, A, K]`` their costs, reward units, >= 0.
      probability: ``[X, A, K]`` their probabilities given the context.
      output_law: "uniform", "truncated_gaussian", "truncated_student" or "table", static.
      sizes: static sizes (A, dx, d).

    Source: arXiv 2606.07392, Sections 2 and 6.
    """

    alpha: jax.Array
    Q: jax.Array
    D: jax.Array
    theta: jax.Array
    c0: jax.Array
    c1: jax.Array
    beta0: jax.Array
    beta1: jax.Array
    context: jax.Array
    context_probability: jax.Array
    features: jax.Array
    value: jax.Array
    cost: jax.Array
    probability: jax.Array
    output_law: str = field(metadata={"static": True})
    sizes: Sizes = field(metadata={"static": True})


def validate(instance: Instance) -> None:
    """Check the numbers of an instance, or of a batch of instances with leading axes.

    Raises:
      ValueError: naming the argument (both, where two do not fit), what was expected and what came.
    """
    names = [*LAWS, TABULATED]
    if instance.output_law not in names:
        choose("output_law", instance.output_law, dict.fromkeys(names))
    arrays = {name: np.asarray(getattr(instance, name)) for name in HIDDEN}
    if instance.output_law == TABULATED:
        _validate_table(arrays, instance.sizes)
    else:
        _validate_family(arrays, instance.sizes)


def _validate_family(arrays, sizes):
    core = {"alpha": 2, "Q": 2, "D": 2, "theta": 1, "c0": 1, "c1": 1, "beta0": 2, "beta1": 2}
    for name, rank in core.items():
        if arrays[name].ndim < rank:
            raise ValueError(f"{name}: expected {rank} axes, got shape {arrays[name].shape}")
    shape = {name: arrays[name].shape[-rank:] for name, rank in core.items()}
    if shape["c0"][0] < 1:
        raise ValueError("c0: expected at least one box, got none")
    axes = {"A": ("c0", 0), "dx": ("Q", 1), "d": ("theta", 0), "dw": ("D", 1)}
    wanted = {
        "alpha": ("A", "dx"),
        "Q": ("d", "dx"),
        "D": ("d", "dw"),
        "c1": ("A",),
        "beta0": ("A", "dx"),
        "beta1": ("A", "dw"),
    }
    for name, symbols in wanted.items():
        for axis, symbol in enumerate(symbols):
            other, place = axes[symbol]
            if shape[name][axis] != shape[other][place]:
                raise ValueError(
                    f"{name}: expected {shape[other][place]} entries on axis {axis}, as many as {other}"
                    f" of shape {shape[other]} tells, got shape {shape[name]}"
                )
    if shape["D"][1] < 1:
        raise ValueError(f"D: expected at least one output coordinate, got shape {shape['D']}")
    found = Sizes(shape["c0"][0], shape["Q"][1], shape["theta"][0])
    if sizes != found:
        raise ValueError(f"sizes: expected {tuple(found)} from the arrays, got {tuple(sizes)}")
    for name in core:
        _check_range(name, arrays[name], 0 if name in ("c0", "c1") else -np.inf, np.inf)


def _validate_table(arrays, sizes):
    value = arrays["value"]
    if value.ndim < 3:
        raise ValueError(f"value: expected axes [contexts, boxes, outputs], got shape {value.shape}")
    shape = value.shape[-3:]
    for size, what in zip(shape, ("context", "box", "output"), strict=True):
        if size < 1:
            raise ValueError(f"value: expected at least one {what}, got shape {shape}")
    for name, rank in (("cost", 3), ("probability", 3), ("features", 4), ("context", 2), ("context_probability", 1)):
        common = min(rank, 3) if name in ("cost", "probability", "features") else 1
        got = arrays[name].shape[arrays[name].ndim - rank :] if arrays[name].ndim >= rank else ()
        if got[:common] != shape[:common]:
            raise ValueError(
                f"{name}: expected shape {shape[:common]}{' and more' if rank > common else ''} as value of shape"
                f" {shape}, got {arrays[name].shape}"
            )
    found = Sizes(shape[1], arrays["context"].shape[-1], arrays["features"].shape[-1])
    if sizes != found:
        raise ValueError(f"sizes: expected {tuple(found)} from the arrays, got {tuple(sizes)}")
    _check_range("value", value, 0, 1)
    for name in ("cost", "probability", "context_probability"):
        _check_range(name, arrays[name], 0, np.inf)
    for name in ("context", "features"):
        _check_range(name, arrays[name], -np.inf, np.inf)
    for name in ("probability", "context_probability"):
        total = np.sum(arrays[name], axis=-1, dtype=np.float64)
        if np.any(np.abs(total - 1) > 1e-3):
            worst = total.flat[np.argmax(np.abs(total - 1))]
            raise ValueError(f"{name}: expected probabilities that sum to 1, got a sum of {worst:.6g}")


def _check_range(name, value, low, high):
    bad = ~((value >= low) & (value <= high) & np.isfinite(value))
    if np.any(bad):
        bounds = f"numbers in [{low}, {high}]" if high < np.inf else "finite numbers"
        expected = f"a finite number >= {low}" if np.isfinite(low) and high == np.inf else bounds
        raise ValueError(f"{name}: expected {expected}, got {value[bad].flat[0]:.6g}")


def from_arrays(arrays: dict[str, np.ndarray]) -> Instance:
    """An instance from the arrays of an instance file: those of the family and ``output_law``, or of the table.

    Raises:
      ValueError: if a name is missing or unknown, or a number impossible.
    """
    law = str(np.asarray(arrays.get("output_law", TABULATED)))
    needed = _TABLE if law == TABULATED else (*_FAMILY, "output_law")
    for name in needed:
        if name not in arrays:
            raise ValueError(f"{name}: expected an array, got only {', '.join(sorted(arrays))}")
    names = [entry.name for entry in fields(Instance)]
    for name in arrays:
        if name not in names:
            raise ValueError(f"{name}: expected {one_of(names)}{closest(name, names)}")
    used = {name: jnp.asarray(arrays[name], float) for name in needed if name != "output_law"}
    instance = _tabulated(used) if law == TABULATED else _family(used, law)
    validate(instance)
    return instance


def _family(arrays, output_law):
    empty = {name: jnp.zeros((0,)) for name in _TABLE}
    sizes = Sizes(_length(arrays["c0"]), _length(arrays["Q"]), _length(arrays["theta"]))
    return Instance(**arrays, **empty, output_law=output_law, sizes=sizes)


def _tabulated(arrays):
    empty = {name: jnp.zeros((0,)) for name in _FAMILY}
    value = arrays["value"]
    boxes = value.shape[-2] if value.ndim >= 2 else 0
    sizes = Sizes(boxes, _length(arrays["context"]), _length(arrays["features"]))
    return Instance(**empty, **arrays, output_law=TABULATED, sizes=sizes)


def _length(array):
    return array.shape[-1] if array.ndim else 0


def make_instance(alpha, Q, D, theta, c0, c1, beta0, beta1, *, output_law: str = "truncated_gaussian") -> Instance:
    """An instance of the synthetic family from its arrays, checked if they are concrete.

    Args:
      alpha: ``[A, dx]``.
      Q: ``[d, dx]``.
      D: ``[d, dw]``.
      theta: ``[d]``.
      c0: ``[A]``.
      c1: ``[A]``.
      beta0: ``[A, dx]``.
      beta1: ``[A, dw]``.
      output_law: "uniform", "truncated_gaussian" or "truncated_student".

    Raises:
      ValueError: naming the argument (both, where two do not fit), what was expected and what came.
    """
    given = dict(zip(_FAMILY, (alpha, Q, D, theta, c0, c1, beta0, beta1), strict=True))
    choose("output_law", output_law, dict.fromkeys(LAWS))
    return _checked(_family({name: jnp.asarray(value, float) for name, value in given.items()}, output_law))


def _checked(instance):
    if is_concrete(instance):
        validate(instance)
    return instance


def synthetic(
    regime: str = "A",
    output_law: str = "truncated_gaussian",
    key: jax.Array | int = 0,
    *,
    context_size: int = 100,
    output_size: int = 100,
    feature_size: int = 10,
    c0: Sequence[float] | None = None,
    c1: Sequence[float] | None = None,
) -> Instance:
    """A random instance of the paper's simulation family with three boxes, or as many as costs are given.

    D has random orthonormal rows and theta a random direction of norm 2.5. Regime A is free of context
    (alpha, Q, beta0, beta1 are 0). In regime B alpha_a, beta0_a, beta1_a are random directions of norm 3, 2, 1
    and Q is Gaussian, scaled so that ``theta.Qx`` has standard deviation .5.

    Args:
      regime: "A" or "B", static.
      output_law: "uniform", "truncated_gaussian" or "truncated_student", static.
      key: typed key, or a number to make one from.
      context_size: dx, static, >= 1.
      output_size: dw, static, >= feature_size.
      feature_size: d, static, >= 1.
      c0: ``[A]`` costs that depend on the context; by default (.02, .04, .06) in A, (.06, .08, .10) in B.
      c1: ``[A]`` costs that depend on the output; by default (.02, .04, .08) in A, (.02, .03, .04) in B.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2606.07392, Section 6; the paper's own parameter values are lost, these are ours.
    """
    choose("regime", regime, dict.fromkeys(_REGIMES))
    choose("output_law", output_law, dict.fromkeys(LAWS))
    dx, d = _whole("context_size", context_size, 1), _whole("feature_size", feature_size, 1)
    dw = _whole("output_size", output_size, d)
    fixed, varying = (
        np.asarray(default if given is None else given, float)
        for given, default in zip((c0, c1), _COSTS[regime], strict=True)
    )
    for name, costs in (("c0", fixed), ("c1", varying)):
        if costs.ndim != 1 or costs.size < 1:
            raise ValueError(f"{name}: expected one cost per box, got shape {costs.shape}")
    if fixed.shape != varying.shape:
        raise ValueError(f"c1: expected {fixed.size} costs, as many as c0, got {varying.size}")
    boxes = fixed.size
    typed = jax.random.key(key) if isinstance(key, (int, np.integer)) else key
    keys = jax.random.split(typed, 6)
    rows = jax.random.normal(keys[0], (d, dw))
    for _ in range(2):  # Gram and Schmidt, twice for rounding
        rows = _orthonormal(rows)
    theta = _direction(keys[1], (d,), _THETA_NORM)
    alpha, beta0, beta1 = jnp.zeros((boxes, dx)), jnp.zeros((boxes, dx)), jnp.zeros((boxes, dw))
    q = jnp.zeros((d, dx))
    if regime == "B":
        alpha = _direction(keys[2], (boxes, dx), _ALPHA_NORM)
        beta0 = _direction(keys[3], (boxes, dx), _BETA0_NORM)
        beta1 = _direction(keys[4], (boxes, dw), _BETA1_NORM)
        q = jax.random.normal(keys[5], (d, dx))
        q = q * _CONTEXT_SD / jnp.sqrt(jnp.sum((theta @ q) ** 2) / 3)  # a coordinate of x has variance 1/3
    return make_instance(alpha, q, rows, theta, fixed, varying, beta0, beta1, output_law=output_law)


def _orthonormal(rows):
    def reduce(i, rows):
        row = rows[i] - jnp.where(jnp.arange(rows.shape[0]) < i, rows @ rows[i], 0) @ rows
        return rows.at[i].set(row / jnp.linalg.norm(row))

    return jax.lax.fori_loop(0, rows.shape[0], reduce, rows)


def _direction(key, shape, norm):
    draws = jax.random.normal(key, shape)
    return norm * draws / jnp.linalg.norm(draws, axis=-1, keepdims=True)


def discrete(value, cost, probability=None, *, context=None, context_probability=None, features=None) -> Instance:
    """Finitely many outputs per box with given values, costs and probabilities.

    Args:
      value: ``[A, K]``, or ``[X, A, K]`` with contexts: value of each output, in [0, 1]. A ragged list of
        lists is filled up with outputs of probability 0.
      cost: ``[A, K]`` or ``[X, A, K]``, or anything that broadcasts to the values (``[A]`` costs per box
        are taken as the same for every output).
      probability: shaped like the values; equal ones by default.
      context: ``[X, dx]`` contexts; by default one, without entries.
      context_probability: ``[X]``; equal ones by default.
      features: ``[A, K, d]`` or ``[X, A, K, d]`` features of the outputs; by default ``(1, value)``.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2606.07392, Section 3 (the example of a cascade that beats every single box).
    """
    value, given = _filled(value)
    if probability is None:
        probability = given / np.maximum(given.sum(-1, keepdims=True), 1)
    else:
        probability, _ = _filled(probability)
    cost, _ = _filled(cost)
    if cost.ndim == 1 and value.ndim >= 2 and cost.shape[0] == value.shape[-2]:
        cost = cost[:, None]
    if value.ndim == 2:
        value, probability = value[None], np.asarray(probability)[None]
        features = None if features is None else np.asarray(features, float)[None]
    if value.ndim != 3:
        raise ValueError(f"value: expected axes [boxes, outputs] or [contexts, boxes, outputs], got {value.shape}")
    if value.shape[1] < 1:
        raise ValueError(f"value: expected at least one box, got shape {value.shape}")
    if np.shape(probability) != value.shape:
        raise ValueError(f"probability: expected shape {value.shape} as value, got {np.shape(probability)}")
    try:
        cost = np.broadcast_to(cost, value.shape)
    except ValueError:
        raise ValueError(f"cost: expected shape {value.shape} as value, got {cost.shape}") from None
    contexts = value.shape[0]
    context = np.zeros((contexts, 0)) if context is None else np.asarray(context, float)
    if context_probability is None:
        context_probability = np.full(contexts, 1 / contexts)
    if features is None:
        features = np.stack([np.ones_like(value), value], axis=-1)
    given = (context, context_probability, features, value, cost, probability)
    return _checked(_tabulated({n: jnp.asarray(v, float) for n, v in zip(_TABLE, given, strict=True)}))


def _filled(lists) -> tuple[Any, Any]:
    """A ragged nest of lists as an array, and which entries were given."""
    try:
        array = np.asarray(lists, float)
        return array, np.ones(array.shape)
    except ValueError:
        pass
    parts = [_filled(part) for part in lists]
    rank = max(part.ndim for part, _ in parts)
    if any(part.ndim != rank for part, _ in parts):
        raise ValueError("value: expected lists of the same depth") from None
    shape = np.max([part.shape for part, _ in parts], axis=0)
    out, mask = np.zeros((len(parts), *shape)), np.zeros((len(parts), *shape))
    for i, (part, given) in enumerate(parts):
        place = (i, *(slice(0, n) for n in part.shape))
        out[place], mask[place] = part, given
    return out, mask


def _whole(name, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
    return int(value)
