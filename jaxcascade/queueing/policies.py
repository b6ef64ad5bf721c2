"""Policies of the queueing system that ignore contexts: random ones, bandits for queues, and the optimal one."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.core import Policy
from jaxcascade.kernels import best_assortment
from jaxcascade.kernels.beta_draw import BETA_TRIES, beta_draw
from jaxcascade.queueing.choices import anyone, draw, oldest, pick_rule
from jaxcascade.queueing.instance import HIDDEN
from jaxcascade.queueing.rounds import Action

_EXPLORATION = 3


class Nothing(NamedTuple):
    """The state of a policy that remembers nothing."""


def _stateless(decide, hidden, draw=None):
    """A policy without memory from ``decide(view, draws, t, observation) -> Action``."""

    def act(view, state, draws, t, observation):
        return decide(view, draws, t, observation), state

    def update(view, state, t, observation, action, feedback):
        return state

    return Policy(lambda params, view, horizon: view, lambda view: Nothing(), act, update, draw, hidden=hidden)


def _draw(view, key):
    return draw(key, view.num_llms)


@lru_cache
def optimal() -> Policy:
    """The optimal policy: the waiting query and assortment of greatest true departure rate; ties to the oldest.

    Source: arXiv 2602.02061, Appendix B.3.
    """
    # The environment knows theta, which may be drawn per seed, and serves the best where the action is left open.
    return _stateless(lambda *_: Action(None, None), ())


@lru_cache
def rand() -> Policy:
    """RAND: a waiting query and an assortment, both uniformly at random.

    Source: arXiv 2602.02061, Appendix B.3.
    """
    return _stateless(_random(anyone), HIDDEN, _draw)


@lru_cache
def rand_rout() -> Policy:
    """RAND_ROUT: the oldest query with a random assortment.

    Source: arXiv 2602.02061, Appendix B.3.
    """
    return _stateless(_random(oldest), HIDDEN, _draw)


def fixed_routing(scheduling: str = "fifo") -> Policy:
    """A scheduling rule alone: always the first K LLMs, for the query that the rule picks.

    Args:
      scheduling: "fifo", "lifo", "round_robin" (at random among the least served), "random", or "sjf" (the shortest
        answer first, in a replay), static.

    Raises:
      ValueError: if there is no such rule; names the closest.

    Source: arXiv 2602.02061, Section 5.3.
    """
    return _fixed(pick_rule("scheduling", scheduling, ()))


@lru_cache
def _fixed(pick):
    def decide(view, draws, t, observation):
        return Action(pick(observation, draws.word), jnp.arange(view.assortment_size, dtype=jnp.int32))

    return _stateless(decide, HIDDEN, _draw)


def _random(pick):
    def decide(view, draws, t, observation):
        return Action(pick(observation, draws.word), best_assortment(draws.servers, view.assortment_size))

    return decide


class Accepted(NamedTuple):
    """Counts per LLM, each ``[N]`` int32: how often ``offered``, how often ``accepted``."""

    offered: jax.Array
    accepted: jax.Array


@lru_cache
def q_ucb() -> Policy:
    """Q-UCB, for K = 1: first in first out, each LLM an arm with one departure rate.

    Explores a random LLM with probability ``min(1, 3 N log(t)^2 / t)``; else the greatest
    ``mean_j + sqrt(log(t)^2 / (2 n_j))``, infinite without an offer.

    Source: arXiv 2602.02061, Appendix B.3, after Krishnasamy et al. (2021), Algorithm 1.
    """

    def index(state, log_t, extra):
        bonus = log_t / jnp.sqrt(2.0 * jnp.maximum(state.offered, 1))
        return jnp.where(state.offered > 0, state.accepted / jnp.maximum(state.offered, 1) + bonus, jnp.inf)

    return _arms(index, lambda view, key: ())


@lru_cache
def q_ths() -> Policy:
    """Q-ThS, for K = 1: as ``q_ucb`` with the greatest of ``Beta(accepted_j + 1, rejected_j + 1)`` draws.

    Source: arXiv 2602.02061, Appendix B.3, after Krishnasamy et al. (2021), Algorithm 2.
    """

    def tries(view, key):
        shape = (BETA_TRIES, 2, view.num_llms)
        return jax.random.normal(key, shape), jax.random.uniform(jax.random.fold_in(key, 1), shape)

    def index(state, log_t, extra):
        return beta_draw(state.accepted + 1.0, state.offered - state.accepted + 1.0, *extra)

    return _arms(index, tries)


def _arms(index, draw_extra):
    def setup(params, view, horizon):
        if view.assortment_size != 1:
            raise ValueError(f"assortment_size: expected 1 for this policy, got {view.assortment_size}")
        return view

    def init(view):
        zeros = jnp.zeros((view.num_llms,), jnp.int32)
        return Accepted(zeros, zeros)

    def draw_all(view, key):
        return _draw(view, key), draw_extra(view, jax.random.fold_in(key, 1))

    def act(view, state, random_numbers, t, observation):
        draws, extra = random_numbers
        log_t = jnp.log(t.astype(float))
        explores = draws.explore < _EXPLORATION * view.num_llms * log_t**2 / t
        value = jnp.where(explores, draws.servers, index(state, log_t, extra))
        return Action(oldest(observation, draws.word), best_assortment(value, 1)), state

    def update(view, state, t, observation, action, feedback):
        here = (feedback.servers[0] == jnp.arange(view.num_llms)) & feedback.served
        accepted = (here & feedback.chosen[0]).astype(jnp.int32)
        return Accepted(state.offered + here.astype(jnp.int32), state.accepted + accepted)

    return Policy(setup, init, act, update, draw_all, hidden=HIDDEN)
