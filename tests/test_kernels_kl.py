"""KL confidence bounds against bisection in extended precision, their edges and their algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcascade.kernels import bernoulli_kl, kl_lower_bound, kl_upper_bound
from tests.conftest import compilations, quick_jit
from tests.reference import deferral_numpy as reference

TOLERANCE = {"float32": 1e-6, "float64": 1e-11}
BATCH = 64

lower = jax.jit(kl_lower_bound)
upper = jax.jit(kl_upper_bound)

unit = st.floats(0, 1, allow_subnormal=False)
counts = st.integers(0, 10**7)
budgets = st.floats(0, 60, allow_subnormal=False)


def grid(dtype):
    """Means down to the type's own spacing at both ends, counts 1 to 1e8, budgets 1e-3 to 50; as the type has them."""
    ends = 10.0 ** -np.arange(2, 8)
    mean = np.concatenate([ends, np.linspace(0.03, 0.97, 33), 1 - ends, [0.5, 1 / 3]])
    count = np.round(10 ** np.linspace(0, 8, 25))
    budget = np.concatenate([10 ** np.linspace(-3, 0, 5), [2.0, 5.3, 11.0, 14.6, 50.0]])
    return tuple(np.asarray(a, dtype).ravel() for a in np.meshgrid(mean, count, budget))


def bisect(mean, count, budget):
    """inf {q <= mean: count kl(mean, q) <= budget} in extended precision, all entries at once."""
    mean, count, budget = (np.asarray(a, np.longdouble) for a in (mean, count, budget))
    low, high = np.zeros_like(mean), mean
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(90):
            q = (low + high) / 2
            kl = np.where(mean > 0, mean * np.log(mean / q), 0)
            kl += np.where(mean < 1, (1 - mean) * np.log1p((q - mean) / (1 - q)), 0)
            inside = count * kl <= budget
            high, low = np.where(inside, q, high), np.where(inside, low, q)
    return high


def test_extended_bisection_agrees_with_the_scalar_reference():
    for mean, count, budget in ((0.4, 7, 2.0), (0.99, 300, 9.0), (0.02, 5, 14.0), (0.5, 90_000, 0.1)):
        assert float(bisect(mean, count, budget)) == pytest.approx(reference.kl_lower(mean, count, budget), abs=1e-10)


def test_bounds_agree_with_bisection(float_mode):
    mean, count, budget = grid(float_mode)
    bound = np.asarray(lower(mean, count, budget))
    assert bound.dtype == float_mode
    error = np.abs(bound - bisect(mean, count, budget))
    worst = np.argmax(error)
    assert error[worst] <= TOLERANCE[float_mode], (mean[worst], count[worst], budget[worst], float(error[worst]))
    bound = np.asarray(upper(mean, count, budget))
    mirrored = np.asarray(1 - mean, float_mode)  # 1 - mean as the type rounds it
    error = np.abs(bound - (1 - bisect(mirrored, count, budget)))
    assert error.max() <= TOLERANCE[float_mode]


def test_integer_counts_give_the_same_bounds(float_mode):
    mean = jnp.linspace(0, 1, 9)
    count = jnp.arange(9, dtype=jnp.int32) * 1000
    np.testing.assert_array_equal(lower(mean, count, 3.0), lower(mean, count.astype(float), 3.0))


def test_edges_are_exact(float_mode):
    mean = np.asarray([0, 0, 0, 0.3, 0.3, 0.3, 1, 1, 1], float_mode)
    budget = np.asarray([0.0, 0.7, 14.6] * 3, float_mode)
    for count, some in ((np.full(9, 7, np.int32), True), (np.zeros(9, np.int32), False)):
        low, high = np.asarray(lower(mean, count, budget)), np.asarray(upper(mean, count, budget))
        if not some:
            np.testing.assert_array_equal(low, 0)
            np.testing.assert_array_equal(high, 1)
            continue
        np.testing.assert_array_equal(low[:3], 0)
        np.testing.assert_array_equal(high[6:], 1)
        np.testing.assert_allclose(low[6:], np.exp(-budget[6:].astype(float) / 7), rtol=4e-7)
        np.testing.assert_allclose(high[:3], 1 - low[6:], atol=1e-7)
        assert low[3] == mean[3] and low[6] == 1
    negative = np.full(9, -2.5, float_mode)
    np.testing.assert_array_equal(lower(mean, np.full(9, 12, np.int32), negative), mean)
    np.testing.assert_allclose(upper(mean, np.full(9, 12, np.int32), negative), mean, rtol=3e-7)


def test_relative_entropy_at_the_ends(float_mode):
    kl = jax.jit(bernoulli_kl)
    edges = kl(jnp.asarray([0.0, 1.0, 0.4, 0.3, 0.3, 1.0, 0.0]), jnp.asarray([0.0, 1.0, 0.4, 0.0, 1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(edges, [0, 0, 0, *[np.inf] * 4])
    p, q = np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21))
    exact = [reference.kl(a, b) for a, b in zip(p.ravel(), q.ravel(), strict=True)]
    np.testing.assert_allclose(
        np.asarray(kl(p, q)).ravel(),
        exact,
        rtol=3e-6 if float_mode == "float32" else 1e-13,
        atol=3e-7 if float_mode == "float32" else 1e-14,
    )


def columns(cases):
    """Columns of the drawn cases, repeated to one fixed length and in the default float type."""
    filled = (cases * BATCH)[:BATCH]
    return [np.asarray(column, jnp.result_type(float)) for column in zip(*filled, strict=True)]


@given(st.lists(st.tuples(unit, counts, counts, budgets, budgets), min_size=1, max_size=BATCH))
def test_bounds_are_ordered(cases):
    """Bound <= mean, growing with the count and falling with the budget; the upper bound mirrors the lower."""
    mean, count, other_count, budget, other_budget = columns(cases)
    few, many = np.minimum(count, other_count), np.maximum(count, other_count)
    tight, loose = np.minimum(budget, other_budget), np.maximum(budget, other_budget)
    bound = np.asarray(lower(mean, few, tight))
    slack = 4 * np.finfo(bound.dtype).eps
    assert np.all(np.isfinite(bound)) and np.all(bound >= 0)
    assert np.all(bound <= mean)
    assert np.all(np.asarray(lower(mean, many, tight)) >= np.where(few > 0, bound, 0) - slack)
    assert np.all(np.asarray(lower(mean, few, loose)) <= bound + slack)
    above = np.asarray(upper(mean, few, tight))
    assert np.all(above >= mean - slack) and np.all(above <= 1)
    np.testing.assert_allclose(above, 1 - np.asarray(lower(1 - mean, few, tight)), atol=slack)


@given(st.lists(st.tuples(unit, st.integers(1, 10**6), budgets), min_size=1, max_size=BATCH))
def test_bounds_agree_with_bisection_anywhere(cases):
    mean, count, budget = columns(cases)
    tolerance = TOLERANCE[str(mean.dtype)]
    np.testing.assert_allclose(lower(mean, count, budget), bisect(mean, count, budget).astype(float), atol=tolerance)


@pytest.mark.parametrize("labels", [3, 40, 1000, 10**5, 10**6])
def test_budgets_as_small_as_the_plus_rule_has_them(labels, float_mode):
    """KL-PBD+ spends ``log(O/N)``: with one arrival not yet labelled, about 1/N, at means a label away from 0 or 1."""
    arrived, right = np.meshgrid(labels + np.arange(4), [1, 2, labels // 2, labels - 2, labels - 1])
    mean = np.asarray(right / labels, float_mode)
    budget = np.asarray(np.log(arrived / labels), float_mode)
    count = np.full_like(mean, labels)
    bound = np.asarray(lower(mean, count, budget))
    np.testing.assert_allclose(bound, bisect(mean, count, budget).astype(float), atol=TOLERANCE[float_mode])
    np.testing.assert_array_equal(bound[arrived == labels], mean[arrived == labels])


def test_vmap_jit_and_broadcasting_agree(float_mode):
    mean = jnp.asarray([0.0, 0.2, 0.7, 1.0])
    count = jnp.asarray([[0], [3], [1000]])
    whole = lower(mean, count, 4.0)
    assert whole.shape == (3, 4)
    rows = jax.vmap(lower, in_axes=(None, 0, None))(mean, count, 4.0)
    np.testing.assert_allclose(whole, rows, atol=4 * jnp.finfo(whole.dtype).eps)


@pytest.mark.parametrize("bound", [kl_lower_bound, kl_upper_bound])
def test_gradients_are_finite_and_right(bound, float_mode):
    """Also at means 0 and 1, without observations, and without budget (where the slope in the budget is infinite)."""
    mean, count = jnp.asarray([0.05, 0.2, 0.7, 0.0, 1.0, 0.4, 0.3]), jnp.asarray([40.0, 7.0, 1e5, 5.0, 9.0, 0.0, 10.0])
    budget = jnp.asarray([3.0, 5.0, 12.0, 2.0, 4.0, 1.0, 0.0])
    slope = quick_jit(jax.vmap(jax.grad(bound, argnums=(0, 2))))
    by_mean, by_budget = (np.asarray(s, np.float64) for s in slope(mean, count, budget))
    assert np.all(np.isfinite(by_mean)) and np.all(np.isfinite(by_budget[:-1]))
    assert by_mean[-1] == 1
    # Implicit differentiation of count kl(mean, q) = budget inside.
    p, n = np.asarray(mean, np.float64)[:3], np.asarray(count)[:3]
    edge = bisect if bound is kl_lower_bound else (lambda p, n, c: 1 - bisect(1 - p, n, c))
    q = edge(p, n, np.asarray(budget, np.float64)[:3]).astype(float)
    steep = (q - p) / (q * (1 - q))
    log_odds = np.log(p / (1 - p)) - np.log(q / (1 - q))
    rtol = 2e-3 if float_mode == "float32" else 1e-8
    np.testing.assert_allclose(by_budget[:3], 1 / (n * steep), rtol=rtol)
    np.testing.assert_allclose(by_mean[:3], -log_odds / steep, rtol=rtol)


def test_other_numbers_compile_nothing():
    first = jax.jit(lambda mean, count, budget: kl_lower_bound(mean, count, budget) + kl_upper_bound(mean, count, 1.0))
    arguments = [
        (jnp.full(3, m), jnp.full(3, c, jnp.int32), jnp.float32(b))
        for m, c, b in ((0.2, 4, 1.0), (0.0, 0, 0.0), (1.0, 10**6, 40.0))
    ]
    jax.block_until_ready(first(*arguments[0]))
    with compilations() as compiled:
        for others in arguments[1:]:
            jax.block_until_ready(first(*others))
    assert not compiled
