"""Final regret against the horizon (Table 6 and Figure 13's shape), with the paper's bounds.

    python experiments/deferral_horizon.py [--seeds 24] [--horizons 10000 50000 100000 200000] [--out DIR]

Paper: the regret of rules that trust the score, and of greedy deferral, grows linearly in the horizon; that of KL-PBD
and KL-PBD+ by a factor of 1.6 to 4.4 from 10,000 to 100,000 rounds. Each horizon is a run of its own, since KL-PBD's
confidence budget depends on it. The log is not the paper's.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

import jaxcascade as jc
from jaxcascade.deferral import theory


def main():
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--horizons", type=int, nargs="+", default=[10_000, 50_000, 100_000, 200_000])
    parser.add_argument("--out", type=Path, default=Path("results/deferral_horizon"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    instance = jc.deferral.from_log("mot_gpt35_date_cot1_40@20")
    policies = {
        "kl-pbd": jc.deferral.kl_pbd(estimate_arrival=True),
        "kl-pbd-plus": jc.deferral.kl_pbd_plus(estimate_arrival=True),
        "gbd": jc.deferral.greedy_bellman(estimate_arrival=True),
        "salmut-sf": jc.deferral.salmut_sf(),
        "nbd": jc.deferral.naive_bellman(estimate_arrival=True),
        "fct": jc.deferral.fixed_confidence_threshold(estimate_arrival=True),
        "fqt": jc.deferral.fixed_queue_threshold(estimate_arrival=True),
    }
    intervals = {name: [] for name in policies}
    for horizon in arguments.horizons:
        study = jc.compare(instance, policies, num_steps=horizon, num_seeds=arguments.seeds, record=1)
        for name in policies:
            intervals[name].append(study.interval(name, "regret"))
    print("final regret, mean ± 95 % half width over", arguments.seeds, "seeds")
    print(f"{'policy':14s}" + "".join(f"{horizon:>18,d}" for horizon in arguments.horizons))
    for name, row in intervals.items():
        print(f"{name:14s}" + "".join(f"{cell.mean[-1]:>10.1f} ± {cell.ci95[-1]:<5.1f}" for cell in row))

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.style.context(jc.plotting.STYLE):
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for (name, row), marker in zip(intervals.items(), "osD^vP*", strict=True):
            means, widths = np.array([(cell.mean[-1], cell.ci95[-1]) for cell in row]).T
            axes.errorbar(arguments.horizons, means, widths, label=name, marker=marker, capsize=3)
        slope = theory.lower_bound_slope(instance)
        horizons = np.array(arguments.horizons, float)
        axes.plot(horizons, slope * np.log(horizons), "k:", label="lower bound (Theorem 3)")
        bounds = [theory.unknown_distributions_bound(instance, horizon) for horizon in arguments.horizons]
        axes.plot(horizons, bounds, "k--", label="upper bound (Theorem 7)")
        axes.set(xscale="log", yscale="log", xlabel="horizon T (rounds)", ylabel="final regret (cost units)")
        axes.set_title("Final regret against the horizon, mean with 95 % bars")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        figure.savefig(arguments.out / "regret_against_horizon.png", bbox_inches="tight", dpi=150)


if __name__ == "__main__":
    main()
