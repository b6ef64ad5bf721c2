"""Kernels of the cascade system: reservation index, design matrices, logistic and index estimators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcascade import kernels
from jaxcascade.kernels.design_matrix import times
from tests.conftest import float32_mode, float64_mode
from tests.reference import cascade_numpy as reference

VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(VALUES, st.floats(0.001, 2), st.randoms(use_true_random=False))
def test_index_solves_its_equation_exactly_on_discrete_laws(values, cost, random):
    weights = np.array([random.random() + 0.01 for _ in values])
    probability = weights / weights.sum()
    with float64_mode():
        index = float(kernels.reservation_index(np.array(values), cost, probability))
    excess = np.dot(probability, np.maximum(np.array(values) - index, 0))
    assert abs(excess - cost) < 1e-9
    assert abs(index - reference.reservation_index(np.array(values), probability, cost)) < 1e-9


@given(VALUES, st.floats(0, 1), st.floats(0, 1))
def test_index_falls_as_the_cost_rises(values, first, second):
    low, high = sorted([first, second])
    with float64_mode():
        value = np.tile(values, (2, 1))
        index = np.asarray(kernels.reservation_index(value, np.array([low, high])))
    assert index[1] <= index[0] + 1e-12


def test_free_box_has_its_largest_value_as_index_and_impossible_outputs_do_not_count(float_mode):
    value, probability = jnp.array([0.2, 0.9, 0.5]), jnp.array([0.5, 0.0, 0.5])
    np.testing.assert_allclose(kernels.reservation_index(value, 0.0, probability), 0.5, rtol=1e-6)


def test_index_is_batched_over_contexts_and_boxes(float_mode):
    rng = np.random.default_rng(0)
    value, cost = rng.random((4, 3, 7)), rng.uniform(0.01, 0.2, (4, 3))
    index = kernels.reservation_index(jnp.asarray(value), jnp.asarray(cost))
    assert index.shape == (4, 3) and index.dtype == jnp.result_type(float)
    for i in range(4):
        for a in range(3):
            wanted = reference.reservation_index(value[i, a], np.full(7, 1 / 7), cost[i, a])
            np.testing.assert_allclose(index[i, a], wanted, atol=1e-9 if float_mode == "float64" else 1e-5)
    rising = kernels.reservation_index(jnp.sort(jnp.asarray(value), axis=-1), jnp.asarray(cost), ascending=True)
    np.testing.assert_allclose(rising, index, rtol=1e-6)


def test_bisection_agrees_with_the_closed_form(x64):
    value = jnp.linspace(0.1, 0.9, 9)

    def excess(sigma):
        return jnp.mean(jnp.maximum(value - sigma[..., None], 0), axis=-1)

    cost = jnp.array([0.01, 0.1, 0.4, 0.8])
    found = kernels.bisected_reservation_index(excess, cost, -1.0, 1.0, steps=50)
    np.testing.assert_allclose(found, kernels.reservation_index(value, cost), atol=1e-12)


@pytest.mark.parametrize("size", [3, 104])
def test_rank_one_inverse_stays_right_over_30000_float32_updates(size):
    rng = np.random.default_rng(1)
    vectors = rng.uniform(-1, 1, (30_000, size)).astype(np.float32)
    vectors[:, 0] = 1
    opened = (rng.random(30_000) < 0.7).astype(np.float32)

    @jax.jit
    def run(vectors, opened):
        def step(inverse, row):
            vector, weight = row
            return kernels.rank_one_inverse(inverse, times(inverse, vector), vector, weight), None

        return jax.lax.scan(step, jnp.eye(size) / 10, (vectors, opened))[0]

    with float32_mode():
        inverse = run(vectors, opened)
        assert inverse.dtype == jnp.float32
    matrix = 10 * np.eye(size) + (vectors * opened[:, None]).T.astype(np.float64) @ vectors
    exact = np.linalg.inv(matrix)
    np.testing.assert_array_equal(inverse, np.asarray(inverse).T)
    probes = rng.uniform(-1, 1, (200, size))
    width, wanted = (np.sqrt(np.einsum("ni,ij,nj->n", probes, v, probes)) for v in (np.asarray(inverse, float), exact))
    assert np.max(np.abs(width / wanted - 1)) < 1e-3  # the bonus, which is all the inverse is used for
    with float32_mode():
        refined = kernels.refine_inverse(jnp.asarray(matrix, jnp.float32), inverse)
    assert np.max(np.abs(refined - exact)) <= 1e-5 * np.max(np.abs(exact))


def test_zero_weight_leaves_the_inverse_and_weights_scale_the_update(x64):
    rng = np.random.default_rng(2)
    matrix, vector = np.eye(4) * 3, rng.normal(size=4)
    inverse = jnp.asarray(np.linalg.inv(matrix))
    np.testing.assert_array_equal(kernels.rank_one_inverse(inverse, inverse @ vector, vector, 0.0), inverse)
    found = kernels.rank_one_inverse(inverse, inverse @ vector, vector, 0.3)
    np.testing.assert_allclose(found, np.linalg.inv(matrix + 0.3 * np.outer(vector, vector)), atol=1e-14)


def logistic_data(rng, count, d=4):
    features = rng.normal(size=(count, d))
    reward = (rng.random(count) < reference.sigmoid(features @ np.linspace(2, -1, d))).astype(float)
    return features, reward


@pytest.mark.parametrize("count", [1, 7, 100, 300])
def test_logistic_fit_agrees_with_the_reference_from_a_cold_start(count, x64):
    features, reward = logistic_data(np.random.default_rng(count), count)
    wanted = reference.fit_reward(features, reward, 1.0, np.zeros(4))
    found = kernels.fit_logistic(features, reward, 1.0, jnp.zeros(4), newton_steps=10)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_logistic_fit_reads_the_first_rows_only_and_is_batched(float_mode):
    rng = np.random.default_rng(4)
    features, reward = logistic_data(rng, 512)
    tolerance = 1e-9 if float_mode == "float64" else 2e-4
    wanted = reference.fit_reward(features[:300], reward[:300], 0.5, np.zeros(4))
    masked, seen = np.where(np.arange(512)[:, None] < 300, features, 0), np.where(np.arange(512) < 300, reward, 0)

    def fit(scale, count):
        return kernels.fit_logistic(jnp.asarray(masked), jnp.asarray(seen), 0.5 * scale, jnp.zeros(4), count=count)

    found = jax.jit(jax.vmap(fit, in_axes=(0, None)))(jnp.array([1.0, 2.0]), 300)
    np.testing.assert_allclose(found[0], wanted, atol=tolerance)
    wanted = reference.fit_reward(features[:300], reward[:300], 1.0, wanted)
    np.testing.assert_allclose(found[1], wanted, atol=tolerance)


def test_logistic_fit_of_separable_rewards_is_finite(float_mode):
    features = jnp.linspace(-3, 3, 50)[:, None]
    found = kernels.fit_logistic(features, (features[:, 0] > 0).astype(float), 1e-2, jnp.zeros(1), newton_steps=20)
    assert np.isfinite(found).all() and found[0] > 1


def test_index_loss_and_its_derivatives(x64):
    rng = np.random.default_rng(5)
    u, mu, c = rng.normal(size=200), rng.random(200), rng.uniform(0, 0.3, 200)
    away = np.abs(np.tanh(u) - mu) > 1e-3
    slope = jax.vmap(jax.grad(kernels.index_loss))(u, mu, c)
    np.testing.assert_allclose(slope[away], kernels.index_moment(u, mu, c)[away], atol=1e-9)
    curvature = jax.vmap(jax.grad(kernels.index_moment))(u, mu, c)
    np.testing.assert_allclose(curvature[away], kernels.index_weight(u, mu)[away], atol=1e-9)
    np.testing.assert_allclose(kernels.index_loss(0.0, mu, c), 0, atol=1e-15)


def test_index_loss_is_finite_at_values_of_0_and_1(float_mode):
    u = jnp.linspace(-30, 30, 7)
    for mu in (0.0, 1.0):
        assert np.isfinite(kernels.index_loss(u, mu, 0.1)).all()
        assert np.isfinite(kernels.index_moment(u, mu, 0.1)).all()


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 1), st.floats(0, 1))
def test_index_loss_is_convex(first, second, mu, cost):
    with float64_mode():
        ends = (kernels.index_loss(first, mu, cost) + kernels.index_loss(second, mu, cost)) / 2
        assert float(kernels.index_loss((first + second) / 2, mu, cost)) <= float(ends) + 1e-9


def index_data(rng, count, rows, boxes=3, m=5):
    psi, value, cost, opened = np.zeros((rows, m)), np.zeros((rows, boxes)), np.zeros((rows, boxes)), None
    psi[:count] = rng.uniform(-1, 1, (count, m))
    psi[:count, 0] = 1
    opened = np.zeros((rows, boxes))
    opened[:count] = rng.random((count, boxes)) < np.array([0.9, 0.4, 0.0])  # the last box is never opened
    value[:count], cost[:count] = rng.random((count, boxes)), rng.uniform(0.01, 0.1, (count, boxes))
    return psi, value * opened, cost * opened, opened


@pytest.mark.parametrize("count", [1, 40, 257, 512])
def test_index_fit_agrees_with_the_reference_and_spares_a_box_never_opened(count, float_mode):
    psi, value, cost, opened = index_data(np.random.default_rng(count), count, 512)
    inverse = np.stack([np.linalg.inv(10 * np.eye(5) + (psi * o[:, None]).T @ psi) for o in opened.T])
    found = kernels.fit_index(
        *(jnp.asarray(a) for a in (psi, value, cost, opened)),
        10.0,
        jnp.zeros((3, 5)),
        jnp.asarray(inverse),
        count=count,
        newton_steps=12,
        cg_steps=8,
        halvings=6,
    )
    for a in range(3):
        here = opened[:, a] > 0
        wanted = reference.fit_index(psi[here], value[here, a], cost[here, a], 10.0, np.zeros(5))
        np.testing.assert_allclose(found[a], wanted, atol=1e-9 if float_mode == "float64" else 1e-5)
    np.testing.assert_array_equal(found[2], 0)


def test_index_estimates_approach_the_true_index_of_a_constant_box(x64):
    rng = np.random.default_rng(9)
    rows, cost = 20 * 256, 0.05
    value = rng.choice([0.2, 0.8], size=(rows, 1))
    psi = np.ones((rows, 1))
    found = kernels.fit_index(
        psi, value, np.full((rows, 1), cost), np.ones((rows, 1)), 1.0, jnp.zeros((1, 1)),
        np.full((1, 1, 1), 1 / (1 + rows)), count=rows, newton_steps=12, cg_steps=2, halvings=6,
    )  # fmt: skip
    wanted = kernels.reservation_index(np.array([0.2, 0.8]), cost)
    np.testing.assert_allclose(np.tanh(found[0, 0]), wanted, atol=0.01)


def test_blocks_of_history_are_added_up_and_an_uneven_buffer_is_refused(x64):
    array = jnp.arange(12.0)

    def add(carry, rows, row):
        return carry + jnp.sum(rows) + 0 * row

    assert kernels.fold_rows(add, 0.0, array, jnp.asarray(5), block=4) == sum(range(8))
    assert kernels.fold_rows(add, 0.0, array, jnp.asarray(0), block=4) == 0
    assert [kernels.padded_rows(n, 4) for n in (0, 1, 4, 5)] == [4, 4, 4, 8]
    with pytest.raises(ValueError, match="multiple of 5 rows, got 12"):
        kernels.fold_rows(add, 0.0, array, jnp.asarray(5), block=5)
