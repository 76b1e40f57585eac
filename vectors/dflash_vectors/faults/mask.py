"""Faults of visibility."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

WINDOW = "Infernix include/infernix/ops/sliding_window_attention.h"
PROPOSAL = "NInfer docs/maintainer/dflash.md, proposal"


@fault(
    "dflash_reference.mask.sees_all", clauses=("MASK-001",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/43445",
)  # fmt: skip
def causal_mask_inside_the_block(true: Function) -> Function:
    """A full layer hides from each row the masks after it."""
    return lambda query, key: key <= query


@fault(
    "dflash_reference.mask.sees_all", clauses=("MASK-001",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/8d8983b",
)  # fmt: skip
def full_layer_with_a_window(true: Function) -> Function:
    """A full layer attends to a fixed number of recent keys."""
    return lambda query, key: np.abs(key - query) < 24


@fault("dflash_reference.mask.in_window", clauses=("MASK-002",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/1dd4bc3",
)  # fmt: skip
def window_includes_distance_s(true: Function) -> Function:
    """A local layer sees the key at distance S."""
    return lambda apart, window: apart <= window


@fault("dflash_reference.mask.in_window", clauses=("MASK-002",), effect="acceptance",
    report="https://github.com/huggingface/transformers/issues/37574",
)  # fmt: skip
def window_one_short(true: Function) -> Function:
    """A local layer does not see the key at distance S - 1."""
    return lambda apart, window: apart < max(window - 1, 1)


@fault("dflash_reference.mask.in_window", clauses=("MASK-002",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/40898",
)  # fmt: skip
def window_lost(true: Function) -> Function:
    """A local layer attends to everything."""
    return lambda apart, window: np.ones_like(apart, dtype=bool)


@fault("dflash_reference.mask.distance", clauses=("MASK-003",), report=PROPOSAL, effect="acceptance")
def window_one_sided(true: Function) -> Function:
    """The window binds keys before the row only; whatever lies after it is visible."""
    return lambda query, key: query - key


@fault("dflash_reference.mask.distance", clauses=("MASK-003",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/4926c39",
)  # fmt: skip
def local_layer_causal_inside_the_block(true: Function) -> Function:
    """A local layer that should look both ways hides the keys after the row."""

    def wrong(query: Array, key: Array) -> Array:
        return np.where(key > query, np.iinfo(np.int64).max, np.abs(key - query))

    return wrong


@fault("dflash_reference.mask.not_after", clauses=("MASK-004",), effect="acceptance", profiles=("zlab",),
    report="https://github.com/sgl-project/sglang/pull/34524",
)  # fmt: skip
def causality_ignored(true: Function) -> Function:
    """A causal layer sees the masks after the row."""
    return lambda query, key: np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)


@fault("dflash_reference.mask.not_after", clauses=("MASK-004",), report="dflash 0.1.0 Qwen3DFlashAttention",
    effect="acceptance", profiles=("zlab",),
)  # fmt: skip
def causal_row_blind_to_itself(true: Function) -> Function:
    """A causal layer's row sees only the keys before it."""
    return lambda query, key: key < query


@fault("dflash_reference.mask.draft", clauses=("MASK-005",), effect="output",
    report="https://github.com/vllm-project/vllm/issues/47930",
)  # fmt: skip
def unwritten_rows_visible(true: Function) -> Function:
    """Every allocated context row counts as written."""

    def wrong(context_positions: Array, context_length: int, *rest: Any, **named: Any) -> Any:
        return true(context_positions, len(context_positions), *rest, **named)

    return wrong


@fault("dflash_reference.mask.window_centres", clauses=("MASK-006",), effect="acceptance",
    report="Luce-Org/lucebox-hub@8305b6c, where the window does not slide with the query",
)  # fmt: skip
def window_fixed_at_the_anchor(true: Function) -> Function:
    """Every block row counts its window from the anchor's position."""
    return lambda positions: np.full_like(positions, positions[0])


@fault("dflash_reference.mask.window_centres", clauses=("MASK-006",), report=WINDOW, effect="acceptance")
def window_fixed_at_the_blocks_end(true: Function) -> Function:
    """Every block row counts its window from the block's last position."""
    return lambda positions: np.full_like(positions, positions[-1])
