"""What is stored of sequences, and which rows a forward adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import add
from typing import NamedTuple, NoReturn

import torch
from dflash_spec.errors import StateError
from torch import Tensor

from dflash_accelerated.once import once
from dflash_accelerated.transfers import listed


class Store(NamedTuple):
    """Keys and values [lanes, L, KV, S + W, D] of L layers: a sequence has a lane, and its position p the slot p mod S.

    Of a sequence the last S = `slots` positions are stored; one that never grows beyond S keeps all. The W slots past
    them hold nothing that outlives a call.
    """

    keys: Tensor
    values: Tensor
    slots: int


class Seat(NamedTuple):
    """Where a layer's context is, and what its rows see: `place` in the store `group`; a `window` of 0 is all."""

    group: int
    place: int
    window: int
    causal: bool


class Spans:
    """The rows of a forward: request b has `counts[b]` rows at positions `starts[b]` and on; its sequence `lanes[b]`
    stores the positions before. The rows of all requests lie one after another.

    `positions` I64 [R] are the rows' own. Iterating gives lane, start, count and first row of each request.
    """

    def __init__(
        self, lanes: Sequence[int], starts: Sequence[int], counts: Sequence[int], device: torch.device
    ) -> None:
        self.lanes, self.starts, self.counts = tuple(lanes), starts, tuple(counts)
        self.device = device

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.lanes, self.starts, self.counts, self.firsts, strict=True)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first row of each request."""
        return (0, *accumulate(self.counts[:-1]))

    @property
    def end(self) -> int:
        """The first position past all rows."""
        end: int = max(map(add, self.starts, self.counts))
        return end

    @property
    def numbers(self) -> list[int]:
        """Those of `table`, request after request, on the host."""
        return list(chain.from_iterable(self))

    @once
    def masks(self) -> dict[object, Tensor | None]:
        """Which layers share: they are made once in a forward."""
        return {}

    @once
    def positions(self) -> Tensor:
        """Those of all rows, I64 [R]."""
        spans = zip(self.starts, self.counts, strict=True)
        own = [torch.arange(start, start + count, device=self.device) for start, count in spans]
        return own[0] if len(own) == 1 else torch.cat(own)

    @once
    def places(self) -> Tensor:
        """The place I64 [R] of each row among its request's own."""
        return torch.cat([torch.arange(count, device=self.device) for count in self.counts])

    @once
    def table(self) -> Tensor:
        """The same numbers on the device: I32 [B, 4]."""
        return listed(list(self), torch.int32, self.device)


class StaticSpans(Spans):
    """Spans of fixed counts, whose lanes and starts the device alone knows: in a table that changes between replays.

    What is computed with them is a function of tensors. Reading a lane or a start on the host raises StateError.
    """

    def __init__(self, table: Tensor, counts: Sequence[int]) -> None:
        """`table` I32 [B, 4] as `Spans` has it; its own counts may be smaller, where rows at the end are not live."""
        self.counts, self.device, self.table = tuple(counts), table.device, table
        self.places = torch.cat([torch.arange(count, device=self.device) for count in self.counts])
        owners = [request for request, count in enumerate(self.counts) for _ in range(count)]
        self._owners = torch.tensor(owners, device=self.device)

    @property
    def positions(self) -> Tensor:
        """Those of all rows as the table now has them, I64 [R]."""
        return self.table[self._owners, 1] + self.places

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("lanes", "starts"):
            raise StateError(f"{name} of spans that are on the device, expected nothing on the host to depend on them")
        raise AttributeError(name)
