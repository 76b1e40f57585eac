"""Faults of extents, ids and positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

DECODE = "Infernix src/models/qwen3_5/program/decode.cpp"
PROPOSAL = "NInfer docs/maintainer/dflash.md, proposal"
VERIFICATION = "NInfer docs/maintainer/dflash.md, verification"


@fault(
    "dflash_reference.block.block_ids", clauses=("BLK-001",), effect="acceptance",
    report="https://github.com/warpfront/hipfire/pull/483",
)  # fmt: skip
def mask_in_the_anchor_slot(true: Function) -> Function:
    """The mask id fills every slot, slot 0 too."""
    return lambda anchor, mask_id, drafts: true(mask_id, mask_id, drafts)


@fault("dflash_reference.block.block_ids", clauses=("BLK-001",), report=PROPOSAL, effect="acceptance")
def anchor_in_every_slot(true: Function) -> Function:
    """The anchor is repeated where the masks belong."""
    return lambda anchor, mask_id, drafts: true(anchor, anchor, drafts)


@fault(
    "dflash_reference.block.block_positions", clauses=("BLK-002",), effect="acceptance",
    report="https://github.com/sgl-project/SpecForge/pull/473",
)  # fmt: skip
def block_one_position_late(true: Function) -> Function:
    """The block starts at F + 1, as if the anchor had been processed."""
    return lambda frontier, drafts, live: true(frontier + 1, drafts, live)


@fault("dflash_reference.block.block_positions", clauses=("BLK-002",), report=PROPOSAL, effect="acceptance")
def masks_one_position_late(true: Function) -> Function:
    """The anchor lies at F, but the masks start at F + 2."""

    def wrong(frontier: int, drafts: int, live: int) -> Array:
        positions: Array = true(frontier, drafts, live)
        return positions + (np.arange(drafts + 1) > 0)

    return wrong


@fault("dflash_reference.block.block_positions", clauses=("BLK-002",), effect="acceptance",
    report="Infernix include/infernix/ops/prepare_masked_block.h",
)  # fmt: skip
def dead_rows_go_on(true: Function) -> Function:
    """Rows past the live ones take the positions after them."""
    return lambda frontier, drafts, live: true(frontier, drafts, drafts + 1)


@fault("dflash_reference.block.live_rows", clauses=("BLK-003", "BLK-002"), report=DECODE, effect="acceptance")
def one_live_row_too_few(true: Function) -> Function:
    """The anchor's row is not counted among the live rows."""
    return lambda extent: max(1, true(extent) - 1)


@fault("dflash_reference.block.live_rows", clauses=("BLK-003", "BLK-002"), report=DECODE, effect="acceptance")
def one_live_row_too_many(true: Function) -> Function:
    """A dead mask row takes part in the block."""
    return lambda extent: true(extent) + 1


@fault(
    "dflash_reference.block.extent_of_capacity", clauses=("BLK-004",), effect="output", profiles=("ninfer",),
    report=DECODE,
)  # fmt: skip
def budget_without_the_targets_own_token(true: Function) -> Function:
    """As many proposals as tokens are left, so that the round licenses one too many."""
    return lambda drafts, remaining, capacity, frontier: true(drafts, remaining + 1, capacity, frontier)


@fault(
    "dflash_reference.block.extent_of_capacity", clauses=("BLK-004",), effect="crash", profiles=("ninfer",),
    report="https://github.com/vllm-project/vllm/pull/53812",
)  # fmt: skip
def last_cache_row_not_reserved(true: Function) -> Function:
    """The anchor's own row in the cache is not counted."""
    return lambda drafts, remaining, capacity, frontier: true(drafts, remaining, capacity + 1, frontier)


@fault(
    "dflash_reference.block.extent_of_capacity", clauses=("BLK-004",), effect="crash", profiles=("ninfer",),
    report="https://github.com/vllm-project/vllm/pull/16087",
)  # fmt: skip
def capacity_ignored(true: Function) -> Function:
    """Proposals run past the end of the cache."""
    return lambda drafts, remaining, capacity, frontier: true(drafts, remaining, frontier + drafts + 1, frontier)


@fault(
    "dflash_reference.block.extent_of_capacity", clauses=("BLK-004",), effect="crash", profiles=("ninfer",),
    report=DECODE,
)  # fmt: skip
def extent_without_a_floor(true: Function) -> Function:
    """Where no cache row is free the extent is negative."""
    return lambda drafts, remaining, capacity, frontier: min(drafts, remaining - 1, capacity - frontier - 1)


@fault(
    "dflash_reference.block.extent_of_budget", clauses=("BLK-005",), effect="acceptance", profiles=("zlab",),
    report="dflash 0.1.0 dflash_generate",
)  # fmt: skip
def last_block_one_row_short(true: Function) -> Function:
    """The last block has `remaining` rows, the anchor's among them."""
    return lambda drafts, remaining: true(drafts, remaining - 1)


@fault(
    "dflash_reference.block.extent_of_budget", clauses=("BLK-005",), effect="acceptance", profiles=("zlab",),
    report="z-lab/dflash@44947fb dflash/model.py, where every block is whole",
)  # fmt: skip
def last_block_whole(true: Function) -> Function:
    """The budget's tail is ignored and the last block has K + 1 rows."""
    return lambda drafts, remaining: drafts


@fault("dflash_reference.block.verify_inputs", clauses=("BLK-006", "BLK-007"), report=VERIFICATION, effect="output")
def verify_one_position_late(true: Function) -> Function:
    """The verify pass reads the anchor at F + 1."""

    def wrong(anchor: int, proposals: Array, frontier: int, extent: int, profile: Any) -> Any:
        return true(anchor, proposals, frontier + 1, extent, profile)

    return wrong


@fault("dflash_reference.block.verify_inputs", clauses=("BLK-006", "BLK-007"), report=VERIFICATION, effect="output")
def verify_without_the_anchor(true: Function) -> Function:
    """The verify pass starts with the first proposal, at the anchor's position."""

    def wrong(anchor: int, proposals: Array, frontier: int, extent: int, profile: Any) -> Any:
        inputs = true(anchor, proposals, frontier, extent, profile)
        return inputs._replace(ids=np.roll(inputs.ids, -1))

    return wrong


@fault("dflash_reference.block.dead_columns", clauses=("BLK-007",), effect="crash", profiles=("ninfer",),
    report="Infernix include/infernix/ops/speculative_round.h",
)  # fmt: skip
def dead_columns_go_on(true: Function) -> Function:
    """Dead columns take the positions after the live ones, past the cache's end."""

    def wrong(ids: Array, positions: Array, width: int) -> Any:
        inputs = true(ids, positions, width)
        return inputs._replace(positions=positions[0] + np.arange(width))

    return wrong


@fault("dflash_reference.block.dead_columns", clauses=("BLK-007",), effect="crash", profiles=("ninfer",),
    report="https://github.com/vllm-project/vllm/pull/46899",
)  # fmt: skip
def dead_columns_hold_a_placeholder(true: Function) -> Function:
    """Dead columns hold -1, which reaches the embedding lookup."""

    def wrong(ids: Array, positions: Array, width: int) -> Any:
        inputs = true(ids, positions, width)
        live = np.arange(width) < len(ids)
        return inputs._replace(ids=np.where(live, inputs.ids, -1))

    return wrong


@fault("dflash_reference.block.extent_of_block", clauses=("BLK-010",), effect="acceptance", profiles=("zlab-2026-04",),
    report="dflash 0.1.0 dflash_generate",
)  # fmt: skip
def block_one_proposal_short(true: Function) -> Function:
    """A block of K rows is taken for one of K proposals. The law is kept; the extents show it."""
    return lambda drafts: max(true(drafts) - 1, 1)


@fault("dflash_reference.block.extent", clauses=("BLK-010",), effect="acceptance", profiles=("zlab-2026-04",),
    report="dflash 0.1.0 dflash_generate",
)  # fmt: skip
def old_block_shrinks(true: Function) -> Function:
    """The last blocks shrink, as those of the later package do. The law is kept; the extents show it."""

    def wrong(drafts: int, remaining: int, capacity: int, frontier: int, profile: Any) -> Any:
        done = true(drafts, remaining, capacity, frontier, profile)
        return done._replace(extent=min(done.extent, remaining))

    return wrong
