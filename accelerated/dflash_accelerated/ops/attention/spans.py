"""What is stored of sequences, and which rows a forward adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Store(NamedTuple):
    """Keys and values [lanes, L, KV, S + W, D] of L layers: a sequence has a lane, and its position p the slot p mod S.

    Of a sequence the last S = `slots` positions are stored; one that never grows beyond S keeps all. The W slots past
    them hold nothing that outlives a call.
    """

    keys: Tensor
    values: Tensor
    slots: int


class Spans:
    """The rows of a forward: request b has `counts[b]` rows at positions `starts[b]` and on; its sequence `lanes[b]`
    stores the positions before. The rows of all requests lie one after another.

    `positions` I64 [R] are the rows' own. Iterating gives lane, start, count and first row of each request.
    """

    def __init__(
        self, lanes: Sequence[int], starts: Sequence[int], counts: Sequence[int], device: torch.device
    ) -> None:
        self.lanes, self.starts, self.counts = tuple(lanes), tuple(starts), tuple(counts)
        self.device = device
        own = [torch.arange(start, start + count, device=device) for start, count in zip(starts, counts, strict=True)]
        self.positions = own[0] if len(own) == 1 else torch.cat(own)
        self.masks: dict[object, Tensor | None] = {}
        """Which layers share: they are made once in a forward."""

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        first = 0
        for lane, start, count in zip(self.lanes, self.starts, self.counts, strict=True):
            yield lane, start, count, first
            first += count

    @property
    def end(self) -> int:
        """The first position past all rows."""
        return max(start + count for start, count in zip(self.starts, self.counts, strict=True))

    @cached_property
    def places(self) -> Tensor:
        """The place I64 [R] of each row among its request's own."""
        return torch.cat([torch.arange(count, device=self.device) for count in self.counts])

    @cached_property
    def table(self) -> Tensor:
        """The same numbers on the device: I32 [B, 4]."""
        return torch.tensor(list(self), dtype=torch.int32, device=self.device)
