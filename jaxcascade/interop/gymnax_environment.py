"""The adapter to gymnax; importing it needs gymnax."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment as gymnax
from gymnax.environments import spaces

from jaxcascade.core import Environment, with_float_type
from jaxcascade.interop.interfaces import Interface
from jaxcascade.simulate import prepare


@struct.dataclass
class Params(gymnax.EnvParams):
    """What an episode is played with: ``model``, made by the environment of an instance and the horizon."""

    model: Any = None


class EpisodeState(NamedTuple):
    """An episode: rounds played, the key of its noise, the environment's state and the noise of the next round."""

    time: jax.Array
    key: jax.Array
    state: Any
    noise: Any


class GymnaxEnvironment(gymnax.Environment):
    """A world of jaxcascade in gymnax's interface; see ``jaxcascade.interop.to_gymnax``."""

    def __init__(self, instance: Any, num_steps: int, interface: Interface, environment: Environment | None = None):
        self.num_steps, self.interface = num_steps, interface
        self.environment = environment or prepare(instance, num_steps)
        self._instance = with_float_type(instance)
        self._default_params = self.params_of(instance)

    @property
    def default_params(self) -> Params:
        return self._default_params

    def params_of(self, instance: Any) -> Params:
        """Params of an episode on the instance, whose shapes and static fields are those of the environment's own."""
        model = jax.jit(self.environment.setup)(with_float_type(instance), self.num_steps)
        return Params(max_steps_in_episode=self.num_steps, model=model)

    @property
    def num_actions(self) -> int:
        space = self.interface.action_space(self._instance)
        return space if isinstance(space, int) else space.shape[0]

    def action_space(self, params: Any = None) -> spaces.Space:
        return _space(self.interface.action_space(self._instance))

    def observation_space(self, params: Any = None) -> spaces.Space:
        return _space(self.interface.observation_space(self._instance))

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, EpisodeState]:
        state = self._before(jnp.int32(0), key, self.environment.init(params.model), params)
        return self.observe(key, state, None, params), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any):
        # The key of the step goes unused: an episode's noise depends on its own key and the round alone.
        t = state.time + 1
        seen = self.environment.observe(params.model, state.state, state.noise, t)
        decision = self.interface.action(params.model, seen, action)
        after, _, metrics = self.environment.step(params.model, state.state, decision, state.noise, t)
        following = self._before(t, state.key, after, params)
        # gymnax's wrappers and spaces know float32 only, whatever JAX's default is.
        reward = self.interface.reward(metrics).astype(jnp.float32)
        observation = self.observe(key, following, action, params)
        return observation, following, reward, self.is_terminated(following, params), {"metrics": metrics}

    def observe(self, key: Any, state: Any, action: Any, params: Any) -> jax.Array:
        seen = self.environment.observe(params.model, state.state, state.noise, state.time + 1)
        return self.interface.observation(params.model, seen).astype(jnp.float32)

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        late = state.time >= params.max_steps_in_episode
        return late if self.environment.overflowed is None else late | self.environment.overflowed(state.state)

    def is_terminated(self, state: Any, params: Any) -> jax.Array:
        return jnp.zeros((), bool)

    def _before(self, time, key, state, params):
        """The episode after ``time`` rounds, with the noise of the next one."""
        return EpisodeState(time, key, state, self.environment.noise(jax.random.fold_in(key, time + 1), params.model))


def _space(given):
    if isinstance(given, int):
        return spaces.Discrete(given)
    return spaces.Box(given.low, given.high, given.shape)
