"""The contract between decision systems, policies and the runner, and the registry of systems.

An environment and a policy are NamedTuples of pure functions over pytrees. The runner calls, for every
seed and every round t = 1..T::

    noise            = environment.noise(fold_in(environment_key, t), environment_model)
    draws            = policy.draw(policy_model, fold_in(policy_key, t))
    observation      = environment.observe(environment_model, state, noise, t)
    action, memory   = policy.act(policy_model, memory, draws, t, observation)
    state, feedback, metrics = environment.step(environment_model, state, action, noise, t)
    memory           = policy.update(policy_model, memory, t, observation, action, feedback)

The noise never sees the policy, so all policies of a study meet the same draws; noise and draws are made for
several rounds ahead. A policy without ``draw`` gets the key itself. A model is what is
computed once per instance and shared by all seeds (an oracle's table, a tuned threshold). ``setup`` gets
the horizon as a traced integer, so another horizon does not compile again.
"""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

SUM, NOW, MEAN = "sum", "now", "mean"


class Audit(NamedTuple):
    """A claim of a policy or environment about its own numbers: ``value <= limit`` must hold.

    Attributes:
      value: ``[]`` what was measured during the run.
      limit: ``[]`` the most it may be.
    """

    value: jax.Array
    limit: jax.Array


class Environment(NamedTuple):
    """A decision system as pure functions.

    Attributes:
      setup: ``(instance, horizon) -> model``, once per instance.
      noise: ``(key, model) -> noise``, every random draw of one round.
      init: ``(model) -> state`` before round 1.
      observe: ``(model, state, noise, t) -> observation``, what the policy may see.
      step: ``(model, state, action, noise, t) -> (state, feedback, metrics)``; metrics is a dict of scalars.
      metrics: name -> "sum" (cumulative), "mean" (time average) or "now" (the last round's value), as pairs.
      audit: ``(model) -> {name: Audit}`` or None.
      overflowed: ``(state) -> []`` bool, True once a buffer of the state was too small, or None.
      grow: ``(state) -> state`` with buffers of twice the size and the same content; the runner then repeats
        the rounds since the last stop, on the same noise.
    """

    setup: Callable[..., Any]
    noise: Callable[..., Any]
    init: Callable[..., Any]
    observe: Callable[..., Any]
    step: Callable[..., Any]
    metrics: tuple[tuple[str, str], ...]
    audit: Callable[..., dict[str, Audit]] | None = None
    overflowed: Callable[..., jax.Array] | None = None
    grow: Callable[..., Any] | None = None


class Policy(NamedTuple):
    """A decision rule as pure functions; made by the factories of a system, for instance ``kl_pbd()``.

    Attributes:
      setup: ``(params, view, horizon) -> model``; ``view`` is the instance without the fields in ``hidden``.
      init: ``(model) -> state`` before round 1.
      act: ``(model, state, draws, t, observation) -> (action, state)``; ``draws`` is the round's own key, or
        what ``draw`` made of it.
      update: ``(model, state, t, observation, action, feedback) -> state``.
      draw: ``(model, key) -> draws``, the random numbers of a round, or None. Drawn for many rounds at once they
        cost a fraction of what they cost inside ``act``.
      params: pytree of numeric hyper-parameters; a sweep gives its leaves a leading axis.
      hidden: names of the instance's fields that the policy is not told.
      audit: ``(model, state) -> {name: Audit}`` or None.
      inspect: ``(model, state, t) -> {name: array}``, the rule in force after round t, or None.
      calibration: T0, rounds ``1-T0..0`` that the policy plays before round 1 with no metric counted.
      static_horizon: True if ``setup`` needs the horizon as a Python integer, to size buffers.
    """

    setup: Callable[..., Any]
    init: Callable[..., Any]
    act: Callable[..., Any]
    update: Callable[..., Any]
    draw: Callable[..., Any] | None = None
    params: Any = ()
    hidden: tuple[str, ...] = ()
    audit: Callable[..., dict[str, Audit]] | None = None
    inspect: Callable[..., dict[str, jax.Array]] | None = None
    calibration: int = 0
    static_horizon: bool = False


class System(NamedTuple):
    """What the registry knows of a decision system.

    Attributes:
      name: its name in files and configurations.
      instance_type: the dataclass of its instances.
      environment: ``(instance, horizon) -> Environment``; sizes static buffers from concrete values.
      validate: ``(instance) -> None``, raises ValueError on impossible numbers.
      from_arrays: ``(name -> array) -> instance``, from the arrays of an instance file.
      builders: name -> function that makes an instance.
      policies: name -> factory of a policy.
      ratios: derived metric -> (numerator, denominator), denominator a metric or "rounds".
      labels: metric -> axis label with its unit.
    """

    name: str
    instance_type: type
    environment: Callable[..., Environment]
    validate: Callable[[Any], None]
    from_arrays: Callable[[dict[str, Any]], Any]
    builders: Mapping[str, Callable[..., Any]]
    policies: Mapping[str, Callable[..., Policy]]
    ratios: Mapping[str, tuple[str, str]]
    labels: Mapping[str, str]


_SYSTEMS: dict[str, System] = {}


def register_system(system: System) -> System:
    """Enter a system into the registry and return it.

    Raises:
      ValueError: if another system has its name.
    """
    if _SYSTEMS.get(system.name, system) is not system:
        raise ValueError(f"system: the name {system.name!r} is taken")
    _SYSTEMS[system.name] = system
    return system


def systems() -> Mapping[str, System]:
    """All registered systems by name."""
    return dict(_SYSTEMS)


def get_system(name: str) -> System:
    """The system registered under ``name``.

    Raises:
      ValueError: if there is none; names the closest.
    """
    return choose("system", name, _SYSTEMS)


def system_of(instance: Any) -> System:
    """The system whose instances are of this type.

    Raises:
      ValueError: if no registered system has such instances.
    """
    for system in _SYSTEMS.values():
        if isinstance(instance, system.instance_type):
            return system
    kinds = ", ".join(f"{s.name}.{s.instance_type.__name__}" for s in _SYSTEMS.values())
    raise ValueError(f"instance: expected one of {kinds}, got {type(instance).__name__}")


def choose(what: str, name: str, options: Mapping[str, Any]) -> Any:
    """``options[name]``.

    Raises:
      ValueError: if it is not there; one line with the closest name and all names.
    """
    if name in options:
        return options[name]
    raise ValueError(f"{what}: expected {one_of(options)}, got {name!r}{closest(name, options)}")


def one_of(options: Iterable[str]) -> str:
    """The names as ``one of a, b, c``."""
    return "one of " + ", ".join(sorted(options))


def closest(name: str, options: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the closest of the names, or an empty string."""
    match = difflib.get_close_matches(str(name), list(options), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def hide(instance: Any, names: tuple[str, ...]) -> Any:
    """The instance with the named fields replaced by None, so that a policy that reads them cannot compile."""
    return dataclasses.replace(instance, **dict.fromkeys(names)) if names else instance


def with_float_type(tree: Any) -> Any:
    """The pytree with every floating leaf in JAX's default float type and every integer leaf in int32."""

    def convert(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jnp.floating):
            return array.astype(jnp.result_type(float))
        return array.astype(jnp.int32) if jnp.issubdtype(array.dtype, jnp.integer) else array

    return jax.tree.map(convert, tree)


def is_concrete(tree: Any) -> bool:
    """True if no leaf of the pytree is a tracer, so that its numbers can be checked."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
