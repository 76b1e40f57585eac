"""Rows that only say whose they are: what the script of STATE stores in the place of keys and values.

The tag of token t at position p is 1000 t + 10 p + d, where d names the layer.
"""

from __future__ import annotations

import numpy as np
from dflash_spec.errors import StateError
from dflash_spec.tensors import Array

from dflash_reference import ring
from dflash_reference.names import Position
from dflash_reference.rows import Rows

DRAFT_DIGIT, TAIL_DIGIT = 5, 9
UNWRITTEN, INVISIBLE = -7, -1


def tags(tokens: Array, positions: Array, digits: Array) -> Array:
    """The tags of tokens [T] at positions [T] in the layers named by digits [L]: [T, L]."""
    return np.asarray((1000 * tokens + 10 * positions)[:, np.newaxis] + digits)


def tails(tokens: Array, positions: Array) -> Array:
    """The tags [T] of the target's hidden rows after tokens [T]."""
    return tags(tokens, positions, np.array([TAIL_DIGIT]))[:, 0]


class TargetTags:
    """The target's K/V of one lane: row t of each layer is the token at position t."""

    def __init__(self, layers: int) -> None:
        self.digits = np.arange(layers)
        self.rows = Rows(layers, dtype=np.int64)

    @property
    def length(self) -> int:
        return self.rows.length

    def append(self, tokens: Array, positions: Array) -> None:
        """Write rows [T] after those that are there."""
        self.rows.append(tags(tokens, positions, self.digits))

    def cut(self, length: int) -> None:
        """Forget every row from `length` on."""
        self.rows.cut(length)

    def copy(self) -> TargetTags:
        """Tags of the same content, which share nothing with these."""
        other = TargetTags(len(self.digits))
        other.rows = self.rows.copy()
        return other

    def seen(self, count: int, capacity: int) -> Array:
        """What the first `count` rows hold, [L, capacity]; -1 past them."""
        found = np.full((len(self.digits), capacity), INVISIBLE)
        found[:, :count] = self.rows.view[:count].T
        return found


class DraftTags:
    """The draft's context of one lane: the last `capacity` rows of each layer, position p in slot p mod capacity."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.digits = DRAFT_DIGIT + np.arange(layers)
        self.slots = np.full((capacity, layers), UNWRITTEN)
        self.length = 0

    @property
    def capacity(self) -> int:
        return len(self.slots)

    def append(self, tokens: Array, positions: Array) -> None:
        """Write rows [T]; of more rows than there are slots the last ones stay."""
        kept, self.length = ring.last_window(len(tokens), Position(self.length), self.capacity)
        places = ring.slots_of(positions[kept], self.capacity)
        self.slots[places] = tags(tokens[kept], positions[kept], self.digits)

    def cut(self, length: int) -> None:
        """Forget the rows from `length` on. Raises StateError if there are fewer."""
        if not 0 <= length <= self.length:
            raise StateError(f"state: cut to {length} rows, expected 0 to {self.length}, the rows held")
        self.length = length

    def copy(self) -> DraftTags:
        """Tags of the same content, slot by slot, which share nothing with these.

        Clause: STATE-012
        Source: NInfer docs/maintainer/dflash.md, storage; Luce-Org/lucebox-hub@8305b6c.
        """
        other = DraftTags(len(self.digits), self.capacity)
        other.slots, other.length = self.slots.copy(), self.length
        return other

    def seen(self, capacity: int) -> Array:
        """What the slots of the live positions hold, [L, capacity]; -1 at the other positions."""
        found = np.full((len(self.digits), capacity), INVISIBLE)
        live = np.arange(max(0, self.length - self.capacity), self.length)
        found[:, live] = self.slots[ring.slots_of(live, self.capacity)].T
        return found
