"""The learners that use contexts: ACQB with its variants, and CQB-eps."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import Policy, choose
from jaxcascade.kernels import FREE, best_assortment, best_log_weight
from jaxcascade.kernels.bag import first_of, read_slot, slot_of
from jaxcascade.queueing.choices import anyone, draw, pick_rule
from jaxcascade.queueing.instance import HIDDEN
from jaxcascade.queueing.learning import (
    Sizes,
    draws_ahead,
    history_rows,
    learn,
    look_ahead,
    no_beliefs,
    posterior_steps,
    radius,
    sampled_utility,
    upper_utility,
)
from jaxcascade.queueing.rounds import Action
from jaxcascade.queueing.shared_learning import (
    kronecker_features,
    learn_shared,
    no_shared_beliefs,
    sampled_shared_utility,
    shared_radius,
    theta_of_each,
    upper_shared_utility,
)

_ESTIMATORS = ("mle", "one_pass")
_INDICES = ("thompson", "ucb")
_PARAMETERS = ("disjoint", "shared")


class Model(NamedTuple):
    """What all seeds share: the static ``sizes``, ``features [N, D, d]`` or None, and hyper-parameters by name."""

    sizes: Any
    features: jax.Array | None
    params: dict[str, jax.Array]


def num_samples(assortment_size: int) -> int:
    """Number M of posterior samples a round: ``ceil(1 - log K / log(1 - 1 / (4 sqrt(e pi))))``, 1 for K = 1.

    Args:
      assortment_size: K.

    Source: arXiv 2602.02061, Algorithm 1.
    """
    return math.ceil(1 - math.log(assortment_size) / math.log(1 - 1 / (4 * math.sqrt(math.e * math.pi))))


def acqb(
    scheduling: str = "acqb",
    exploration: str = "on_arrival",
    estimator: str = "mle",
    scale: float = 0.1,
    index: str = "thompson",
    parameters: str = "disjoint",
    exploration_rate: float = 1.0,
    regularisation: float = 1.0,
) -> Policy:
    """ACQB, anytime contextual queueing bandit: Thompson sampling with decaying forced exploration.

    With probability ``min(1, exploration_rate / sqrt(t - 1))`` a query that joined at the end of the last round
    is served with a random assortment; else the query and assortment of greatest sampled departure rate.

    Args:
      scheduling: "acqb", or which query is served when not exploring: "fifo", "lifo", "round_robin" (uniformly
        among those served least often) or "random"; its assortment is ACQB's. Static.
      exploration: "on_arrival", or which query is explored with, whether or not one arrived: "fifo", "lifo",
        "round_robin" or "random". Static.
      estimator: "mle", the exact regularised maximum-likelihood estimate, or "one_pass", an online estimate
        without a history. Static.
      scale: scale of the confidence width, times the paper's kappa.
      index: "thompson", or "ucb" for upper confidence bounds instead of samples. Static.
      parameters: "disjoint", a theta per LLM, or "shared", one theta on the instance's ``features`` (without
        any, on ``e_j (x) x``, which is the disjoint model with one confidence width). Static.
      exploration_rate: c1.
      regularisation: lambda0 > 0.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Algorithm 1, Appendix B.1 and B.3.
    """
    policy = _acqb(
        pick_rule("scheduling", scheduling, ("acqb",)),
        pick_rule("exploration", exploration, ("on_arrival",)),
        _one_pass(estimator),
        _ucb(index),
        _shared(parameters),
    )
    return policy._replace(
        params={
            "scale": _number("scale", scale, 0),
            "exploration_rate": _number("exploration_rate", exploration_rate, 0),
            "regularisation": _positive("regularisation", regularisation),
        }
    )


@lru_cache
def _acqb(pick, explore_with, one_pass, ucb, shared):
    def explore(model, t, observation, draws):
        # At t = 1 nothing waits.
        rate = jnp.minimum(1, model.params["exploration_rate"] / jnp.sqrt(jnp.maximum(t - 1, 1).astype(float)))
        if explore_with is None:
            return (draws.explore < rate) & (observation.newcomer != FREE), observation.newcomer
        return draws.explore < rate, explore_with(observation, draws.word)

    return _learner(explore, pick, one_pass, ucb, shared)


def cqb_eps(
    pure_rounds: int | None = None,
    estimator: str = "mle",
    scale: float = 0.1,
    index: str = "thompson",
    parameters: str = "disjoint",
    regularisation: float = 1.0,
) -> Policy:
    """CQB-eps: pure exploration for ``pure_rounds`` rounds, then Thompson sampling with some exploration.

    At first every served query gets a random assortment: the newcomer if there is one, else a random waiting
    query. Afterwards a newcomer is explored with probability ``T^{-1/2}``.

    Args:
      pure_rounds: tau, by default ``ceil(sqrt(T))``.
      estimator: as in ``acqb``, static.
      scale: as in ``acqb``.
      index: as in ``acqb``, static.
      parameters: as in ``acqb``, static.
      regularisation: as in ``acqb``.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2602.02061, Appendix B.3, after Bae et al. (2026).
    """
    if pure_rounds is not None:
        pure_rounds = int(_number("pure_rounds", pure_rounds, 0))
    policy = _cqb_eps(pure_rounds is None, _one_pass(estimator), _ucb(index), _shared(parameters))
    return policy._replace(
        params={
            "scale": _number("scale", scale, 0),
            "regularisation": _positive("regularisation", regularisation),
            "pure_rounds": -1 if pure_rounds is None else pure_rounds,
        }
    )


@lru_cache
def _cqb_eps(from_horizon, one_pass, ucb, shared):
    def explore(model, t, observation, draws):
        horizon = model.params["horizon"]
        # The rounded root of a perfect square must not be taken up.
        root = jnp.ceil(jnp.sqrt(horizon.astype(float)) * (1 - 1e-6)).astype(jnp.int32)
        pure = t <= (root if from_horizon else model.params["pure_rounds"])
        fresh = observation.newcomer != FREE
        query = jnp.where(fresh, observation.newcomer, anyone(observation, draws.word))
        return pure | (fresh & (draws.explore < 1 / jnp.sqrt(horizon.astype(float)))), query

    return _learner(explore, None, one_pass, ucb, shared)


def _learner(explore, pick, one_pass, ucb, shared):
    """A policy that explores as ``explore`` says and otherwise serves by its beliefs, or the query of ``pick``."""

    def setup(params, view, horizon):
        capacity = 0 if one_pass else history_rows(horizon)
        sizes = Sizes(view.num_llms, view.dim, view.assortment_size, capacity)
        features = None
        if shared:
            given = view.features.shape[-3] > 0
            features = view.features if given else kronecker_features(view.num_llms, view.dim)
        return Model(_Static(sizes), features, dict(params) | {"horizon": jnp.asarray(horizon, jnp.int32)})

    def init(model):
        sizes, regularisation = model.sizes.value, model.params["regularisation"]
        if shared:
            return no_shared_beliefs(sizes, model.features, regularisation)
        return no_beliefs(sizes, regularisation, 0 if ucb else num_samples(sizes.assortment_size))

    def draw_all(model, key):
        sizes = model.sizes.value
        samples = 0 if ucb or (draws_ahead(sizes) and not shared) else num_samples(sizes.assortment_size)
        length = model.features.shape[1] if shared else sizes.num_llms * sizes.dim
        return draw(key, sizes.num_llms, samples * length)

    def utilities(model, beliefs, draws, t, context):
        """The optimistic utilities ``[slots, N]``."""
        sizes, params = model.sizes.value, model.params
        if shared:
            length = model.features.shape[1]
            width = shared_radius(sizes, length, params["regularisation"], params["scale"], beliefs.services)
            if ucb:
                return upper_shared_utility(beliefs, model.features, width, context)
            return sampled_shared_utility(beliefs, model.features, width, draws.normal.reshape(-1, length), context)
        width = radius(sizes, params["regularisation"], params["scale"], beliefs.offers)
        if ucb:
            return upper_utility(beliefs, width, context)
        return sampled_utility(beliefs, width, posterior_steps(beliefs, t, draws.normal), context)

    def act(model, beliefs, draws, t, observation):
        size = model.sizes.value.assortment_size
        if not shared and beliefs.ahead is not None:
            beliefs = look_ahead(beliefs, t, draws.key)
        utility = utilities(model, beliefs, draws, t, observation.context)
        if pick is None:
            score = best_log_weight(utility, size)
            query = first_of(observation.arrived, observation.arrived != FREE, score)
        else:
            query = pick(observation, draws.word)
        explores, other = explore(model, t, observation, draws)
        # The K largest of uniform numbers are a random assortment.
        value = jnp.where(explores, draws.servers, read_slot(utility.T, slot_of(observation.arrived == query)))
        query = jnp.where(explores, other, query)
        return Action(query, best_assortment(value, size)), beliefs

    def update(model, beliefs, t, observation, action, feedback):
        sizes, regularisation = model.sizes.value, model.params["regularisation"]
        if shared:
            return learn_shared(sizes, model.features, regularisation, beliefs, t, feedback)
        return learn(sizes, regularisation, beliefs, t, feedback)

    def inspect(model, beliefs, t):
        if shared:
            return {"theta": theta_of_each(beliefs, model.features), "services": beliefs.services}
        return {"theta": beliefs.theta, "offers": beliefs.offers}

    static_horizon = not one_pass
    return Policy(setup, init, act, update, draw_all, hidden=HIDDEN, inspect=inspect, static_horizon=static_horizon)


@jax.tree_util.register_static
class _Static:
    """A hashable value as a leafless pytree."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return hash(self.value)

    def __eq__(self, other):
        return isinstance(other, _Static) and self.value == other.value


def _one_pass(name):
    return choose("estimator", name, {n: n == "one_pass" for n in _ESTIMATORS})


def _ucb(name):
    return choose("index", name, {n: n == "ucb" for n in _INDICES})


def _shared(name):
    return choose("parameters", name, {n: n == "shared" for n in _PARAMETERS})


def _number(name, value, least):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number >= {least}, got {value!r}")
    return value


def _positive(name, value):
    if _number(name, value, 0) <= 0:
        raise ValueError(f"{name}: expected a number > 0, got {value!r}")
    return float(value)
