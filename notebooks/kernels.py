# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # The kernels in your own JAX code
# `jaxcascade.kernels` knows nothing of systems: pure functions for use inside your `jit`, `vmap` and `grad`.

# %%
import jax
import jax.numpy as jnp

from jaxcascade import kernels

# %% [markdown]
# **A Bellman solve** inside a jitted function: what one more deferral costs at each queue length, and how the threshold
# moves with the price of waiting.

# %%


@jax.jit
@jax.vmap
def price_of_deferring(cost_holding):
    problem = kernels.Admission(
        loss=jnp.array([0.9, 0.4, 0.1]),
        arrival=jnp.array([0.2, 0.3, 0.5]),
        service=jnp.array([0.6, 0.4]),
        cost_expert=jnp.array(0.2),
        cost_holding=cost_holding,
    )
    return kernels.marginal_cost(problem, kernels.bellman_fixed_point(problem, jnp.zeros(6)).increments)


print(price_of_deferring(jnp.array([0.01, 0.05, 0.2])))

# %% [markdown]
# **KL bounds** under `vmap`: the smallest mean that n observations with mean p do not refute.

# %%
lower = jax.vmap(kernels.kl_lower_bound, in_axes=(None, 0, None))
print(lower(jnp.array(0.8), jnp.array([1, 10, 100, 1000]), jnp.array(3.0)))

# %% [markdown]
# **A reservation index** and its gradient. Raising the expected cost c lowers the index z of a box by
# `dz/dc = -1 / P(value > z)`; a finite difference agrees.

# %%
value, weight = jnp.array([0.1, 0.5, 0.9]), jnp.array([0.3, 0.4, 0.3])


def index(cost):
    return kernels.reservation_index(value, cost, weight)


slope = jax.jit(jax.grad(index))(0.1)
print("gradient", slope, "difference", (index(0.101) - index(0.099)) / 0.002, "theory", -1 / 0.3)

# %% [markdown]
# **A choice model**: simulate choices from a multinomial logit and fit it in one pass, O(d^2) a choice, without a history.

# %%
theta = jnp.array([[1.0, -1.0], [-0.5, 0.5]])  # two items, two dimensions
contexts = jax.random.uniform(jax.random.key(0), (2_000, 2), minval=-1, maxval=1)
utility = contexts @ theta.T
offered = jnp.ones_like(utility, bool)
chance, _ = kernels.mnl_probabilities(utility, offered)
dice = jax.random.uniform(jax.random.key(1), (2_000, 1))
upper = jnp.cumsum(chance, axis=1)
chosen = (dice <= upper) & (dice > upper - chance)


def learn(state, seen):
    context, choice = seen
    return kernels.one_pass_step(*state, jnp.stack([context, context]), choice), None


start = jnp.zeros((2, 2)), jnp.stack([kernels.factor_init(2, jnp.asarray(1.0))] * 2)
(estimate, _), _ = jax.jit(lambda s: jax.lax.scan(learn, s, (contexts, chosen)))(start)
print("theta", theta, "one-pass estimate", estimate, sep="\n")
