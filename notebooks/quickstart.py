# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Quickstart
# An LLM answers queries and reports a confidence level with each. A policy gives the answer out or defers the query
# to an expert, who serves a queue at a limited rate and reveals whether the LLM had been right. Nothing is learned
# from answers given out.

# %%
import jaxcascade as jc

instance = jc.deferral.from_log("mot_gpt35_date_cot1_40@20")  # a real log: 369 questions, 20 samples each
jc.plotting.plot_calibration(instance)

# %% [markdown]
# Four policies on the same arrivals, labels and service. `paired` compares two of them seed by seed.

# %%
policies = {
    "kl-pbd": jc.deferral.kl_pbd(estimate_arrival=True),
    "kl-pbd-plus": jc.deferral.kl_pbd_plus(estimate_arrival=True),
    "greedy": jc.deferral.greedy_bellman(estimate_arrival=True),
    "oracle": jc.deferral.oracle(),
}
study = jc.compare(instance, policies, num_steps=2_000, num_seeds=20, snapshot=1_000)
study.plot("regret")

# %%
for name in study.policies:
    regret, cost = study.interval(name, "regret"), study.paired(name, "oracle", "cost")
    print(f"{name:12s} regret {regret.mean[-1]:6.1f} ± {regret.ci95[-1]:.1f}, extra cost {cost.mean[-1]:6.1f}")

# %% [markdown]
# The rules in force at half the horizon: which levels are deferred at which queue length.

# %%
jc.plotting.plot_decisions(study, policies=["kl-pbd", "oracle"])
