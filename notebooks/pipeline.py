# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # All three: a stream of prompts through routing, cascade and expert
# Prompts arrive at a help desk. **Routing**: three small models, each good at one topic, write drafts; prompts wait in a
# queue, and users who dislike a draft come back (`queueing`). **Cascade**: beside the draft, a medium and a large model may
# be paid for an answer, and the best one at hand is chosen (`cascade`). **Expert**: an answer of low confidence goes to a
# human, who is dear and slow (`deferral`). Where do the money, the waiting and the errors go?
#
# Each system is simulated on its own, one after another, on the prompts of one table; what one stage comes to defines the
# instance of the next.
#
# * Coupled: the router's choice for each prompt is the draft in the cascade; the answer that the learned cascade chooses
#   for each prompt gives the expert's stage its levels and accuracies; the rate at which prompts leave the first queue is
#   the rate at which they reach the expert.
# * Not coupled: every stage draws its prompts anew. The gaps between departures are lost: the expert sees independent
#   arrivals. The cascade takes no time. Users judge drafts by a law of their own, described below, and need not be right.
#   No stage waits for the next, and a stage meets the one before as it is after learning.

# %% [markdown]
# **The table**, made up: who answers which prompt rightly, and at what price. Models see an embedding of topic and
# difficulty. Each answer comes with its agreement, the share of five samples that say the same, which is higher for right
# answers. One half of the prompts trains the router, the other half is the stream.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxcascade as jc
from jaxcascade.cascade.environment import Observation

rng = np.random.default_rng(0)
count = 400
topic, difficulty = rng.integers(3, size=count), rng.random(count)
chance = np.empty((count, 5))  # three small models, a medium, a large one
for model in range(3):
    chance[:, model] = np.where(topic == model, 0.95 - 0.5 * difficulty, 0.15)
chance[:, 3] = 0.95 - 0.4 * difficulty
chance[:, 4] = 0.98 - 0.15 * difficulty
right = rng.random((count, 5)) < chance
agreement = rng.binomial(5, np.where(right, 0.85, 0.5)) / 5
cents = np.tile([0.2, 0.2, 0.2, 1.5, 6.0], (count, 1))
embeddings = np.column_stack([np.eye(3)[topic], difficulty]) + 0.1 * rng.normal(size=(count, 4))
cents_error, cents_expert, cents_holding = 100, 25, 1  # a wrong answer, a look by the expert, a round in her queue

train, live = slice(0, 200), slice(200, 400)
small = slice(0, 3)
for name, share, price in zip(["algebra", "code", "prose", "medium", "large"], right.mean(0), cents[0], strict=True):
    print(f"{name:8s} {share:4.0%} right, {price} cents")

# %% [markdown]
# **Routing.** A nearest-neighbour router serves the oldest prompt with the small model that it expects to be best. A draft
# is accepted with a probability between .1 (for the worst of the three) and .99 (the best); it is .545 where all three
# are right or all wrong. Otherwise the prompt stays. `random` draws a model anew each time.

# %%
router = jc.queueing.train_router("knn", embeddings[train], right[train, small], cents[train, small])
line = jc.queueing.from_table(embeddings[live], right[live, small], cents[live, small], arrival_rate=0.4)
policies = {"router": jc.queueing.routed(router), "random": jc.queueing.rand_rout()}
routing = jc.compare(line, policies, num_steps=1_000, num_seeds=40)
routing.plot("sojourn_mean")

# %%
for metric in ("retrials_per_departure", "sojourn_mean"):
    means = {name: round(float(routing.final(name, metric).mean()), 2) for name in routing.policies}
    less = routing.paired("random", "router", metric)
    print(f"{metric}: {means}, random - router {less.mean[-1]:+.2f} ± {less.ci95[-1]:.2f}")

# %% [markdown]
# The router needs fewer calls, but prompts do not wait less: where it is wrong about a prompt it is wrong at every
# retrial, and all others wait behind that prompt.
#
# **Cascade.** Box 1 is the draft, which is paid for already; the other boxes are the medium and the large model. DOW learns
# from the answers it deploys. `inspect` says what a study remembers of a policy's rule: here, what the rule would open and
# deploy on each prompt of the stream.

# %%
prompts = np.arange(200)
choice = np.asarray(jc.queueing.router_scores(router, embeddings[live])).argmax(axis=1)


def boxes(table):
    return np.column_stack([table[live][prompts, choice], table[live, 3], table[live, 4]])


score, price = boxes(right).astype(float), boxes(cents)
price[:, 0] = 0
three = jc.cascade.from_table(
    embeddings[live], score, price, boxes(agreement)[..., None], exchange_rate=1 / cents_error
)
dow = jc.cascade.dow(calibration=60)


def on_every_prompt(model, state, t):
    def play(context, features):
        action, _ = dow.act(model, state, None, t, Observation(context))
        return jc.cascade.play(action.order, action.threshold, action.value(features))

    return jax.vmap(play)(three.context, three.features[:, :, 0])._asdict()


policies = {"dow": dow._replace(inspect=on_every_prompt), "large alone": jc.cascade.best_single()}
cascade = jc.compare(three, policies, num_steps=1_000, num_seeds=20, snapshot=1_000)
cascade.plot("utility_mean")

# %%
rule = cascade.snapshots["dow"]  # arrays [seeds, prompts, boxes]
for box, name in enumerate(["draft", "medium", "large"]):
    print(
        f"{name:6s} opened for {rule['opened'][..., box].mean():4.0%} and deployed for {rule['deployed'][..., box].mean():4.0%}"
    )

# %% [markdown]
# **Expert.** The agreement of the deployed answer is its confidence level, 1 to 6. All seeds of the cascade together make
# the log; prompts come at the rate at which they leave the first queue. The expert serves one in five rounds.

# %%
chosen = rule["deployed"].argmax(axis=2)
level = 1 + np.rint(5 * boxes(agreement)[prompts, chosen]).astype(int)
correct = score[prompts, chosen].astype(int)
log = jc.data.ConfidenceLog(level.ravel(), correct.ravel(), 6, np.linspace(0, 1, 6))
questions, right_ones = jc.data.summarise_log(log)
rate = routing.final("router", "throughput").mean()
desk = jc.deferral.make_instance(
    right_ones / np.maximum(questions, 1),
    np.append(1 - rate, rate * questions / questions.sum()),
    service_rate=0.2,
    cost_error=cents_error,
    cost_expert=cents_expert,
    cost_holding=cents_holding,
)
jc.plotting.plot_calibration(desk)

# %%
policies = {"kl-pbd": jc.deferral.kl_pbd(), "accept-all": jc.deferral.accept_all()}
expert = jc.compare(desk, policies, num_steps=4_000, num_seeds=20)
expert.plot("accuracy")

# %% [markdown]
# KL-PBD defers nearly everything at first, as far as there is room in the queue, and trusts a level once its labels speak
# for it.
#
# **Where do the money, the waiting and the errors go?** Per prompt: cents paid for models and the expert, rounds waited
# (the expert's by Little's law), and the share of answers that are still wrong after the stage. A deferred prompt counts as
# answered rightly; the holding cost steers the policy, but nobody is paid for it. Intervals are those of the stage's own
# seeds, given what the stage before came to on average. The last column adds `cents_error` for every wrong answer: a stage
# that lowers it is worth its money. Beside it, the large model for every prompt, for which no queue is simulated.

# %%
calls = sum(cents[0, j] * routing.final("router", f"offers_{j + 1}") for j in range(3))
ledger = {  # stage: cents, rounds, errors, one number a seed
    "routing": (
        calls / routing.final("router", "departures"),
        routing.final("router", "sojourn_mean"),
        np.full(routing.num_seeds, 1 - score[:, 0].mean()),
    ),
    "cascade": (
        (rule["opened"] * price).sum(axis=2).mean(axis=1),
        np.zeros(cascade.num_seeds),
        1 - correct.mean(axis=1),
    ),
    "expert": (
        cents_expert * expert.final("kl-pbd", "deferral_rate"),
        expert.final("kl-pbd", "queue_length_mean") * 4_000 / expert.final("kl-pbd", "arrivals"),
        1 - expert.final("kl-pbd", "accuracy"),
    ),
}
mean = np.array([[seeds.mean() for seeds in row] for row in ledger.values()])
half = np.array([[1.96 * seeds.std(ddof=1) / np.sqrt(len(seeds)) for seeds in row] for row in ledger.values()])
alone = cents[0, 4], 0.0, 1 - right[live, 4].mean()  # the large model for every prompt

print(f"{'':12s}{'cents':>13s}{'rounds':>15s}{'still wrong':>17s}{'cents so far and errors':>25s}")
for stage, value, bound, paid in zip(ledger, mean, half, mean[:, 0].cumsum(), strict=True):
    money, waiting = (f"{v:.2f} ± {b:.2f}" for v, b in zip(value[:2], bound[:2], strict=True))
    wrong = f"{100 * value[2]:.1f} ± {100 * bound[2]:.1f} %"
    print(f"{stage:12s}{money:>13s}{waiting:>15s}{wrong:>17s}{paid + cents_error * value[2]:>25.1f}")
print(
    f"large alone {alone[0]:>6.2f}{alone[1]:>15.2f}{100 * alone[2]:>17.1f} %{alone[0] + cents_error * alone[2]:>23.1f}"
)

# %%
with plt.style.context(jc.plotting.STYLE):
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.6), layout="constrained")
    labels = ["money (cents a prompt)", "waiting (rounds a prompt)", "wrong after the stage (% of prompts)"]
    for k, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        unit = 100 if k == 2 else 1
        before = np.zeros(3) if k == 2 else mean[:, k].cumsum() - mean[:, k]
        bars = np.where(half[:, k] > 0, unit * half[:, k], np.nan)
        here = {"bottom": before, "yerr": bars, "color": "#56B4E9", "label": "this stage, mean and 95 % bars"}
        panel.bar(list(ledger), unit * mean[:, k], **here)
        panel.bar(list(ledger), before, color="#E2E2E2", hatch="///", edgecolor="#8C8C8C", label="stages before")
        panel.axhline(unit * alone[k], color="#222222", linestyle=":", linewidth=2, label="large model alone")
        panel.set_ylabel(label)
        panel.grid(False, axis="x")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)

# %% [markdown]
# Try this: `arrival_rate=0.2`; the router "zero" instead of "knn", which sends every prompt to the model that is best on
# average; `cents_error = 20`, less than a look by the expert costs; `service_rate=0.05`, an expert who is nearly always
# busy; an agreement that tells less, say .8 for right answers and .7 for wrong ones.
