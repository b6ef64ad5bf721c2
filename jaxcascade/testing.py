"""Checks for policies and environments of your own: run them once in a test, before a study.

``check_policy`` and ``check_environment`` raise AssertionError with one line that names the function at fault,
what was expected and what came. A policy of your own, here for the deferral system, defers a level while its
estimated error probability is above a bound::

    import jax.numpy as jnp
    import jaxcascade as jc

    def act(model, seen, key, t, observation):
        error = 1 - (seen["right"] + 1) / (seen["labels"] + 2)
        arrives = observation.level > 0
        defers = arrives & (error[jnp.maximum(observation.level - 1, 0)] > model["bound"])
        return jc.deferral.Action(defers, 1 - model["bound"]), seen

    def update(model, seen, t, observation, action, feedback):
        count = seen["labels"].at[feedback.level - 1].add(feedback.served)
        return {"labels": count, "right": seen["right"].at[feedback.level - 1].add(feedback.served & feedback.label)}

    mine = jc.Policy(
        setup=lambda params, view, horizon: {"bound": params["bound"], "zeros": jnp.zeros_like(view.score)},
        init=lambda model: {"labels": model["zeros"], "right": model["zeros"]},
        act=act,
        update=update,
        params={"bound": 0.3},
        hidden=("accuracy", "arrival", "service"),
    )
    jc.testing.check_policy(mine, jc.deferral.two_point(num_levels=4, queue_capacity=2))

An environment of your own, a bandit with two arms, and a policy that plays one of them::

    import dataclasses
    import jax
    import jax.numpy as jnp
    import jaxcascade as jc

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Arms:
        mean: jax.Array

    def step(arms, state, action, noise, t):
        reward = (noise < arms.mean)[action]
        return state, reward, {"regret": jnp.max(arms.mean) - arms.mean[action]}

    bandit = jc.Environment(
        setup=lambda arms, horizon: arms,
        noise=lambda key, arms: jax.random.uniform(key, arms.mean.shape),
        init=lambda arms: (),
        observe=lambda arms, state, noise, t: (),
        step=step,
        metrics=(("regret", "sum"),),
    )

    def always(arm):
        act = lambda model, state, key, t, observation: (jnp.int32(arm), state)
        return jc.Policy(lambda params, view, horizon: (), lambda model: (), act, lambda model, state, *_: state)

    arms = Arms(jnp.array([0.4, 0.6]))
    jc.testing.check_environment(bandit, arms, [always(0), always(1)])
    jc.simulate(arms, always(0), environment=bandit, key=jax.random.key(0), num_steps=100, num_seeds=5)
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade._player import _kind, call, expect, plain_environment_round, plain_policy_round, player
from jaxcascade.core import MEAN, NOW, SUM, Environment, Policy, closest, hide, with_float_type
from jaxcascade.simulate import prepare

__all__ = ["check_environment", "check_policy"]

_SEEDS = 2
_POLICY_CALLABLES = (("setup", "init", "act", "update"), ("draw", "audit", "inspect"))
_ENVIRONMENT_CALLABLES = (("setup", "noise", "init", "observe", "step"), ("audit", "overflowed", "grow"))


def check_policy(
    policy: Policy,
    instance: Any,
    *,
    secret: tuple[str, ...] = (),
    undefined: tuple[str, ...] = (),
    num_steps: int = 32,
    seed: int = 0,
    environment: Environment | None = None,
) -> None:
    """Nothing, if the policy keeps to the contract of ``jaxcascade.core`` on this instance; else it raises.

    Checked are: fields and callables; that ``setup`` takes a traced horizon (unless ``static_horizon``); that the
    policy works without its hidden fields and those in ``secret``, and acts the same whatever values these have;
    that its state keeps structure, shapes, dtypes and weak types from round to round, so that it can be scanned;
    that metrics are finite; that a round under ``jit`` and ``vmap`` is the same as by plain calls for one
    seed; that audits hold; that it can be hashed, so that a second study compiles nothing.

    Args:
      policy: the policy.
      instance: an instance to play on, small ones are fast.
      secret: names of fields that the policy must not depend on, beside those that it hides itself.
      undefined: names of metrics that may be nan with this policy, as ``threshold_mean`` is without a threshold.
      num_steps: rounds to play.
      seed: number from which every stream derives.
      environment: the environment, by default the one of the instance's system.

    Raises:
      AssertionError: naming the function or field, what was expected and what came.
      ValueError: if the instance belongs to no system and no environment is given.
    """
    _check_policy_fields(policy, instance, secret)
    environment = environment or prepare(instance, num_steps)
    instance, params = with_float_type(instance), with_float_type(policy.params)
    play = player(environment, policy._replace(params=None), num_steps, _SEEDS)
    view = hide(instance, policy.hidden)
    shapes = play.shapes(instance, view, params, seed)
    _check_carry("policy", "state", shapes.memory, shapes.next_memory)
    open_fields = tuple(name for name in secret if name not in policy.hidden)
    if open_fields:
        _reading(open_fields, lambda: play.shapes(instance, hide(view, open_fields), params, seed))
    rounds, audits, models = play.run(instance, view, params, seed)
    if open_fields:
        other = play.run(instance, _perturbed(view, open_fields), params, seed).rounds
        _expect_same(
            "policy.act",
            f"the same actions whatever the values of {', '.join(open_fields)}",
            rounds.action,
            other.action,
        )
    _check_finite(rounds.metrics, undefined)
    _check_audits(audits)
    _check_plain_round(rounds, "policy", ("action", "next_memory"), partial(plain_policy_round, policy, models[1]))


def check_environment(
    environment: Environment,
    instance: Any,
    policies: Sequence[Policy],
    *,
    exogenous: Callable[[Any, Any, dict[str, Any]], Any] | None = None,
    undefined: tuple[str, ...] = (),
    num_steps: int = 32,
    seed: int = 0,
) -> None:
    """Nothing, if the environment keeps to the contract of ``jaxcascade.core`` on this instance; else it raises.

    Checked are: fields, callables and kinds of metrics; that ``setup`` takes a traced horizon; that the state
    keeps structure, shapes, dtypes and weak types from round to round; that ``step`` gives every metric as a finite
    scalar; that two policies meet the same noise, and what else is ``exogenous``, bit by bit, and that both are
    as before over a longer horizon; that a round under ``jit`` and ``vmap`` is the same as by plain calls for
    one seed; that audits hold; that ``grow`` keeps all but the shapes.

    Args:
      environment: the environment.
      instance: an instance.
      policies: two policies that act differently.
      exogenous: ``(state, observation, metrics) -> pytree`` of a round's values that no policy may influence, say
        ``lambda state, observation, metrics: metrics["arrivals"]``; for randomness that does not come from ``noise``.
      undefined: names of metrics that may be nan.
      num_steps: rounds to play.
      seed: number from which every stream derives.

    Raises:
      AssertionError: naming the function or field, what was expected and what came.
      ValueError: if there are not two policies, or the two act alike, which would show nothing.
    """
    _check_environment_fields(environment)
    if len(policies) != 2:
        raise ValueError(f"policies: expected two that act differently, got {len(policies)}")
    instance = with_float_type(instance)
    met = []
    for policy in policies:
        _check_policy_fields(policy, instance, ())
        play = player(environment, policy._replace(params=None), num_steps, _SEEDS)
        view, params = hide(instance, policy.hidden), with_float_type(policy.params)
        shapes = play.shapes(instance, view, params, seed)
        _check_carry("environment", "state", shapes.state, shapes.next_state)
        _check_metrics(environment, shapes.metrics)
        _check_growth(environment, shapes.state)
        run = play.run(instance, view, params, seed)
        _check_finite(run.rounds.metrics, undefined)
        _check_audits(run.audits)
        met.append(run)
    rounds, others = (run.rounds for run in met)
    if _difference(rounds.action, others.action, 0) is None:
        raise ValueError("policies: expected two that act differently, got the same actions in every round")
    longer = play.run(instance, view, params, seed, 2 * num_steps).rounds
    for found, why in ((others, "whatever the policy does"), (longer, "however long the horizon is")):
        _expect_same("environment.noise", f"the same draws {why}", rounds.noise, found.noise, tolerance=0)
        if exogenous:
            here, there = (exogenous(r.next_state, r.observation, r.metrics) for r in (rounds, found))
            _expect_same("exogenous", f"the same values {why}", here, there, tolerance=0)
    fields = ("noise", "observation", "next_state", "feedback", "metrics")
    plain = partial(plain_environment_round, environment, met[0].models[0])
    _check_plain_round(rounds, "environment", fields, plain)


def _reading(names, trace):
    try:
        trace()
    except AssertionError as error:
        raise AssertionError(f"secret: expected a policy that does not read {', '.join(names)}, got {error}") from error


# ----------------------------------------------------------------------------------------------------------
# The single checks


def _check_callables(what, value, needed, optional):
    for name in (*needed, *optional):
        function = getattr(value, name)
        if function is not None or name in needed:
            expect(callable(function), f"{what}.{name}", "a function", _kind(function))
    try:
        hash(value._replace(params=None) if what == "policy" else value)
    except TypeError as error:
        raise AssertionError(f"{what}: expected fields that can be hashed, got {error}") from error


def _check_policy_fields(policy, instance, secret):
    expect(isinstance(policy, Policy), "policy", "a jaxcascade.Policy", _kind(policy))
    _check_callables("policy", policy, *_POLICY_CALLABLES)
    names = [entry.name for entry in dataclasses.fields(instance)] if dataclasses.is_dataclass(instance) else []
    for what, given in (("policy.hidden", policy.hidden), ("secret", secret)):
        expect(isinstance(given, tuple), what, "a tuple of names", _kind(given))
        for name in given:
            expect(name in names, what, "fields of the instance", f"{name!r}{closest(name, names)}")
    whole = isinstance(policy.calibration, int) and not isinstance(policy.calibration, bool)
    expect(whole and policy.calibration >= 0, "policy.calibration", "a whole number >= 0", repr(policy.calibration))
    for leaf in jax.tree.leaves(policy.params):
        number = isinstance(leaf, (bool, int, float, np.ndarray, np.generic, jax.Array))
        expect(number, "policy.params", "numbers or arrays", f"{_kind(leaf)} {leaf!r}")


def _check_environment_fields(environment):
    expect(isinstance(environment, Environment), "environment", "a jaxcascade.Environment", _kind(environment))
    _check_callables("environment", environment, *_ENVIRONMENT_CALLABLES)
    pairs, kinds = environment.metrics, (SUM, NOW, MEAN)
    what = "environment.metrics"
    expect(
        isinstance(pairs, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs),
        what,
        "a tuple of pairs (name, kind)",
        repr(pairs),
    )
    for name, kind in pairs:
        expect(kind in kinds, f"{what}[{name!r}]", f"one of {', '.join(kinds)}", repr(kind))
    expect(len(dict(pairs)) == len(pairs) > 0, what, "different names, at least one", [name for name, _ in pairs])
    both = (environment.overflowed is None) == (environment.grow is None)
    expect(both, "environment.grow", "grow and overflowed both or neither", "only one of them")


def _check_carry(what, name, before, after):
    """The state has the same structure, shapes, dtypes and weak types before and after a round."""
    trees = [jax.tree.structure(tree) for tree in (before, after)]
    expect(trees[0] == trees[1], f"{what}: {name}", f"{trees[0]} after a round as before", trees[1])
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        place = f"{what}: {name}{jax.tree_util.keystr(path)}"
        expect(_describe(old) == _describe(new), place, f"{_describe(old)} after a round as before", _describe(new))


def _describe(leaf):
    weak = "weak " if getattr(leaf, "weak_type", False) else ""
    return f"{weak}{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _check_metrics(environment, metrics):
    expect(isinstance(metrics, dict), "environment.step", "metrics as a dict", _kind(metrics))
    declared = dict(environment.metrics)
    expect(set(declared) == set(metrics), "environment.step", f"metrics {sorted(declared)}", sorted(metrics))
    for name, value in metrics.items():
        number = value.shape == () and (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool)
        expect(number, f"environment.step: metric {name!r}", "a scalar number", _describe(value))


def _check_growth(environment, state):
    if environment.grow is None or environment.overflowed is None:
        return
    full = jax.eval_shape(environment.overflowed, state)
    expect(_describe(full) == "bool[]", "environment.overflowed", "bool[]", _describe(full))
    grown = jax.eval_shape(environment.grow, state)
    kinds = [[(leaf.dtype, leaf.ndim) for leaf in jax.tree.leaves(tree)] for tree in (state, grown)]
    expect(kinds[0] == kinds[1], "environment.grow", "a state of the same dtypes and ranks", "others")
    larger = jax.tree.leaves(jax.tree.map(lambda old, new: all(map(int.__le__, old.shape, new.shape)), state, grown))
    expect(all(larger), "environment.grow", "no leaf smaller than before", "a smaller one")


def _check_finite(metrics, undefined):
    for name, values in metrics.items():
        values = np.asarray(values)
        bad = ~np.isfinite(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
        if name in undefined:
            bad &= ~np.isnan(values)
        if bad.any():
            seed, place = np.argwhere(bad)[0]
            hint = f"; pass undefined=({name!r},) if it may be" if np.isnan(values[seed, place]) else ""
            raise AssertionError(
                f"metric {name!r}: expected finite numbers, got {values[seed, place]} in played round {place + 1} of"
                f" seed {seed}{hint}"
            )


def _check_audits(audits):
    for name, claim in audits.items():
        value, limit = np.asarray(claim.value), np.asarray(claim.limit)
        expect(bool(np.all(value <= limit)), f"audit {name!r}", f"at most {limit.min():.3g}", f"{value.max():.3g}")


def _perturbed(view, names):
    """The view with other values in the named fields, whose order is reversed."""

    def change(leaf):
        return 0.9 - leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else jnp.flip(leaf)

    return dataclasses.replace(view, **{name: jax.tree.map(change, getattr(view, name)) for name in names})


def _check_plain_round(rounds, what, fields, plain):
    """The last round of seed 0, called without jit and vmap on what came before it, agrees with the played one."""
    last = jax.tree.map(lambda leaf: leaf[0, -1], rounds)
    expected = tuple(getattr(last, field) for field in fields)
    with jax.disable_jit():
        found = call(f"{what} without jit", plain, last)
    if _difference(expected, found) is None:
        return
    # Either transformation may be at fault: the round under jit alone tells which.
    alone = jax.jit(plain)(last)
    at_fault = "jit" if _difference(alone, found) is not None else "vmap over seeds"
    compared = (alone if at_fault == "jit" else expected, found)
    for field, here, there in zip(fields, *compared, strict=True):
        _expect_same(f"{what}: {field}", f"the same with and without {at_fault}", there, here)


def _expect_same(what, expected, first, second, tolerance=None):
    difference = _difference(first, second, tolerance)
    if difference is not None:
        raise AssertionError(f"{what}: expected {expected}, got {difference}")


def _difference(first, second, tolerance=None):
    """None if the leaves agree, else the first two values that do not, as text.

    Numbers of another program may differ by rounding, which grows in solvers: the square root of the float
    type's resolution is allowed, relative to the leaf's largest value.
    """
    leaves = [_leaves_by_name(tree) for tree in (first, second)]
    if len(leaves[0]) != len(leaves[1]):
        return f"{len(leaves[0])} and {len(leaves[1])} leaves"
    for (name, a), (_, b) in zip(*leaves, strict=True):
        if a.shape != b.shape:
            return f"shapes {a.shape} and {b.shape}{name}"
        if a.dtype.kind == "f":
            room = np.sqrt(np.finfo(a.dtype).eps) if tolerance is None else tolerance
            size = np.max(np.abs(a), initial=0, where=np.isfinite(a))
            apart = ~np.isclose(a, b, rtol=0, atol=room * size, equal_nan=True)
        else:
            apart = a != b
        if np.any(apart):
            return f"{a[apart].flat[0]} and {b[apart].flat[0]}{name}"
    return None


def _leaves_by_name(tree):
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found.append((f" in {jax.tree_util.keystr(path)}", np.asarray(leaf)))
    return found
