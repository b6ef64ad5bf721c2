"""Utility-aligned embeddings (ACQB-CL): a projection that puts prompts together which agree on the models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcascade.queueing.targets import COST_WEIGHT, net_utility

_HIDDEN_UNITS = 384
_LEARNING_RATE = 1e-3
_TEMPERATURE = 0.07
_MOST_NEGATIVES = 64
_NEIGHBOURS = 10


class Projection(NamedTuple):
    """A trained head ``z = W2 relu(W1 x + b1) + b2``, scaled to unit norm.

    Attributes:
      layers: ``W1 [d, h]``, ``b1 [h]``, ``W2 [h, d]``, ``b2 [d]``.
      loss: ``[epochs]`` InfoNCE loss during training.
      prompts: ``[n]`` rows of the table that it was trained on.
    """

    layers: tuple[jax.Array, ...]
    loss: np.ndarray
    prompts: np.ndarray


def train_projection(
    embeddings,
    performance,
    cost,
    *,
    positive: float = 0.5,
    negative: float = 0.3,
    per_model: int = 5,
    epochs: int = 50,
    cost_weight: float = COST_WEIGHT,
    seed: int = 0,
) -> Projection:
    """The projection trained on a balanced sample of prompts: as many for every model that is best for any.

    With centred utilities ``u - mean(u)`` of every prompt, prompts of cosine >= ``positive`` are drawn together
    and those of cosine <= ``negative``, at most 64 a prompt, pushed apart, by InfoNCE at temperature .07::

        loss = - mean over positives (i, j) of log( e^{s_ij} / (e^{s_ij} + sum over negatives k e^{s_ik}) )

    with s the cosine of projections over the temperature.

    Args:
      embeddings: ``[M, d]`` contexts of the training prompts.
      performance: ``[M, N]``.
      cost: ``[M, N]``.
      positive: least cosine of a positive pair; the paper's is .5 for RouterBench, .6 SPROUT, .4 EmbedLLM.
      negative: greatest cosine of a negative pair; .3, .3, .1.
      per_model: prompts sampled for every best model (all, where there are fewer).
      epochs: steps of Adam, each on the whole sample.
      cost_weight: as in ``queueing.from_table``.
      seed: of sample, negatives and initial weights.

    Raises:
      ValueError: naming the argument, what was expected and what came; if the sample has no positive pair.

    Source: arXiv 2602.02061, Section 5.2 (ACQB-CL); hidden width, step size and sample size are ours.
    """
    if not -1 <= negative <= positive <= 1:
        raise ValueError(f"positive: expected -1 <= negative <= positive <= 1, got {negative!r} and {positive!r}")
    for name, value in (("per_model", per_model), ("epochs", epochs)):
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise ValueError(f"{name}: expected a whole number >= 1, got {value!r}")
    utility = net_utility(performance, cost, cost_weight)
    contexts = np.asarray(embeddings, np.float64)
    if contexts.ndim != 2 or len(contexts) != len(utility):
        raise ValueError(f"embeddings: expected shape [{len(utility)}, d], got {list(contexts.shape)}")
    rng = np.random.default_rng(seed)
    best = utility.argmax(axis=1)
    sample = np.concatenate([_some(rng, np.flatnonzero(best == model), per_model) for model in np.unique(best)])
    agreement = _cosines(utility[sample])
    positives = (agreement >= positive) & ~np.eye(len(sample), dtype=bool)
    if not positives.any():
        raise ValueError(f"positive: expected a pair of {len(sample)} prompts of cosine >= {positive}, got none")
    negatives = np.zeros_like(positives)
    for row, far in enumerate(agreement <= negative):
        negatives[row, _some(rng, np.flatnonzero(far), _MOST_NEGATIVES)] = True
    size = contexts.shape[1]
    first = rng.normal(size=(size, _HIDDEN_UNITS)) * np.sqrt(2 / size)
    second = rng.normal(size=(_HIDDEN_UNITS, size)) / np.sqrt(_HIDDEN_UNITS)
    start = tuple(jnp.asarray(a, float) for a in (first, np.zeros(_HIDDEN_UNITS), second, np.zeros(size)))
    layers, loss = _descend(start, jnp.asarray(contexts[sample], float), positives, negatives, int(epochs))
    return Projection(layers, np.asarray(loss, np.float64), sample)


def project(projection: Projection, embeddings) -> jax.Array:
    """The projected contexts ``[P, d]``, of unit norm.

    Args:
      projection: from ``train_projection``.
      embeddings: ``[P, d]``.
    """
    return apply_layers(projection.layers, jnp.asarray(embeddings, float))


def neighbour_agreement(embeddings, performance, cost, *, cost_weight: float = COST_WEIGHT) -> float:
    """Mean cosine of the centred utilities of every prompt and its 10 nearest others by cosine of embeddings.

    Args:
      embeddings: ``[P, d]``, before or after a projection.
      performance: ``[P, N]``.
      cost: ``[P, N]``.
      cost_weight: as in ``queueing.from_table``.

    Source: arXiv 2602.02061, Section 5.2 (what the projection is for).
    """
    agreement = _cosines(net_utility(performance, cost, cost_weight))
    vectors = np.asarray(embeddings, np.float64)
    close = (vectors @ vectors.T) / np.maximum(np.outer(*[np.linalg.norm(vectors, axis=1)] * 2), 1e-12)
    np.fill_diagonal(close, -np.inf)
    nearest = np.argsort(-close, axis=1)[:, : min(_NEIGHBOURS, len(vectors) - 1)]
    return float(np.take_along_axis(agreement, nearest, axis=1).mean())


def _some(rng, rows, most):
    return rows if len(rows) <= most else rng.choice(rows, most, replace=False)


def _cosines(utility):
    """Cosines ``[P, P]`` of centred utilities; 0 for a prompt on which all models tie."""
    centred = utility - utility.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.where(norm > 1e-9, centred / np.maximum(norm, 1e-9), 0)
    return unit @ unit.T


def apply_layers(layers: tuple[jax.Array, ...], contexts: jax.Array) -> jax.Array:
    """A projection's layers applied to contexts ``[..., d]``, scaled to unit norm."""
    first, first_bias, second, second_bias = layers
    z = jax.nn.relu(contexts @ first + first_bias) @ second + second_bias
    return z / jnp.sqrt(jnp.sum(z**2, axis=-1, keepdims=True) + 1e-12)


def _descend(start, contexts, positives, negatives, epochs):
    optimiser = optax.adam(_LEARNING_RATE)

    def error(layers):
        z = apply_layers(layers, contexts)
        score = z @ z.T / _TEMPERATURE
        against = jax.nn.logsumexp(jnp.where(negatives, score, -jnp.inf), axis=1, keepdims=True)
        return jnp.sum(jnp.where(positives, jnp.logaddexp(score, against) - score, 0)) / jnp.sum(positives)

    @jax.jit
    def train(layers):
        def epoch(carry, _):
            layers, state = carry
            loss, slope = jax.value_and_grad(error)(layers)
            change, state = optimiser.update(slope, state, layers)
            return (optax.apply_updates(layers, change), state), loss

        (layers, _), loss = jax.lax.scan(epoch, (layers, optimiser.init(layers)), length=epochs)
        return layers, loss

    return train(start)
