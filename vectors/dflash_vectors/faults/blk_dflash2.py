"""Faults of DFlash2's block."""

from __future__ import annotations

from typing import Any

from dflash_vectors.faults import Function, fault

DECODE = "Infernix src/models/qwen3_5/program/decode.cpp"
EXTENTS = "NInfer docs/maintainer/dflash.md, extents"
PACKAGE = "dflash 0.1.0 dflash_generate"


@fault("dflash_reference.block.dflash2_inputs", clauses=("BLK-008",), report=PACKAGE, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def whole_block_shrinks(true: Function) -> Function:
    """A tail computes only the rows that can be verified, as the authors' package does."""

    def wrong(anchor: int, mask_id: int, frontier: int, drafts: int, extent: int, profile: Any) -> Any:
        return true(anchor, mask_id, frontier, drafts, extent, profile)._replace(live=extent + 1)

    return wrong


@fault("dflash_reference.block.whole_block", clauses=("BLK-008",), report=DECODE, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def whole_block_without_its_last_mask(true: Function) -> Function:
    """The block has K rows: the anchor is counted as one of the drafts."""
    return lambda drafts: max(1, true(drafts) - 1)


@fault("dflash_reference.block.dflash2_inputs", clauses=("BLK-009",), report=EXTENTS, effect="acceptance",
    profiles=("zlab",),
)  # fmt: skip
def shrunk_block_whole(true: Function) -> Function:
    """A tail computes all K + 1 rows, as NInfer does."""

    def wrong(anchor: int, mask_id: int, frontier: int, drafts: int, extent: int, profile: Any) -> Any:
        done = true(anchor, mask_id, frontier, drafts, drafts, profile)
        return done._replace(target_live=extent + 1)

    return wrong


@fault("dflash_reference.block.shrunk_block", clauses=("BLK-009",), report=PACKAGE, effect="acceptance",
    profiles=("zlab",),
)  # fmt: skip
def shrunk_block_one_row_short(true: Function) -> Function:
    """The anchor's row is not counted."""
    return lambda extent: max(1, true(extent) - 1)


@fault("dflash_reference.block.dflash2_inputs", clauses=("BLK-003",), report=EXTENTS, effect="output")
def proposed_rows_all_verified(true: Function) -> Function:
    """The target verifies every row of the block, whatever the extent."""

    def wrong(anchor: int, mask_id: int, frontier: int, drafts: int, extent: int, profile: Any) -> Any:
        return true(anchor, mask_id, frontier, drafts, extent, profile)._replace(target_live=drafts + 1)

    return wrong


@fault("dflash_reference.block.dflash2_inputs", clauses=("BLK-002",), report=EXTENTS, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def whole_block_clipped_to_the_extent(true: Function) -> Function:
    """Rows past the extent are computed, but repeat the last verified position, as DFlash's dead rows do."""

    def wrong(anchor: int, mask_id: int, frontier: int, drafts: int, extent: int, profile: Any) -> Any:
        done = true(anchor, mask_id, frontier, drafts, extent, profile)
        return done._replace(positions=done.positions.clip(max=frontier + extent))

    return wrong
