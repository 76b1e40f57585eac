"""Luce's feature ring: flat BF16 storage of the target's features, from which the draft recomputes its keys and values.

Features of one position lie side by side. The verify pass writes the ring before it is known which rows stay, so the
frontier can be cut back behind rows that were written already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import num
from dflash_reference.names import Position


class Appended(NamedTuple):
    """ring_next: [capacity · X], represented in BF16."""

    ring_next: Array
    refused: int = 0


class Live(NamedTuple):
    """first: a position. length: how many positions are live from it on."""

    first: int
    length: int
    refused: int = 0


class Window(NamedTuple):
    """features: [R, X], represented in F32. first: the position of row 0."""

    features: Array
    first: int
    refused: int = 0


class Positions(NamedTuple):
    """context: [C], block: [B] and queries: [B] int64."""

    context: Array
    block: Array
    queries: Array


class Synchronised(NamedTuple):
    """mirror_next: [capacity of the mirror · X], represented in F32."""

    mirror_next: Array
    refused: int = 0


def append(ring: Array, rows: Array, start: Position, capacity: int, profile: Profile) -> Appended:
    """The ring [capacity · X] after captured rows [T, X] from position `start` on; the one given is not changed.

    Raises TensorError for a negative start, or where the ring has not `capacity` rows of X features.
    """
    if start < 0 or capacity < 1 or len(ring) != capacity * rows.shape[1]:
        raise TensorError(
            f"feature.append: {len(ring)} elements and start {start}, expected {capacity} rows of {rows.shape[1]} "
            "features, at least one of them, and a start of 0 or more"
        )
    after, held = ring.copy(), represent(rows)
    for index, count in runs(start, len(rows), capacity):
        at = offset(Position(start + index), capacity, rows.shape[1])
        after[at : at + count * rows.shape[1]] = held[index : index + count].reshape(-1)
    return Appended(after)


def offset(position: Position, capacity: int, width: int) -> int:
    """Where the `width` features of a position begin in the flat ring.

    Clause: RING-010
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp.
    """
    return (position % capacity) * width


def represent(features: Array) -> Array:
    """The features, any shape, as the ring holds them.

    Clause: RING-011
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_capture.cpp.
    """
    return num.round_to(features, "BF16")


def runs(start: Position, count: int, capacity: int) -> Iterator[tuple[int, int]]:
    """Index and length of each run of captured rows whose slots are neighbours, older rows first.

    Clause: RING-012
    Source: Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp.
    """
    index = 0
    while index < count:
        length = min(capacity - (start + index) % capacity, count - index)
        yield index, length
        index += length


def live(frontier: Position, written: Position, capacity: int, profile: Profile) -> Live:
    """The op feature.live."""
    return Live(*live_interval(frontier, written, capacity))


def live_interval(frontier: Position, written: Position, capacity: int) -> tuple[int, int]:
    """The first live position, and how many are live, where positions below `written` were written.

    Raises TensorError for a frontier outside 0 to `written`, and for a ring without slots.

    Clause: RING-013
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp.
    """
    if not 0 <= frontier <= written or capacity < 1:
        raise TensorError(
            f"frontier {frontier} with rows up to {written} in {capacity} slots, expected 0 to {written}, and slots"
        )
    first = max(0, written - capacity)
    return first, max(0, frontier - first)


def window(
    ring: Array, capacity: int, frontier: Position, written: Position, window: int, profile: Profile
) -> Window:  # fmt: skip
    """What the draft reads of the ring [capacity · X]: at most `window` rows before the frontier.

    Raises TensorError where a verify pass has overwritten one of them, or the ring is no whole number of rows.

    Clause: RING-014
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp, dflash_draft_graph.cpp.
    """
    alive, _ = live_interval(frontier, written, capacity)
    first = frontier - min(frontier, window)
    if first < min(alive, frontier):
        raise TensorError(
            f"feature.window: row {first} is overwritten, expected {alive} or later, the oldest that lives"
        )
    rows = [row_of(ring, Position(position), capacity) for position in range(first, frontier)]
    return Window(widen(np.array(rows).reshape(len(rows), len(ring) // capacity)), first)


def row_of(ring: Array, position: Position, capacity: int) -> Array:
    """The features [X] of a position in the ring [capacity · X]. Raises TensorError if the ring has broken rows."""
    if len(ring) % capacity:
        raise TensorError(f"a ring of {len(ring)} elements, expected a multiple of its {capacity} slots")
    width = len(ring) // capacity
    at = offset(position, capacity, width)
    return ring[at : at + width]


def widen(features: Array) -> Array:
    """BF16 features, any shape, in F32: the same numbers.

    Clause: RING-015
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp.
    """
    return features


def positions(frontier: Position, window: int, width: int, profile: Profile) -> Positions:
    """Where the draft turns keys and queries, for a block of `width` rows at the frontier.

    Clause: RING-016
    Source: Luce-Org/lucebox-hub@8305b6c server/src/draft/draft_graph.cpp.
    """
    context = min(frontier, window)
    block = context + np.arange(width)
    return Positions(np.arange(context), block, block)


def sync(
    ring: Array, capacity: int, written: Position, mirror: Array, mirror_capacity: int, start: Position, count: int,
    profile: Profile,
) -> Synchronised:  # fmt: skip
    """The mirror [mirror_capacity · X] after `count` positions from `start` on were copied from the ring.

    Raises TensorError where the ring does not hold one of them, where they are more than the mirror has slots, or
    where rows of the two are of different lengths.

    Clause: RING-017
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp.
    """
    alive, held = live_interval(written, written, capacity)
    if not 0 <= count <= mirror_capacity or not alive <= start <= start + count <= alive + held:
        raise TensorError(
            f"feature.sync: {count} positions from {start} on, expected at most {mirror_capacity}, from {alive} to "
            f"{written - 1}"
        )
    if mirror_capacity < 1 or len(ring) * mirror_capacity != len(mirror) * capacity:
        raise TensorError(
            f"feature.sync: {len(ring)} and {len(mirror)} elements in {capacity} and {mirror_capacity} slots"
        )
    after, width = mirror.copy(), len(ring) // capacity
    for position in range(start, start + count):
        at = offset(Position(position), mirror_capacity, width)
        after[at : at + width] = widen(row_of(ring, Position(position), capacity))
    return Synchronised(after)
