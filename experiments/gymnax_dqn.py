"""Train a deep Q-network on the deferral system through gymnax, and compare it with the package's own policies.

    python experiments/gymnax_dqn.py [--updates 3000]

Double Q-learning with a target network and a ring of past transitions, on many episodes at once. The agent is told
each round's cost, also where it accepts, and so learns from more than the policies of the study do; it takes its place
in the study as a policy of its own, on the same arrivals and labels.
"""

import argparse
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import jaxcascade as jc
from jaxcascade import interop

EPISODES, RING, BATCH = 32, 512, 256
DISCOUNT, LEARNING_RATE, TARGET_RATE = 0.97, 1e-3, 0.01
HIDDEN_UNITS = 32
OPTIMISER = optax.adam(LEARNING_RATE)


def small_instance():
    """Four levels, from mostly wrong to mostly right, before an expert who is slower than the queries come."""
    return jc.deferral.make_instance(
        [0.15, 0.4, 0.7, 0.95],
        [0.1, 0.25, 0.2, 0.2, 0.25],
        service_rate=0.4,
        cost_expert=0.15,
        cost_holding=0.05,
        queue_capacity=5,
    )


class Transition(NamedTuple):
    """One round of every episode, leaves ``[EPISODES, ...]``; in the ring ``[RING, EPISODES, ...]``."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    following: jax.Array


class Learner(NamedTuple):
    """The network and its target, the optimiser's state, the ring, and where the episodes are."""

    network: list
    target: list
    optimiser: optax.OptState
    ring: Transition
    episodes: tuple


def init_network(key, sizes):
    """Weights and biases of a perceptron, a pair per layer."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (i, o)) * jnp.sqrt(2 / i), jnp.zeros((o,))) for k, i, o in shapes]


def values(network, observation):
    """The network's value of each action, ``[..., actions]``."""
    *hidden, (weight, bias) = network
    for w, b in hidden:
        observation = jax.nn.relu(observation @ w + b)
    return observation @ weight + bias


def loss(network, target, batch):
    """Mean squared error of double Q-learning on a batch of transitions."""
    value = jnp.take_along_axis(values(network, batch.observation), batch.action[:, None], 1)[:, 0]
    choice = jnp.argmax(values(network, batch.following), axis=1)
    following = jnp.take_along_axis(values(target, batch.following), choice[:, None], 1)[:, 0]
    # Episodes end by being cut off, never by themselves: what would follow counts.
    return jnp.mean(optax.l2_loss(value, jax.lax.stop_gradient(batch.reward + DISCOUNT * following)))


@partial(jax.jit, static_argnames=("environment", "updates"))
def train(environment, params, key, updates):
    """Network after ``updates`` rounds of all episodes with one gradient step each, and the mean reward of each."""
    step = jax.vmap(environment.step, in_axes=(0, 0, 0, None))
    num_actions = environment.action_space(params).n

    def update(learner, t):
        explore, choose, move, sample = jax.random.split(jax.random.fold_in(key, t), 4)
        observation, state = learner.episodes
        rate = jnp.maximum(0.05, 1 - 2 * t / updates)
        greedy = jnp.argmax(values(learner.network, observation), axis=1)
        other = jax.random.randint(choose, (EPISODES,), 0, num_actions)
        action = jnp.where(jax.random.uniform(explore, (EPISODES,)) < rate, other, greedy)
        after, state, reward, _, _, info = step(jax.random.split(move, EPISODES), state, action, params)
        new = Transition(observation, action, reward, info["final_observation"])
        ring = jax.tree.map(lambda old, row: old.at[t % RING].set(row), learner.ring, new)
        places = jax.random.randint(sample, (2, BATCH), 0, jnp.array([[jnp.minimum(t + 1, RING)], [EPISODES]]))
        batch = jax.tree.map(lambda leaf: leaf[places[0], places[1]], ring)
        slope = jax.grad(loss)(learner.network, learner.target, batch)
        changes, optimiser = OPTIMISER.update(slope, learner.optimiser)
        network = optax.apply_updates(learner.network, changes)
        target = optax.incremental_update(network, learner.target, TARGET_RATE)
        return Learner(network, target, optimiser, ring, (after, state)), jnp.mean(reward)

    start_key, network_key = jax.random.split(jax.random.fold_in(key, updates))
    episodes = jax.vmap(environment.reset, in_axes=(0, None))(jax.random.split(start_key, EPISODES), params)
    size = episodes[0].shape[1]
    network = init_network(network_key, (size, HIDDEN_UNITS, HIDDEN_UNITS, num_actions))
    one = Transition(episodes[0], jnp.zeros((EPISODES,), int), jnp.zeros((EPISODES,)), episodes[0])
    ring = jax.tree.map(lambda leaf: jnp.zeros((RING, *leaf.shape), leaf.dtype), one)
    learner = Learner(network, network, OPTIMISER.init(network), ring, episodes)
    learner, rewards = jax.lax.scan(update, learner, jnp.arange(updates))
    return learner.network, rewards


def q_policy(network, interface):
    """The greedy policy of a network, for ``jaxcascade.compare``."""

    class Seen(NamedTuple):
        instance: object

    def act(model, state, key, t, observation):
        view, network = model
        seen = interface.observation(Seen(view), observation)
        return interface.action(Seen(view), observation, jnp.argmax(values(network, seen))), state

    return jc.Policy(
        setup=lambda params, view, horizon: (view, params),
        init=lambda model: (),
        act=act,
        update=lambda model, state, *_: state,
        params=network,
        hidden=("accuracy", "arrival", "service"),
    )


def study(updates=3000, num_steps=500, num_seeds=100, seed=0):
    """The study of the trained network beside the package's policies, and the rewards while it was trained."""
    instance = small_instance()
    environment = interop.to_gymnax(instance, num_steps)
    network, rewards = train(environment, environment.default_params, jax.random.key(seed), updates)
    policies = {
        "dqn": q_policy(network, environment.interface),
        "accept-all": jc.deferral.accept_all(),
        "oracle": jc.deferral.oracle(),
    }
    return jc.compare(instance, policies, num_steps=num_steps, num_seeds=num_seeds, seed=seed + 1, record=1), rewards


def main():
    """Train, compare and print the costs per round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=3000, help="rounds of all episodes, a gradient step each")
    found, rewards = study(parser.parse_args().updates)
    print(f"reward a round: {rewards[:100].mean():.3f} at first, {rewards[-100:].mean():.3f} in the end")
    for name in found.policies:
        cost, gap = found.final(name, "cost") / found.steps[-1], found.paired(name, "accept-all", "cost")
        print(
            f"{name:12s} cost a round {cost.mean():.4f}, in all {gap.mean[-1]:+.2f} +- {gap.ci95[-1]:.2f} to accept-all"
        )


if __name__ == "__main__":
    main()
