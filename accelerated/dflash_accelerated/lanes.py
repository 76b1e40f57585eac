"""Places in buffers that are reserved once: which are free, and who has the others."""

from __future__ import annotations

import weakref
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from dflash_spec.errors import RequestError
from torch import Tensor


class Lanes:
    """A fixed number of lanes, each of which one sequence has or none. The lowest free one is given out first.

    Threads may take and give at the same time: each is one operation on a heap.
    """

    def __init__(self, count: int = 0) -> None:
        """`count` lanes, all of them free."""
        self.count = count
        self._free = list(range(count))

    @property
    def free(self) -> int:
        """Lanes that no sequence has."""
        return len(self._free)

    def add(self, count: int) -> None:
        """So many lanes more."""
        self._free += range(self.count, self.count + count)
        self.count += count

    def take(self) -> int:
        """A lane that was free. Raises RequestError if there is none."""
        try:
            return heappop(self._free)
        except IndexError:
            raise RequestError(
                f"all {self.count} lanes are taken, expected a free one: close a stream or cancel a request"
            ) from None

    def give(self, lane: int) -> None:
        """Give a lane back. Raises RequestError for one that is not taken."""
        if lane in self._free or not 0 <= lane < self.count:
            raise RequestError(f"lane {lane} of {self.count} was given back, expected one that is taken")
        heappush(self._free, lane)

    def lend(self, holder: object) -> Loan:
        """A lane for as long as `holder` lives, or until the loan is ended. Raises RequestError if none is free."""
        lane = self.take()
        return Loan(lane, weakref.finalize(holder, self.give, lane))


class Loan(NamedTuple):
    """A lane, and what gives it back: at the first call alone."""

    lane: int
    end: weakref.finalize[[int], object]


class Snapshot(NamedTuple):
    """All that positions [0, length) of a sequence need of one adapter: its parts in the adapter's own layout."""

    length: int
    parts: tuple[Tensor, ...]

    def copied(self, device: torch.device | None = None) -> Snapshot:
        """The same bits in memory of their own, on `device` or where they are."""
        return Snapshot(self.length, tuple(part.detach().clone().to(device or part.device) for part in self.parts))
