"""How good trained routers are on prompts that they never saw, and what ACQB-CL's projection does to neighbours.

    python experiments/queueing_routers.py TABLE [TABLE ...] [--encoder MODEL] [--drop-missing] [--seeds N]

Means and standard deviations over N splits of the tables' prompts into halves; utilities are net of cost (queueing's
``net_utility``). Seen on the RouterBench rows of ``queueing_routerbench_k1.toml`` (endings embedded by MiniLM, 5
splits): no router beats the best fixed model (.857; the best model of every prompt .981): umr loses .01, the others .03
to .04, and the projection leaves the agreement of neighbours as it was (.23). These embeddings say next to nothing
about which model is right on a multiple-choice question. On prompts whose best model goes by topic
(tests/test_routers.py) all six win.
"""

import argparse

import numpy as np

from jaxcascade import queueing
from jaxcascade.queueing.routers import ROUTERS
from jaxcascade.queueing.table import read_part


def qualities(tables, split_seed, **options):
    """Router -> (accuracy, utility, best fixed, oracle), and agreement of neighbours before and after projection."""
    train, held = (read_part(tables, part, split_seed=split_seed, **options) for part in ("train", "evaluation"))
    answers, unseen = [(part.embeddings, part.performance, part.cost) for part in (train, held)]
    found = {name: queueing.router_quality(queueing.train_router(name, *answers), *unseen) for name in ROUTERS}
    projection = queueing.train_projection(*answers, seed=split_seed)
    projected = np.asarray(queueing.project(projection, held.embeddings))
    agreement = [queueing.neighbour_agreement(vectors, *unseen[1:]) for vectors in (held.embeddings, projected)]
    return found, agreement


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--encoder", help="embed the prompts' endings with this model")
    parser.add_argument("--drop-missing", action="store_true", help="leave out prompts that lack a score or cost")
    parser.add_argument("--seeds", type=int, default=5, help="number of splits")
    arguments = parser.parse_args()
    options = {"drop_missing": arguments.drop_missing, "encoder": arguments.encoder}
    runs = [qualities(arguments.tables, seed, **options) for seed in range(arguments.seeds)]
    print(f"{'router':12s}{'best model named':>20s}{'net utility':>20s}{'less best fixed':>20s}")
    for name in ROUTERS:
        quality = np.array([run[0][name] for run in runs])
        columns = quality[:, 0], quality[:, 1], quality[:, 1] - quality[:, 2]
        print(f"{name:12s}" + "".join(f"{column.mean():12.4f} ± {column.std():.3f}" for column in columns))
    fixed, oracle = np.array([run[0]["zero"] for run in runs])[:, 2:].T
    print(f"\nbest fixed model {fixed.mean():.4f}, best model of every prompt {oracle.mean():.4f}")
    before, after = np.array([run[1] for run in runs]).T
    print(f"agreement of 10 neighbours: {before.mean():.3f} of embeddings, {after.mean():.3f} projected")


if __name__ == "__main__":
    main()
