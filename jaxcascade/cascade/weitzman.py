"""Policies that plug estimates into Weitzman's rule: DOW, its plug-in versions, and the oracle."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from jaxcascade.cascade.environment import Action
from jaxcascade.cascade.history import (
    History,
    deployed_features,
    empty_history,
    index_features,
    padded_size,
    refit_rounds,
    remember,
)
from jaxcascade.cascade.instance import HIDDEN, Sizes
from jaxcascade.core import Policy, choose
from jaxcascade.kernels.design_matrix import rank_one_inverse, times
from jaxcascade.kernels.history import fold_rows
from jaxcascade.kernels.index_estimator import fit_index
from jaxcascade.kernels.logistic import fit_logistic

_ESTIMATORS = ("refit", "one_pass")
_LEAST_WEIGHT = 0.02


class Solver(NamedTuple):
    """Static settings of a refit, which starts from the last estimates.

    Attributes:
      index_steps: Newton steps of the indices.
      cg_steps: conjugate gradient steps in each, one pass over the history apiece.
      reward_steps: Newton steps of the reward parameter.
      halvings: most halvings of a Newton step that is too long, tried in round 0 and up to ``refit_until``;
        later refits start so near that full steps are right.
      first_steps: Newton steps of both in round 0, a cold start from the calibration periods.
    """

    index_steps: int = 1
    cg_steps: int = 3
    reward_steps: int = 2
    halvings: int = 2
    first_steps: int = 8


def dow(
    known_reward: bool = False,
    calibration: int = 0,
    index_width: float = 0.6,
    value_width: float = 0.3,
    estimator: str = "refit",
    *,
    refit_until: int = 20,
    refit_growth: float = 0.1,
    index_ridge: float = 10.0,
    value_ridge: float = 1.0,
    solver: Solver = Solver(),  # noqa: B008 - a NamedTuple of numbers
) -> Policy:
    """DOW: Weitzman's rule on optimistic indices and, where rewards are unknown, optimistic values.

    Box a has index ``tanh(rho_a.psi + index_width |psi|_{V_a^-1})`` with ``psi = (1, x)``, an opened output
    the value ``L(theta.phi + value_width |phi|_{Phi^-1})``, or mu* itself if rewards are known. rho_a is the
    moment estimator on the box's openings, theta ridge logistic maximum likelihood on deployed outputs.

    Args:
      known_reward: the policy is told mu* of what it opened, static.
      calibration: T0 periods before round 1 in which one box is opened in turn, static.
      index_width: c_rho >= 0.
      value_width: c_theta >= 0, of no influence if rewards are known.
      estimator: "refit" goes back over the whole history on a schedule; "one_pass" takes one online Newton
        step a period and keeps no history. Static.
      refit_until: refit after every round up to this one, static.
      refit_growth: then whenever the number of rounds has grown by this share, static; > 0.
      index_ridge: eta1 > 0.
      value_ridge: eta0 > 0.
      solver: static settings of a refit.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2606.07392, Algorithm 1. The schedule and the online Newton step are ours.
    """
    widths = {"index_width": index_width, "value_width": value_width}
    return _learner(known_reward, calibration, widths, estimator, refit_until, refit_growth, index_ridge, value_ridge,
                    solver)  # fmt: skip


def online_plugin(
    known_reward: bool = False,
    calibration: int = 0,
    estimator: str = "refit",
    *,
    refit_until: int = 20,
    refit_growth: float = 0.1,
    index_ridge: float = 10.0,
    value_ridge: float = 1.0,
    solver: Solver = Solver(),  # noqa: B008
) -> Policy:
    """Weitzman's rule on the estimates alone: ``dow`` with both widths 0.

    Args:
      known_reward: as in ``dow``.
      calibration: as in ``dow``.
      estimator: as in ``dow``.
      refit_until: as in ``dow``.
      refit_growth: as in ``dow``.
      index_ridge: as in ``dow``.
      value_ridge: as in ``dow``.
      solver: as in ``dow``.

    Raises:
      ValueError: naming the argument, what was expected and what came.

    Source: arXiv 2606.07392, Section 6.1 (ii).
    """
    widths = {"index_width": 0.0, "value_width": 0.0}
    return _learner(known_reward, calibration, widths, estimator, refit_until, refit_growth, index_ridge, value_ridge,
                    solver)  # fmt: skip


def static_plugin(
    calibration: int = 100,
    known_reward: bool = False,
    *,
    index_ridge: float = 10.0,
    value_ridge: float = 1.0,
    solver: Solver = Solver(cg_steps=12, halvings=6),  # noqa: B008 - a cold start
) -> Policy:
    """Weitzman's rule on estimates that are fitted once, to the calibration periods.

    Args:
      calibration: T0, static, at least 1.
      known_reward: the policy is told mu* of what it opened, static.
      index_ridge: eta1 > 0.
      value_ridge: eta0 > 0.
      solver: static settings of the fit.

    Raises:
      ValueError: if there is no calibration to fit to.

    Source: arXiv 2606.07392, Section 6.1 (i).
    """
    if whole("calibration", calibration, 0) < 1:
        raise ValueError("calibration: expected at least 1 period for static_plugin to be fitted to, got 0")
    widths = {"index_width": 0.0, "value_width": 0.0}
    return _learner(known_reward, calibration, widths, "refit", 0, None, index_ridge, value_ridge, solver)


def whole(name: str, value: int, least: int) -> int:
    """The value, checked to be a whole number of at least ``least``.

    Raises:
      ValueError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}")
    return value


def number(name: str, value: float, least: float, strict: bool = False) -> float:
    """The value, checked to be a number of at least ``least``, or above it.

    Raises:
      ValueError: if it is not.
    """
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not (value > least if strict else value >= least) or value == float("inf"):
        raise ValueError(f"{name}: expected a number {'>' if strict else '>='} {least:g}, got {value!r}")
    return float(value)


def _learner(known, calibration, widths, estimator, refit_until, refit_growth, index_ridge, value_ridge, solver):
    if not isinstance(known, bool):
        raise ValueError(f"known_reward: expected true or false, got {known!r}")
    choose("estimator", estimator, dict.fromkeys(_ESTIMATORS))
    params = {name: number(name, width, 0) for name, width in widths.items()}
    params |= {"index_ridge": number("index_ridge", index_ridge, 0, strict=True)}
    params |= {"value_ridge": number("value_ridge", value_ridge, 0, strict=True)}
    growth = None if refit_growth is None else number("refit_growth", refit_growth, 0, strict=True)
    build = _one_pass if estimator == "one_pass" else _refitting
    optimistic = any(params[name] > 0 for name in widths)
    policy = build(
        known,
        whole("calibration", calibration, 0),
        optimistic,
        whole("refit_until", refit_until, 0),
        growth,
        Solver(*(whole(name, value, 0) for name, value in solver._asdict().items())),
    )
    return policy._replace(params=params)


class Model(NamedTuple):
    """What a learner knows before the first period.

    Attributes:
      params: name -> number.
      start: the state's arrays before the first period.
      blank: an empty history, or () for a learner without one.
      probe: ``[256, dx]`` contexts at which indices are recorded.
    """

    params: dict
    start: "Estimates"
    blank: History | tuple
    probe: jax.Array


class Estimates(NamedTuple):
    """What every learner keeps.

    Attributes:
      rho: ``[A, m]`` index coefficients, one row per box.
      theta: ``[d]`` reward parameter.
      index_inverse: ``[A, m, m]`` V^-1.
      value_inverse: ``[d, d]`` Phi^-1.
      image: ``[A, m]`` ``V^-1 psi`` of the current period, kept from ``act`` for ``update``.
    """

    rho: jax.Array
    theta: jax.Array
    index_inverse: jax.Array
    value_inverse: jax.Array
    image: jax.Array


class LearnerState(NamedTuple):
    """Estimates with a history (refit) or with weighted inverse matrices (one_pass)."""

    estimates: Estimates
    memory: "History | Curvature"


class Curvature(NamedTuple):
    """Inverses of what the one-pass learner accumulates: ``rho [A, m, m]``, ``theta [d, d]``."""

    rho: jax.Array
    theta: jax.Array


def _start(params, sizes: Sizes):
    size = padded_size(sizes.context)
    dtype = jnp.result_type(params["index_ridge"])
    index = jnp.broadcast_to(jnp.eye(size, dtype=dtype), (sizes.boxes, size, size)) / params["index_ridge"]
    reward = jnp.eye(sizes.features, dtype=dtype) / params["value_ridge"]
    zeros = jnp.zeros((sizes.boxes, size), dtype)
    return Estimates(zeros, jnp.zeros((sizes.features,), dtype), index, reward, zeros)


def calibration_box(t: jax.Array, calibration: int, boxes: int) -> jax.Array:
    """Which box is opened in calibration period t, as bool ``[A]``: one after the other."""
    return jnp.arange(boxes) == (t - 1 + calibration) % boxes


def while_calibrating(action: Action, t: jax.Array, calibration: int) -> Action:
    """The action, in calibration periods replaced by opening one box in turn."""
    if not calibration or action.order is None or action.threshold is None:
        return action
    box = calibration_box(t, calibration, action.order.shape[0])
    return action._replace(
        order=jnp.where(t <= 0, box.astype(action.order.dtype), action.order),
        threshold=jnp.where(t <= 0, -jnp.inf, action.threshold),
    )


def _optimistic_value(theta, inverse, width, features):
    spread = jnp.sum((features @ inverse) * features, axis=-1)
    return jax.nn.sigmoid(features @ theta + width * jnp.sqrt(jnp.maximum(spread, 0)))


def _act(known, calibration, optimistic):
    def act(model, state, key, t, observation):
        estimates, params = state.estimates, model.params
        psi = index_features(observation.context, estimates.rho.shape[1])
        linear, image = estimates.rho @ psi, times(estimates.index_inverse, psi)
        width = jnp.sqrt(jnp.maximum(image @ psi, 0))
        index = jnp.tanh(linear + params["index_width"] * width)
        value = None
        if not known and optimistic:
            value = Partial(_optimistic_value, estimates.theta, estimates.value_inverse, params["value_width"])
        elif not known:
            value = Partial(lambda theta, features: jax.nn.sigmoid(features @ theta), estimates.theta)
        action = while_calibrating(Action(index, index, value), t, calibration)
        return action, state._replace(estimates=estimates._replace(image=image))

    return act


def probe_contexts(size: int, count: int = 256) -> jax.Array:
    """Contexts ``[count, size]`` at which a learner's indices are recorded, uniform on ``[-1, 1]``, always the same.

    Args:
      size: dx, entries of a context.
      count: how many.
    """
    return jax.random.uniform(jax.random.key(24), (count, size), minval=-1, maxval=1)


def _inspect(model, state, t):
    """Estimated indices ``[256, A]`` at ``probe_contexts``, without the optimism."""
    size, context = state.estimates.rho.shape[1], model.probe
    psi = jax.vmap(lambda x: index_features(x, size))(context)
    return {"index": jnp.tanh(psi @ state.estimates.rho.T)}


def _update_designs(estimates, psi, feedback, known):
    opened = feedback.opened.astype(psi.dtype)
    index_inverse = rank_one_inverse(estimates.index_inverse, estimates.image, psi, opened)
    if known:
        return estimates._replace(index_inverse=index_inverse)
    phi = deployed_features(feedback)
    image = estimates.value_inverse @ phi
    value_inverse = rank_one_inverse(estimates.value_inverse, image, phi, jnp.ones((), psi.dtype))
    return estimates._replace(index_inverse=index_inverse, value_inverse=value_inverse)


@lru_cache
def _refitting(known, calibration, optimistic, until, growth, solver):
    """The learner that goes back over its history; with ``growth=None`` once only, after calibration."""
    once = growth is None

    def setup(params, view, horizon):
        sizes = view.sizes
        rows = calibration + (0 if once else int(horizon))
        start = _start(params, sizes)
        blank = empty_history(rows, start.rho.shape[1], sizes.boxes, sizes.features, known, start.rho.dtype)
        return Model(params, start, blank, probe_contexts(sizes.context))

    def init(model):
        return LearnerState(model.start, model.blank)

    def steps(t, usual):
        return jnp.where(t == 0, max(usual, solver.first_steps), usual) if calibration else usual

    def refit(params, estimates, history, t):
        count = t + calibration
        theta, value = estimates.theta, history.output
        damped = t <= until
        if not known:
            theta = fit_logistic(
                history.deployed,
                history.reward,
                params["value_ridge"],
                theta,
                count=count,
                newton_steps=steps(t, solver.reward_steps),
                halvings=solver.halvings,
                damped=damped,
            )
            value = _values(history.output, theta, estimates.rho.shape[0], count)
        index = fit_index(
            history.psi,
            value,
            history.cost,
            history.opened,
            params["index_ridge"],
            estimates.rho,
            estimates.index_inverse,
            count=count,
            newton_steps=steps(t, solver.index_steps),
            cg_steps=solver.cg_steps,
            halvings=solver.halvings,
            damped=damped,
        )
        return index, theta

    def update(model, state, t, observation, action, feedback):
        estimates, history = state
        psi = index_features(observation.context, estimates.rho.shape[1])
        rows = history.psi.shape[0]
        if not once:
            estimates = _update_designs(estimates, psi, feedback, known)
            history = remember(history, t - 1 + calibration, psi, feedback)
            due = jnp.asarray(refit_rounds(rows - calibration, until, growth))[jnp.maximum(t, 0)] & (t >= 0)
        else:
            # Online periods are neither stored nor learnt from; row 0 is rewritten with itself.
            row = jnp.clip(t - 1 + calibration, 0, rows - 1)
            learns = t <= 0
            estimates = _where(learns, _update_designs(estimates, psi, feedback, known), estimates)
            history = _where(learns, remember(history, row, psi, feedback), history)
            due = t == 0

        def fitted(_):
            return refit(model.params, estimates, history, t)

        def kept(_):
            return estimates.rho, estimates.theta

        index, theta = lax.cond(due, fitted, kept, None)
        return LearnerState(estimates._replace(rho=index, theta=theta), history)

    return Policy(
        setup,
        init,
        _act(known, calibration, optimistic),
        update,
        hidden=HIDDEN,
        inspect=_inspect,
        calibration=calibration,
        static_horizon=not once,
    )


def _where(condition, new, old):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _values(features, theta, boxes, count):
    """``L(theta.phi)`` of every stored output, ``[N, A]``; rows beyond the last are 0."""
    d = theta.shape[0]

    def fill(values, rows, row):
        value = jax.nn.sigmoid(rows.reshape(-1, boxes, d) @ theta)
        return lax.dynamic_update_slice_in_dim(values, value, row, 0)

    return fold_rows(fill, jnp.zeros((features.shape[0], boxes), theta.dtype), features, count)


@lru_cache
def _one_pass(known, calibration, optimistic, until, growth, solver):
    """The learner that takes one online Newton step a period."""
    del until, growth, solver

    def setup(params, view, horizon):
        return Model(params, _start(params, view.sizes), (), probe_contexts(view.sizes.context))

    def init(model):
        start = model.start
        return LearnerState(start, Curvature(start.index_inverse, start.value_inverse))

    def update(model, state, t, observation, action, feedback):
        estimates, curvature = state
        psi = index_features(observation.context, estimates.rho.shape[1])
        estimates = _update_designs(estimates, psi, feedback, known)
        value, theta, reward = feedback.value, estimates.theta, curvature.theta
        if not known:
            phi = deployed_features(feedback)
            mean = jax.nn.sigmoid(phi @ theta)
            weight, image = mean * (1 - mean), reward @ phi
            step = image / (1 + weight * (image @ phi))
            theta = theta - step * (mean - jnp.sum(jnp.where(feedback.deployed, feedback.reward, 0)))
            reward = rank_one_inverse(reward, image, phi, weight)
            value = jax.nn.sigmoid(feedback.features @ theta)
        opened = feedback.opened.astype(psi.dtype)
        level = jnp.tanh(estimates.rho @ psi)
        weight = opened * jnp.maximum(jnp.where(value > level, 1 - level**2, 0), _LEAST_WEIGHT)
        image = times(curvature.rho, psi)
        moment = opened * (feedback.cost - jnp.maximum(value - level, 0))
        scale = moment / (1 + weight * (image @ psi))
        index = estimates.rho - scale[:, None] * image
        curvature = Curvature(rank_one_inverse(curvature.rho, image, psi, weight), reward)
        return LearnerState(estimates._replace(rho=index, theta=theta), curvature)

    return Policy(
        setup,
        init,
        _act(known, calibration, optimistic),
        update,
        hidden=HIDDEN,
        inspect=_inspect,
        calibration=calibration,
    )


class Nothing(NamedTuple):
    """The state of a policy that remembers nothing."""


@lru_cache
def oracle() -> Policy:
    """Weitzman's rule with the true indices and values; for a table, the best net score of every prompt.

    The environment holds the true indices, as it measures regret against them.

    Source: arXiv 2606.07392, Section 3.
    """

    def setup(params, view, horizon):
        return ()

    def act(model, state, key, t, observation):
        return Action(None, None, None), state

    def update(model, state, t, observation, action, feedback):
        return state

    return Policy(setup, lambda model: Nothing(), act, update)
