"""Copies of state slots and chains of snapshots, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from dflash_spec.errors import StateError
from torch import Tensor

WHOLE, LOCAL_FORK, ZERO = range(3)


class Chain(NamedTuple):
    """K/V rows [P, D], where the recurrent state stands, the last token or -1, and what the mirror must read again."""

    rows: Tensor
    recurrent: int
    last_token: int
    resync: tuple[int, int]


def copy(parts: Sequence[Tensor], source: int, destination: int, kind: int, segment: int) -> list[Tensor]:
    """The slots [N, ...] of each part after a copy; of a local fork the first part alone changes.

    `segment` is 0 for a copy on the device, else how many bytes go through the host at a time. Raises StateError.

    Clauses: STATE-014, STATE-015. Source: Infernix tests/models/qwen3_5/test_state_image.cpp.
    """
    slots = len(parts[0])
    if kind not in (WHOLE, LOCAL_FORK, ZERO) or segment < 0 or not min(source, destination) >= 0 or (
        max(source, destination) >= slots
    ):  # fmt: skip
        raise StateError(f"kind {kind} from {source} to {destination} of {slots} slots in segments of {segment}")
    after = [part.clone() for part in parts]
    for part in after[:1] if kind == LOCAL_FORK else after:
        if kind == ZERO:
            part[destination] = 0
        else:
            part[destination] = _through_host(part[source], segment) if segment else part[source].clone()
    return after


def _through_host(slot: Tensor, segment: int) -> Tensor:
    data = slot.contiguous().view(-1).view(torch.uint8)
    host = [piece.cpu().clone() for piece in torch.split(data, segment)]
    return torch.cat(host).to(slot.device).view(slot.dtype).view(slot.shape) if host else slot.clone()


def chain(
    thick: Sequence[int], starts: Sequence[int], ends: Sequence[int], last_tokens: Sequence[int], snapshots: Tensor,
    capacity: int, window: int,
) -> Chain:  # fmt: skip
    """The state that a thick snapshot and thin ones after it leave. Raises StateError for no such chain.

    Clauses: STATE-016 to STATE-019. Source: Luce-Org/lucebox-hub@8305b6c
    server/src/qwen35/qwen35_target_graph.cpp, and commits 3c433a9 and c470446.
    """
    if list(thick) != [1] + [0] * (len(thick) - 1) or starts[0] != 0:
        raise StateError(f"snapshots {list(thick)} from {list(starts)}, expected a thick one from 0 and then thin ones")
    lengths = [end - start for start, end in zip(starts, ends, strict=True)]
    if min(lengths) < 1 or min(starts) < 0 or max(ends) > capacity or sum(lengths) != len(snapshots):
        raise StateError(f"ranges {list(starts)} to {list(ends)}, expected {len(snapshots)} rows within {capacity}")
    position = max(ends)
    rows = snapshots.new_full((position, snapshots.shape[1]), torch.nan)
    held = torch.zeros(position, dtype=torch.bool)
    for start, end, own in zip(starts, ends, torch.split(snapshots, lengths), strict=True):
        rows[start:end], held[start:end] = own, True
    if not bool(held.all()):
        raise StateError(f"no row at position {int(held.int().argmin())}, expected one at each below {position}")
    first = max(0, position - window)
    return Chain(rows, ends[0], last_tokens[0] if position == ends[0] else -1, (first, position - first))
