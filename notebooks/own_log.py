# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Bring your own log
# Two small files, written here, as you would have them: how often sampled answers agreed, and a routing table.

# %%
import csv
import tempfile
from pathlib import Path

import numpy as np

import jaxcascade as jc

folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
with open(folder / "questions.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["level", "correct"])
    for _ in range(300):
        level = int(rng.integers(1, 6))
        rows.writerow([level, int(rng.random() < 0.3 + 0.13 * level)])

# %% [markdown]
# **Deferral**: one row a question, its confidence level and whether the answer was right. The reader says what it found,
# and the instance takes frequencies and accuracies from it.

# %%
log = jc.data.read_confidence_log(folder / "questions.csv")
print(jc.data.summarise_log(log))
instance = jc.deferral.from_log(str(folder / "questions.csv"), service_rate=0.35, cost_expert=0.25, queue_capacity=4)
policies = {"kl-pbd": jc.deferral.kl_pbd(), "accept-all": jc.deferral.accept_all()}
study = jc.compare(instance, policies, num_steps=500, num_seeds=10)
print("regret:", {name: round(float(study.final(name, "regret").mean()), 1) for name in study.policies})

# %% [markdown]
# **Queueing**: prompts with the score and the cost of each model's answer, and embeddings beside them. Half of the prompts
# train a router, the other half is replayed; no prompt is on both sides.

# %%
topic = rng.integers(3, size=120)
with open(folder / "table.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["sample_id", "prompt", "eval_name", "a", "b", "c", *(f"{m}|total_cost" for m in "abc")])
    for i, best in enumerate(topic):
        scores = [int(rng.random() < (0.9 if model == best else 0.3)) for model in range(3)]
        rows.writerow([i, f"question {i}", "mine", *scores, 0.001, 0.002, 0.003])
np.save(folder / "table.npy", np.eye(3)[topic] + 0.1 * rng.normal(size=(120, 3)))

table = str(folder / "table.csv")
embeddings = np.load(folder / "table.npy")
print(jc.data.summarise_table(jc.data.read_routing_table(table, embeddings=embeddings)))
Path(folder / "table.npy").rename(folder / "table.minilm.npy")
replay = jc.queueing.from_table(tables=table, part="evaluation", arrival_rate=0.5)
policies = {"knn": jc.queueing.router("knn", tables=table), "rand": jc.queueing.rand()}
study = jc.compare(replay, policies, num_steps=500, num_seeds=10)
for name in study.policies:
    print(
        f"{name:5s} regret {study.final(name, 'regret').mean():.1f}, waiting {study.final(name, 'waiting').mean():.1f}"
    )

# %% [markdown]
# A file that is wrong is refused in one line that names file, row and column.

# %%
(folder / "broken.csv").write_text("level,correct\n1,0\n2,maybe\n")
try:
    jc.data.read_confidence_log(folder / "broken.csv")
except ValueError as error:
    print(str(error).replace(str(folder), "..."))
