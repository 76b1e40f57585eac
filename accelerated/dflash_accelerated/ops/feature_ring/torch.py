"""Flat BF16 feature rings in PyTorch: a ring [capacity · X] is a table [capacity, X] of one row a slot.

Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp, dflash_capture.cpp,
dflash_draft_graph.cpp.
"""

from __future__ import annotations

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

from dflash_accelerated.ops.rounding import narrow


def append(ring: Tensor, rows: Tensor, start: int, capacity: int) -> Tensor:
    """The ring BF16 [capacity · X] with captured rows FP32 [T, X] from position `start` on, of which the last stay.

    Raises TensorError for a negative start, or a ring of another size.

    Clauses: RING-010, RING-011, RING-012.
    """
    table = _table(ring, capacity)
    if start < 0 or table.shape[1] != rows.shape[1]:
        raise TensorError(f"rows {list(rows.shape)} at {start} for slots {list(table.shape)}, expected as many columns")
    kept = rows[-capacity:]
    first = start + len(rows) - len(kept)
    return table.index_copy(0, torch.arange(first, first + len(kept)) % capacity, narrow(kept, ring.dtype)).view(-1)


def live(frontier: int, written: int, capacity: int) -> tuple[int, int]:
    """The first live position and how many are live before `frontier`, where positions below `written` were written.

    Raises TensorError for a frontier that was not reached, or a ring without slots.

    Clause: RING-013.
    """
    if not 0 <= frontier <= written or capacity < 1:
        raise TensorError(f"frontier {frontier} of {written} positions in {capacity} slots, expected 0 to {written}")
    first = max(0, written - capacity)
    return first, max(0, frontier - first)


def window(ring: Tensor, capacity: int, frontier: int, written: int, rows: int) -> tuple[Tensor, int]:
    """The last min(frontier, rows) features before the frontier, FP32 [R, X], and the position of the first.

    Raises TensorError where one of them was overwritten.

    Clauses: RING-014, RING-015.
    """
    oldest, _ = live(frontier, written, capacity)
    first = frontier - min(frontier, rows)
    if first < min(oldest, frontier):
        raise TensorError(f"features from {first} on, expected {oldest} or later: they are overwritten")
    return _table(ring, capacity)[torch.arange(first, frontier) % capacity].to(torch.float32), first


def positions(frontier: int, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Where the draft turns its context keys [C], and its block's keys and queries [B], counted from the window.

    Clause: RING-016.
    """
    context = min(frontier, rows)
    return torch.arange(context), torch.arange(context, context + width)


def sync(
    ring: Tensor, capacity: int, written: int, mirror: Tensor, mirror_capacity: int, start: int, count: int
) -> Tensor:
    """The FP32 mirror with positions [start, start + count) copied from the ring, each to its own slot.

    Raises TensorError for positions that the ring does not hold, more than the mirror has slots, or unlike rows.

    Clause: RING-017.
    """
    oldest, _ = live(written, written, capacity)
    if not 0 <= count <= mirror_capacity or not oldest <= start <= start + count <= written:
        raise TensorError(
            f"{count} positions from {start} on, expected at most {mirror_capacity} of those from {oldest} to {written}"
        )
    table, other = _table(ring, capacity), _table(mirror, mirror_capacity)
    if table.shape[1] != other.shape[1]:
        raise TensorError(f"rows of {table.shape[1]} features for a mirror of {other.shape[1]}, expected as many")
    at = torch.arange(start, start + count)
    return other.index_copy(0, at % mirror_capacity, table[at % capacity].to(mirror.dtype)).view(-1)


def _table(ring: Tensor, capacity: int) -> Tensor:
    if capacity < 1 or len(ring) % capacity:
        raise TensorError(f"{len(ring)} elements, expected a multiple of {capacity} slots")
    return ring.view(capacity, -1)
