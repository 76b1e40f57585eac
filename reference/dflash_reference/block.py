"""The draft's block and the target's verify pass: extents, ids and positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import Position, TokenId


class Extent(NamedTuple):
    """extent: P, how many proposals this round verifies."""

    extent: int


class Inputs(NamedTuple):
    """ids: [K + 1] and positions: [K + 1] int64. live: how many of these rows are computed."""

    ids: Array
    live: int
    positions: Array


class DFlash2Inputs(NamedTuple):
    """live: how many of the K + 1 rows are computed. target_live: how many the target verifies. ids and positions:
    [K + 1] int64."""

    live: int
    target_live: int
    ids: Array
    positions: Array


class VerifyInputs(NamedTuple):
    """ids: [Q] and positions: [Q] int64."""

    ids: Array
    positions: Array


def extent(drafts: int, remaining: int, capacity: int, frontier: Position, profile: Profile) -> Extent:
    """P for `drafts` = K, `remaining` tokens of the budget and a cache of `capacity` rows.

    Raises RequestError if K or the budget is below 1.
    """
    if drafts < 1 or remaining < 1:
        raise RequestError(f"block.extent: drafts {drafts} and remaining {remaining}, expected both to be at least 1")
    if profile.axes["extent"] == "remaining":
        return Extent(extent_of_budget(drafts, remaining))
    if profile.axes["extent"] == "block":
        return Extent(extent_of_block(drafts))
    return Extent(extent_of_capacity(drafts, remaining, capacity, frontier))


def extent_of_capacity(drafts: int, remaining: int, capacity: int, frontier: Position) -> int:
    """One proposal fewer than the budget, since the target adds its own token; none where the cache is full.

    Clause: BLK-004
    Source: Infernix src/models/qwen3_5/program/decode.cpp.
    """
    return max(0, min(drafts, remaining - 1, capacity - frontier - 1))


def extent_of_budget(drafts: int, remaining: int) -> int:
    """As many proposals as the budget; the token that may come on top is dropped at the end.

    Clause: BLK-005
    Source: dflash 0.1.0 dflash_generate.
    """
    return min(drafts, remaining)


def extent_of_block(drafts: int) -> int:
    """The whole block, whatever remains of the budget; what is too much is dropped at the end.

    Clause: BLK-010
    Source: z-lab/dflash@44947fb dflash/model.py.
    """
    return drafts


def inputs(anchor: TokenId, mask_id: TokenId, frontier: Position, drafts: int, extent: int, profile: Profile) -> Inputs:
    """Ids and positions of the K + 1 block rows; `frontier` is the anchor's position.

    Raises RequestError if extent is outside 0 to K.
    """
    _check_extent("block.inputs", extent, drafts)
    live = live_rows(extent)
    return Inputs(block_ids(anchor, mask_id, drafts), live, block_positions(frontier, drafts, live))


def block_ids(anchor: TokenId, mask_id: TokenId, drafts: int) -> Array:
    """The anchor, then K masks: [K + 1].

    Clause: BLK-001
    Source: NInfer docs/maintainer/dflash.md, proposal; warpfront/hipfire pull 483.
    """
    return np.array([anchor] + [mask_id] * drafts, dtype=np.int64)


def block_positions(frontier: Position, drafts: int, live: int) -> Array:
    """Consecutive positions from the anchor's; dead rows repeat the last live one: [K + 1].

    Clause: BLK-002
    Source: Infernix include/infernix/ops/prepare_masked_block.h.
    """
    return frontier + np.minimum(np.arange(drafts + 1), live - 1)


def live_rows(extent: int) -> int:
    """The anchor's row and one row per proposal that can be verified.

    Clause: BLK-003
    Source: Infernix src/models/qwen3_5/program/decode.cpp; dflash 0.1.0 dflash_generate.
    """
    return extent + 1


def dflash2_inputs(
    anchor: TokenId, mask_id: TokenId, frontier: Position, drafts: int, extent: int, profile: Profile
) -> DFlash2Inputs:
    """As `inputs`, for DFlash2, where the rows that are computed and the rows that are verified can differ.

    Raises RequestError if extent is outside 0 to K.
    """
    _check_extent("block.dflash2_inputs", extent, drafts)
    live = whole_block(drafts) if profile.axes["extent"] == "remaining_minus_one" else shrunk_block(extent)
    positions = block_positions(frontier, drafts, live)
    return DFlash2Inputs(live, live_rows(extent), block_ids(anchor, mask_id, drafts), positions)


def whole_block(drafts: int) -> int:
    """The rows of a DFlash2 block that are computed, where the width is fixed: all, however few can be verified.

    Clause: BLK-008
    Source: NInfer docs/maintainer/dflash.md, extents; Infernix src/models/qwen3_5/program/decode.cpp.
    """
    return drafts + 1


def shrunk_block(extent: int) -> int:
    """The rows of a DFlash2 block that are computed, where it shrinks as a DFlash block does.

    Clause: BLK-009
    Source: dflash 0.1.0 dflash_generate.
    """
    return live_rows(extent)


def verify_inputs(anchor: TokenId, proposals: Array, frontier: Position, extent: int, profile: Profile) -> VerifyInputs:
    """What the target reads to judge the first `extent` of the proposals [K]: [P + 1], or [K + 1] with dead columns.

    Raises RequestError if extent is outside 0 to K.

    Clause: BLK-006
    Source: NInfer docs/maintainer/dflash.md, verification.
    """
    _check_extent("block.verify_inputs", extent, len(proposals))
    ids = np.concatenate([[anchor], proposals[:extent]]).astype(np.int64)
    positions = frontier + np.arange(extent + 1)
    if profile.axes["extent"] == "remaining_minus_one":
        return dead_columns(ids, positions, len(proposals) + 1)
    return VerifyInputs(ids, positions)


def dead_columns(ids: Array, positions: Array, width: int) -> VerifyInputs:
    """Fill up to `width` columns with the anchor, at the last live position, where the verify width is fixed.

    Clause: BLK-007
    Source: Infernix include/infernix/ops/speculative_round.h.
    """
    dead = width - len(ids)
    return VerifyInputs(np.append(ids, np.repeat(ids[0], dead)), np.append(positions, np.repeat(positions[-1], dead)))


def _check_extent(where: str, extent: int, drafts: int) -> None:
    if not 0 <= extent <= drafts:
        raise RequestError(f"{where}: extent {extent}, expected 0 to {drafts}, the draft count")
