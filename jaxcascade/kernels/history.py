"""Sums over the first rows of a long history, block by block, so that a short history costs little."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

BLOCK_ROWS = 256
_LANE_ROWS = (128, 64)  # a pass over a block costs as much as 100 rows of it


def padded_rows(rows: int, block: int = BLOCK_ROWS) -> int:
    """Length of a buffer for ``rows`` rows that blocks fill exactly: the next multiple of ``block``.

    Args:
      rows: how many rows there may be.
      block: rows per block.
    """
    return max(-(-rows // block), 1) * block


def fold_rows(body: Callable[..., Any], start: Any, arrays: Any, count: jax.Array, block: int = BLOCK_ROWS) -> Any:
    """``body(carry, block of the arrays, its first row)`` over the blocks that hold the first ``count`` rows.

    The number of blocks may be traced; under vmap it must not be batched, or every lane waits for the longest.

    Args:
      body: ``(carry, pytree of [block, ...], row) -> carry``.
      start: first carry.
      arrays: pytree of ``[N, ...]`` with N a multiple of ``block``; rows from ``count`` on must count for nothing.
      count: ``[]`` int, rows in use.
      block: rows per block, static.

    Raises:
      ValueError: if N is no multiple of ``block``.
    """
    length = jax.tree.leaves(arrays)[0].shape[0]
    if length % block:
        raise ValueError(f"arrays: expected a multiple of {block} rows, got {length}")

    def step(i, carry):
        rows = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, i * block, block), arrays)
        return body(carry, rows, i * block)

    return lax.fori_loop(0, (count + block - 1) // block, step, start)


def rows_at_once(capacity: int) -> int:
    """Rows of a block for a pass over the last axis of a history, of which the capacity is a multiple.

    Args:
      capacity: rows of the history, static.
    """
    return next(rows for rows in (*_LANE_ROWS, capacity) if capacity % rows == 0)
