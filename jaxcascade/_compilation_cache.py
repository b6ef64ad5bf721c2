"""Compiled programs kept in a folder, so that the next process with the same ones need not compile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxcascade.arrays import make_folder

# Every program is kept: a study has few, and the small ones together take a second too.
_SETTINGS = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}


@contextmanager
def kept_programs(folder: str | None) -> Iterator[None]:
    """Inside the block programs are looked up in the folder, and put there once compiled; None for no such folder.

    JAX's own settings are as before afterwards.

    Raises:
      OSError: if the folder cannot be written.
    """
    if folder is None:
        yield
        return
    make_folder(folder)
    settings = {"jax_compilation_cache_dir": os.path.abspath(folder), **_SETTINGS}
    before = {name: getattr(jax.config, name) for name in settings}

    def apply(values: dict) -> None:
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # JAX looks at its settings once, at the first program

    apply(settings)
    try:
        yield
    finally:
        apply(before)
