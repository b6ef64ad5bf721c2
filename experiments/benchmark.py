"""Time the policies: compile and run apart, beside the loop-based NumPy reference, in the same run.

    python experiments/benchmark.py [--seeds 100] [--steps 20000] [--json FILE]

The instance is a real self-consistency log (21 levels, capacity 8, Bernoulli(.35) service). Times are in
microseconds per seed and round. The reference (tests/reference) solves the whole remaining horizon at
every round, so it is timed at a much shorter one, which favours it. Peak memory is the process's own.

The floor is a hand count for KL-PBD with estimated arrivals: one evaluation of the Bellman map and its
decisions is 21 classes x 8 lengths x 6 operations = 1000, twice a round with one policy-iteration step
between them (8 rows x 12 operations); one KL bound is 8 Newton steps of 3 transcendental functions at about
20 operations = 500; noise is 4 threefry blocks of about 100 operations; queue, counts and metrics about 300.
Together 3300 operations, at 8 lanes and 3 GHz about .14 microseconds on one core.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

import jaxcascade as jc

_FLOOR_MICROSECONDS = {"kl_pbd estimated arrivals": 0.14, "kl_pbd known arrivals": 0.14}
_REFERENCE_STEPS = 200


def policies():
    """Name -> (policy, name in the reference, its options)."""
    make = jc.deferral
    return {
        "kl_pbd estimated arrivals": (make.kl_pbd(estimate_arrival=True), "kl_pbd", {"estimate_arrival": True}),
        "kl_pbd known arrivals": (make.kl_pbd(), "kl_pbd", {}),
        "kl_pbd_plus estimated arrivals": (
            make.kl_pbd_plus(estimate_arrival=True),
            "kl_pbd_plus",
            {"estimate_arrival": True},
        ),
        "greedy_bellman estimated arrivals": (
            make.greedy_bellman(estimate_arrival=True),
            "greedy_bellman",
            {"estimate_arrival": True},
        ),
        "kl_ucb_4p": (make.kl_ucb_4p(), "kl_ucb_4p", {}),
        "salmut_sf": (make.salmut_sf(), "salmut_sf", {}),
        "fixed_queue_threshold": (make.fixed_queue_threshold(), "fixed_queue_threshold", {}),
        "oracle": (make.oracle(), "oracle", {}),
    }


def reference_microseconds(instance, name, options):
    """Microseconds per round of the NumPy reference, or None where the tests are not there."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        from tests.reference import deferral_numpy
    except ImportError:
        return None
    rng = np.random.default_rng(0)
    arrays = {key: np.asarray(value, np.float64) for key, value in vars(instance).items()}
    arrays["queue_capacity"] = int(instance.queue_capacity)
    arrival = arrays["arrival"] / arrays["arrival"].sum()
    service = arrays["service"] / arrays["service"].sum()
    level = rng.choice(len(arrival), size=_REFERENCE_STEPS, p=arrival)
    noise = {
        "level": level,
        "label": (rng.random(_REFERENCE_STEPS) < np.append(1, arrays["accuracy"])[level]).astype(int),
        "capacity": rng.choice(len(service), size=_REFERENCE_STEPS, p=service),
        "policy_uniform": rng.random(_REFERENCE_STEPS),
    }
    clock = time.perf_counter()
    deferral_numpy.simulate(arrays, name, noise, **options)
    return (time.perf_counter() - clock) / _REFERENCE_STEPS * 1e6


def main():
    """Print the table, and write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    instance = jc.deferral.from_log("mot_gpt35_date_cot1_40@20")
    print(f"{arguments.seeds} seeds, {arguments.steps} rounds, 50 records; microseconds per seed and round")
    print(f"{'policy':36s}{'compile s':>10s}{'run':>9s}{'floor':>8s}{'NumPy':>10s}{'ratio':>9s}{'peak MiB':>10s}")
    rows = []
    for name, (policy, reference_name, options) in policies().items():
        study = jc.compare(instance, {name: policy}, num_steps=arguments.steps, num_seeds=arguments.seeds, record=50)
        times = study.meta["times"][name]
        run = times["run_seconds"] / arguments.seeds / arguments.steps * 1e6
        reference = reference_microseconds(instance, reference_name, options)
        row = {
            "policy": name,
            "seeds": arguments.seeds,
            "steps": arguments.steps,
            "compile_seconds": times["compile_seconds"],
            "run_microseconds": run,
            "floor_microseconds": _FLOOR_MICROSECONDS.get(name),
            "reference_microseconds": reference,
            "ratio": reference / run if reference else None,
            "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        rows.append(row)
        cells = [row["floor_microseconds"], reference, row["ratio"]]
        floor, numpy_time, ratio = (
            "-" if not cell else f"{cell:,.0f}" if cell > 100 else f"{cell:.3g}" for cell in cells
        )
        print(
            f"{name:36s}{row['compile_seconds']:10.1f}{run:9.3f}{floor:>8s}{numpy_time:>10s}{ratio:>9s}"
            f"{row['peak_mebibytes']:10.0f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
