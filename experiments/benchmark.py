"""Time the policies of all systems: compile and run apart, beside the loop-based NumPy reference, in the same run.

    python experiments/benchmark.py [--systems deferral cascade queueing] [--quick] [--json FILE]

Times are in microseconds per seed and round, at 50 records. The reference (tests/reference) is timed over a few
hundred rounds only; its refits and inductions cost more in longer runs, so that this favours it. Peak memory is the
process's own and only grows, so that a line's is an upper bound.

Floors are hand counts of the arithmetic that cannot be left out, for one core of 8 float32 lanes at 3 GHz (24
operations a nanosecond; 3.3 ns a random number; 10 GB/s from memory, 200 GB/s from the second-level cache):

* deferral, KL-PBD at K=21, B=8: two evaluations of the Bellman map (21 x 8 x 6 operations each), a policy-iteration
  step (8 rows x 12), one KL bound (8 steps x 60), 4 blocks of random numbers (100 each), counts and metrics (300).
* cascade, DOW at m=101, A=3: 404 random numbers (1.3), two products and one rank-one update of three 101 x 101
  matrices at one fused operation an entry (.8), the indices of the oracle (.7), and on the default schedule about 11
  passes over each stored row (5 of the indices, the rest of the values), 400 bytes each (.5).
* queueing, ACQB at N=d=5, 64 slots: 56 random numbers (.18), scores of 64 x 5 x 2 (.1), the queue's arrays (.1); the
  exact estimator's passes over a mean of 500/5 rows a server, one of 6 x 5 products and two of 10 (.4). With 14 LLMs of
  384 dimensions: 14 products of 384 x 384 with the samples (86), three passes over each of two factors to update them
  (37), 5376 random numbers (18).

What is above the floor, by profiles of single operations on a CPU:

* All systems: a round is 110 to 280 operations of XLA, some tenths of a microsecond each, which the seeds of a chunk
  share. More seeds at once leave the cache sooner than they pay for this.
* deferral: half is policy iteration, which goes on until the last seed of a chunk has settled. Stopping it at 8 or 16
  units in the last place instead of 4 gained nothing.
* cascade: the product with the inverse design matrices and their update read and write 130 kB a seed (a quarter),
  random numbers and the oracle's indices another, refits a third, a quarter of that to copy blocks of the history.
  Changing the matrices every 16 rounds at once gained nothing: the product of narrow matrices is slow, and so is a
  branch that returns a large array.
* queueing: contexts by rejection and random numbers make up a third. Reductions to an index, over integers and over
  pairs go entry by entry in XLA, products of narrow matrices too unless both are contracted over their last axis; the
  queue keeps its slots last and is searched by products and by halving for that. At 1000 seeds some queue outgrows its
  64 slots, and all of a chunk go on with 128. The exact estimator's seeds wait for the longest history among them.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import jaxcascade as jc

_REFERENCE_STEPS = 200
_COLUMNS = ("compile s", "run us", "floor us", "x floor", "NumPy us", "faster", "peak MiB")


class Case(NamedTuple):
    """One line of the table; ``reference`` returns the NumPy reference's seconds for ``_REFERENCE_STEPS`` rounds."""

    name: str
    instance: object
    policy: jc.core.Policy
    num_seeds: int
    num_steps: int
    floor: float | None = None
    reference: Callable[[], float] | None = None


def deferral_cases():
    """The policies of the deferral system on a real self-consistency log (capacity 8, Bernoulli(.35) service)."""
    make, instance = jc.deferral, jc.deferral.from_log("mot_gpt35_date_cot1_40@20")

    def case(policy, reference_name, floor=None, **options):
        name = "deferral " + reference_name + (", arrivals estimated" if options else "")
        return Case(name, instance, policy, 100, 20_000, floor, lambda: deferral_seconds(reference_name, options))

    def deferral_seconds(name, options):
        from tests.reference import deferral_numpy

        rng = np.random.default_rng(0)
        arrays = {key: np.asarray(value, np.float64) for key, value in vars(instance).items()}
        arrays["queue_capacity"] = int(instance.queue_capacity)
        arrival, service = (arrays[key] / arrays[key].sum() for key in ("arrival", "service"))
        level = rng.choice(len(arrival), size=_REFERENCE_STEPS, p=arrival)
        noise = {
            "level": level,
            "label": (rng.random(_REFERENCE_STEPS) < np.append(1, arrays["accuracy"])[level]).astype(int),
            "capacity": rng.choice(len(service), size=_REFERENCE_STEPS, p=service),
            "policy_uniform": rng.random(_REFERENCE_STEPS),
        }
        return timed(lambda: deferral_numpy.simulate(arrays, name, noise, **options))

    return [
        case(make.kl_pbd(estimate_arrival=True), "kl_pbd", 0.14, estimate_arrival=True),
        case(make.kl_pbd(), "kl_pbd", 0.14),
        case(make.kl_pbd_plus(estimate_arrival=True), "kl_pbd_plus", estimate_arrival=True),
        case(make.greedy_bellman(estimate_arrival=True), "greedy_bellman", estimate_arrival=True),
        case(make.kl_ucb_4p(), "kl_ucb_4p"),
        case(make.salmut_sf(), "salmut_sf"),
        case(make.fixed_queue_threshold(), "fixed_queue_threshold"),
        case(make.oracle(), "oracle"),
    ]


def cascade_cases():
    """The learners of the cascade system on the synthetic family (100 contexts, 100 outputs, 3 boxes)."""
    make, instance = jc.cascade, jc.cascade.synthetic("A")

    def seconds(known, one_pass):
        from tests.reference import cascade_numpy as reference

        rng = np.random.default_rng(0)
        psi = np.concatenate([np.ones((_REFERENCE_STEPS, 1)), rng.uniform(-1, 1, (_REFERENCE_STEPS, 100))], axis=1)
        features = rng.normal(size=(_REFERENCE_STEPS, 3, 10))
        means = reference.sigmoid(features @ np.linspace(1, -1, 10))
        costs = rng.uniform(0.01, 0.1, (_REFERENCE_STEPS, 3))
        periods = psi, features, costs, means, rng.uniform(size=(_REFERENCE_STEPS, 3))
        due = set(reference.refit_rounds(_REFERENCE_STEPS, 20, 0.1))
        learner = reference.Weitzman(3, 101, 10, known, 0.6, 0.3, due=due, one_pass=one_pass)
        return timed(lambda: reference.run(learner, periods))

    def case(name, policy, floor=None, reference=None):
        return Case("cascade " + name, instance, policy, 32, 30_000, floor, reference)

    return [
        case("dow, reward unknown", make.dow(), 3.3, lambda: seconds(False, False)),
        case("dow, reward known", make.dow(True), 3.0, lambda: seconds(True, False)),
        case("dow, one pass", make.dow(estimator="one_pass"), 3.0, lambda: seconds(False, True)),
        case("lin_ucb", make.lin_ucb()),
        case("oracle", make.oracle()),
    ]


def queueing_cases():
    """ACQB on the default family (5 LLMs, 5 dimensions), and on a random table of 14 LLMs in 384 dimensions."""
    make, rng = jc.queueing, np.random.default_rng(0)
    small = make.synthetic()
    rows = rng.normal(size=(1000, 384)) / np.sqrt(384)
    large = make.from_table(rows, rng.random((1000, 14)), rng.random((1000, 14)), arrival_rate=0.6)

    def seconds(policy, number, dim, **options):
        from tests.reference import queueing_numpy

        steps, samples = _REFERENCE_STEPS, 1
        theta = rng.uniform(-1, 1, (number, dim)) / np.sqrt(dim / 5)
        noise = {
            "context": rng.uniform(-1, 1, (steps, dim)),
            "arrives": rng.random(steps) < 0.5,
            "uniform": rng.random(steps),
        }
        draws = {
            "explore": rng.random(steps),
            "word": rng.random(steps),
            "servers": rng.random((steps, number)),
            "normal": rng.normal(size=(steps, samples, number, dim)),
        }
        instance = {"theta": theta, "assortment_size": 1}
        return timed(lambda: queueing_numpy.simulate(instance, policy, noise, draws, **options))

    def case(name, policy, floor=None, reference=None):
        return Case("queueing " + name, small, policy, 1000, 1000, floor, reference)

    one_pass = make.acqb(estimator="one_pass")
    return [
        case("acqb, one pass", one_pass, 0.35, lambda: seconds("acqb", 5, 5, estimator="one_pass")),
        case("acqb, maximum likelihood", make.acqb(), 0.8, lambda: seconds("acqb", 5, 5)),
        case("cqb_eps, one pass", make.cqb_eps(estimator="one_pass")),
        case("q_ths", make.q_ths()),
        case("optimal", make.optimal()),
        Case(
            "queueing acqb, one pass, d=384, N=14",
            large,
            one_pass,
            8,
            5000,
            140.0,
            lambda: seconds("acqb", 14, 384, estimator="one_pass"),
        ),
    ]


_CASES = {"deferral": deferral_cases, "cascade": cascade_cases, "queueing": queueing_cases}


def timed(function):
    """Seconds that a call takes."""
    clock = time.perf_counter()
    function()
    return time.perf_counter() - clock


def measure(case, quick):
    """The numbers of one line, name -> value; None where there is none."""
    seeds, steps = (4, 200) if quick else (case.num_seeds, case.num_steps)
    study = jc.compare(case.instance, {"policy": case.policy}, num_steps=steps, num_seeds=seeds, record=50)
    times = study.meta["times"]["policy"]
    run = times["run_seconds"] / seeds / steps * 1e6
    try:
        reference = case.reference() / _REFERENCE_STEPS * 1e6 if case.reference else None
    except ImportError:  # an installed package comes without its tests
        reference = None
    return {
        "policy": case.name,
        "seeds": seeds,
        "steps": steps,
        "compile_seconds": times["compile_seconds"],
        "run_microseconds": run,
        "floor_microseconds": case.floor,
        "floor_ratio": run / case.floor if case.floor else None,
        "reference_microseconds": reference,
        "ratio": reference / run if reference else None,
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main():
    """Print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--quick", action="store_true", help="4 seeds and 200 rounds, to try it out")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    print(f"{'policy':48s}{'seeds':>7s}{'rounds':>8s}" + "".join(f"{column:>11s}" for column in _COLUMNS))
    rows = []
    for system in arguments.systems:
        for case in _CASES[system]():
            row = measure(case, arguments.quick)
            rows.append(row)
            numbers = list(row.values())[3:]
            cells = ["-" if not n else f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in numbers]
            line = f"{case.name:48s}{row['seeds']:7d}{row['steps']:8d}" + "".join(f"{cell:>11s}" for cell in cells)
            print(line, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
