# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Deferral: answer, or ask an expert who is busy
# An LLM answers a query and reports a confidence level j; it is right with probability h_j. The policy gives the answer
# out, or defers the query to an expert. A wrong answer costs `cost_error`, a deferral `cost_expert`, and every waiting
# query `cost_holding` a round. The expert serves one query a round with probability `service_rate`, and what she serves
# tells whether the LLM had been right. These labels are all that is ever learned: an answer given out teaches nothing.

# %%
import jaxcascade as jc

world = {"cost_error": 2.0, "cost_expert": 0.25, "queue_capacity": 8}
instance = jc.deferral.monotone(**world)  # ten levels, service_rate=0.5, cost_holding=0.1
jc.plotting.plot_calibration(instance)

# %% [markdown]
# **The optimal rule** is known where the h_j are. A deferral costs `cost_expert`, and it makes later queries wait: its
# marginal cost M(b) grows with the queue length b and comes from a Bellman recursion. Level j is deferred where
# `cost_error (1 - h_j) > M(b)`, that is where its accuracy is below the threshold `1 - M(b) / cost_error`. A full queue
# takes nobody. One thing at a time: the holding cost. The dearer waiting is, the faster the threshold falls.

# %%
oracle = {"oracle": jc.deferral.oracle()}
size = {"num_steps": 1_000, "num_seeds": 1, "snapshot": 500}  # the rule is no matter of chance: one seed tells it
grid = jc.sweep(
    lambda cost_holding: (jc.deferral.monotone(cost_holding=cost_holding, **world), oracle),
    {"cost_holding": [0.0, 0.1, 0.3]},
    **size,
)
jc.plotting.plot_thresholds(grid, title="Oracle: below which accuracy it defers")

# %% [markdown]
# The service rate. A slow expert is kept for the worst answers even when nobody waits, since one of these may come next.

# %%
grid = jc.sweep(
    lambda service_rate: (jc.deferral.monotone(service_rate=service_rate, **world), oracle),
    {"service_rate": [0.1, 0.5, 0.9]},
    **size,
)
jc.plotting.plot_thresholds(grid, title="Oracle: below which accuracy it defers")

# %% [markdown]
# **Learning the accuracies.** Learners put an estimate of h_j into the same recursion; they differ in pessimism. Greedy
# takes the mean of the labels. KL-PBD takes the smallest accuracy that the labels do not refute, with a budget of
# log T + log log T: a level is deferred until enough labels speak for it. KL-PBD+ has the smaller budget
# log(arrivals / labels) of the level. A small world: waiting is free, the oracle's threshold is .5, and the levels are right
# with probability .75, .25, .75 and .25.

# %%
policies = {
    "greedy": jc.deferral.greedy_bellman(),
    "kl-pbd-plus": jc.deferral.kl_pbd_plus(),
    "kl-pbd": jc.deferral.kl_pbd(),
}
two_point = jc.deferral.two_point(num_levels=4, gap=0.25)
study = jc.compare(two_point, policies, num_steps=2_000, num_seeds=30, record=40, snapshot=1_000)
study.plot("regret")

# %% [markdown]
# Regret sums what each decision other than the oracle's costs on average. Where a bad level's first labels happen to be
# right, greedy gives its answers out, sees no label of it any more and pays for ever. The pessimists pay for labels first
# and stop. In how many seeds is each level deferred at half the horizon? Levels 2 and 4 should be.

# %%
for name in study.policies:
    deferred = study.snapshots[name]["decision"][:, :, 0]  # seeds, levels, empty queue
    print(f"{name:12s}", {level + 1: f"{share:.0%}" for level, share in enumerate(deferred.mean(axis=0))})

# %% [markdown]
# **Delayed labels.** A label comes when its query is served. Back to the first world, with KL-PBD and one thing changed:
# the expert's service rate. However much is deferred, labels come no faster than she serves.

# %%
grid = jc.sweep(
    lambda service_rate: (
        jc.deferral.monotone(service_rate=service_rate, **world),
        {"kl-pbd": jc.deferral.kl_pbd()},
    ),
    {"service_rate": [0.1, 0.5, 0.9]},
    num_steps=1_000,
    num_seeds=10,
    snapshot=500,
)
jc.plotting.plot_curves(grid, "labels")

# %%
for rate in grid.axes["service_rate"]:
    at = grid.select(service_rate=rate)
    queue, deferrals = at.final("kl-pbd", "queue_length_mean"), at.final("kl-pbd", "deferrals")
    delay = (queue * 1_000 / deferrals).mean()  # Little's law
    regret = at.interval("kl-pbd", "regret")
    print(
        f"service rate {rate}: {queue.mean():.1f} labels on their way, each {delay:.1f} rounds late,"
        f" regret {regret.mean[-1]:.0f} ± {regret.ci95[-1]:.0f}"
    )
grid.plot("regret")

# %% [markdown]
# At most `queue_capacity` labels are on their way, so it matters little that they are late. It matters that they are few:
# the slower the expert, the longer each level stays unknown. What a wrong decision costs differs too, as every rate has
# an oracle of its own. The rules learned at half the horizon:

# %%
jc.plotting.plot_decisions(grid)

# %% [markdown]
# Try this: `cost_error=5.0` in `world`; `gap=0.1`, as the labels needed grow like 1 / gap^2; `resolve_every=50` or
# `estimate_arrival=True` in `kl_pbd`; `service=[0.8, 0, 0, 0, 0, 0.2]` with `jc.deferral.make_instance`, an expert who takes
# five at a time; your own log, as in `own_log`.
