"""Rows that say where they come from: every element tells its position and its channel, and BF16 holds it exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

NAN = float("nan")
REPEAT = 128
"""Positions this far apart have the same rows."""


def tagged(positions: Iterable[int], width: int) -> Array:
    """Row t [width] of each position: 128 + p mod 128, an eighth of it in channel 0, and twice as much in each next."""
    places = np.array(list(positions), dtype=np.int64) % REPEAT
    return (REPEAT + places)[:, np.newaxis] * 2.0 ** (np.arange(width) - 3)


def canaries(slots: int, width: int) -> Array:
    """What lies in slots [slots, width] that nothing may write: rows that no position has."""
    held: Array = -tagged(range(slots), width)
    return held


def ring_of(positions: Iterable[int], capacity: int, width: int, stale: Any = None) -> Array:
    """A ring [capacity, width] that holds the rows of these positions, later over earlier.

    Its other slots hold canaries, or `stale`.
    """
    ring = canaries(capacity, width) if stale is None else np.full((capacity, width), stale)
    for position, row in zip(positions, tagged(positions, width), strict=True):
        ring[position % capacity] = row
    return ring
