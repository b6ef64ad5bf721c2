"""A study of other numbers, seeds or rounds runs the programs that are there, in all three systems."""

import chex
import jax
import pytest

import jaxcascade as jc
from jaxcascade import cascade, deferral, queueing
from tests.conftest import compilations, quick_jit

SIZES = {"context_size": 6, "output_size": 6, "feature_size": 2}


def two_costs(key, cheap):
    return cascade.synthetic("B", key=key, c0=(cheap, 0.05, 0.06), c1=(0.01, 0.02, 0.03), **SIZES)


# Two instances and two policies of the same shapes each.
CASES = {
    "deferral": (
        [deferral.two_point(num_levels=3, gap=gap, service_rate=rate) for gap, rate in ((0.1, 0.9), (0.2, 0.4))],
        [{"kl-pbd": deferral.kl_pbd(resolve_every=every)} for every in (1, 7)],
    ),
    "deferral, arrivals learned": (
        [
            deferral.two_point(num_levels=3, gap=0.1, cost_expert=cost, cost_holding=hold)
            for cost, hold in ((0.5, 0.0), (0.3, 0.1))
        ],
        [{"plus": deferral.kl_pbd_plus(estimate_arrival=True, resolve_every=every)} for every in (1, 7)],
    ),
    "cascade": (
        [two_costs(key, cheap) for key, cheap in ((0, 0.01), (1, 0.04))],
        [{"dow": cascade.dow(index_width=w, value_width=w, index_ridge=r)} for w, r in ((0.6, 10.0), (0.2, 5.0))],
    ),
    "cascade, one pass": (
        [two_costs(key, cheap) for key, cheap in ((0, 0.01), (1, 0.04))],
        [{"dow": cascade.dow(estimator="one_pass", index_width=w, value_ridge=r)} for w, r in ((0.6, 1.0), (0.2, 5.0))],
    ),
    "queueing": (
        [queueing.synthetic(3, 2, arrival_rate=rate, slackness=0.02) for rate in (0.6, 0.61)],
        [{"acqb": queueing.acqb(scale=s, exploration_rate=r)} for s, r in ((0.1, 1.0), (0.3, 0.5))],
    ),
    "queueing, one pass": (
        [queueing.synthetic(3, 2, arrival_rate=rate, slackness=0.02) for rate in (0.6, 0.61)],
        [{"acqb": queueing.acqb(estimator="one_pass", scale=s, regularisation=r)} for s, r in ((0.1, 1.0), (0.3, 2.0))],
    ),
}
# Learners that remember every round size their buffers by the horizon, so that these are set up anew, which takes
# a fraction of a second; the rounds themselves are the same program as long as the buffers are.
SIZED_BY_HORIZON = {"cascade", "queueing"}


def study(instance, policies, **changes):
    options = {"num_steps": 40, "num_seeds": 3, "seed": 1, "record": 2, "seed_chunk": 3}
    return jc.compare(instance, policies, **(options | changes))


def programs(compiled):
    """The runner's programs among those compiled (array arithmetic on the way is none of them)."""
    return [name for name in compiled if name.startswith("jit(_")]


@pytest.mark.parametrize("name", CASES)
def test_other_numbers_seeds_and_rounds_compile_nothing(name):
    (instance, other), (policies, others) = CASES[name]
    study(instance, policies)
    with compilations() as compiled:
        study(other, policies)
        study(instance, others)
        study(instance, policies, seed=12)
        study(instance, policies, num_seeds=9, record=[3, 17, 40])
    assert not programs(compiled)
    with compilations() as compiled:
        study(instance, policies, num_steps=57)
    assert programs(compiled) == (["jit(_setup_models)"] if name in SIZED_BY_HORIZON else [])


@pytest.mark.parametrize("name", ["deferral", "cascade, one pass", "queueing, one pass"])
def test_a_sweep_over_other_values_compiles_nothing(name):
    instances, policies = CASES[name]

    def make(world, rule):
        return instances[world], policies[rule]

    def run(worlds, rules, seed):
        grid = {"world": worlds, "rule": rules}
        return jc.sweep(make, grid, num_steps=20, num_seeds=2, record=1, seed=seed)

    run([0, 1], [0, 1], 0)
    with compilations() as compiled:
        run([1, 0], [1, 0], 5)
        run([1, 1], [0, 0], 6)
    assert not programs(compiled)


@pytest.mark.parametrize("name", ["deferral", "cascade, one pass", "queueing, one pass"])
def test_simulate_is_traced_once_for_all_numbers(name):
    instances, policies = CASES[name]
    ((_, policy),) = policies[0].items()
    # From numbers that are not traced, as the environment has its sizes from them.
    environment = jc.get_system(name.partition(",")[0]).environment(instances[0], 20)
    chex.clear_trace_counter()  # which goes by the function's name

    @quick_jit
    @chex.assert_max_traces(n=1)
    def final(instance, params, key):
        options = {"num_steps": 20, "num_seeds": 2, "record": 1, "environment": environment}
        return jc.simulate(instance, policy._replace(params=params), key=key, **options).metrics["regret"]

    for instance in instances:
        for (chosen,) in (rules.values() for rules in policies):
            for seed in (0, 1):
                values = jax.device_get(final(instance, chosen.params, jax.random.key(seed)))
                assert values.shape == (2, 1) and (values >= -1e-6).all()
