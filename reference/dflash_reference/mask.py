"""Visibility: which keys a row of the draft's block may attend to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array


class Draft(NamedTuple):
    """visible: [R, C + R], 1 where block row r sees the key; context rows come first, then block rows."""

    visible: Array


def sees_all(query: Array, key: Array) -> Array:
    """A full layer's rule for positions query [R, 1] and key [1, N]: every key, at any distance -> [R, N] bool.

    Clause: MASK-001
    Source: NInfer docs/maintainer/dflash.md, proposal; vllm-project/vllm pull 43445.
    """
    return np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)


def distance(query: Array, key: Array) -> Array:
    """How far each key lies from each query, on either side: [R, 1] and [1, N] -> [R, N].

    Clause: MASK-003
    Source: NInfer docs/maintainer/dflash.md, proposal.
    """
    apart: Array = np.abs(key - query)
    return apart


def in_window(apart: Array, window: int) -> Array:
    """A local layer's rule: distance window - 1 is inside, distance window is outside.

    Clause: MASK-002
    Source: Infernix include/infernix/ops/sliding_window_attention.h.
    """
    return apart < window


def not_after(query: Array, key: Array) -> Array:
    """A causal layer's further rule: the key lies at or before the query.

    Clause: MASK-004
    Source: dflash 0.1.0 Qwen3DFlashAttention; vllm-project/vllm qwen3_dflash.py.
    """
    return key <= query


def window_centres(positions: Array) -> Array:
    """The position from which each block row counts its window: its own, not the anchor's, [R] -> [R].

    Row i, which lies i steps past the anchor, therefore sees window - 1 - i rows of a long context.

    Clause: MASK-006
    Source: NInfer docs/maintainer/dflash.md, proposal.
    """
    return positions


def populated(rows: Array, context_length: int) -> Array:
    """The context rows that exist: the first `context_length` of [C, ...]. The others are never read.

    Raises TensorError unless 0 <= context_length <= C.

    Clause: MASK-005
    Source: NInfer docs/maintainer/dflash.md, proposal (populated bounds).
    """
    if not 0 <= context_length <= len(rows):
        raise TensorError(f"context_length is {context_length}, expected 0 to {len(rows)}, the context rows given")
    return rows[:context_length]


def visible(positions: Array, keys: Array, window: int, causal: int) -> Array:
    """Which of the keys (positions [N]) each block row (positions [R]) sees, [R, N] bool; window 0 is a full layer.

    Raises TensorError if the window is negative.
    """
    if window < 0:
        raise TensorError(f"window is {window}, expected 0 (a full layer) or more")
    query, key = positions[:, np.newaxis], keys[np.newaxis, :]
    if window:
        seen = in_window(distance(window_centres(positions)[:, np.newaxis], key), window)
    else:
        seen = sees_all(query, key)
    return seen & not_after(query, key) if causal else seen


def draft(
    context_positions: Array, context_length: int, positions: Array, window: int, causal: int, profile: Profile
) -> Draft:
    """The op mask.draft: context_positions [C], positions [R] -> [R, C + R]."""
    context = visible(positions, populated(context_positions, context_length), window, causal)
    hidden = np.zeros((len(positions), len(context_positions) - context_length), dtype=bool)
    block = visible(positions, positions, window, causal)
    return Draft(np.concatenate([context, hidden, block], axis=1).astype(np.uint8))
