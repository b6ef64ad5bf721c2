"""What every learner of the deferral system counts: arrivals, labels received, and right ones among them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxcascade.deferral.environment import Feedback


class Labels(NamedTuple):
    """Counts per level, each ``[K]`` int32: ``received`` N, ``right`` C, ``arrived`` O."""

    received: jax.Array
    right: jax.Array
    arrived: jax.Array


def no_labels(num_levels: int) -> Labels:
    """Counts before round 1, all zero."""
    zeros = jnp.zeros((num_levels,), jnp.int32)
    return Labels(zeros, zeros, zeros)


def count_arrival(labels: Labels, level: jax.Array) -> Labels:
    """The counts with the arrival of ``level`` (0 = none) added."""
    here = jnp.arange(1, labels.arrived.shape[0] + 1) == level
    return labels._replace(arrived=labels.arrived + here.astype(jnp.int32))


def count_labels(labels: Labels, feedback: Feedback) -> Labels:
    """The counts with the labels revealed at the end of a round added."""
    # One-hot sums: scatters are slow on GPU in some versions and gain nothing at these sizes.
    here = feedback.served[:, None] & (feedback.level[:, None] == jnp.arange(1, labels.received.shape[0] + 1))
    received = labels.received + jnp.sum(here, axis=0, dtype=jnp.int32)
    right = labels.right + jnp.sum(here & feedback.label[:, None], axis=0, dtype=jnp.int32)
    return labels._replace(received=received, right=right)


def empirical_mean(labels: Labels) -> jax.Array:
    """Share of right labels per level, ``[K]``; 0 where there is no label."""
    # A quotient of two int32 is float32 even in float64 mode.
    return labels.right.astype(float) / jnp.maximum(labels.received, 1)
