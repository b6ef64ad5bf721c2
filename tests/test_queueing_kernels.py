"""Kernels of the queueing system: choice model, estimators, square-root factors, small solves, the bag, beta draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from jaxcascade import kernels
from jaxcascade.kernels.beta_draw import BETA_TRIES, beta_draw
from tests.conftest import float64_mode, quick_jit
from tests.reference import queueing_numpy as reference

# One length, so that the kernels compile once.
utilities = st.lists(st.floats(-60, 60, width=32) | st.sampled_from([-1.0, 0.0, 2.0]), min_size=4, max_size=4)


@given(utilities, st.data())
def test_probabilities_sum_to_one_and_match_the_definition(utility, data):
    offered = data.draw(st.lists(st.booleans(), min_size=len(utility), max_size=len(utility)))
    with float64_mode():
        p, outside = map(np.asarray, kernels.mnl_probabilities(jnp.asarray(utility), jnp.asarray(offered)))
    assert float(p.sum() + outside) == pytest.approx(1, abs=1e-12)
    assert not np.any(p[~np.asarray(offered)])
    assortment = [j for j, here in enumerate(offered) if here]
    if assortment:
        expected, expected_outside = reference.choice_probabilities(np.asarray(utility), assortment)
        np.testing.assert_allclose(p[assortment], expected, rtol=1e-12)
        assert float(outside) == pytest.approx(expected_outside, rel=1e-12)


def test_probabilities_are_stable_at_utilities_of_any_size(float_mode):
    p, outside = kernels.mnl_probabilities(jnp.asarray([1e30, -1e30, 5.0]), jnp.ones(3, bool))
    np.testing.assert_array_equal(np.append(p, outside), [1, 0, 0, 0])
    p, outside = kernels.mnl_probabilities(jnp.asarray([-1e30, -1e30]), jnp.ones(2, bool))
    np.testing.assert_array_equal(np.append(p, outside), [0, 0, 1])


@given(utilities, st.data())
def test_best_assortment_and_its_weight_are_those_of_enumeration(utility, data):
    size = data.draw(st.integers(1, len(utility)))
    with float64_mode():
        value = jnp.asarray(utility)
        found = tuple(np.asarray(kernels.best_assortment(value, size)).tolist())
        weight = float(kernels.best_log_weight(value, size))
    top = max(reference.log_weight(utility, s) for s in itertools.combinations(range(len(utility)), size))
    assert weight == pytest.approx(top, abs=1e-9)
    # the K largest, the lowest index first among equal ones
    assert found == tuple(sorted(sorted(range(len(utility)), key=lambda j: (-utility[j], j))[:size]))


def test_best_weight_of_many_items_agrees_with_that_of_few():
    with float64_mode():
        value = jax.random.normal(jax.random.key(0), (7, 112))
        for size in (1, 2, 5):
            expected = jax.nn.logsumexp(jnp.sort(value, axis=1)[:, -size:], axis=1)
            np.testing.assert_allclose(kernels.best_log_weight(value, size), expected, rtol=1e-12)


@given(utilities, st.data())
def test_log_likelihood_is_the_log_of_the_probability(utility, data):
    choice = data.draw(st.integers(-1, len(utility) - 1))
    with float64_mode():
        value, every = jnp.asarray(utility), jnp.ones(len(utility), bool)
        chosen = jnp.arange(len(utility)) == choice
        likelihood = float(kernels.mnl_log_likelihood(value, every, chosen))
    top = max(0.0, *utility)
    total = top + np.log(np.exp(-top) + np.sum(np.exp(np.asarray(utility) - top)))
    assert likelihood == pytest.approx((utility[choice] if choice >= 0 else 0) - total, abs=1e-9)


def drawn_history(number, dim, size, rows, seed=0):
    rng = np.random.default_rng(seed)
    context = rng.uniform(-1, 1, (rows, dim))
    theta = rng.uniform(-1, 1, (number, dim))
    offered = np.zeros((rows, number), bool)
    chosen = np.zeros((rows, number), bool)
    for i in range(rows):
        assortment = np.sort(rng.choice(number, size, replace=False))
        offered[i, assortment] = True
        p, outside = reference.choice_probabilities(theta @ context[i], assortment)
        pick = rng.choice(size + 1, p=[*p, outside])
        if pick < size:
            chosen[i, assortment[pick]] = True
    return context, offered, chosen


def scipy_fit(context, offered, chosen, regularisation):
    number, dim = offered.shape[1], context.shape[1]

    def loss(flat):
        theta = flat.reshape(number, dim)
        weight = np.where(offered, np.exp(context @ theta.T), 0)
        total = 1 + weight.sum(1)
        value = (
            regularisation / 2 * np.sum(theta**2) + np.log(total).sum() - np.sum(np.where(chosen, context @ theta.T, 0))
        )
        return value, (regularisation * theta + (weight / total[:, None] - chosen).T @ context).reshape(-1)

    options = {"gtol": 1e-11, "ftol": 1e-16, "maxiter": 5000, "maxfun": 50_000}
    found = scipy.optimize.minimize(loss, np.zeros(number * dim), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(number, dim)


def padded(rows, capacity):
    return np.concatenate([rows, np.zeros((capacity - len(rows), *rows.shape[1:]), rows.dtype)])


@pytest.mark.parametrize(("number", "dim", "size"), [(5, 5, 2), (3, 4, 3), (14, 6, 2)])
def test_joint_newton_finds_the_optimum_of_scipy(number, dim, size, x64):
    context, offered, chosen = drawn_history(number, dim, size, 150)
    expected = scipy_fit(context, offered, chosen, 1.5)
    code = offered.astype(np.int8) + chosen.astype(np.int8)
    history = kernels.ChoiceHistory(jnp.asarray(padded(context, 192).T), jnp.asarray(padded(code, 192).T))
    design = 1.5 * np.eye(dim) + np.einsum("in,id,ie->nde", offered, context, context)
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(design)))
    theta = kernels.mnl_newton(jnp.zeros((number, dim)), history, jnp.int32(150), jnp.asarray(1.5), factor, steps=6)
    np.testing.assert_allclose(theta, expected, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 5, 12, 70])
def test_logistic_newton_finds_the_optimum_of_scipy(dim, x64):
    context, offered, chosen = drawn_history(1, dim, 1, 130)
    expected = scipy_fit(context, offered, chosen, 1.0)[0]
    signed = padded(np.where(chosen, context, -context), 192)
    signed = jnp.asarray(np.stack([np.zeros_like(signed).T, signed.T]))
    factor = jnp.asarray(np.linalg.cholesky(np.linalg.inv(np.eye(dim) + context.T @ context)))
    theta = kernels.logistic_newton(
        jnp.zeros(dim), signed, jnp.int32(1), jnp.int32(130), jnp.asarray(1.0), factor, steps=12
    )
    np.testing.assert_allclose(theta, expected, atol=1e-6)


@pytest.mark.parametrize(("dim", "scale", "most"), [(1, 1, 1e-7), (5, 1, 1e-7), (12, 1, 1e-6), (5, 6, 0.3)])
def test_a_refit_after_every_row_stays_at_the_minimiser(dim, scale, most, x64):
    """Two histories that grow in turn, some rounds without a row; the minimiser is found anew by many Newton steps.

    Long rows, with answers that contradict each other, may leave the estimate behind but not let it diverge.
    """
    rng = np.random.default_rng(dim)
    ridge, factor = jnp.asarray(0.8), jnp.eye(dim)
    history, theta, count = kernels.signed_history(2, dim, 128, ridge), jnp.zeros((2, dim)), [0, 0]

    @quick_jit
    def step(theta, history, row, index, place):
        new, history = kernels.logistic_refit(theta[index], history, row, index, place, place + 1, ridge, factor)
        exact = kernels.logistic_newton(new, history.signed, index, place + 1, ridge, factor, steps=40)
        return theta.at[index].set(new), history, jnp.max(jnp.abs(new - exact))

    gaps = []
    for _ in range(90):
        index = int(rng.integers(2))
        row = rng.uniform(-scale, scale, dim) if rng.random() < 0.9 else np.zeros(dim)
        theta, history, gap = step(theta, history, jnp.asarray(row), index, count[index])
        count[index] += 1
        gaps.append(float(gap))
    assert max(gaps) < most
    assert gaps[-1] < 1e-4
    assert np.max(np.abs(theta)) > 0.05


@given(st.sampled_from([1, 4]), st.integers(0, 12), st.integers(0, 2**31))
def test_factor_stays_that_of_the_inverse_design_matrix(dim, rows, seed):
    vectors = np.random.default_rng(seed).normal(size=(rows, dim))
    with float64_mode():
        factor = kernels.factor_init(dim, jnp.asarray(0.7))
        for vector in vectors:
            factor = kernels.factor_update(factor, jnp.asarray(vector))
        inverse = np.linalg.inv(0.7 * np.eye(dim) + vectors.T @ vectors)
        np.testing.assert_allclose(factor @ factor.T, inverse, atol=1e-11)
        probe = np.ones((2, dim))
        norm = kernels.factor_norm(factor, jnp.asarray(probe))
        np.testing.assert_allclose(norm, np.sqrt(np.einsum("id,de,ie->i", probe, inverse, probe)), rtol=1e-8)
        # x = 0 changes nothing, to the bit
        np.testing.assert_array_equal(kernels.factor_update(factor, jnp.zeros(dim)), factor)
        columns = jnp.asarray(np.random.default_rng(seed + 1).normal(size=(dim, 3)))
        both = kernels.factor_update_products(factor, jnp.arange(1.0, dim + 1), columns, factor @ columns)
        np.testing.assert_array_equal(both[0], kernels.factor_update(factor, jnp.arange(1.0, dim + 1)))
        np.testing.assert_allclose(both[0] @ columns, both[1], atol=1e-11)


def test_factor_in_float32_keeps_its_product_over_many_updates():
    vectors = np.random.default_rng(1).uniform(-1, 1, (20_000, 5)).astype(np.float32)
    factor, _ = jax.lax.scan(
        lambda s, x: (kernels.factor_update(s, x), None), kernels.factor_init(5, jnp.float32(1)), jnp.asarray(vectors)
    )
    inverse = np.linalg.inv(np.eye(5) + vectors.T.astype(np.float64) @ vectors)
    np.testing.assert_allclose(factor @ factor.T, inverse, atol=1e-3 * np.max(inverse))


def test_factor_samples_have_the_stated_law(x64):
    factor = jnp.asarray([[2.0, 0.0], [0.5, 1.0]])
    draws = kernels.factor_sample(jnp.asarray([1.0, -1.0]), factor, 0.5, jnp.eye(2))
    np.testing.assert_allclose(draws, [[2.0, -0.75], [1.0, -0.5]])


@pytest.mark.parametrize("size", [1, 2, 8, 9, 25])
def test_positive_systems_are_solved(size, float_mode):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, 2 * size))
    matrix, right = root @ root.T + np.eye(size), rng.normal(size=size)
    found = jax.vmap(kernels.solve_positive)(jnp.asarray(matrix, float)[None], jnp.asarray(right, float)[None])[0]
    tolerance = 1e-9 if float_mode == "float64" else 1e-3
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=tolerance, atol=tolerance)


def test_conjugate_gradients_solve_and_leave_zero_alone(x64):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 9))
    matrix, right = jnp.asarray(root @ root.T), jnp.asarray(rng.normal(size=6))
    found = kernels.conjugate_gradient(lambda v: matrix @ v, right, lambda v: v, 12)
    np.testing.assert_allclose(matrix @ found, right, atol=1e-8)
    np.testing.assert_array_equal(
        kernels.conjugate_gradient(lambda v: matrix @ v, 0 * right, lambda v: v, 12), 0 * right
    )


@given(st.sampled_from([1, 3]), st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), max_size=15))
def test_bag_keeps_what_a_list_keeps(capacity, moves):
    """Adds with a record of its own, serves the k-th oldest, removes it or not."""
    bag, model, full = kernels.bag_init(capacity, jnp.zeros(2)), [], False
    for number, (adds, which, leaves) in enumerate(moves):
        target = model[which][0] if which < len(model) else kernels.FREE
        here = kernels.bag_find(bag, jnp.int32(target))
        bag = kernels.bag_serve(bag, here, jnp.asarray(leaves))
        if which < len(model):
            model[which][2] += 1
            if leaves:
                del model[which]
        record = jnp.full(2, float(number))
        bag = kernels.bag_add(bag, record, jnp.int32(number), jnp.asarray(adds))
        if adds and len(model) < capacity:
            model.append([number, float(number), 0])
        elif adds:
            full = True
            break
        assert int(bag.size) == len(model)
        slots = np.argsort(np.asarray(bag.arrived), kind="stable")[: len(model)]
        np.testing.assert_array_equal(np.asarray(bag.arrived)[slots], [m[0] for m in model])
        np.testing.assert_array_equal(np.asarray(bag.record)[0, slots], [m[1] for m in model])
        np.testing.assert_array_equal(np.asarray(bag.served)[slots], [m[2] for m in model])
        ties = jnp.zeros(capacity)
        first = int(kernels.bag_first(bag, ties))
        assert first == (model[0][0] if model else kernels.FREE)
    assert bool(bag.full) == full


def test_a_grown_bag_has_the_same_content_and_room():
    bag = kernels.bag_add(kernels.bag_init(1, jnp.zeros(3)), jnp.ones(3), jnp.int32(4), jnp.asarray(True))
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), bag)
    grown = kernels.bag_grow(batch)
    np.testing.assert_array_equal(grown.arrived, [[4, kernels.FREE]] * 2)
    np.testing.assert_array_equal(grown.record[..., 0], np.ones((2, 3)))
    assert grown.record.shape == (2, 3, 2)
    with pytest.raises(ValueError, match="capacity: expected at least 1"):
        kernels.bag_init(0, jnp.zeros(1))


@pytest.mark.parametrize(("first", "second"), [(1.0, 1.0), (1.0, 40.0), (7.0, 3.0), (900.0, 400.0)])
def test_beta_draws_have_the_law_of_scipy(first, second, x64):
    count = 4000
    key = jax.random.key(3)
    normal = jax.random.normal(key, (BETA_TRIES, 2, count))
    uniform = jax.random.uniform(jax.random.fold_in(key, 1), (BETA_TRIES, 2, count))
    draws = np.asarray(beta_draw(jnp.full(count, first), jnp.full(count, second), normal, uniform))
    assert scipy.stats.kstest(draws, scipy.stats.beta(first, second).cdf).pvalue > 1e-4
