"""Transactions of a batch: may its rows start a round, and the commit of all their rounds or of none.

Frontiers [B, 4] are the columns execution E, ledger, target K/V and context of each row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import CommitError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

EXECUTION, LEDGER, TARGET, CONTEXT = range(4)
GOES_ON, ENDS, CANCELLED = range(3)
FOLD, COUNTS, HIDDEN, APPEND, MOVE, BUDGET, SESSION, EVENTS = range(1, 9)


class Ready(NamedTuple):
    """counts: [B] int64, the rows that each context lacks. positions: [B, W] int64, theirs, then padding."""

    counts: Array
    positions: Array
    refused: int = 0


class Resolved(NamedTuple):
    """frontiers: [B, 4] int64. pending: [B] int64 feature rows. anchors_next: [B] int64."""

    frontiers: Array
    pending: Array
    anchors_next: Array
    refused: int = 0


class Effects(NamedTuple):
    """effects: [E, 3] int64, of effect, batch row and tokens."""

    effects: Array


def ready(active: Array, frontiers: Array, remaining: Array, capacity: int, widest: int, profile: Profile) -> Ready:
    """The pending rows that each row's context gets before the round, once all rows [B] may start one.

    Raises CommitError for a row that may not.
    """
    for row in range(len(frontiers)):
        check_ready(row, bool(active[row]), frontiers[row], int(remaining[row]), capacity, widest)
    missing = frontiers[:, EXECUTION] - frontiers[:, CONTEXT]
    places = [append_positions(int(line[CONTEXT]), int(line[EXECUTION]), widest) for line in frontiers]
    return Ready(missing, np.array(places, dtype=np.int64).reshape(len(frontiers), widest))


def check_ready(row: int, active: bool, frontiers: Array, remaining: int, capacity: int, widest: int) -> None:
    """Raise CommitError unless the batch row may start a round.

    Clause: COMMIT-012
    Source: Infernix src/models/qwen3_5/program/decode.cpp.
    """
    at = int(frontiers[EXECUTION])
    rules = (
        (active, "it is not active"),
        (remaining > 0, f"{remaining} tokens of its budget left, expected at least 1"),
        (at < capacity, f"execution frontier {at}, expected less than {capacity}"),
        (frontiers[TARGET] == at, f"{frontiers[TARGET]} valid target rows, expected {at}"),
        (frontiers[LEDGER] == at + 1, f"{frontiers[LEDGER]} tokens in the ledger, expected {at + 1}"),
        (0 <= at - frontiers[CONTEXT] <= widest, f"context frontier {frontiers[CONTEXT]}, expected {at} or up to "
         f"{widest} less"),
    )  # fmt: skip
    for holds, complaint in rules:
        if not holds:
            raise CommitError(f"commit.ready: row {row}: {complaint}")


def append_positions(start: int, end: int, widest: int) -> Array:
    """The positions [widest] of the rows [start, end), the last of them repeated, or `start` where there is none.

    Clause: COMMIT-013
    Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    last = max(start, end - 1)
    return np.minimum(start + np.arange(widest), last)


def resolve(
    base: Array, present: Array, anchors: Array, widths: Array, extents: Array, accepted: Array, counts: Array,
    licensed: Array, kept: Array, ends: Array, remaining: Array, capacity: int, public: int, consumed: int,
    profile: Profile,
) -> Resolved:  # fmt: skip
    """Commit the rounds of all rows [B], of whose licensed tokens [B, W] the first kept[b] stay.

    Raises CommitError, and then nothing is committed.
    """
    once(bool(consumed))
    unmoved(base, present, widths, licensed.shape[1])
    for row in range(len(base)):
        count, at = int(counts[row]), int(base[row, EXECUTION])
        licenses(row, count, int(accepted[row]), int(extents[row]), int(widths[row]))
        within_limits(row, count, at, int(remaining[row]), capacity)
        public_tokens(row, licensed[row, :count], public)
        decision(row, count, int(kept[row]), int(ends[row]))
    context, pending = context_after(base, kept, ends)
    tokens = np.concatenate([anchors[:, np.newaxis], licensed], axis=1)
    return Resolved(moved(base, kept, context), pending, tokens[np.arange(len(base)), kept])


def once(consumed: bool) -> None:
    """Raise CommitError if these rounds have been resolved before.

    Clause: COMMIT-008
    Source: Infernix src/models/qwen3_5/program/prefill.cpp.
    """
    if consumed:
        raise CommitError("commit: the pending rounds were resolved before, expected to be resolved once")


def unmoved(base: Array, present: Array, widths: Array, width: int) -> None:
    """Raise CommitError unless all rows stand where their rounds began, and were verified at the batch's width.

    Clause: COMMIT-009
    Source: Infernix src/models/qwen3_5/program/prefill.cpp.
    """
    if not np.array_equal(base, present):
        raise CommitError(f"commit.resolve: frontiers {present.tolist()}, expected {base.tolist()}, the rounds' own")
    if (widths != width).any():
        raise CommitError(f"commit.resolve: verify widths {widths.tolist()}, expected {width}, the batch's")


def licenses(row: int, count: int, accepted: int, extent: int, width: int) -> None:
    """Raise CommitError unless what the row's verify licensed is one token more than it accepted.

    Clause: COMMIT-005
    Source: Infernix src/models/qwen3_5/program/decode.cpp.
    """
    if not (1 <= count <= width and count == accepted + 1 and accepted <= extent):
        raise CommitError(
            f"commit.resolve: row {row}: {count} licensed and {accepted} accepted of {extent} proposals, expected one "
            f"more licensed than accepted, and at most {width}"
        )


def within_limits(row: int, count: int, frontier: int, remaining: int, capacity: int) -> None:
    """Raise CommitError if the row licensed more than its budget or its cache holds.

    Clause: COMMIT-006
    Source: Infernix src/models/qwen3_5/program/decode.cpp.
    """
    if count > remaining or frontier + count > capacity:
        raise CommitError(
            f"commit.resolve: row {row}: {count} licensed at {frontier}, expected at most {remaining}, the budget, and "
            f"to end at {capacity}"
        )


def public_tokens(row: int, licensed: Array, public: int) -> None:
    """Raise CommitError for a token that no text can hold.

    Clause: COMMIT-007
    Source: Infernix src/models/qwen3_5/program/decode.cpp.
    """
    for token in licensed:
        if not 0 <= token < public:
            raise CommitError(f"commit.resolve: row {row}: token {token}, expected 0 to {public - 1}")


def decision(row: int, count: int, kept: int, end: int) -> None:
    """Raise CommitError unless the row keeps as many of its `count` licensed tokens as its end allows.

    Clause: COMMIT-004
    Source: Infernix src/models/qwen3_5/program/prefill.cpp.
    """
    least, most = {GOES_ON: (count, count), ENDS: (1, count), CANCELLED: (0, 0)}.get(end, (1, 0))
    if not least <= kept <= most:
        raise CommitError(f"commit: row {row}: kept {kept} of {count} at end {end}, expected {least} to {most}")


def moved(base: Array, kept: Array, context: Array) -> Array:
    """The frontiers [B, 4] after the commit, of which that of the context is given.

    Clause: COMMIT-010
    Source: Infernix src/models/qwen3_5/program/transactions/commit.cpp.
    """
    after = base + kept[:, np.newaxis]
    after[:, CONTEXT] = context
    return after


def context_after(base: Array, kept: Array, ends: Array) -> tuple[Array, Array]:
    """The context frontier of each row after the commit, and the feature rows that have not become context: [B] each.

    Clause: COMMIT-011
    Source: Infernix src/models/qwen3_5/program/transactions/commit.cpp; NInfer docs/maintainer/dflash.md, commit.
    """
    end = base[:, EXECUTION] + kept
    context = np.where(ends == GOES_ON, base[:, CONTEXT], end)
    return context, end - context


def effects(counts: Array, kept: Array, ends: Array, own_law: int, failed: int, profile: Profile) -> Effects:
    """What a commit of kept[b] of counts[b] licensed tokens does, in order."""
    done = publish(state_effects(counts, kept, ends, bool(own_law)), kept, bool(failed))
    return Effects(np.array(done, dtype=np.int64).reshape(-1, 3))


def state_effects(counts: Array, kept: Array, ends: Array, own_law: bool) -> list[tuple[int, int, int]]:
    """The effects on the model's own state, each for all rows before the next.

    Clause: COMMIT-014
    Source: Infernix src/models/qwen3_5/program/transactions/commit.cpp.
    """
    some = kept > 0
    steps = (
        (FOLD, some),
        (COUNTS, some & own_law),
        (HIDDEN, some & (kept < counts)),
        (APPEND, some & (ends != GOES_ON)),
        (MOVE, some),
    )
    return [(effect, int(row), int(kept[row])) for effect, rows in steps for row in np.flatnonzero(rows)]


def publish(done: list[tuple[int, int, int]], kept: Array, failed: bool) -> list[tuple[int, int, int]]:
    """The effects with those that are seen from outside, which come last, or none where the model's commit failed.

    Clause: COMMIT-015
    Source: Infernix docs/maintainer/engine-architecture.md.
    """
    if failed:
        return []
    rows = [(int(row), int(kept[row])) for row in np.flatnonzero(kept)]
    return done + [(effect, row, count) for effect in (BUDGET, SESSION, EVENTS) for row, count in rows]
