"""The commit of a round: what becomes of the state once it is known how many tokens are kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import CommitError, RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import Position, TokenId


class Round(NamedTuple):
    """rows: [N] int64, the committed input tokens. next_anchor, next_frontier, target_rows_kept: after the commit."""

    rows: Array
    next_anchor: int
    next_frontier: int
    target_rows_kept: int


class Hidden(NamedTuple):
    """hidden_next: [B, H], represented in ACT."""

    hidden_next: Array


class Features(NamedTuple):
    """features: [N, X], represented in ACT. positions: [N] int64. lengths: [B] int64, the rows of each batch row."""

    features: Array
    positions: Array
    lengths: Array


class Pending(NamedTuple):
    """features: [N, n·H], represented in ACT. positions: [N] int64. context_frontier: once they are context."""

    features: Array
    positions: Array
    context_frontier: int


def commit(
    anchor: TokenId, licensed: Array, kept: int, frontier: Position, target_rows: int, profile: Profile
) -> Round:
    """The state after `kept` = N of the licensed tokens [L].

    Raises RequestError if N is more than L, or if the target holds fewer than frontier + N rows.

    Clause: COMMIT-001
    Source: NInfer docs/maintainer/dflash.md, commit.
    """
    if not 0 <= kept <= len(licensed):
        raise RequestError(f"commit.round: kept {kept}, expected 0 to {len(licensed)}, the licensed tokens")
    if kept == 0:
        return cancelled(anchor, frontier, target_rows)
    consumed = np.concatenate([[anchor], licensed]).astype(np.int64)
    rows_kept = kept_rows(frontier, kept, target_rows)
    return Round(consumed[:kept], int(consumed[kept]), frontier + kept, rows_kept)


def cancelled(anchor: TokenId, frontier: Position, target_rows: int) -> Round:
    """The state after a round of which no token is kept: that before it, without the rows of its verify pass.

    Clause: COMMIT-003
    Source: NInfer docs/maintainer/dflash.md, commit.
    """
    return Round(np.zeros(0, dtype=np.int64), int(anchor), int(frontier), kept_rows(frontier, 0, target_rows))


def kept_rows(frontier: Position, kept: int, target_rows: int) -> int:
    """How many of the target's rows outlive the round: those of the tokens that it has really consumed.

    Raises RequestError if there are fewer.

    Clause: COMMIT-002
    Source: NInfer docs/maintainer/dflash.md, commit; dflash 0.1.0 dflash_generate.
    """
    if target_rows < frontier + kept:
        raise RequestError(f"commit.round: {target_rows} target rows, expected at least {frontier + kept}")
    return frontier + kept


def pending(captured: Array, frontier: Position, committed: int, profile: Profile) -> Pending:
    """Of the verify's captured features [W, n·H], from position `frontier` on, those of the N committed rows.

    Raises RequestError if N is more than W.

    Clause: CTX-009
    Source: NInfer docs/maintainer/dflash.md, commit; vllm-project/vllm pull 41703.
    """
    if not 0 <= committed <= len(captured):
        raise RequestError(f"context.pending: committed {committed}, expected 0 to {len(captured)}, the rows captured")
    return Pending(captured[:committed], frontier + np.arange(committed), frontier + committed)


def hidden(hidden: Array, previous: Array, kept: Array, profile: Profile) -> Hidden:
    """The row from which each request goes on, of its verify's rows hidden[b] [W, H] and of what it had before.

    Raises CommitError if a row kept more than was verified.
    """
    if not ((kept >= 0) & (kept <= hidden.shape[1])).all():
        raise CommitError(f"commit.hidden: kept {kept.tolist()}, expected 0 to {hidden.shape[1]}, the columns")
    rows = [continuation(columns, int(count), old) for columns, count, old in zip(hidden, kept, previous, strict=True)]
    return Hidden(np.array(rows).reshape(previous.shape))


def continuation(columns: Array, kept: int, previous: Array) -> Array:
    """The hidden row of the last committed input, of a verify's columns [W, ...]; `previous` where nothing was kept.

    Clause: COMMIT-016
    Source: NInfer docs/maintainer/dflash.md, commit; sgl-project/sglang issue 26163.
    """
    return np.asarray(columns[kept - 1] if kept else previous)


def features(captured: Array, width: int, kept: Array, frontiers: Array, profile: Profile) -> Features:
    """The pending rows of all batch rows b, whose verify captured rows b * width and on of captured [B * W, X].

    Raises CommitError if the rows do not divide into B blocks, or if one kept more than its block.
    """
    if len(captured) != width * len(kept):
        raise CommitError(f"commit.features: {len(captured)} rows, expected {len(kept)} times {width}")
    parts = [
        pending(own_rows(captured, row, width), Position(int(frontier)), int(count), profile)
        for row, (count, frontier) in enumerate(zip(kept, frontiers, strict=True))
    ]
    return Features(
        np.concatenate([part.features for part in parts]), np.concatenate([part.positions for part in parts]), kept
    )


def own_rows(captured: Array, row: int, width: int) -> Array:
    """The rows [W, X] of one batch row among those of all of them.

    Clause: COMMIT-017
    Source: sgl-project/sglang issue 26163; NInfer docs/maintainer/dflash.md, commit.
    """
    return captured[row * width : (row + 1) * width]
