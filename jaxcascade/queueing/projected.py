"""Policies on projected contexts, and ACQB-CL."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

from jaxcascade.core import Policy
from jaxcascade.queueing.acqb import acqb
from jaxcascade.queueing.projection import Projection, apply_layers, train_projection
from jaxcascade.queueing.table import Tables, read_part, table_paths
from jaxcascade.queueing.targets import COST_WEIGHT


def projected(policy: Policy, projection: Projection) -> Policy:
    """The policy, shown every context through a trained projection.

    Args:
      policy: a policy of the queueing system.
      projection: from ``train_projection``; of prompts that the policy is not judged on.

    Source: arXiv 2602.02061, Section 5.2 (ACQB-CL).
    """
    return _projected(policy._replace(params=None))._replace(params=(policy.params, projection.layers))


@lru_cache
def _projected(policy):
    def setup(params, view, horizon):
        own, layers = params
        size = layers[2].shape[-1]
        return policy.setup(own, dataclasses.replace(view, dim=size), horizon), layers

    def init(model):
        return policy.init(model[0])

    def act(model, state, draws, t, observation):
        seen = observation._replace(context=apply_layers(model[1], observation.context))
        return policy.act(model[0], state, draws, t, seen)

    def update(model, state, t, observation, action, feedback):
        seen = observation._replace(context=apply_layers(model[1], observation.context))
        told = feedback._replace(context=apply_layers(model[1], feedback.context))
        return policy.update(model[0], state, t, seen, action, told)

    def on_own_model(function):
        return None if function is None else lambda model, *rest: function(model[0], *rest)

    return policy._replace(
        setup=setup,
        init=init,
        act=act,
        update=update,
        draw=on_own_model(policy.draw),
        audit=on_own_model(policy.audit),
        inspect=on_own_model(policy.inspect),
    )


def acqb_cl(
    tables: Tables | Sequence[Tables],
    part: str = "train",
    train_share: float = 0.5,
    split_seed: int = 0,
    drop_missing: bool = False,
    encoder: str | None = None,
    cache: str | None = None,
    cost_weight: float = COST_WEIGHT,
    positive: float = 0.5,
    negative: float = 0.3,
    per_model: int = 5,
    epochs: int = 50,
    seed: int = 0,
    estimator: str = "one_pass",
    scale: float = 0.1,
    exploration_rate: float = 1.0,
) -> Policy:
    """ACQB-CL: ``acqb`` on contexts projected by a head that was trained on the prompts of routing tables.

    Args:
      tables: path or paths, as in ``queueing.from_table``; the evaluation's prompts are those of other files, or
        of the other part of the same split.
      part: which part of the tables to train on.
      train_share: as in ``queueing.from_table``.
      split_seed: as in ``queueing.from_table``.
      drop_missing: as in ``queueing.from_table``.
      encoder: as in ``queueing.from_table``.
      cache: as in ``queueing.from_table``.
      cost_weight: as in ``queueing.from_table``.
      positive: as in ``train_projection``.
      negative: as in ``train_projection``.
      per_model: as in ``train_projection``.
      epochs: as in ``train_projection``.
      seed: of the projection's training.
      estimator: as in ``acqb``; the exact one is slow in 384 dimensions.
      scale: as in ``acqb``.
      exploration_rate: as in ``acqb``.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: naming file or argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.2.
    """
    source = table_paths(tables), part, train_share, split_seed, drop_missing, encoder, cache
    projection = _trained(source, cost_weight, positive, negative, per_model, epochs, seed)
    return projected(acqb(estimator=estimator, scale=scale, exploration_rate=exploration_rate), projection)


@lru_cache(maxsize=32)
def _trained(source, cost_weight, positive, negative, per_model, epochs, seed):
    table = read_part(*source)
    return train_projection(
        table.embeddings,
        table.performance,
        table.cost,
        positive=positive,
        negative=negative,
        per_model=per_model,
        epochs=epochs,
        cost_weight=cost_weight,
        seed=seed,
    )
