# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Cascade: which LLM APIs to query, and when to stop
# A prompt comes with a context. Each API is a box: opening it costs money and shows an answer, whose value is not known
# until it is deployed. With known laws the best rule is Weitzman's: give each box its *reservation index*, the z that
# solves `E[(value - z)^+] = E[cost]`, open boxes by decreasing index, and stop once the best value in hand is above all
# indices left. DOW learns indices and values at once.

# %%
import jax
import jax.numpy as jnp

import jaxcascade as jc

values = jnp.array([[0.2, 1.0], [0.4, 0.6]])  # two boxes, two outcomes each, equally likely
index = jax.jit(jc.kernels.reservation_index)(values, jnp.array([0.1, 0.02]), jnp.full((2, 2), 0.5))
print("reservation indices:", index, "- the risky box is opened first, although both are worth .6 and .5 on average")

# %% [markdown]
# A family of random contexts and outputs, with three boxes. `calibration` is the number of free rounds before round 1 in
# which every box is opened; the static plug-in rule never learns after them.

# %%
instance = jc.cascade.synthetic("A", context_size=8, output_size=10)
policies = {
    "dow": jc.cascade.dow(calibration=40),
    "static": jc.cascade.static_plugin(calibration=40),
    "oracle": jc.cascade.oracle(),
}
study = jc.compare(instance, policies, num_steps=500, num_seeds=10, record=25)
study.plot("regret")

# %%
for name in study.policies:
    opened = study.final(name, "opened").mean() / 500
    print(f"{name:8s} regret {study.final(name, 'regret').mean():6.1f}, boxes opened a period {opened:.2f}")

# %% [markdown]
# One thing at a time: the width of optimism. Too little and DOW may settle on the wrong box, too much and it pays for
# looking. Widths are pytree leaves, so the whole sweep is one program.

# %%
grid = jc.sweep(
    lambda width: (instance, {"dow": jc.cascade.dow(calibration=40, index_width=width)}),
    {"width": [0.0, 0.3, 1.0]},
    num_steps=500,
    num_seeds=10,
    record=25,
)
jc.plotting.plot_sweep(grid, "regret")

# %% [markdown]
# Try this: `calibration=0`; `dow(True)`, which is told every opened answer's value; `synthetic("B")`, where indices depend
# on the context.
