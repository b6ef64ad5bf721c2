"""What several tests of the deferral system need: a vectorised plain-value induction, and runs on given noise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcascade.core import Audit, hide
from jaxcascade.deferral.environment import Model
from jaxcascade.kernels import drain_cost
from tests.reference import deferral_numpy as reference

# An expert who is always there, one hardly ever, one who may serve several at once.
SERVICE = {
    "always": (0.0, 1.0),
    "seldom": (0.95, 0.05),
    "several": (0.35, 0.3, 0.25, 0.1),
}


def service_law(name, capacity):
    """``[C+1]`` one of the laws; "longer" can serve more at once than ever wait."""
    if name != "longer":
        return np.array(SERVICE[name])
    weights = 1 / (1 + np.arange(capacity + 4.0))
    return weights / weights.sum()


class Problems(NamedTuple):
    """Admission problems in float64, one a row: the fields of the kernel's ``Admission`` with a leading axis R."""

    loss: np.ndarray
    arrival: np.ndarray
    service: np.ndarray
    cost_expert: np.ndarray
    cost_holding: np.ndarray

    @classmethod
    def of(cls, admission):
        """The numbers of a batch of ``Admission`` exactly as the kernel has them."""
        return cls(*(np.asarray(entry, np.float64) for entry in admission))

    def rows(self, chosen):
        return Problems(*(entry[chosen] for entry in self))


def _start(problems, capacity):
    """Service matrices ``[R, B+1, B+1]`` and drain costs ``[R, B+1]``, from the scalar reference."""
    laws, which = np.unique(problems.service, axis=0, return_inverse=True)
    matrix = np.stack([reference.service_matrix(law, capacity) for law in laws])[which]
    unit = np.stack([reference.drain_cost(law, 1.0, capacity) for law in laws])[which]
    return matrix, problems.cost_holding[:, None] * unit


def _step(problems, matrix, value):
    """``(U_t, M_t)`` from ``U_{t+1}``: the reference's step, on values, for all problems at once."""
    after = (matrix @ value[:, :, None])[:, :, 0]
    marginal = problems.cost_expert[:, None] + np.diff(after, axis=1)
    new = problems.cost_holding[:, None] * np.arange(value.shape[1]) + after
    for j in range(problems.loss.shape[1]):
        loss = problems.loss[:, j, None]
        new[:, :-1] += problems.arrival[:, j, None] * np.minimum(loss, marginal)
        new[:, -1:] += problems.arrival[:, j, None] * loss
    return new, marginal


def cost_tables(problems, capacity, rounds):
    """Marginal costs ``[R, rounds, B]``; entry n has n rounds left after it."""
    matrix, value = _start(problems, capacity)
    table = np.empty((len(value), rounds, capacity))
    for n in range(rounds):
        value, table[:, n] = _step(problems, matrix, value)
    return table


def costs_with_rounds_left(problems, left, capacity):
    """Marginal costs ``[R, B]`` of problem r with ``left[r]`` rounds left: one induction for each problem."""
    left = np.asarray(left)
    found = np.full((len(left), capacity), np.nan)
    matrix, value = _start(problems, capacity)
    rows = np.arange(len(left))
    for n in range(left.max() + 1):
        value, marginal = _step(problems, matrix, value)
        found[rows[left[rows] == n]] = marginal[left[rows] == n]
        if n % 16 == 0:  # what is done need not be carried on
            going = left[rows] > n
            rows, problems, matrix, value = rows[going], problems.rows(going), matrix[going], value[going]
    return found


def bare(environment):
    """The environment with no table behind its regret, which is then meaningless; compiles faster."""

    def setup(instance, horizon):
        dtype = instance.accuracy.dtype
        capacity = instance.queue_capacity
        drain = drain_cost(instance.service, instance.cost_holding, capacity)
        nothing = Audit(jnp.zeros((), dtype), jnp.zeros((), dtype))
        return Model(instance, jnp.zeros((2, capacity + 1), dtype), drain, horizon, nothing)

    return environment._replace(setup=setup)


def play(environment, policy, instance, model, noise, keys, view=None, tap=None):
    """One run on given noise: what the environment reports in every round, ``[T]`` each, by the functions themselves.

    Args:
      environment: the environment.
      policy: the policy.
      instance: the instance.
      model: the environment's model of it.
      noise: the noise of rounds 1..T, ``[T]`` each.
      keys: ``[T]`` keys of the policy's draws.
      view: what the policy is told, by default the instance without the fields it must not see.
      tap: called after each ``act``, while tracing; what it returns is added to the report as "tap".
    """
    horizon = keys.shape[0]
    view = hide(instance, policy.hidden) if view is None else view
    planned = policy.setup(policy.params, view, jnp.int32(horizon))

    def one_round(carry, inputs):
        state, memory = carry
        t, noise, key = inputs
        observation = environment.observe(model, state, noise, t)
        action, memory = policy.act(planned, memory, key, t, observation)
        tapped = tap() if tap else None
        state, feedback, metrics = environment.step(model, state, action, noise, t)
        memory = policy.update(planned, memory, t, observation, action, feedback)
        return (state, memory), {**metrics, "queue": observation.queue_length, "tap": tapped}

    start = (environment.init(model), policy.init(planned))
    rounds = jnp.arange(1, horizon + 1, dtype=jnp.int32)
    return jax.lax.scan(one_round, start, (rounds, noise, keys))[1]


def draw_noise(instance, horizon, rng):
    """Noise of the reference's kind, for an instance as a dict of arrays."""
    level = rng.choice(len(instance["arrival"]), size=horizon, p=instance["arrival"])
    right = np.concatenate([[1.0], instance["accuracy"]])[level]
    return {
        "level": level.astype(np.int32),
        "label": rng.random(horizon) < right,
        "capacity": rng.choice(len(instance["service"]), size=horizon, p=instance["service"]).astype(np.int32),
    }
