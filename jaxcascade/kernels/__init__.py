"""Pure, jit-compatible mathematics that knows no decision system; usable alone inside other JAX code."""

from jaxcascade.kernels.bag import (
    FREE,
    Bag,
    Place,
    bag_add,
    bag_find,
    bag_first,
    bag_grow,
    bag_init,
    bag_read,
    bag_serve,
)
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
from jaxcascade.kernels.design_matrix import rank_one_inverse, refine_inverse
from jaxcascade.kernels.fifo import Fifo, fifo_init, fifo_pop, fifo_push
from jaxcascade.kernels.history import fold_rows, padded_rows
from jaxcascade.kernels.index_estimator import fit_index, index_loss, index_moment, index_weight
from jaxcascade.kernels.logistic import fit_logistic, logistic_loss
from jaxcascade.kernels.mnl import (
    ChoiceHistory,
    best_assortment,
    best_log_weight,
    mnl_log_likelihood,
    mnl_newton,
    mnl_probabilities,
    one_pass_step,
)
from jaxcascade.kernels.reservation_index import bisected_reservation_index, reservation_index
from jaxcascade.kernels.signed_logistic import SignedHistory, logistic_newton, logistic_refit, signed_history
from jaxcascade.kernels.square_root_factor import (
    factor_init,
    factor_norm,
    factor_sample,
    factor_update,
    factor_update_products,
)
from jaxcascade.kernels.symmetric_solve import conjugate_gradient, solve_positive

__all__ = [
    "FREE",
    "Admission",
    "Bag",
    "ChoiceHistory",
    "Fifo",
    "FixedPoint",
    "Place",
    "SignedHistory",
    "backward_induction",
    "bag_add",
    "bag_find",
    "bag_first",
    "bag_grow",
    "bag_init",
    "bag_read",
    "bag_serve",
    "bellman_fixed_point",
    "bellman_sweep",
    "bernoulli_kl",
    "best_assortment",
    "best_log_weight",
    "bisected_reservation_index",
    "conjugate_gradient",
    "drain_cost",
    "drain_increments",
    "expected_increment",
    "factor_init",
    "factor_norm",
    "factor_sample",
    "factor_update",
    "factor_update_products",
    "fifo_init",
    "fifo_pop",
    "fifo_push",
    "fit_index",
    "fit_logistic",
    "fold_rows",
    "index_loss",
    "index_moment",
    "index_weight",
    "kl_lower_bound",
    "kl_upper_bound",
    "logistic_loss",
    "logistic_newton",
    "logistic_refit",
    "marginal_cost",
    "marginal_cost_table",
    "mnl_log_likelihood",
    "mnl_newton",
    "mnl_probabilities",
    "one_pass_step",
    "padded_rows",
    "rank_one_inverse",
    "refine_inverse",
    "reservation_index",
    "settle",
    "signed_history",
    "solve_positive",
]
