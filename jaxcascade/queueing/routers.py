"""Routers trained offline on a routing table, in the place of a policy that learns online; queries wait in line.

A router scores the models for a context; the oldest query goes to the K models of the highest score.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxcascade.core import Policy, choose
from jaxcascade.kernels import best_assortment
from jaxcascade.queueing.instance import HIDDEN
from jaxcascade.queueing.rounds import Action
from jaxcascade.queueing.table import Tables, read_part, table_paths
from jaxcascade.queueing.targets import COST_WEIGHT, net_utility, normalised_cost

_NEIGHBOURS = 20
_CLUSTERS = 16
_LLOYD_ROUNDS = 50
_HIDDEN_UNITS = 128
_LEARNING_RATE = 3e-3
_EPOCHS = 300
_HELD_OUT = 5
_TEMPERATURE = 0.1


class Router(NamedTuple):
    """A trained router.

    Attributes:
      method: its name.
      params: what was learnt, a pytree of arrays.
      loss: ``[epochs]`` error on held-out prompts during training, empty where nothing was descended.
    """

    method: str
    params: Any
    loss: np.ndarray


class RouterQuality(NamedTuple):
    """How good a router is on prompts: means over them, net utility as ``net_utility`` has it.

    Attributes:
      accuracy: share of prompts whose best model it names (any of them, where several tie).
      utility: of the model that it names.
      best_fixed: of the best single model.
      oracle: of the best model of every prompt.
    """

    accuracy: float
    utility: float
    best_fixed: float
    oracle: float


def train_router(
    method: str, embeddings, performance, cost, *, cost_weight: float = COST_WEIGHT, seed: int = 0
) -> Router:
    """A router trained on the prompts of a table.

    Methods: "zero", the mean utility of every model, whatever the prompt; "knn", the mean utility over the 20
    prompts of the highest cosine; "mlp", one hidden layer that predicts the utilities; "carrot", the same for
    performance and cost apart; "umr", mean performance and cost within 16 clusters of the embeddings; "router_dc",
    cosines between an encoded prompt and an embedding of every model, learnt by contrasting good with bad models
    for a prompt, and prompts that agree on their best model with others.

    Args:
      method: one of the names above.
      embeddings: ``[M, d]`` contexts of the prompts.
      performance: ``[M, N]`` scores in [0, 1].
      cost: ``[M, N]`` costs >= 0.
      cost_weight: as in ``queueing.from_table``.
      seed: of the initial weights and clusters.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.2, after CARROT, Universal Model Routing and RouterDC; sizes are ours.
    """
    train = choose("method", method, _METHODS)[0]
    target = net_utility(performance, cost, cost_weight)
    contexts = np.asarray(embeddings, np.float64)
    if contexts.ndim != 2 or len(contexts) != len(target) or not np.all(np.isfinite(contexts)):
        raise ValueError(
            f"embeddings: expected finite numbers of shape [{len(target)}, d], got shape {list(contexts.shape)}"
        )
    data = Data(contexts, target, np.asarray(performance, np.float64), normalised_cost(np.asarray(cost, np.float64)))
    params, loss = train(data, cost_weight, seed)
    return Router(method, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), params), np.asarray(loss, np.float64))


def router_scores(router: Router, embeddings) -> jax.Array:
    """The router's scores ``[P, N]`` of every model for contexts.

    Args:
      router: from ``train_router``.
      embeddings: ``[P, d]`` contexts.
    """
    score = _METHODS[router.method][1]
    return jax.vmap(partial(score, router.params))(jnp.asarray(embeddings, float))


def router_quality(router: Router, embeddings, performance, cost, *, cost_weight: float = COST_WEIGHT) -> RouterQuality:
    """How good the router is on prompts, which should not be those that it was trained on.

    Args:
      router: the router.
      embeddings: ``[P, d]``.
      performance: ``[P, N]``.
      cost: ``[P, N]``.
      cost_weight: as in ``train_router``.
    """
    utility = net_utility(performance, cost, cost_weight)
    picked = np.argmax(np.asarray(router_scores(router, embeddings)), axis=1)
    got, best = utility[np.arange(len(utility)), picked], utility.max(axis=1)
    return RouterQuality(
        float(np.mean(got >= best - 1e-12)), float(got.mean()), float(utility.mean(axis=0).max()), float(best.mean())
    )


def routed(router: Router) -> Policy:
    """The policy that serves the oldest query with the models that a trained router scores highest.

    Source: arXiv 2602.02061, Section 5.2 (offline routers with FIFO).
    """
    return _routed(router.method)._replace(params=router.params)


def router(
    method: str,
    tables: Tables | Sequence[Tables],
    part: str = "train",
    train_share: float = 0.5,
    split_seed: int = 0,
    drop_missing: bool = False,
    encoder: str | None = None,
    cache: str | None = None,
    cost_weight: float = COST_WEIGHT,
    seed: int = 0,
) -> Policy:
    """The policy of a router trained on the prompts of routing tables: ``routed(train_router(...))``.

    Args:
      method: as in ``train_router``.
      tables: path or paths, as in ``queueing.from_table``; the evaluation's prompts are those of other files, or
        of the other part of the same split.
      part: which part of the tables to train on.
      train_share: as in ``queueing.from_table``.
      split_seed: as in ``queueing.from_table``.
      drop_missing: as in ``queueing.from_table``.
      encoder: as in ``queueing.from_table``.
      cache: as in ``queueing.from_table``.
      cost_weight: as in ``queueing.from_table``.
      seed: as in ``train_router``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming file or argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.2 and Appendix B.3.
    """
    source = table_paths(tables), part, train_share, split_seed, drop_missing, encoder, cache
    return _router(method, source, cost_weight, seed)


@lru_cache(maxsize=32)
def _router(method, source, cost_weight, seed):
    table = read_part(*source)
    arrays = table.embeddings, table.performance, table.cost
    return routed(train_router(method, *arrays, cost_weight=cost_weight, seed=seed))


@lru_cache
def _routed(method):
    score = _METHODS[method][1]

    def act(model, state, key, t, observation):
        params, view = model
        query = jnp.min(observation.arrived)  # the oldest
        here = (observation.arrived == query).astype(observation.context.dtype)
        value = score(params, here @ observation.context)
        return Action(query, best_assortment(value, view.assortment_size)), state

    def update(model, state, t, observation, action, feedback):
        return state

    return Policy(lambda params, view, horizon: (params, view), lambda model: (), act, update, hidden=HIDDEN)


class Data(NamedTuple):
    """What a router is trained on: contexts ``[M, d]``; utility, performance and normalised cost ``[M, N]``."""

    contexts: np.ndarray
    utility: np.ndarray
    performance: np.ndarray
    cost: np.ndarray


# Scores of the models for one context, ``(params, [d]) -> [N]``


def _score_zero(params, context):
    return params


def _score_knn(params, context):
    directions, utility = params
    _, nearest = jax.lax.top_k(directions @ context, min(_NEIGHBOURS, utility.shape[0]))
    return jnp.mean(utility[nearest], axis=0)


def _score_mlp(params, context):
    return _layers(params, context)


def _score_carrot(params, context):
    layers, cost_weight = params
    performance, cost = jnp.split(_layers(layers, context), 2)
    return performance - cost_weight * cost


def _score_umr(params, context):
    centres, utility = params
    return utility[jnp.argmin(jnp.sum((centres - context) ** 2, axis=1))]


def _score_dual(params, context):
    layers, models = params
    return _directions(models) @ _directions(_layers(layers, context))


# Training, ``(Data, cost_weight, seed) -> (params, losses)``


def _train_zero(data, cost_weight, seed):
    return data.utility.mean(axis=0), []


def _train_knn(data, cost_weight, seed):
    norm = np.linalg.norm(data.contexts, axis=1, keepdims=True)
    return (data.contexts / np.where(norm > 0, norm, 1), data.utility), []


def _train_mlp(data, cost_weight, seed):
    return _descend(_fit_error, (data.contexts, data.utility), _new_layers(data, data.utility.shape[1], seed), seed)


def _train_carrot(data, cost_weight, seed):
    both = np.concatenate([data.performance, data.cost], axis=1)
    layers, loss = _descend(_fit_error, (data.contexts, both), _new_layers(data, both.shape[1], seed), seed)
    return (layers, np.asarray(cost_weight)), loss


def _train_umr(data, cost_weight, seed):
    centres, cluster = _lloyd(data.contexts, min(_CLUSTERS, len(data.contexts)), seed)
    member = cluster[:, None] == np.arange(len(centres))
    # One more prompt of the overall mean keeps a small cluster from being believed too much.
    total = member.T @ data.utility + data.utility.mean(axis=0)
    return (centres, total / (member.sum(axis=0)[:, None] + 1)), []


def _train_dual(data, cost_weight, seed):
    number = data.utility.shape[1]
    rng = np.random.default_rng([seed, 1])
    start = (_new_layers(data, _HIDDEN_UNITS, seed), rng.normal(size=(number, _HIDDEN_UNITS)) / np.sqrt(_HIDDEN_UNITS))
    return _descend(_dual_error, (data.contexts, data.utility), start, seed)


def _layers(layers, contexts):
    """One hidden layer: ``W2 relu(W1 x + b1) + b2``."""
    first, first_bias, second, second_bias = layers
    return jax.nn.relu(contexts @ first + first_bias) @ second + second_bias


def _new_layers(data, outputs, seed):
    rng = np.random.default_rng([seed, 0])
    inputs = data.contexts.shape[1]
    first = rng.normal(size=(inputs, _HIDDEN_UNITS)) * np.sqrt(2 / (inputs * max(np.mean(data.contexts**2), 1e-12)))
    second = rng.normal(size=(_HIDDEN_UNITS, outputs)) / np.sqrt(_HIDDEN_UNITS)
    return first / np.sqrt(inputs), np.zeros(_HIDDEN_UNITS), second, np.zeros(outputs)


def _fit_error(layers, contexts, target):
    return jnp.mean((_layers(layers, contexts) - target) ** 2)


def _dual_error(params, contexts, utility):
    """RouterDC's two contrastive losses: good models against bad ones, prompts of one best model against others."""
    layers, models = params
    prompts = _directions(_layers(layers, contexts))
    score = prompts @ _directions(models).T / _TEMPERATURE
    low, high = jnp.min(utility, axis=1, keepdims=True), jnp.max(utility, axis=1, keepdims=True)
    good = utility >= (low + high) / 2
    against = jax.nn.logsumexp(jnp.where(good & (high > low), -jnp.inf, score), axis=1, keepdims=True)
    missed = jnp.sum(jnp.where(good, jnp.logaddexp(score, against) - score, 0), axis=1) / jnp.sum(good, axis=1)
    # A prompt counts by what is at stake: the right answer, or no more than the price of one.
    stake = (high - low)[:, 0]
    to_models = jnp.sum(stake * missed) / jnp.maximum(jnp.sum(stake), 1e-12)
    same = (jnp.argmax(utility, axis=1)[:, None] == jnp.argmax(utility, axis=1)) & ~jnp.eye(len(utility), dtype=bool)
    close = jnp.where(jnp.eye(len(utility), dtype=bool), -jnp.inf, prompts @ prompts.T / _TEMPERATURE)
    share = jnp.sum(jnp.where(same, jax.nn.log_softmax(close, axis=1), 0), axis=1) / jnp.maximum(same.sum(axis=1), 1)
    return to_models - jnp.mean(share)


def _directions(vectors):
    return vectors / jnp.sqrt(jnp.sum(vectors**2, axis=-1, keepdims=True) + 1e-12)


def _descend(error, data, start, seed):
    """Parameters of the epoch of Adam with the least error on a fifth of the prompts that is held out, and the errors.

    Scores of single answers are noise for the most part: without this, every prompt would be learnt by heart.
    """
    optimiser = optax.adam(_LEARNING_RATE)
    rows = np.random.default_rng([seed, 3]).permutation(len(data[0]))
    cut = max(len(rows) // _HELD_OUT, 1)
    held, used = ([jnp.asarray(array[part], float) for array in data] for part in (rows[:cut], rows[cut:]))
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)

    @jax.jit
    def train(start, used, held):
        def epoch(carry, _):
            params, state, best, least = carry
            missed = error(params, *held)
            best = jax.tree.map(lambda new, old: jnp.where(missed < least, new, old), params, best)
            change, state = optimiser.update(jax.grad(error)(params, *used), state, params)
            return (optax.apply_updates(params, change), state, best, jnp.minimum(missed, least)), missed

        first = (start, optimiser.init(start), start, jnp.asarray(jnp.inf, float))
        (_, _, best, _), missed = jax.lax.scan(epoch, first, length=_EPOCHS)
        return best, missed

    return train(start, used, held)


def _lloyd(points, clusters, seed):
    """k-means: centres ``[clusters, d]`` and the cluster of every point, from far-apart starts (k-means++)."""
    rng = np.random.default_rng([seed, 2])
    centres = points[[rng.integers(len(points))]]
    for _ in range(clusters - 1):
        distance = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1)
        total = distance.sum()
        chance = distance / total if total > 0 else np.full(len(points), 1 / len(points))
        centres = np.concatenate([centres, points[[rng.choice(len(points), p=chance)]]])
    cluster = np.zeros(len(points), int)
    for _ in range(_LLOYD_ROUNDS):
        cluster = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        kept = [points[cluster == k].mean(axis=0) if np.any(cluster == k) else centres[k] for k in range(clusters)]
        if np.allclose(kept, centres):
            break
        centres = np.stack(kept)
    return centres, cluster


_METHODS: dict[str, tuple[Callable, Callable]] = {
    "zero": (_train_zero, _score_zero),
    "knn": (_train_knn, _score_knn),
    "mlp": (_train_mlp, _score_mlp),
    "carrot": (_train_carrot, _score_carrot),
    "umr": (_train_umr, _score_umr),
    "router_dc": (_train_dual, _score_dual),
}
ROUTERS = tuple(_METHODS)
