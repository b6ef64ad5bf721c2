"""The Bellman recursion of admission against plain backward induction on values, in every round."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcascade import deferral
from jaxcascade.core import with_float_type
from jaxcascade.deferral import plug_in
from jaxcascade.deferral.environment import Noise
from jaxcascade.kernels import (
    Admission,
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
from tests.conftest import compilations, quick_jit
from tests.deferral_runs import (
    Problems,
    bare,
    cost_tables,
    costs_with_rounds_left,
    draw_noise,
    play,
    service_law,
)
from tests.reference import deferral_numpy as reference

# The largest error allowed of a marginal cost, against the reference on the very same numbers.
TOLERANCE = {"float32": 1e-4, "float64": 1e-6}
LEVELS = 4
LAWS = ("always", "seldom", "several", "longer")
CAPACITIES = (1, 8, 20)
EVERY_SHAPE = [(law, capacity) for law in LAWS for capacity in CAPACITIES]
QUICK_SHAPES = [("always", 1), ("seldom", 20), ("several", 8), ("longer", 8)]


def quick_or_slow(quick, every):
    """Parameters: the quick ones always, the others on request."""
    return [*quick, *(pytest.param(*shape, marks=pytest.mark.slow) for shape in every if shape not in quick)]


def random_problems(law, capacity, size=6, seed=0):
    """``Admission`` problems ``[size]`` of one service law, with and without costs of holding and of the expert."""
    rng = np.random.default_rng([seed, capacity, LAWS.index(law)])
    return Admission(
        loss=jnp.asarray(rng.choice([0.7, 1.0, 2.0], (size, 1)) * rng.random((size, LEVELS))),
        arrival=jnp.asarray(rng.dirichlet(np.full(LEVELS + 1, 0.6), size)[:, 1:]),
        service=jnp.asarray(np.tile(service_law(law, capacity), (size, 1))),
        cost_expert=jnp.asarray(np.resize([0.25, 0.0, 0.4], size)),
        cost_holding=jnp.asarray(np.resize([0.03, 0.0, 0.0, 0.005, 0.2, 0.0], size)),
    )


def agrees(costs, exact, float_mode):
    """Checks the errors and returns the worst."""
    worst = np.max(np.abs(np.asarray(costs, np.float64) - exact))
    assert worst <= TOLERANCE[float_mode], worst
    return worst


def test_the_induction_of_many_problems_is_the_references():
    problems = Problems.of(random_problems("several", 8))
    tables = cost_tables(problems, 8, 40)
    left = np.array([39, 0, 17, 16, 5, 33])
    found = costs_with_rounds_left(problems, left, 8)
    for row in range(6):
        # cost_error = 1 makes the loss 1 - accuracy.
        accuracy, arrival = 1 - problems.loss[row], np.append(1 - problems.arrival[row].sum(), problems.arrival[row])
        costs = (1.0, problems.cost_expert[row], problems.cost_holding[row])
        exact = reference.marginal_costs(accuracy, arrival, problems.service[row], *costs, 8, 40)
        np.testing.assert_allclose(tables[row], exact, atol=1e-12)
        np.testing.assert_allclose(found[row], exact[left[row]], atol=1e-12)


@quick_jit(static_argnames=("rounds", "capacity"))
def table_and_samples(problems, sampled, rounds, capacity):
    """The table of every problem, and M(b) after ``sampled`` rounds by ``backward_induction``."""

    def one(problem):
        table = marginal_cost_table(problem, rounds, capacity)
        some = jax.vmap(lambda n: marginal_cost(problem, backward_induction(problem, n, capacity)))(sampled)
        return table, some

    return jax.vmap(one)(problems)


@pytest.mark.parametrize(("law", "capacity"), quick_or_slow(QUICK_SHAPES, EVERY_SHAPE))
def test_every_row_of_the_table_is_backward_induction(law, capacity, float_mode):
    problems = random_problems(law, capacity)
    exact = cost_tables(Problems.of(problems), capacity, 2000)
    sampled = np.array([0, 1, 7, 300, 1999], np.int32)
    table, some = table_and_samples(problems, sampled, 2000, capacity)
    print(f"worst error {agrees(table, exact, float_mode):.1e}")
    agrees(some, exact[:, sampled], float_mode)


# ----------------------------------------------------------------------------------------------------------
# The way a learner solves it: the fixed point, warm started, far from the horizon; exact rounds near it


def drifting(law, capacity, horizon, estimate_arrival, size=3, seed=1):
    """Problems ``[size, T]`` whose accuracies rise from 0 as bounds do, jump at random and fall back.

    The arrivals are empirical frequencies ``O_j / t`` if they are estimated.
    """
    rng = np.random.default_rng([seed, capacity, LAWS.index(law), estimate_arrival])
    t = np.arange(1, horizon + 1)
    limit, speed = rng.random((size, 1, LEVELS)), rng.choice([3.0, 40.0, 400.0], (size, 1, LEVELS))
    rising = limit * (1 - 1 / np.sqrt(1 + t[:, None] / speed))
    jumps = rng.random((size, horizon, LEVELS)) < 0.02
    anywhere = rng.random((size, horizon, LEVELS)) ** rng.choice([0.2, 1, 5], (size, horizon, LEVELS))
    accuracy = np.where(jumps, anywhere, rising)
    calm = rng.random((size, 1, 1)) < 0.5  # here a jump lasts until the next one
    held = np.maximum.accumulate(np.where(jumps, t[:, None], 0), axis=1) - 1
    stays = np.take_along_axis(accuracy, np.maximum(held, 0), axis=1)
    accuracy = np.where(calm & (held >= 0), stays, accuracy)
    arrival = rng.dirichlet(np.full(LEVELS + 1, 0.6), size)
    if estimate_arrival:
        level = np.stack([rng.choice(LEVELS + 1, horizon, p=law) for law in arrival])
        frequency = np.cumsum(level[:, :, None] == np.arange(LEVELS + 1), axis=1) / t[:, None]
    else:
        frequency = np.tile(arrival[:, None], (1, horizon, 1))
    instances = [
        deferral.make_instance(
            limit[i, 0],
            arrival[i],
            service=service_law(law, capacity),
            cost_error=(1.0, 2.0, 1.0)[i],
            cost_expert=(0.25, 0.1, 0.0)[i],
            cost_holding=(0.03, 0.0, 0.005)[i],
            queue_capacity=capacity,
        )
        for i in range(size)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *instances), jnp.asarray(accuracy), jnp.asarray(frequency)


@quick_jit(static_argnames="estimate_arrival")
def plan_every_round(instances, accuracy, arrival, estimate_arrival):
    """``_plan`` of the plug-in rules along a course of accuracies and arrivals: problems and increments ``[R, T]``."""
    policy = deferral.kl_pbd(estimate_arrival=estimate_arrival)
    horizon = accuracy.shape[1]

    def one(instance, accuracy, arrival):
        model = policy.setup(policy.params, instance, jnp.int32(horizon))

        def step(state, inputs):
            t, accuracy, arrival = inputs
            loss = instance.cost_error * (1 - accuracy)
            costs = instance.cost_expert, instance.cost_holding
            problem = Admission(loss, arrival[1:], instance.service, *costs)
            increments, state = plug_in._plan(model, problem, state, t)
            return state, (problem, marginal_cost(problem, increments))

        rounds = jnp.arange(1, horizon + 1, dtype=jnp.int32)
        state, found = jax.lax.scan(step, policy.init(model), (rounds, accuracy, arrival))
        return found, model.window, policy.audit(model, state)["bellman_gap"]

    return jax.vmap(one)(instances, accuracy, arrival)


def check_plans(problems, costs, float_mode):
    """Errors of planned costs ``[R, T, B]`` against one full backward induction for each round."""
    size, horizon, capacity = costs.shape
    flat = Problems.of(jax.tree.map(lambda leaf: np.reshape(leaf, (size * horizon, *leaf.shape[2:])), problems))
    left = np.tile(horizon - np.arange(1, horizon + 1), size)
    exact = costs_with_rounds_left(flat, left, capacity).reshape(costs.shape)
    error = np.abs(np.asarray(costs, np.float64) - exact)
    # A single-precision cost of 12, which no loss reaches, has fewer digits behind the point.
    digits = 2e-5 if float_mode == "float32" else 0
    rows, rounds, _ = np.nonzero(error > np.maximum(TOLERANCE[float_mode], digits * exact))
    assert not len(rows), (
        f"{len(rows)} costs are off, by up to {error.max()}, first problem {rows[0]} at {rounds[0] + 1}"
    )
    return error.max()


PLANS = list(itertools.product(LAWS, CAPACITIES, (False, True), [2000], TOLERANCE))
QUICK_PLANS = [("several", 8, True, 500, "float64"), ("seldom", 20, False, 500, "float32")]


@pytest.mark.parametrize(
    ("law", "capacity", "estimate_arrival", "horizon", "float_mode"),
    quick_or_slow(QUICK_PLANS, PLANS),
    indirect=["float_mode"],
)
def test_plans_of_drifting_estimates_are_backward_induction(law, capacity, estimate_arrival, horizon, float_mode):
    course = drifting(law, capacity, horizon, estimate_arrival)
    (problems, costs), window, audit = jax.device_get(plan_every_round(*course, estimate_arrival))
    assert np.all(audit.value <= audit.limit)
    print(f"window {window.tolist()}")
    print(f"worst error {check_plans(problems, costs, float_mode):.1e}")


def test_a_window_too_short_for_the_problem_shows_in_the_audit(monkeypatch):
    instance = deferral.make_instance(
        [0.2, 0.9], [0.0, 0.5, 0.5], service=(0.8, 0.2), cost_expert=0.2, cost_holding=0.0, queue_capacity=20
    )
    policy = deferral.kl_pbd()

    def audit(horizon):
        model = policy.setup(policy.params, with_float_type(instance), horizon)
        return model.window, policy.audit(model, policy.init(model))["bellman_gap"]

    window, enough = audit(5000)
    assert window > 64
    assert enough.value == 0
    monkeypatch.setattr(plug_in, "_LONGEST_WINDOW", 64)
    window, short = audit(5000)
    assert window == 64
    assert short.value > short.limit
    assert audit(64)[1].value == 0  # all of a short run is exact


@quick_jit(static_argnames="policy")
def learn(policy, params, instances, noise, keys):
    """Runs of a learner ``[R, T]``, with the problem that it solved in each round and its marginal costs."""
    solved = []
    original = plug_in._plan

    def noting(model, problem, state, t):
        increments, state = original(model, problem, state, t)
        solved.append((problem, marginal_cost(problem, increments)))
        return increments, state

    def one(instance, noise, keys):
        world = bare(deferral.environment(instance, keys.shape[0]))
        model = world.setup(instance, keys.shape[0])
        return play(world, policy._replace(params=params), instance, model, noise, keys, tap=solved.pop)["tap"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plug_in, "_plan", noting)
        return jax.vmap(one)(instances, noise, keys)


def play_learner(policy, law, capacity, horizon, seed=2):
    instances, _, _ = drifting(law, capacity, 2, False, seed=seed)
    rng = np.random.default_rng(seed)
    noise = []
    for row in range(3):
        plain = {name: np.asarray(getattr(instances, name)[row], np.float64) for name in ("accuracy", "service")}
        arrival = np.asarray(instances.arrival[row], np.float64)
        plain = {name: values / values.sum() if name == "service" else values for name, values in plain.items()}
        noise.append(draw_noise(plain | {"arrival": arrival / arrival.sum()}, horizon, rng))
    noise = Noise(*(np.stack([draw[name] for draw in noise]) for name in ("level", "label", "capacity")))
    keys = jax.random.split(jax.random.key(seed), (3, horizon))
    return jax.device_get(learn(policy._replace(params=None), policy.params, instances, noise, keys))


LEARNERS = {
    "kl_pbd": deferral.kl_pbd(),
    "kl_pbd, arrival": deferral.kl_pbd(estimate_arrival=True),
    "kl_pbd, arrival and service": deferral.kl_pbd(estimate_arrival=True, estimate_service=True),
    "kl_pbd_plus, arrival": deferral.kl_pbd_plus(estimate_arrival=True),
    "greedy_bellman": deferral.greedy_bellman(),
    "naive_bellman, arrival": deferral.naive_bellman(estimate_arrival=True),
}
QUICK_LEARNERS = [("kl_pbd_plus, arrival", "several", 8, 400, "float64"), ("kl_pbd", "longer", 8, 400, "float32")]
ALL_LEARNERS = [
    *itertools.product(("kl_pbd", "kl_pbd, arrival"), LAWS, CAPACITIES, [2000], TOLERANCE),
    *itertools.product(list(LEARNERS)[2:], LAWS, [8], [2000], TOLERANCE),
]


@pytest.mark.parametrize(
    ("learner", "law", "capacity", "horizon", "float_mode"),
    quick_or_slow(QUICK_LEARNERS, ALL_LEARNERS),
    indirect=["float_mode"],
)
def test_a_learners_plans_are_backward_induction(learner, law, capacity, horizon, float_mode):
    """Every M_t(b) of a whole run, against the induction on the learner's own estimates of that round."""
    problems, costs = play_learner(LEARNERS[learner], law, capacity, horizon)
    if "service" in learner:  # before it knows that the expert serves at all there is nothing to plan
        problems, costs = jax.tree.map(lambda leaf: leaf[:, 100:], (problems, costs))
    print(f"worst error {check_plans(problems, costs, float_mode):.1e}")


# ----------------------------------------------------------------------------------------------------------
# The fixed point, and the way to it


unit = st.floats(0, 1, allow_subnormal=False)
CAPACITY, SERVERS = 6, 3


@st.composite
def admissions(draw):
    """A problem of fixed shape, its numbers on a coarse grid so that ties, zeros and ones are frequent."""
    tenths = st.integers(0, 10).map(lambda n: n / 10)
    arrival = np.array(draw(st.lists(st.integers(0, 6), min_size=LEVELS + 1, max_size=LEVELS + 1)), float)
    arrival[0] += arrival.sum() == 0
    service = np.array(draw(st.lists(st.integers(0, 6), min_size=SERVERS + 1, max_size=SERVERS + 1)), float)
    service[1] += service[1:].sum() == 0
    arrival, service = arrival / arrival.sum(), service / service.sum()
    loss = draw(st.sampled_from([0.5, 1.0, 2.0])) * np.array(
        draw(st.lists(tenths | unit, min_size=LEVELS, max_size=LEVELS))
    )
    expert = draw(tenths)
    holding = draw(st.sampled_from([0.0, 0.001, 0.05, 0.3]))
    kind = jnp.result_type(float)
    return Admission(*(np.asarray(number, kind) for number in (loss, arrival[1:], service, expert, holding)))


@quick_jit
def course(problem, start):
    """Increments with 0..399 rounds left ``[400, B]``, the fixed point from the drain cost and from ``start``."""
    drain = drain_increments(problem.service, problem.cost_holding, CAPACITY)

    def sweep(x, _):
        return bellman_sweep(problem, x), x

    far, path = jax.lax.scan(sweep, drain, None, length=400)
    cold = bellman_fixed_point(problem, drain)
    return path, far, cold, bellman_fixed_point(problem, start), bellman_sweep(problem, cold.increments)


@given(admissions(), st.lists(unit, min_size=CAPACITY, max_size=CAPACITY))
def test_increments_grow_towards_the_fixed_point(problem, start):
    """At any numbers: monotone in the rounds left, never above the fixed point, which the sweep leaves as it is."""
    path, far, cold, _, swept = jax.device_get(course(problem, np.asarray(start, problem.loss.dtype)))
    slack = 1e3 * np.finfo(path.dtype).eps * max(1.0, np.abs(path).max())
    assert np.all(np.isfinite(path)) and np.all(path >= 0)
    assert np.all(np.diff(path, axis=0) >= -slack)
    assert np.all(far <= cold.increments + slack)
    assert np.abs(swept - cold.increments).max() <= slack
    assert cold.residual <= slack


@given(admissions(), st.lists(unit, min_size=CAPACITY, max_size=CAPACITY))
def test_a_warm_start_from_anywhere_finds_the_same_fixed_point(problem, start):
    """Except where there is no holding cost and somebody is always served: then there are several fixed points."""
    degenerate = problem.cost_holding == 0 and problem.service[0] < 1e-6
    _, _, cold, warm, _ = jax.device_get(course(problem, np.asarray(start, problem.loss.dtype)))
    if not degenerate:
        # Little service makes the fixed point less sharp than its residual.
        slack = 1e4 * np.finfo(cold.increments.dtype).eps * max(1.0, np.abs(cold.increments).max())
        np.testing.assert_allclose(warm.increments, cold.increments, atol=slack)


@quick_jit(static_argnames="capacity")
def far_and_fixed(problems, capacity):
    """100,000 sweeps from the drain cost, the fixed point, its step count, and what ``settle`` makes of it."""

    def one(problem):
        start = drain_increments(problem.service, problem.cost_holding, capacity)
        fixed = bellman_fixed_point(problem, start)
        settled = [settle(problem, fixed.increments, 1e-3, rounds) for rounds in (40, 10**5)]
        exact = settle(problem, fixed.increments, -1.0, 40)
        return backward_induction(problem, 100_000, capacity), fixed, settled, exact

    return jax.vmap(one)(problems)


@pytest.mark.parametrize(("law", "capacity"), [("always", 1), ("seldom", 8), ("several", 8), ("longer", 3)])
def test_the_fixed_point_is_where_the_induction_ends(law, capacity, float_mode):
    problems = random_problems(law, capacity)
    far, fixed, settled, exact = jax.device_get(far_and_fixed(problems, capacity))
    assert np.abs(far - fixed.increments).max() <= TOLERANCE[float_mode]
    if float_mode == "float64":
        assert np.abs(far - fixed.increments).max() <= 1e-9
    assert fixed.iterations.dtype == np.int32 and np.all(fixed.iterations <= 12)
    early, late = settled
    # Stopped early or run through, the truth lies between what was reached and the fixed point.
    true = cost_tables(Problems.of(problems), capacity, 41)[:, 40]
    assert np.all(exact[1] <= 40)
    for (increments, rounds), asked in ((early, 40), (late, 10**5)):
        assert np.all(rounds <= asked)
        stopped = rounds < asked
        assert np.all(np.abs(fixed.increments - increments).max(1)[stopped] <= 1e-3)
    assert np.all(late[1] < 10**5)
    costs = jax.vmap(marginal_cost)(problems, early[0])
    assert np.abs(np.asarray(costs, np.float64) - true).max() <= 1e-3 + TOLERANCE[float_mode]
    costs = jax.vmap(marginal_cost)(problems, exact[0])
    assert np.abs(np.asarray(costs, np.float64) - true).max() <= TOLERANCE[float_mode]


drain = quick_jit(drain_cost, static_argnames="capacity")


@pytest.mark.parametrize(("law", "capacity"), EVERY_SHAPE)
def test_drain_cost_of_any_law(law, capacity, float_mode):
    service = np.asarray(service_law(law, capacity), float_mode)
    exact = reference.drain_cost(service.astype(np.float64), 0.07, capacity)
    found = drain(service, np.asarray(0.07, float_mode), capacity)
    np.testing.assert_allclose(found, exact, rtol=3e-6 if float_mode == "float32" else 1e-13)


def test_drain_cost_of_single_service_is_quadratic(x64):
    b = np.arange(31)
    np.testing.assert_allclose(drain(np.array([0.7, 0.3]), 0.2, 30), 0.2 * b * (b + 1) / 0.6, rtol=1e-13)


@given(st.lists(st.integers(0, 5), min_size=SERVERS + 1, max_size=SERVERS + 1), st.floats(0, 3))
def test_drain_cost_solves_its_equation(weights, holding):
    service = np.array(weights, float) + (sum(weights[1:]) == 0) * np.eye(SERVERS + 1)[1]
    service = np.asarray(service / service.sum(), jnp.result_type(float))
    cost = np.asarray(drain(service, np.asarray(holding, service.dtype), CAPACITY), np.float64)
    left = reference.service_matrix(service.astype(np.float64), CAPACITY) @ cost
    slack = 1e2 * np.finfo(service.dtype).eps * (1 + cost.max())
    np.testing.assert_allclose(cost, holding * np.arange(CAPACITY + 1) + left, atol=slack)


@pytest.mark.parametrize(
    ("levels", "capacity", "rounds"), [(1, 1, 300), (500, 8, 300), (3, 500, 400)], ids=["least", "levels", "queue"]
)
def test_the_smallest_and_large_sizes(levels, capacity, rounds, x64):
    rng = np.random.default_rng(levels)
    problems = Admission(
        loss=jnp.asarray(rng.random((2, levels))),
        arrival=jnp.asarray(rng.dirichlet(np.ones(levels + 1), 2)[:, 1:]),
        service=jnp.asarray([[0.45, 0.55], [0.0, 1.0]]),
        cost_expert=jnp.asarray([0.1, 0.2]),
        cost_holding=jnp.asarray([0.001, 0.0]),
    )
    sampled = np.array([0, rounds - 1], np.int32)
    table, some = table_and_samples(problems, sampled, rounds, capacity)
    exact = cost_tables(Problems.of(problems), capacity, rounds)
    assert np.abs(table - exact).max() <= 1e-9
    assert np.abs(some - exact[:, sampled]).max() <= 1e-9
    fixed = quick_jit(jax.vmap(bellman_fixed_point))(problems, jnp.diff(table[:, -1], prepend=0, axis=1))
    swept = jax.vmap(bellman_sweep)(problems, fixed.increments)
    assert np.abs(swept - fixed.increments).max() <= 1e-12 * max(1, capacity / 10)
    last = jax.vmap(marginal_cost)(problems, fixed.increments)
    assert np.all(last >= table[:, -1] - 1e-9)


def test_the_kernels_work_inside_other_peoples_programs(float_mode):
    """Under jit, vmap over problems, scan over warm starts and inside a gradient: as one by one."""
    problems = random_problems("several", 8)

    def follow(problem):
        def step(x, share):
            fixed = bellman_fixed_point(problem._replace(arrival=share * problem.arrival), x)
            return fixed.increments, marginal_cost(problem, fixed.increments)

        return jax.lax.scan(step, jnp.zeros(8), jnp.asarray([0.2, 0.7, 1.0]))[1]

    together = quick_jit(jax.vmap(follow))(problems)
    alone = quick_jit(follow)
    slack = 1e-4 if float_mode == "float32" else 1e-12
    with compilations() as compiled:
        for row in range(6):
            one = alone(jax.tree.map(lambda leaf, row=row: leaf[row], problems))
            np.testing.assert_allclose(together[row], one, atol=slack)
    assert compiled.count("jit(follow)") == 1

    def total(holding):
        costs = marginal_cost_table(jax.tree.map(lambda leaf: leaf[0], problems)._replace(cost_holding=holding), 30, 8)
        return costs.sum()

    slope = quick_jit(jax.grad(total))(jnp.asarray(0.03))
    assert np.isfinite(slope) and slope > 0


def test_expected_increment_is_the_increment_of_the_expectation(float_mode):
    service = np.asarray(service_law("longer", 5), float_mode)
    increments = np.asarray([0.3, 0.1, 0.7, 0.2, 0.9], float_mode)
    value = np.concatenate([[0.0], np.cumsum(increments.astype(np.float64))])
    expected = np.diff(reference.service_matrix(service.astype(np.float64), 5) @ value)
    np.testing.assert_allclose(expected_increment(service, increments), expected, atol=1e-6)
