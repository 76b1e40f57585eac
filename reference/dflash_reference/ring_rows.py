"""A ring as such: where a row goes, which rows are live, in which order they are read. No weights, no rounding.

A frontier is the number of positions before it; it is kept beside the ring and is no part of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import Position


class Slots(NamedTuple):
    """slots: [T] int64."""

    slots: Array
    refused: int = 0


class Live(NamedTuple):
    """first: a position. length: how many positions are live from it on."""

    first: int
    length: int
    refused: int = 0


class Appended(NamedTuple):
    """ring_next: [S, X]. frontier_next: the frontier after the chunk."""

    ring_next: Array
    frontier_next: int
    refused: int = 0


class Gathered(NamedTuple):
    """rows: [R, X]. positions: [R] int64."""

    rows: Array
    positions: Array


class Rounds(NamedTuple):
    """counted: [N] int64. windows: [sum of counted, X]."""

    counted: Array
    windows: Array


class Capacity(NamedTuple):
    """capacity: slots of the ring."""

    capacity: int


def slots(positions: Array, capacity: int, profile: Profile) -> Slots:
    """The op ring.slots: positions [T] -> [T]."""
    return Slots(slot_of(positions, capacity))


def slot_of(positions: Array, capacity: int) -> Array:
    """The slot of each position [T] in a ring of `capacity` slots: [T].

    Raises TensorError for a negative position, and for a ring without slots.

    Clause: RING-002
    Source: NInfer docs/maintainer/dflash.md, storage; Infernix src/core/cyclic_kv_cache.h.
    """
    if capacity < 1:
        raise TensorError(f"a ring of {capacity} slots, expected at least 1")
    if (positions < 0).any():
        raise TensorError(f"position {positions.min()}, expected 0 or more: a row before the first has no slot")
    return positions % capacity


def live(frontier: Position, capacity: int, profile: Profile) -> Live:
    """The op ring.live."""
    return Live(*live_interval(frontier, capacity))


def live_interval(frontier: Position, capacity: int) -> tuple[int, int]:
    """The first live position at a frontier, and how many are live.

    Raises TensorError for a negative frontier, and for a ring without slots.

    Clause: RING-003
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    if frontier < 0 or capacity < 1:
        raise TensorError(f"frontier {frontier} of a ring of {capacity} slots, expected 0 or more, and at least 1")
    return max(0, frontier - capacity), min(frontier, capacity)


def append(ring: Array, rows: Array, start: Position, frontier: Position, profile: Profile) -> Appended:
    """The ring [S, X] after rows [T, X], the first of which lies at `start`; the ring given is not changed.

    Raises TensorError for another start than the frontier.
    """
    check_start(start, frontier)
    return Appended(stored(ring, rows, frontier), frontier + len(rows))


def check_start(start: Position, frontier: Position) -> None:
    """Raise TensorError unless a chunk starts where the context ends.

    Clause: RING-004
    Source: NInfer docs/maintainer/dflash.md, conditioning; Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    if start != frontier:
        raise TensorError(f"a chunk from position {start} on, expected {frontier}, the context frontier")


def stored(ring: Array, rows: Array, frontier: Position) -> Array:
    """The ring [S, X] with the last S of rows [T, X] in it, which follow on the frontier.

    Clause: RING-005
    Source: NInfer docs/maintainer/dflash.md, conditioning; Infernix src/core/cyclic_kv_cache.h.
    """
    after = ring.copy()
    kept = np.arange(max(0, len(rows) - len(ring)), len(rows))
    after[slot_of(frontier + kept, len(ring))] = rows[kept]
    return after


def gather(ring: Array, frontier: Position, profile: Profile) -> Gathered:
    """The live rows of the ring [S, X], oldest first.

    Clause: RING-006
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    first, count = live_interval(frontier, len(ring))
    positions = first + np.arange(count)
    return Gathered(ring[slot_of(positions, len(ring))], positions)


def rounds(ring: Array, rows: Array, counts: Array, frontier: Position, profile: Profile) -> Rounds:
    """Round by round, counts [N] of the rows [T, X] are appended to the ring [S, X] and what is live is read.

    Raises TensorError unless the counts, none of them negative, add up to T.

    Clause: RING-009
    Source: Infernix src/core/cyclic_kv_cache.h; Luce-Org/lucebox pull 664.
    """
    if (counts < 0).any() or counts.sum() != len(rows):
        raise TensorError(f"ring.rounds: counts {counts.tolist()}, expected numbers that add up to {len(rows)} rows")
    windows, done = [], 0
    for count in counts:
        ring = stored(ring, rows[done : done + count], Position(frontier + done))
        done += int(count)
        windows.append(gather(ring, Position(frontier + done), profile).rows)
    counted = np.array([len(window) for window in windows], dtype=np.int64)
    return Rounds(counted, np.concatenate([*windows, rows[:0]]))


def capacity(window: int, width: int, profile: Profile) -> Capacity:
    """Slots for a window, with verify passes of `width` rows, by who writes the ring in this profile.

    Raises TensorError for a window or a width below 1.
    """
    if window < 1 or width < 1:
        raise TensorError(f"ring.capacity: window {window} and width {width}, expected at least 1 of each")
    if profile.axes["ring_capacity"] == "window_plus_width":
        return Capacity(capacity_of_verified_rows(window, width))
    return Capacity(capacity_of_committed_rows(window, width))


def capacity_of_committed_rows(window: int, width: int) -> int:
    """Slots of a ring that only commits write.

    Clause: RING-007
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    return window


def capacity_of_verified_rows(window: int, width: int) -> int:
    """Slots of a ring that each verify pass writes before it is known which of its rows stay.

    Clause: RING-008
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp.
    """
    return window + width
