"""Instances that replay a conversation log: whom to answer next, when users come back until they are content."""

import os

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.data import (
    bin_arrivals,
    build_chains,
    embed_prompts,
    principal_components,
    read_conversation_log,
    subsample_singletons,
)
from jaxcascade.queueing.instance import Instance, make_instance
from jaxcascade.queueing.replay_environment import STATE_FEATURES


def replay(
    log: str | os.PathLike,
    model: str | None = "gpt-4-1106-preview",
    encoder: str | None = None,
    cache: str | None = None,
    embeddings: ArrayLike | None = None,
    threshold: float = 0.995,
    singletons: float = 0.8,
    arrival_rate: float = 0.7,
    dimensions: int = 32,
    seed: int = 0,
) -> Instance:
    """The instance that replays the retrial chains of a conversation log; routing is fixed, scheduling is not.

    A chain is a user's conversations about one thing, as ``data.build_chains`` links them; each of them is served
    once. The first ones arrive in the log's order, binned into rounds at the arrival rate (``data.bin_arrivals``);
    a run may not be longer than these rounds. A context is the first prompt's embedding on so many principal
    components, and the chain's state: ``log2(1 + attempt)``, attempts from 1, and ``log(1 + age) / 5``, the age
    in rounds since the chain began.

    Args:
      log: path of the log, read by ``data.read_conversation_log``.
      model: the model whose conversations are kept; None for all.
      encoder: embed the first prompts with this model, as ``data.embed_prompts`` has it. Without one, and without
        ``embeddings``, chains are linked by identical prompts only and contexts hold the chain's state alone.
      cache: folder in which embeddings are kept.
      embeddings: ``[n, d]`` embeddings of unit norm in the order of the log that is read, in place of an encoder.
      threshold: least cosine at which two first prompts are taken to be the same request.
      singletons: share of chains of one conversation, reached by leaving some out.
      arrival_rate: mean number of chains that begin in a round.
      dimensions: number of principal components (fewer, where the embeddings have fewer).
      seed: from which the chains of one are chosen that stay.

    Raises:
      FileNotFoundError: if there is no such file.
      ImportError: with an encoder that is not installed.
      ValueError: naming file or argument, what was expected and what came.

    Source: arXiv 2602.02061, Section 5.3 and Appendix B.4 (WildChat); the chain's state and the projection are ours.
    """
    if encoder is not None and embeddings is not None:
        raise ValueError("encoder: expected nothing beside embeddings, got both")
    if isinstance(dimensions, bool) or int(dimensions) != dimensions or dimensions < 0:
        raise ValueError(f"dimensions: expected a whole number >= 0, got {dimensions!r}")
    conversations = read_conversation_log(log, model=model)
    if encoder is not None:
        embeddings = embed_prompts(conversations.prompt, encoder, cache=cache)
    chains = build_chains(conversations, embeddings, threshold)
    kept = subsample_singletons(chains, singletons, seed)
    # Rows by chain, and in a chain by position; chains are numbered by the arrival of their first conversation.
    order = np.lexsort((chains.position, chains.chain))
    rows = order[np.isin(chains.chain[order], kept)]
    first = rows[chains.position[rows] == 0]
    if embeddings is None or not dimensions:
        projected = np.zeros((len(rows), 0))
    else:
        vectors = np.asarray(embeddings, np.float64)[rows]
        projected = principal_components(vectors, min(dimensions, *vectors.shape))
    contexts = np.concatenate([projected, np.zeros((len(rows), STATE_FEATURES))], axis=1)
    return make_instance(
        np.zeros((1, contexts.shape[1])),
        arrival_rate,
        0.0,
        1,
        embeddings=contexts,
        utility=np.zeros((len(rows), 1)),
        arrivals=bin_arrivals(conversations.arrival[first], arrival_rate),
        chain_start=np.concatenate([[0], np.cumsum(chains.length[kept])]),
        tokens=conversations.tokens[rows],
    )
