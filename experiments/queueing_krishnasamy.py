"""Queue regret of the context-blind rules on Krishnasamy et al.'s system of 3 queues and 5 servers.

    python experiments/queueing_krishnasamy.py [--published FILE.npy] [--seeds 1000] [--steps 10000] [--out DIR]

Krishnasamy et al. (2021), Learning unknown service rates in queues: three queues with arrival rate .35 each share five
servers; every round each queue is given a server of its own. Their published curve (``--published``: one row a round,
one column a queue) is drawn beside ours. Here a queue has the five servers to itself, since this system has one queue:
queue i is a run with the i-th row of service rates. The best servers of the three queues are three different ones, so
that without learning the two agree; what differs is that while learning, two queues may want the same server and
one of them gets the next best. Contexts are constant.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np

import jaxcascade as jc

ARRIVAL_RATE = 0.35
SERVICE_RATES = np.array([[0.5, 0.33, 0.33, 0.33, 0.25], [0.33, 0.5, 0.25, 0.33, 0.25], [0.25, 0.33, 0.5, 0.25, 0.25]])


def queue_regret(rates, steps, seeds):
    """Rounds, and mean and 95 % half width of the queue-length gap per policy, for one queue."""
    instance = jc.queueing.make_instance(
        np.zeros((len(rates), 1)),
        ARRIVAL_RATE,
        0.0,
        embeddings=np.ones((1, 1)),
        utility=np.log(rates / (1 - rates))[None],
    )
    policies = {"Q-ThS": jc.queueing.q_ths(), "Q-UCB": jc.queueing.q_ucb()}
    study = jc.compare(instance, policies, num_steps=steps, num_seeds=seeds, record=min(100, steps))
    return study.steps, {name: study.interval(name, "queue_gap") for name in policies}


def main():
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=Path("results/queueing_krishnasamy"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    published = np.load(arguments.published, allow_pickle=False) if arguments.published else None

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.style.context(jc.plotting.STYLE):
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), layout="constrained", sharey=True)
        for queue, (rates, ax) in enumerate(zip(SERVICE_RATES, axes, strict=True)):
            steps, found = queue_regret(rates, arguments.steps, arguments.seeds)
            for (name, gap), line in zip(found.items(), ("-", "--"), strict=True):
                ax.plot(steps, gap.mean, line, label=name)
                ax.fill_between(steps, gap.mean - gap.ci95, gap.mean + gap.ci95, alpha=0.2)
            if published is not None:
                rows = steps[steps < len(published)]
                ax.plot(rows, published[rows, queue], "k:", label="published, 3 queues")
            ax.set(title=f"queue {queue + 1}", xlabel="round t")
            print(f"queue {queue + 1}: queue-length gap at round t")
            for t in (100, 500, 1000, 1500, 2000, 3000, 5000, 10_000):
                if t <= arguments.steps:
                    k = int(np.argmin(np.abs(steps - t)))
                    cells = [f"{name} {gap.mean[k]:.2f} ± {gap.ci95[k]:.2f}" for name, gap in found.items()]
                    cells += [f"published {published[steps[k], queue]:.2f}"] if published is not None else []
                    print(f"  {steps[k]:6d}  " + "   ".join(cells), flush=True)
        axes[0].set_ylabel("queue-length gap (queries)")
        axes[-1].legend()
        figure.suptitle(f"Queue regret of context-blind rules, mean of {arguments.seeds} seeds with 95 % bands")
        figure.savefig(arguments.out / "queue_regret.png", dpi=150)


if __name__ == "__main__":
    main()
