"""Reader of conversation logs (WildChat-1M), and the chains of retries that a user's conversations form."""

import os
import unicodedata
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.data._conversation_rows import TOKEN_FIELDS, conversation_rows
from jaxcascade.data._rows import Row, fail, read_integer, shown
from jaxcascade.data.arrivals import read_timestamp

FIRST_TOKEN_SECONDS = 2.84
TOKENS_PER_SECOND = 30.0
NO_LINK, EXACT_LINK, EMBEDDING_LINK = 0, 1, 2

_PROGRESS_ROWS = 1000
_BLOCK = 256  # conversations whose cosines are computed at once


class ConversationLog(NamedTuple):
    """One entry a conversation, in order of inferred user arrival; times are float64 seconds since the first arrival.

    `user` [n] int64 (one id a hashed_ip), `arrival` [n], `answered` [n] (first assistant response), `last_answer`
    [n] (last one), `tokens` [n] int64 (of the first response), `first_prompt_hash` [n] uint64, `prompt` n texts
    (or none), `model` the one model, None for all.
    """

    user: np.ndarray
    arrival: np.ndarray
    answered: np.ndarray
    last_answer: np.ndarray
    tokens: np.ndarray
    first_prompt_hash: np.ndarray
    prompt: tuple[str, ...]
    model: str | None


class Chains(NamedTuple):
    """The chain of each conversation: `chain` [n] (id), `position` [n] from 0, `link` [n]; `length` [C], all int64.

    Chains are numbered by the arrival of their first conversation; `link` is how a conversation was tied to the one
    before it: 0 it is first, 1 identical prompts, 2 close embeddings only.
    """

    chain: np.ndarray
    position: np.ndarray
    length: np.ndarray
    link: np.ndarray


class ChainSummary(NamedTuple):
    """How many chains (`num_chains` [m]) have each `length` [m] that occurs, both int64.

    `singleton_share` is the share of chains of one, nan without chains; `exact_links` and `embedding_links` count
    conversations tied to the one before by identical prompts, and by close embeddings only.
    """

    length: np.ndarray
    num_chains: np.ndarray
    singleton_share: float
    exact_links: int
    embedding_links: int


class _Conversation(NamedTuple):
    user: str
    answered: float
    last_answer: float
    tokens: int
    prompt: str


def read_conversation_log(
    path: str | os.PathLike[str],
    *,
    model: str | None = "gpt-4-1106-preview",
    keep_prompts: bool = True,
    progress: Callable[[int], None] | None = None,
) -> ConversationLog:
    """Returns the `ConversationLog` of a .parquet, .jsonl or .ndjson file, or of a folder of them, read as a stream.

    arrival = time of the first assistant turn - (2.84 + tokens/30) s. `tokens` comes from a field tokens, num_tokens
    or token_count of the first assistant turn, else of the row; without one it is approximated by 4/3 of the words
    between white space, rounded up (too low for scripts without spaces, such as Chinese). The user is the row's
    hashed_ip, else that of the first user turn that has one. Times are ISO text, datetimes (UTC without a zone) or
    epoch numbers; the row's timestamp stands in where the only assistant turn has none.

    A conversation without a user turn, an assistant turn, hashed_ip, or the time of its first or last assistant turn
    is skipped, and one UserWarning tells how many.

    Args:
      path: a file of the WildChat-1M format, or a folder of them.
      model: the one to keep; None keeps all.
      keep_prompts: False drops the texts, and a million conversations take some 100 MB.
      progress: called with the number of rows read since the last call.

    Raises:
      FileNotFoundError: if there is no such file.
      ImportError: for Parquet without pyarrow (``pip install jaxcascade[parquet]``).
      ValueError: in one line with file, row (from 1 in each file) and column, for a missing column, an empty file, a
        malformed row, a bad time, times that go backwards inside a conversation, bytes that are not UTF-8, a damaged
        Parquet file, no conversation to keep.

    Source: arXiv 2602.02061, Appendix B.4 (the inferred arrivals).
    """
    name = os.fspath(path)
    user, tokens = array("q"), array("q")
    answered, last_answer, hashes = array("d"), array("d"), array("Q")
    prompts: list[str] = []
    ids: dict[str, int] = {}
    skipped: Counter[str] = Counter()
    models: dict[str, None] = {}
    num_rows = 0
    for row in conversation_rows(name, model):
        num_rows += 1
        if progress and num_rows % _PROGRESS_ROWS == 0:
            progress(_PROGRESS_ROWS)
        if model is not None and _other_model(row, model, models):
            continue
        found = _conversation(row)
        if isinstance(found, str):
            skipped[found] += 1
            continue
        user.append(ids.setdefault(found.user, len(ids)))
        answered.append(found.answered)
        last_answer.append(found.last_answer)
        tokens.append(found.tokens)
        hashes.append(_prompt_hash(found.prompt))
        if keep_prompts:
            prompts.append(found.prompt)
    if progress and num_rows % _PROGRESS_ROWS:
        progress(num_rows % _PROGRESS_ROWS)
    reasons = ", ".join(f"{number} without {reason}" for reason, number in skipped.most_common())
    if not user:
        got = reasons or "models " + ", ".join(shown(seen) for seen in models)
        raise ValueError(
            f"{name}: expected conversations of {model or 'any model'}, got none in {num_rows} rows: {got}"
        )
    if skipped:
        total = skipped.total()
        warnings.warn(f"{name}: skipped {total} of {total + len(user)} conversations: {reasons}", stacklevel=2)

    token_count = np.array(tokens, np.int64)
    answer_time = np.array(answered)
    arrival = answer_time - (FIRST_TOKEN_SECONDS + token_count / TOKENS_PER_SECOND)
    order = np.argsort(arrival, kind="stable")
    origin = arrival[order[0]]
    return ConversationLog(
        user=np.array(user, np.int64)[order],
        arrival=arrival[order] - origin,
        answered=answer_time[order] - origin,
        last_answer=np.array(last_answer)[order] - origin,
        tokens=token_count[order],
        first_prompt_hash=np.array(hashes, np.uint64)[order],
        prompt=tuple(prompts[index] for index in order) if keep_prompts else (),
        model=model,
    )


def build_chains(log: ConversationLog, embeddings: ArrayLike | None = None, threshold: float = 0.995) -> Chains:
    """Returns the `Chains` of retries of each user.

    In order of arrival, a conversation continues the most recent earlier conversation of its user that (a) no other
    one has continued yet, (b) had its last answer strictly before this arrival, (c) has the same first prompt (equal
    hash and, where the log keeps them, equal text, up to white space and Unicode composition) or an embedding of
    cosine >= threshold. Where there is none it begins a chain.

    Takes O(n log n) without embeddings, and d times the sum over users of the squared number of their conversations
    with them.

    Args:
      log: n conversations.
      embeddings: [n, d] unit vectors of the first prompts, row i for conversation i of the log, or None.
      threshold: least cosine.

    Raises:
      ValueError: for a log that is not in order of arrival, embeddings of another shape or norm, a threshold outside
        (-1, 1].

    Source: arXiv 2602.02061, Appendix B.4 (WildChat: identical prompts or cosine >= .995 within one hashed IP).
    """
    num = len(log.user)
    if np.any(np.diff(log.arrival) < 0):
        raise ValueError("log: expected conversations in order of arrival, got times that go backwards")
    if len(log.prompt) not in (0, num):
        raise ValueError(f"log: expected no prompts or {num}, got {len(log.prompt)}")
    if not -1 < threshold <= 1:
        raise ValueError(f"threshold: expected a cosine above -1 and up to 1, got {shown(threshold)}")
    prompt_id = _prompt_ids(log)
    previous = np.full(num, -1, np.int64)
    if embeddings is None:
        _link_identical(log, prompt_id, previous)
    else:
        _link_close(log, prompt_id, _unit_vectors(embeddings, num), threshold, previous)
    # In order of arrival, so that the one before already knows its place; lists, for NumPy is slow one by one.
    chain: list[int] = []
    position: list[int] = []
    num_chains = 0
    for before in previous.tolist():
        chain.append(num_chains if before < 0 else chain[before])
        position.append(0 if before < 0 else position[before] + 1)
        num_chains += before < 0
    same_prompt = prompt_id == prompt_id[previous]
    link = np.where(previous < 0, NO_LINK, np.where(same_prompt, EXACT_LINK, EMBEDDING_LINK))
    chain_id = np.array(chain, np.int64)
    return Chains(chain_id, np.array(position, np.int64), np.bincount(chain_id, minlength=num_chains), link)


def subsample_singletons(chains: Chains, fraction: float = 0.8, seed: int = 0) -> np.ndarray:
    """Returns the ids of the chains kept [k], increasing: all longer than one, and randomly chosen singletons.

    So many singletons are kept that they are `fraction` of the kept chains, to the nearest integer; with too few of
    them all are kept, and a UserWarning tells the fraction reached.

    Args:
      chains: from `build_chains`.
      fraction: share of singletons.
      seed: from which they are chosen.

    Raises:
      ValueError: for a fraction outside [0, 1), or when no chain is longer than one.

    Source: arXiv 2602.02061, Appendix B.4.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction: expected a share from 0 to below 1, got {shown(fraction)}")
    longer, single = np.flatnonzero(chains.length > 1), np.flatnonzero(chains.length == 1)
    if not longer.size:
        raise ValueError(f"chains: expected some longer than one, got {single.size} of length one")
    wanted = round(longer.size * fraction / (1 - fraction))
    if wanted > single.size:
        reached = single.size / (single.size + longer.size)
        warnings.warn(f"singletons are {reached:.3g} of the chains kept, expected {fraction:g}", stacklevel=2)
        wanted = single.size
    chosen = np.random.default_rng(seed).choice(single, wanted, replace=False)
    return np.sort(np.concatenate([longer, chosen]))


def summarise_chains(chains: Chains) -> ChainSummary:
    """Returns the number of chains of each length, the share of singletons (nan without chains), links by kind."""
    length, num_chains = np.unique(chains.length, return_counts=True)
    share = float(np.mean(chains.length == 1)) if chains.length.size else float("nan")
    exact, close = (int(np.sum(chains.link == kind)) for kind in (EXACT_LINK, EMBEDDING_LINK))
    return ChainSummary(length, num_chains, share, exact, close)


def _other_model(row: Row, model: str, models: dict[str, None]) -> bool:
    """Whether the row is another model's; the first few of those are noted."""
    if "model" not in row.cells:
        fail(row, "model", "a model's name")
    named = row.cells["model"]
    if named != model and len(models) < 10:
        models[str(named)] = None
    return named != model


def _conversation(row: Row) -> _Conversation | str:
    """What a row tells, or what it lacks."""
    turns = row.cells.get("conversation")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        fail(row, "conversation", "a list of turns, each with role and content")
    users: list[int] = []
    answers: list[int] = []
    times: list[float | None] = []
    latest = -np.inf
    for index, turn in enumerate(turns):
        column = f"conversation[{index}].timestamp"
        time = read_timestamp(row, column, turn.get("timestamp"))
        if time is not None and time < latest:
            _fail_turn(row, column, turn["timestamp"], "a time not before that of an earlier turn")
        latest = latest if time is None else time
        times.append(time)
        role = turn.get("role")
        if not isinstance(role, str):
            _fail_turn(row, f"conversation[{index}].role", role, "user or assistant")
        {"user": users, "assistant": answers}.get(role.strip().lower(), []).append(index)
    if not answers:
        return "an assistant turn"
    if not users:
        return "a user turn"
    first, last = answers[0], answers[-1]
    if times[first] is None and first == last:
        times[first] = read_timestamp(row, "timestamp", row.cells.get("timestamp"))
    answered, last_answer = times[first], times[last]
    if answered is None or last_answer is None:
        return "a timestamp"
    owner = row.cells.get("hashed_ip") or next(
        (turns[i]["hashed_ip"] for i in users if turns[i].get("hashed_ip")), None
    )
    if owner is None:
        return "hashed_ip"
    tokens = _tokens(row, first, turns[first])
    prompt = _content(row, users[0], turns[users[0]])
    return _Conversation(str(owner), answered, last_answer, tokens, prompt)


def _tokens(row: Row, index: int, turn: dict[str, Any]) -> int:
    for cells, prefix in ((turn, f"conversation[{index}]."), (row.cells, "")):
        for field in TOKEN_FIELDS:
            if cells.get(field) is not None:
                cell = Row(row.path, row.number, {prefix + field: cells[field]})
                return read_integer(cell, prefix + field, 0, 10**9)
    words = len(_content(row, index, turn).split())
    return -(-4 * words // 3)


def _content(row: Row, index: int, turn: dict[str, Any]) -> str:
    content = turn.get("content")
    # An answer that failed is null in published logs.
    if content is not None and not isinstance(content, str):
        _fail_turn(row, f"conversation[{index}].content", content, "text")
    return content or ""


def _fail_turn(row: Row, column: str, value: Any, expected: str) -> None:
    fail(Row(row.path, row.number, {column: value}), column, expected)


def _normalised(prompt: str) -> str:
    return " ".join(unicodedata.normalize("NFC", prompt).split())


def _prompt_hash(prompt: str) -> int:
    # Half a surrogate pair is legal in JSON, and has no UTF-8.
    data = _normalised(prompt).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _prompt_ids(log: ConversationLog) -> np.ndarray:
    """One id [n] for each different pair of user and first prompt."""
    order = np.lexsort((log.first_prompt_hash, log.user))
    user, hashes = log.user[order], log.first_prompt_hash[order]
    prompt_id = np.zeros(len(order), np.int64)
    prompt_id[order[1:]] = np.cumsum((np.diff(user) != 0) | (hashes[1:] != hashes[:-1]))
    if log.prompt:
        # Different texts of one hash: as good as never, but a false link would go unseen.
        next_id = len(order)
        for members in _groups(prompt_id):
            texts: dict[str, int] = {}
            for index in members:
                text = _normalised(log.prompt[index])
                if text not in texts:
                    texts[text] = next_id if texts else int(prompt_id[index])
                    next_id += 1
                prompt_id[index] = texts[text]
    return prompt_id


def _groups(key: np.ndarray) -> Iterator[np.ndarray]:
    """The indices, increasing, of each value of `key` [n] that occurs twice or more."""
    order = np.argsort(key, kind="stable")
    edges = np.concatenate([[0], np.flatnonzero(np.diff(key[order])) + 1, [len(key)]])
    for group in np.flatnonzero(np.diff(edges) > 1):
        yield order[edges[group] : edges[group + 1]]


def _link_identical(log: ConversationLog, prompt_id: np.ndarray, previous: np.ndarray) -> None:
    """Fills `previous` [n] with the conversation that each one continues, by identical prompts alone."""
    arrival, last_answer = log.arrival.tolist(), log.last_answer.tolist()
    for members in _groups(prompt_id):
        # Two heaps, so that a crowd of unanswered repeats costs no scan: by last answer, and the newest first.
        unanswered: list[tuple[float, int]] = []
        answered: list[int] = []
        for index in members.tolist():
            while unanswered and unanswered[0][0] < arrival[index]:
                heappush(answered, -heappop(unanswered)[1])
            if answered:
                previous[index] = -heappop(answered)
            heappush(unanswered, (last_answer[index], index))


def _link_close(
    log: ConversationLog, prompt_id: np.ndarray, vectors: np.ndarray, threshold: float, previous: np.ndarray
) -> None:
    """Fills `previous` [n] with the conversation that each one continues, by identical prompts or close embeddings."""
    for members in _groups(log.user):
        own = vectors[members].astype(np.promote_types(vectors.dtype, np.float32), copy=False)
        identity, arrival, last_answer = prompt_id[members], log.arrival[members], log.last_answer[members]
        is_open = np.ones(len(members), bool)
        for start in range(0, len(members), _BLOCK):
            stop = min(start + _BLOCK, len(members))
            match = own[start:stop] @ own[:stop].T >= threshold
            match |= identity[start:stop, None] == identity[:stop]
            match &= np.arange(start, stop)[:, None] > np.arange(stop)
            match &= arrival[start:stop, None] > last_answer[:stop]
            for offset in np.flatnonzero(match.any(axis=1)):
                candidates = np.flatnonzero(match[offset] & is_open[:stop])
                if candidates.size:
                    is_open[candidates[-1]] = False
                    previous[members[start + offset]] = members[candidates[-1]]


def _unit_vectors(embeddings: ArrayLike, num: int) -> np.ndarray:
    vectors = np.asarray(embeddings)
    if vectors.ndim != 2 or len(vectors) != num or vectors.dtype.kind != "f":
        raise ValueError(f"embeddings: expected floats of shape ({num}, d), got {vectors.dtype} of {vectors.shape}")
    for start in range(0, num, 4096):
        norm = np.linalg.norm(vectors[start : start + 4096].astype(np.float64), axis=1)
        wrong = np.flatnonzero(~(np.abs(norm - 1) <= 1e-3))
        if wrong.size:
            raise ValueError(f"embeddings, row {start + wrong[0]}: expected norm 1, got {norm[wrong[0]]:.4g}")
    return vectors
