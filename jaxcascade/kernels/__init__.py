"""Pure, jit-compatible mathematics that knows no decision system; usable alone inside other JAX code."""

from jaxcascade.kernels.bellman import (
    Admission,
    FixedPoint,
    backward_induction,
    bellman_fixed_point,
    bellman_sweep,
    drain_cost,
    drain_increments,
    expected_increment,
    marginal_cost,
    marginal_cost_table,
    settle,
)
from jaxcascade.kernels.bernoulli_kl import bernoulli_kl, kl_lower_bound, kl_upper_bound
from jaxcascade.kernels.fifo import Fifo, fifo_init, fifo_pop, fifo_push

__all__ = [
    "Admission",
    "Fifo",
    "FixedPoint",
    "backward_induction",
    "bellman_fixed_point",
    "bellman_sweep",
    "bernoulli_kl",
    "drain_cost",
    "drain_increments",
    "expected_increment",
    "fifo_init",
    "fifo_pop",
    "fifo_push",
    "kl_lower_bound",
    "kl_upper_bound",
    "marginal_cost",
    "marginal_cost_table",
    "settle",
]
