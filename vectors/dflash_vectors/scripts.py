"""Scripts for the op state.script, written down step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

GOES_ON, ENDS, CANCELLED = range(3)
PREFILL, VERIFY, COMMIT, CATCH_UP, CHECKPOINT, RESTORE, FORK, REPLICATE, RELEASE, DROP, CLOSE = range(1, 12)


@dataclass(frozen=True)
class Turn:
    """One row of a round: the lane that it serves, its anchor and proposals, what is licensed and kept, how it ends."""

    lane: int
    block: tuple[int, ...]
    licensed: tuple[int, ...]
    kept: int
    end: int = GOES_ON


def turn(lane: int, anchor: int, accepted: int, drafts: int = 4, kept: int | None = None, end: int = GOES_ON) -> Turn:
    """A row of a request whose every token is one more than the one before, and whose draft is right `accepted` times.

    Proposals that are wrong are 500 more than what the target says.
    """
    block = tuple(anchor + slot + (500 if slot > accepted else 0) for slot in range(drafts + 1))
    licensed = tuple(anchor + slot for slot in range(1, accepted + 2))
    count = 0 if end == CANCELLED else len(licensed)
    return Turn(lane, block, licensed, count if kept is None else kept, end)


@dataclass
class Script:
    """Steps that are appended by their names; `inputs` are those of the op.

    `width` is that of the widest block, `rows` how many rows a round has. The others are lanes, image slots, layers of
    target and draft, ring slots (0 for a context that keeps every row), and positions.
    """

    ring: int = 0
    lanes: int = 2
    images: int = 2
    layers: tuple[int, int] = (2, 1)
    capacity: int = 18
    width: int = 5
    rows: int = 2
    steps: list[tuple[int, ...]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rounds: list[list[Turn | None]] = field(default_factory=list)

    def step(self, code: int, *places: int) -> None:
        self.steps.append((code, *places, *[0] * (4 - len(places))))

    def prefill(self, lane: int, tokens: Sequence[int], anchor: int = -1) -> None:
        self.step(PREFILL, lane, len(self.tokens), len(tokens), anchor)
        self.tokens.extend(tokens)

    def plan(self, *turns: Turn | None) -> int:
        """A round that may be verified and committed: its number."""
        self.rounds.append(list(turns))
        return len(self.rounds) - 1

    def verify(self, *turns: Turn | None) -> int:
        """Plan a round and verify it: its number."""
        number = self.plan(*turns)
        self.step(VERIFY, number)
        return number

    def play(self, *turns: Turn | None) -> int:
        """Plan, verify and commit a round: its number."""
        number = self.verify(*turns)
        self.step(COMMIT, number)
        return number

    def inputs(self) -> dict[str, Any]:
        blocks, licensed = (np.full((len(self.rounds), self.rows, self.width), -1) for _ in range(2))
        lanes, kept, ends = (np.full((len(self.rounds), self.rows), value) for value in (-1, 0, GOES_ON))
        for number, turns in enumerate(self.rounds):
            for row, served in enumerate(turns):
                if served is not None:
                    lanes[number, row], kept[number, row], ends[number, row] = served.lane, served.kept, served.end
                    blocks[number, row, : len(served.block)] = served.block
                    licensed[number, row, : len(served.licensed)] = served.licensed
        return {
            "steps": np.array(self.steps),
            "tokens": np.array(self.tokens, dtype=np.int64),
            "round_lanes": lanes,
            "round_blocks": blocks,
            "round_licensed": licensed,
            "round_kept": kept,
            "round_ends": ends,
            "lanes": self.lanes,
            "images": self.images,
            "target_layers": self.layers[0],
            "draft_layers": self.layers[1],
            "ring": self.ring,
            "capacity": self.capacity,
        }


def text(first: int, count: int) -> range:
    """A prompt of `count` tokens that count on from `first`."""
    return range(first, first + count)
