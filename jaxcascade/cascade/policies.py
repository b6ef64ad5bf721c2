"""Policies of the cascade system that do not learn indices: LinUCB, FrugalGPT, and baselines.

The policies built on Weitzman's rule are in ``weitzman``.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial

from jaxcascade.cascade.environment import Action
from jaxcascade.cascade.history import index_features, padded_size
from jaxcascade.cascade.instance import HIDDEN
from jaxcascade.cascade.oracle import population
from jaxcascade.cascade.weitzman import Nothing, number, while_calibrating, whole
from jaxcascade.core import Policy, choose
from jaxcascade.kernels.design_matrix import rank_one_inverse, times
from jaxcascade.kernels.logistic import fit_logistic

_LEVELS = 21
_DEPLOY = ("stopped", "best")


def _one_box(box, boxes, dtype=None):
    """The action that opens one box, given as a number or as bool ``[A]``, and deploys its output."""
    chosen = box if jnp.ndim(box) else jnp.arange(boxes) == box
    order = chosen.astype(dtype or jnp.result_type(float))
    return Action(order, jnp.full_like(order, -jnp.inf), _nothing)


@Partial
def _nothing(features):
    """The value of any output to a policy that has no choice."""
    return jnp.zeros(features.shape[:-1], features.dtype)


def _no_update(model, state, t, observation, action, feedback):
    return state


def _fixed(act):
    """The policy of a rule that neither knows the instance nor learns; its model is ``[A]`` zeros."""
    return Policy(
        lambda params, view, horizon: jnp.zeros((view.sizes.boxes,)),
        lambda model: Nothing(),
        act,
        _no_update,
        hidden=HIDDEN,
    )


@lru_cache
def open_all() -> Policy:
    """The policy that opens every box and deploys the truly best output; it is told mu*."""

    def act(boxes, state, key, t, observation):
        zeros = jnp.zeros_like(boxes)
        return Action(zeros, zeros + jnp.inf, None), state

    return _fixed(act)


@lru_cache
def random_box() -> Policy:
    """The policy that opens one box, drawn uniformly, and deploys its output."""

    def act(boxes, state, key, t, observation):
        count = boxes.shape[0]
        return _one_box(jax.random.randint(key, (), 0, count), count), state

    return _fixed(act)


@lru_cache
def cheapest() -> Policy:
    """The policy that always opens the box of the least mean cost, which it is told."""

    def setup(params, view, horizon):
        cost = population(view).cost
        return jnp.arange(cost.shape[0]) == jnp.argmin(cost)

    def act(chosen, state, key, t, observation):
        return _one_box(chosen, chosen.shape[0]), state

    return Policy(setup, lambda model: Nothing(), act, _no_update)


class Means(NamedTuple):
    """Per box, each ``[A]``: net payoffs seen in calibration, their ``total`` and ``tried``."""

    total: jax.Array
    tried: jax.Array


def best_single(calibration: int = 0) -> Policy:
    """The policy that always opens one box: the one of the highest mean net payoff.

    Args:
      calibration: T0 periods, one box each in turn, whose mean payoffs decide, static; with 0 the population
        means of the instance decide. A box that was never tried counts as 0.

    Raises:
      ValueError: if ``calibration`` is not a whole number >= 0.
    """
    return _best_single(whole("calibration", calibration, 0))


@lru_cache
def _best_single(calibration):
    def setup(params, view, horizon):
        if calibration:
            return jnp.zeros((view.sizes.boxes,))
        means = population(view)
        return means.value - means.cost

    def init(known):
        return Means(known, jnp.ones_like(known) if not calibration else jnp.zeros_like(known))

    def act(known, state, key, t, observation):
        mean = state.total / jnp.maximum(state.tried, 1)
        action = _one_box(jnp.argmax(mean), mean.shape[0])
        return while_calibrating(action, t, calibration), state

    def update(known, state, t, observation, action, feedback):
        learns = (t <= 0).astype(state.total.dtype) if calibration else 0.0
        opened = learns * feedback.opened.astype(state.total.dtype)
        return Means(state.total + opened * (feedback.reward - feedback.cost), state.tried + opened)

    return Policy(setup, init, act, update, hidden=HIDDEN if calibration else (), calibration=calibration)


class LinearState(NamedTuple):
    """Ridge regression per arm: ``coefficients [A, m]``, ``inverse [A, m, m]``, ``image [A, m]``."""

    coefficients: jax.Array
    inverse: jax.Array
    image: jax.Array


def lin_ucb(calibration: int = 0, width: float = 0.3, ridge: float = 1.0) -> Policy:
    """LinUCB: opens the one box of the highest upper bound ``b_a.psi + width |psi|_{A_a^-1}`` on its net payoff.

    Args:
      calibration: T0 periods before round 1, one box each in turn, static.
      width: >= 0.
      ridge: > 0; the design matrices start at ``ridge I``.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2606.07392, Section 6.1 (contextual linear bandit).
    """
    params = {"width": number("width", width, 0), "ridge": number("ridge", ridge, 0, strict=True)}
    return _lin_ucb(whole("calibration", calibration, 0))._replace(params=params)


@lru_cache
def _lin_ucb(calibration):
    def setup(params, view, horizon):
        size = padded_size(view.sizes.context)
        inverse = jnp.broadcast_to(jnp.eye(size), (view.sizes.boxes, size, size)) / params["ridge"]
        zeros = jnp.zeros((view.sizes.boxes, size), inverse.dtype)
        return params, LinearState(zeros, inverse, zeros)

    def act(model, state, key, t, observation):
        psi = index_features(observation.context, state.image.shape[1])
        image = times(state.inverse, psi)
        spread = jnp.sqrt(jnp.maximum(image @ psi, 0))
        bound = state.coefficients @ psi + model[0]["width"] * spread
        action = while_calibrating(_one_box(jnp.argmax(bound), bound.shape[0], bound.dtype), t, calibration)
        return action, state._replace(image=image)

    def update(model, state, t, observation, action, feedback):
        psi = index_features(observation.context, state.image.shape[1])
        opened = feedback.opened.astype(psi.dtype)
        surprise = feedback.reward - feedback.cost - state.coefficients @ psi
        scale = opened * surprise / (1 + state.image @ psi)
        coefficients = state.coefficients + scale[:, None] * state.image
        return LinearState(coefficients, rank_one_inverse(state.inverse, state.image, psi, opened), state.image)

    return Policy(setup, lambda model: model[1], act, update, hidden=HIDDEN, calibration=calibration)


class FrugalState(NamedTuple):
    """FrugalGPT: calibration data, and what was tuned on it.

    Attributes:
      features: ``[T0, A, d]`` of all outputs.
      reward: ``[T0, A]`` rewards of all outputs.
      cost: ``[T0, A]``.
      scorer: ``[d]`` logistic coefficients.
      order: ``[A]`` boxes are opened in decreasing order.
      threshold: ``[A]`` a box is opened while the last score is below.
    """

    features: jax.Array
    reward: jax.Array
    cost: jax.Array
    scorer: jax.Array
    order: jax.Array
    threshold: jax.Array


def frugal_gpt(calibration: int = 100, deploy: str = "stopped", ridge: float = 1.0, most_stages: int = 3) -> Policy:
    """FrugalGPT: a fixed order of boxes with a score threshold at each stage, tuned on calibration periods.

    All boxes are opened in every calibration period. A logistic scorer is fitted to all their rewards; of all
    ordered lists of up to three boxes (15 for three), with 21 score quantiles as thresholds of each stage but
    the last, the one with the highest mean utility in calibration is used: go on while the last score is
    below the stage's threshold. Ties go to the first, shorter lists first.

    Args:
      calibration: T0, static, at least 1.
      deploy: "stopped" deploys the output it stopped at, as the original does; "best" the best scored. Static.
      ridge: of the scorer, > 0.
      most_stages: longest list of boxes considered, static.

    Raises:
      ValueError: naming the argument, what was expected and what came; if there is no calibration.

    Source: Chen et al. (2025), FrugalGPT; arXiv 2606.07392, Section 6.1.
    """
    if whole("calibration", calibration, 0) < 1:
        raise ValueError("calibration: expected at least 1 period for frugal_gpt to be tuned on, got 0")
    choose("deploy", deploy, dict.fromkeys(_DEPLOY))
    policy = _frugal_gpt(calibration, deploy == "stopped", whole("most_stages", most_stages, 1))
    return policy._replace(params={"ridge": number("ridge", ridge, 0, strict=True)})


@lru_cache
def _frugal_gpt(calibration, stopped, most_stages):
    def setup(params, view, horizon):
        boxes, _, d = view.sizes
        zeros = jnp.zeros((calibration, boxes))
        blank = FrugalState(jnp.zeros((calibration, boxes, d)), zeros, zeros, jnp.zeros((d,)), zeros[0], zeros[0])
        return params, blank

    def act(model, state, key, t, observation):
        value = Partial(lambda theta, features: jax.nn.sigmoid(features @ theta), state.scorer)
        threshold = jnp.where(t <= 0, jnp.inf, state.threshold)
        return Action(state.order, threshold, value, True, stopped), state

    def update(model, state, t, observation, action, feedback):
        row = jnp.clip(t - 1 + calibration, 0, calibration - 1)
        new = (feedback.features, feedback.reward, feedback.cost)
        data = [a.at[row].set(jnp.where(t <= 0, b, a[row])) for a, b in zip(state[:3], new, strict=True)]

        def tuned(_):
            features, reward, cost = data
            return _tune(features, reward, cost, model[0]["ridge"], stopped, most_stages)

        return FrugalState._make([*data, *lax.cond(t == 0, tuned, lambda _: state[3:], None)])

    return Policy(setup, lambda model: model[1], act, update, hidden=HIDDEN, calibration=calibration)


def _tune(features, reward, cost, ridge, stopped, most_stages):
    """Scorer, order and thresholds of the best cascade on the calibration data."""
    boxes, d = features.shape[1:]
    flat = features.reshape(-1, d)
    scorer = fit_logistic(flat, reward.ravel(), ridge, jnp.zeros((d,), flat.dtype), newton_steps=8)
    score = jax.nn.sigmoid(features @ scorer)
    levels = jnp.quantile(score, jnp.linspace(0, 1, _LEVELS), axis=0)
    best = jnp.asarray(-jnp.inf, score.dtype)
    order, threshold = jnp.zeros((boxes,), score.dtype), jnp.full((boxes,), -jnp.inf, score.dtype)
    for stages in range(1, min(most_stages, boxes) + 1):
        lists = np.array(list(itertools.permutations(range(boxes), stages)), np.int32)

        def mean_utility(chain, stages=stages):
            return jnp.mean(_utilities(chain, stages, score, reward, cost, levels, stopped), axis=0).ravel()

        utility = lax.map(mean_utility, jnp.asarray(lists)).ravel()
        winner = jnp.argmax(utility)
        better = utility[winner] > best
        grid = _LEVELS ** (stages - 1)
        chain, code = jnp.asarray(lists)[winner // grid], winner % grid
        new_order = jnp.zeros_like(order).at[chain].set(jnp.arange(stages, 0, -1, dtype=order.dtype))
        new_threshold = jnp.full_like(threshold, -jnp.inf)
        for stage in range(1, stages):
            level = (code // _LEVELS ** (stages - 1 - stage)) % _LEVELS
            new_threshold = new_threshold.at[chain[stage]].set(levels[level, chain[stage - 1]])
        best = jnp.where(better, utility[winner], best)
        order, threshold = jnp.where(better, new_order, order), jnp.where(better, new_threshold, threshold)
    return scorer, order, threshold


def _utilities(chain, stages, score, reward, cost, levels, stopped):
    """Utility ``[T0, 21, ..., 21]`` of every calibration period, one axis per threshold, first stage first."""
    s, r, c = score[:, chain], reward[:, chain], jnp.cumsum(cost[:, chain], axis=1)
    if not stopped:
        best = [jnp.argmax(s[:, : k + 1], axis=1) for k in range(stages)]
        r = jnp.stack([jnp.take_along_axis(r, b[:, None], axis=1)[:, 0] for b in best], axis=1)
    payoff = r - c
    total = payoff[:, stages - 1]
    for stage in reversed(range(stages - 1)):
        later = stages - 2 - stage
        stops = s[:, stage, None] >= levels[:, chain[stage]]
        stops = stops.reshape(*stops.shape, *(1,) * later)
        here = payoff[:, stage].reshape(-1, *(1,) * (later + 1))
        total = jnp.where(stops, here, total[:, None])
    return total
