"""Transactions of a batch in PyTorch. Frontiers I64 [B, 4] are those of execution, ledger, target K/V and context.

Source: Infernix src/models/qwen3_5/program/decode.cpp, prefill.cpp, transactions/commit.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from dflash_spec.errors import CommitError
from torch import Tensor

GOES_ON, ENDS, CANCELLED = range(3)


class Batch(NamedTuple):
    """A pending batch: frontiers [B, 4] at its start and now; licensed [B, W], the rest [B]; all I64."""

    base: Tensor
    present: Tensor
    anchors: Tensor
    widths: Tensor
    extents: Tensor
    accepted: Tensor
    counts: Tensor
    licensed: Tensor
    kept: Tensor
    ends: Tensor
    remaining: Tensor


class Resolved(NamedTuple):
    """Frontiers [B, 4], pending rows [B] and anchors [B] after a commit."""

    frontiers: Tensor
    pending: Tensor
    anchors_next: Tensor


def _refuse(bad: Tensor, what: str) -> None:
    if bool(bad.any()):
        raise CommitError(f"rows {bad.nonzero().view(-1).tolist()}: {what}")


def ready(
    active: Tensor, frontiers: Tensor, remaining: Tensor, capacity: int, widest: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """How many rows [B] each context lacks, and their positions [B, W]. Raises CommitError for a row that cannot start.

    Clauses: COMMIT-012, COMMIT-013.
    """
    execution, ledger, target, context = frontiers.unbind(1)
    missing = execution - context
    _refuse(active == 0, "not active, expected active ones")
    _refuse(remaining < 1, "no budget left, expected some")
    _refuse(execution >= capacity, f"at {execution.tolist()}, expected below {capacity}")
    _refuse((target != execution) | (ledger != execution + 1), f"{frontiers.tolist()}, expected E, E + 1, E")
    _refuse((missing < 0) | (missing > widest), f"{missing.tolist()} rows missing, expected 0 to {widest}")
    last = torch.maximum(context, execution - 1)
    return missing, torch.minimum(context[:, None] + torch.arange(widest), last[:, None])


def check_once(consumed: bool) -> None:
    """Raise CommitError for rounds that were resolved before. Clause: COMMIT-008."""
    if consumed:
        raise CommitError("the rounds were resolved before, expected to be resolved once")


def check_rounds(counts: Tensor, accepted: Tensor, extents: Tensor, width: int, kept: Tensor, ends: Tensor) -> None:
    """Raise CommitError where a row licenses what it did not verify, or keeps what its end does not let it keep.

    Clauses: COMMIT-004, COMMIT-005.
    """
    _refuse((counts < 1) | (counts > width), f"{counts.tolist()} licensed, expected 1 to {width}")
    _refuse((counts != accepted + 1) | (accepted > extents), f"{accepted.tolist()} accepted, expected one fewer")
    least = torch.where(ends == GOES_ON, counts, torch.where(ends == ENDS, 1, 0))
    most = torch.where(ends == CANCELLED, 0, counts)
    unknown = (ends < GOES_ON) | (ends > CANCELLED)
    _refuse(unknown | (kept < least) | (kept > most), f"kept {kept.tolist()} at ends {ends.tolist()}")


def resolve(batch: Batch, capacity: int, public: int, consumed: bool) -> Resolved:
    """Commit all rows, or raise CommitError and none.

    Clauses: COMMIT-004 to COMMIT-011.
    """
    width = batch.licensed.shape[1]
    check_once(consumed)
    _refuse((batch.base != batch.present).any(1), f"at {batch.present.tolist()}, expected {batch.base.tolist()}")
    _refuse(batch.widths != width, f"verified {batch.widths.tolist()} wide, expected {width}")
    check_rounds(batch.counts, batch.accepted, batch.extents, width, batch.kept, batch.ends)
    execution = batch.base[:, 0]
    _refuse(batch.counts > batch.remaining, f"{batch.counts.tolist()} licensed, expected {batch.remaining.tolist()}")
    _refuse(execution + batch.counts > capacity, f"{batch.counts.tolist()} licensed, expected to end at {capacity}")
    columns = torch.arange(width) < batch.counts[:, None]
    wild = (batch.licensed < 0) | (batch.licensed >= public)
    _refuse((columns & wild).any(1), f"licensed {batch.licensed.tolist()}, expected ids below {public}")
    after = batch.base + batch.kept[:, None]
    after[:, 3] = torch.where(batch.ends == GOES_ON, batch.base[:, 3], after[:, 0])
    tokens = torch.cat((batch.anchors[:, None], batch.licensed), 1)
    anchors = tokens.gather(1, batch.kept[:, None])[:, 0]
    return Resolved(after, after[:, 0] - after[:, 3], anchors)


def effects(counts: Tensor, kept: Tensor, ends: Tensor, own_law: bool, failed: bool) -> Tensor:
    """What a commit does, in order: rows (effect, batch row, N) I64 [E, 3]; nothing where it fails.

    Clauses: COMMIT-014, COMMIT-015.
    """
    some = kept > 0
    # Fold, counts, hidden row, context, frontiers; then budget, session, events.
    conditions = [some, some & own_law, some & (kept < counts), some & (ends != GOES_ON), some, some, some, some]
    table = torch.stack(conditions) & (not failed)
    effect, row = table.nonzero(as_tuple=True)
    return torch.stack((effect + 1, row, kept[row]), 1)


def hidden(columns: Tensor, previous: Tensor, kept: Tensor) -> Tensor:
    """The row [B, H] of each request's last committed input, of verify columns [B, W, H]. Raises CommitError.

    Clause: COMMIT-016.
    """
    _refuse((kept < 0) | (kept > columns.shape[1]), f"kept {kept.tolist()}, expected 0 to {columns.shape[1]}")
    found = columns[torch.arange(len(kept)), (kept - 1).clamp(min=0)]
    return torch.where(kept[:, None] > 0, found, previous)


def features(captured: Tensor, width: int, kept: Tensor, frontiers: Tensor) -> tuple[Tensor, Tensor]:
    """Of captured rows [B · W, X] those that become pending, and their positions, batch row by batch row.

    Raises CommitError for rows that do not divide, or one that kept more than it has.

    Clause: COMMIT-017. Source: sgl-project/sglang issue 26163.
    """
    if len(captured) != width * len(kept):
        raise CommitError(f"{len(captured)} rows, expected {len(kept)} times {width}")
    _refuse((kept < 0) | (kept > width), f"kept {kept.tolist()}, expected 0 to {width}")
    columns = torch.arange(width)
    own = columns < kept[:, None]
    return captured.view(len(kept), width, -1)[own], (frontiers[:, None] + columns)[own]


def replay_round(
    block: Sequence[int], target: Sequence[int], replayed: int, fast: bool, remaining: int, stop_ids: Collection[int]
) -> tuple[int, list[int], int]:
    """How many rows stand, the tokens emitted and the next anchor, of a greedy round in either of Luce's forms.

    `block` are the anchor and the proposals, `target` the argmax after each. Raises CommitError for an empty round.

    Clauses: COMMIT-018 to COMMIT-021. Source: Luce-Org/lucebox-hub@8305b6c
    server/src/common/dflash_spec_decode.cpp, server/test/test_dflash.cpp.
    """
    if not block or remaining < 1:
        raise CommitError(f"{len(block)} rows and {remaining} tokens left, expected at least 1 of each")
    agree = [own == said for own, said in zip(block[1:], target, strict=False)]
    accepted = 1 + (agree.index(False) if False in agree else len(agree))
    text = [*block[:accepted], target[accepted - 1]]
    whole = accepted if fast or accepted == len(block) else accepted + 1
    if whole > accepted:
        text.append(replayed)
    emitted = text[: min(whole, remaining)]
    stop = next((at for at, token in enumerate(emitted) if token in stop_ids), len(emitted) - 1)
    return accepted, emitted[: stop + 1], text[stop + 1]
