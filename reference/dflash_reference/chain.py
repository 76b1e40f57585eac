"""Luce's snapshots: a thick one holds the whole state, a thin one the K/V of a range of positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import StateError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import Position
from dflash_reference.state import NO_TOKEN


class Chained(NamedTuple):
    """rows: [P, D]. position: P. recurrent: where the recurrent state stands. resync: [2], first and count."""

    rows: Array
    position: int
    recurrent: int
    last_token: int
    resync: Array
    refused: int = 0


def chain(
    thick: Array, starts: Array, ends: Array, last_tokens: Array, snapshots: Array, capacity: int, window: int,
    profile: Profile,
) -> Chained:  # fmt: skip
    """The state after the restore of M snapshots, whose rows [X, D] stand one after the other.

    Raises StateError for a chain that cannot be restored, or that leaves a position without a row.
    """
    well_formed(thick, starts, ends, len(snapshots), capacity)
    rows = overlaid(starts, ends, snapshots)
    position = Position(len(rows))
    recurrent, last_token = beside_the_rows(int(ends[0]), int(last_tokens[0]), position)
    return Chained(rows, position, recurrent, last_token, np.array(mirrored(position, window)))


def well_formed(thick: Array, starts: Array, ends: Array, rows: int, capacity: int) -> None:
    """Raise StateError unless a thick snapshot is followed by thin ones, each of a range that the cache holds.

    Clause: STATE-019
    Source: Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp.
    """
    if not len(thick) or not thick[0] or thick[1:].any() or starts[0] != 0:
        raise StateError(f"state.chain: thick {thick.tolist()} from {starts.tolist()}, expected 1 from 0, then 0 alone")
    if (starts < 0).any() or (ends <= starts).any() or (ends > capacity).any() or (ends - starts).sum() != rows:
        raise StateError(
            f"state.chain: {starts.tolist()} to {ends.tolist()}, expected ranges within {capacity} with {rows} rows"
        )


def overlaid(starts: Array, ends: Array, snapshots: Array) -> Array:
    """The rows [P, D] that the ranges leave, one written over the other, up to the largest end.

    Clause: STATE-016
    Source: Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp.
    """
    rows, held = np.zeros((int(ends.max()), snapshots.shape[1])), np.zeros(int(ends.max()), dtype=bool)
    offsets = np.cumsum(ends - starts) - (ends - starts)
    for start, end, offset in zip(starts, ends, offsets, strict=True):
        rows[start:end], held[start:end] = snapshots[offset : offset + end - start], True
    if not held.all():
        raise StateError(f"state.chain: no row at position {int(np.argmin(held))}, expected one at each")
    return rows


def beside_the_rows(thick_end: int, thick_token: int, position: Position) -> tuple[int, int]:
    """Where the recurrent state stands, and the last token, -1 where a token has to be fed first.

    Clause: STATE-017
    Source: Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp.
    """
    return thick_end, thick_token if position == thick_end else NO_TOKEN


def mirrored(position: Position, window: int) -> tuple[int, int]:
    """The first feature row, and how many, that the draft's mirror of `window` rows reads anew after a restore.

    Clause: STATE-018
    Source: Luce-Org/lucebox-hub commits 3c433a9 and c470446.
    """
    first = max(0, position - window)
    return first, position - first
