"""The arithmetic of rings in PyTorch."""

from __future__ import annotations

import torch
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from torch import Tensor


def slots(positions: Tensor, capacity: int) -> Tensor:
    """The slot of each absolute position I64 [T], none of them negative: I64 [T].

    Clauses: CTX-013, RING-002. Source: Infernix src/core/cyclic_kv_cache.h.
    """
    return positions % capacity


def checked_slots(positions: Tensor, capacity: int) -> Tensor:
    """As `slots`. Raises TensorError for a position before the first, or a ring without slots.

    Clause: RING-002. Source: Infernix src/core/cyclic_kv_cache.h; Anbeeld/beellama.cpp issue 27.
    """
    if capacity < 1 or bool((positions < 0).any()):
        raise TensorError(f"positions {positions.tolist()} in {capacity} slots, expected none below 0, and a slot")
    return slots(positions, capacity)


def live(frontier: int, capacity: int) -> tuple[int, int]:
    """The first live position and how many are live. Raises TensorError for a negative frontier or no slots.

    Clause: RING-003. Source: NInfer docs/maintainer/dflash.md, storage.
    """
    if frontier < 0 or capacity < 1:
        raise TensorError(f"frontier {frontier} of {capacity} slots, expected 0 or more, and a slot")
    count = min(frontier, capacity)
    return frontier - count, count


def positions_held(frontier: int, capacity: int, device: torch.device) -> Tensor:
    """The absolute position I64 [R] that each of the first R = min(frontier, capacity) slots holds.

    Clauses: RING-003, RING-006, RING-009. Source: NInfer docs/maintainer/dflash.md, storage.
    """
    own = torch.arange(min(frontier, capacity), device=device)
    return own if frontier <= capacity else frontier - 1 - (frontier - 1 - own) % capacity


def check_follows(start: int, frontier: int) -> None:
    """Raise TensorError unless a chunk begins where the context ends.

    Clause: RING-004. Source: NInfer docs/maintainer/dflash.md, conditioning.
    """
    if start != frontier:
        raise TensorError(f"a chunk from position {start} on, expected {frontier}, where the context ends")


def capacity(window: int, width: int, profile: Profile) -> int:
    """Slots for a window and verify passes of `width` rows. Profile axis `ring_capacity`: which of the two write it.

    Raises TensorError for a window or width below 1.

    Clauses: RING-007, RING-008. Source: NInfer docs/maintainer/dflash.md, storage; Luce-Org/lucebox-hub@8305b6c
    server/src/common/dflash_feature_ring.cpp.
    """
    if window < 1 or width < 1:
        raise TensorError(f"a window of {window} and {width} verified rows, expected at least 1 of each")
    return window + width if profile.axes["ring_capacity"] == "window_plus_width" else window
