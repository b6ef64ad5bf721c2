# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Queueing: whom to serve next, and by which LLM
# Queries wait in one queue. Each round the policy serves one of them with an assortment S of K of N LLMs. A query with
# context x accepts LLM j's answer with probability `exp(u_j) / (1 + sum_S exp(u_i))`, `u_j = x . theta_j`, and leaves;
# otherwise it stays, and that retrial is all the policy ever learns from. Regret sums, over the queries served, how much
# likelier the best assortment would have been to please.

# %%
import jaxcascade as jc

policies = {
    "acqb": jc.queueing.acqb(estimator="one_pass"),
    "rand-rout": jc.queueing.rand_rout(),
}
study = jc.compare(jc.queueing.synthetic(), policies, num_steps=300, num_seeds=20, record=30)
study.plot("regret")

# %% [markdown]
# The same noise for all: arrivals, contexts and the user's dice depend on seed and round alone. So queues can be compared
# seed by seed, which is far sharper than comparing means. `rand-rout` serves the
# oldest query with a random LLM; `q_ths` and `q_ucb`, which ignore contexts, explore as blindly for the first 600 rounds.

# %%
for name in study.policies:
    gap, throughput = study.interval(name, "queue_gap_mean"), study.interval(name, "throughput")
    print(
        f"{name:8s} regret {study.final(name, 'regret').mean():6.1f}, queue above optimal {gap.mean[-1]:5.2f}"
        f" ± {gap.ci95[-1]:.2f}, departures a round {throughput.mean[-1]:.3f}"
    )

# %% [markdown]
# One thing at a time: how much room there is. With slackness epsilon, every query can be served with probability at least
# `arrival_rate + epsilon`; the less of it, the longer everyone waits. The grid runs as one compiled program.

# %%
grid = jc.sweep(
    lambda slackness: (jc.queueing.synthetic(slackness=slackness), {"acqb": policies["acqb"]}),
    {"slackness": [0.01, 0.05, 0.15]},
    num_steps=300,
    num_seeds=20,
    record=30,
)
jc.plotting.plot_sweep(grid, "queue_gap_mean")

# %% [markdown]
# Try this: `assortment_size=2` (K = 2); `scheduling="fifo"` or `exploration="random"` in `acqb`; `arrival_rate=0.9`.
