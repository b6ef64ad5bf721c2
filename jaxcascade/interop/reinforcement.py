"""Environments in the interface of gymnax, for reinforcement learners written for it."""

from typing import TYPE_CHECKING, Any

from jaxcascade.core import Environment, system_of
from jaxcascade.interop.interfaces import INTERFACES, Interface

if TYPE_CHECKING:
    from jaxcascade.interop.gymnax_environment import GymnaxEnvironment


def to_gymnax(
    instance: Any,
    num_steps: int,
    *,
    interface: Interface | None = None,
    environment: Environment | None = None,
) -> "GymnaxEnvironment":
    """The instance's world as a gymnax environment; an episode is a run of ``num_steps`` rounds, cut off there.

    ``reset(key, params) -> (observation, state)`` and ``step(key, state, action, params) -> (observation, state,
    reward, terminated, truncated, info)``, as of gymnax 1.0 (``gymnax.wrappers.LegacyStepAPIWrapper`` has the older
    form). ``info["metrics"]`` holds the round's metrics. Params hold what the environment computed of the instance:
    ``params_of(instance)`` makes those of another one of the same shapes, and a batch of them goes through ``vmap``.

    An episode's noise depends on the key of its ``reset`` and the round alone: agents that start from the same
    keys meet the same arrivals, and those of ``jaxcascade.compare`` where the keys are ``seed_keys`` of its seed.
    An episode is cut off early where a queue outgrows its buffer; ``environment`` can have a larger one.

    Args:
      instance: an instance of a registered system, or of your own.
      num_steps: rounds of an episode.
      interface: observations, actions and reward, by default the system's, e.g. ``deferral_interface()``;
        ``interface._replace(reward=lambda metrics: -metrics["regret"])`` has another reward.
      environment: the environment, by default the one of the instance's system.

    Raises:
      ImportError: if gymnax is not installed.
      ValueError: on an instance with impossible numbers, or of no known system without ``interface`` and
        ``environment``.
    """
    try:
        from jaxcascade.interop.gymnax_environment import GymnaxEnvironment
    except ImportError as error:
        raise ImportError("to_gymnax needs gymnax: pip install 'jaxcascade[gymnax]'") from error
    return GymnaxEnvironment(instance, num_steps, interface or INTERFACES[system_of(instance).name](), environment)
