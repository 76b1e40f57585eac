"""The arithmetic of one chain round: how far it may go, what it reads, what it keeps. Plain integers throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from dflash_spec.registry import Profile
from numpy.typing import NDArray

PREFILL, DECODE, ACCEPT, CORRECTION, BONUS, PROPOSAL = range(6)
"""Purposes of keyed draws, in the order of Infernix include/infernix/ops/sampling.h."""


class DrawKey(NamedTuple):
    """Which draw this is; with the request's seed it gives the uniform."""

    position: int
    purpose: int
    sub: int = 0


class DrawKeys(NamedTuple):
    """Which draws these are, of B requests: arrays that fit together to [B, N]."""

    position: NDArray[np.int64]
    purpose: NDArray[np.int64]
    sub: NDArray[np.int64]


NO_SUB = np.zeros(1, np.int64)


class Columns(NamedTuple):
    """Ids of the columns of a pass, which starts at `frontier` and of which the first `live` count."""

    ids: list[int]
    frontier: int
    live: int

    @property
    def positions(self) -> list[int]:
        """The absolute position of each: columns that do not live stand where the last living one does."""
        return [self.frontier + min(column, self.live - 1) for column in range(len(self.ids))]


class Commit(NamedTuple):
    """Input rows that became processed, the anchor after them, and its position."""

    rows: list[int]
    anchor: int
    frontier: int


class Pending(NamedTuple):
    """How many of the rows that a verify captured become context, the first ones, and where context then ends."""

    rows: int
    frontier: int

    @property
    def positions(self) -> range:
        """The absolute position of each."""
        return range(self.frontier - self.rows, self.frontier)


def extent(profile: Profile, drafts: int, remaining: int, capacity: int, frontier: int) -> int:
    """How many proposals P can be verified: K, what the budget leaves, and in profile ninfer what the room leaves.

    Profile axis `extent`. Clauses: BLK-004, BLK-005, BLK-010. Source: Infernix
    src/models/qwen3_5/program/decode.cpp; dflash 0.1.0 dflash_generate; z-lab/dflash@44947fb dflash/model.py.
    """
    if profile.axes["extent"] == "remaining_minus_one":
        return max(0, min(drafts, remaining - 1, capacity - frontier - 1))
    return drafts if profile.axes["extent"] == "block" else min(drafts, remaining)


def block_columns(anchor: int, mask_id: int, frontier: int, drafts: int, proposals: int) -> Columns:
    """The draft's block: the anchor and K masks, of which P + 1 columns live.

    Clauses: BLK-001, BLK-002, BLK-003. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/prepare_masked_block.h.
    """
    return Columns([anchor] + [mask_id] * drafts, frontier, proposals + 1)


def dflash2_columns(profile: Profile, anchor: int, mask_id: int, frontier: int, drafts: int, proposals: int) -> Columns:
    """A DFlash2 draft's block: where the extent leaves the width alone all K + 1 columns live, else P + 1, as DFlash's.

    Profile axis `extent`. Clauses: BLK-008, BLK-009. Source: Infernix src/models/qwen3_5/program/decode.cpp; dflash
    0.1.0 dflash_generate.
    """
    computed = drafts if profile.axes["extent"] == "remaining_minus_one" else proposals
    return block_columns(anchor, mask_id, frontier, drafts, computed)


def live_columns(anchor: int, proposals: Sequence[int]) -> list[int]:
    """Ids of the columns of a verify pass that live: the anchor and the P proposals. Clause: BLK-006."""
    return [anchor, *proposals]


def verify_columns(profile: Profile, anchor: int, proposals: Sequence[int], frontier: int, drafts: int) -> Columns:
    """The target's verify pass, with the dead columns that nobody reads and this engine leaves out.

    Where the extent leaves the width alone (profile axis `extent`: remaining_minus_one), dead columns up to K repeat
    the anchor; else the pass shrinks to P + 1 columns.

    Clauses: BLK-006, BLK-007. Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0 dflash_generate.
    """
    live = live_columns(anchor, proposals)
    width = drafts + 1 if profile.axes["extent"] == "remaining_minus_one" else len(live)
    return Columns(live + [anchor] * (width - len(live)), frontier, len(live))


def proposal_keys(frontiers: Sequence[int], drafts: int) -> DrawKeys:
    """The keys of K proposals of each of B requests, [B, K]: the token at F + i + 1 is drawn at F + i.

    Clause: SEL-008. Source: Infernix include/infernix/ops/candidate_selector.h.
    """
    return DrawKeys(_column(frontiers) + np.arange(drafts), np.array([PROPOSAL]), NO_SUB)


def round_keys(frontiers: Sequence[int], extents: Sequence[int], drafts: int) -> DrawKeys:
    """The keys of one round of B requests, [B, 2 K + 1]: of K accept tests, then of the last token after each of the
    K + 1 counts that may be accepted.

    Accept test i + 1 draws at F + i + 1. The last token after A proposals draws at F + A + 1, as a correction, or as a
    bonus after all P, also where P = 0.

    Clauses: RNG-004, RNG-005. Source: Infernix src/ops/kernel/speculative_round.cuh.
    """
    column = np.arange(2 * drafts + 1)
    accepted = column - drafts  # below 0 in the columns of accept tests
    purpose = np.where(accepted < _column(extents), CORRECTION, BONUS)
    purpose[:, :drafts] = ACCEPT
    return DrawKeys(_column(frontiers) + np.where(accepted < 0, column, accepted) + 1, purpose, NO_SUB)


def single_keys(keys: Sequence[DrawKey]) -> DrawKeys:
    """One draw of each of B requests: [B, 1]."""
    return DrawKeys(*(_column(part) for part in zip(*keys, strict=True)))


def _column(numbers: Sequence[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)[:, None]


def prefill_key(prompt_length: int) -> DrawKey:
    """The key of the first token. Clause: RNG-006. Source: Infernix src/models/qwen3_5/program/prefill.cpp."""
    return DrawKey(prompt_length, PREFILL)


def decode_key(frontier: int) -> DrawKey:
    """The key of a plain step from `frontier`. Clause: RNG-006. Source: Infernix .../program/decode.cpp."""
    return DrawKey(frontier, DECODE)


def counted(licensed: Sequence[int], kept: int, own_law: bool) -> Sequence[int]:
    """Which tokens of a round the token counts take in: all that were licensed, or where proposals were drawn from a
    law of their own, those that were kept.

    Clauses: PROC-018, PROC-019. Source: Infernix include/infernix/ops/speculative_round.h,
    src/models/qwen3_5/program/prefill.cpp.
    """
    return licensed[:kept] if own_law else licensed


def commit(anchor: int, licensed: Sequence[int], kept: int, frontier: int) -> Commit:
    """Process the anchor and all kept tokens but the last, which becomes the next anchor.

    A cancelled round keeps none, and leaves anchor and frontier as they were.

    Clauses: COMMIT-001, COMMIT-003. Source: NInfer docs/maintainer/dflash.md.
    """
    consumed = [anchor, *licensed]
    return Commit(consumed[:kept], consumed[kept], frontier + kept)


def pending(frontier: int, committed: int) -> Pending:
    """Of the features captured in a verify, those of the first `committed` rows become context.

    Clause: CTX-009. Source: NInfer docs/maintainer/dflash.md.
    """
    return Pending(committed, frontier + committed)


def continuation(kept: int) -> int | None:
    """After which column of a verify the target says what comes next: the last one that is kept.

    None where none is kept: what it said before holds.

    Clause: COMMIT-016. Source: NInfer docs/maintainer/dflash.md.
    """
    return kept - 1 if kept else None
