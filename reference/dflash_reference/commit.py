"""The commit of a round: what becomes of the state once it is known how many tokens are kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import Position, TokenId


class Round(NamedTuple):
    """rows: [N] int64, the committed input tokens. next_anchor, next_frontier, target_rows_kept: after the commit."""

    rows: Array
    next_anchor: int
    next_frontier: int
    target_rows_kept: int


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
