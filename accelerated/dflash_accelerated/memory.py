"""Where a sequence's keys and values live: buffers reserved once, and a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from dflash_spec.errors import RequestError, StateError
from torch import Tensor

from dflash_accelerated.lanes import Lanes, Loan, Snapshot
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Rows


class Context(NamedTuple):
    """Rows that a layer may read, and the absolute positions I64 [C] of each."""

    rows: Rows
    positions: Tensor


class KvCache:
    """Keys and values of one sequence, per layer [KV, capacity, D]; row = absolute position.

    Rows past `length` are never read, so a rollback only moves the length.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, numerics: Numerics, device: torch.device
    ) -> None:
        """Reserve `capacity` rows: K in `numerics.act`, V in `numerics.value`."""
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys = torch.empty(shape, dtype=numerics.act, device=device)
        self.values = torch.empty(shape, dtype=numerics.value, device=device)
        self.capacity = capacity
        self.length = 0
        self._loan: Loan | None = None

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        """Put rows [R, KV, D] at positions start to start + R - 1, before `advance` counts them.

        Raises RequestError where they do not fit.
        """
        end = start + key.shape[0]
        if end > self.capacity:
            raise RequestError(f"rows {start} to {end - 1} of a sequence, expected at most {self.capacity} rows")
        self.keys[layer, :, start:end] = key.transpose(0, 1)
        self.values[layer, :, start:end] = value.transpose(0, 1)

    def read(self, layer: int, begin: int, end: int) -> Rows:
        """Views of rows [begin, end) of one layer."""
        return Rows(self.keys[layer, :, begin:end], self.values[layer, :, begin:end])

    def context(self, layer: int, window: int) -> Context:
        """What the rows after the last one may see of one layer; a `window` of 0 is a full layer."""
        begin = max(0, self.length - window + 1) if window else 0
        return Context(self.read(layer, begin, self.length), torch.arange(begin, self.length, device=self.keys.device))

    def advance(self, rows: int) -> None:
        """Count `rows` rows that every layer has written."""
        self.length += rows

    def rollback(self, length: int) -> None:
        """Forget every row from position `length` on. Raises RequestError if that would lengthen the sequence.

        Clauses: COMMIT-002, DRAFT-014. Source: NInfer docs/maintainer/dflash.md.
        """
        if not 0 <= length <= self.length:
            raise RequestError(f"rollback to {length} rows, expected 0 to {self.length}")
        self.length = length

    def view(self) -> Snapshot:
        """What the cache holds, without a copy: keys and values [L, KV, length, D]."""
        return Snapshot(self.length, (self.keys[:, :, : self.length], self.values[:, :, : self.length]))

    def load(self, held: Snapshot) -> None:
        """Hold what another cache held, and nothing else. Raises StateError where it does not fit."""
        keys, values = held.parts
        if keys.shape[2] != held.length or held.length > self.capacity or keys.shape[:2] != self.keys.shape[:2]:
            raise StateError(
                f"{held.length} positions in rows {list(keys.shape)}, expected rows that fit {list(self.keys.shape)}"
            )
        self.keys[:, :, : held.length] = keys
        self.values[:, :, : held.length] = values
        self.length = held.length

    def close(self) -> None:
        """Give the buffers back."""
        if self._loan:
            self._loan.end()
        self.keys, self.values = self.keys.new_empty(0), self.values.new_empty(0)
        self.capacity = self.length = 0


class KvPool:
    """Caches of sequences of one adapter.

    Once reserved, it has a fixed number of lanes of one capacity. A lane's buffers are made when it is first needed,
    and serve every later sequence in it. Until then each sequence has buffers of its own.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, numerics: Numerics, device: torch.device) -> None:
        """A pool without lanes."""
        self._shape = (layers, kv_heads, head_dim)
        self._held = (numerics, device)
        self.lanes = Lanes()
        self.buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self.capacity = 0

    def reserve(self, lanes: int, capacity: int) -> None:
        """From now on `lanes` sequences of `capacity` rows; those that are open keep what they have."""
        if lanes > self.lanes.count or capacity > self.capacity:
            self.lanes, self.buffers, self.capacity = Lanes(lanes), {}, capacity

    def open(self, capacity: int) -> KvCache:
        """A cache of `capacity` rows in a free lane. Raises RequestError if there is none, or if it has fewer rows."""
        if not self.lanes.count:
            return KvCache(*self._shape, capacity, *self._held)
        if capacity > self.capacity:
            raise RequestError(f"a sequence of {capacity} rows, expected at most {self.capacity}, a lane's")
        cache = KvCache(*self._shape, 0, *self._held)
        cache._loan = self.lanes.lend(cache)
        lane = cache._loan.lane
        if lane not in self.buffers:
            whole = KvCache(*self._shape, self.capacity, *self._held)
            self.buffers[lane] = whole.keys, whole.values
        cache.keys, cache.values = self.buffers[lane]
        cache.capacity = capacity
        return cache


def positions_of(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Absolute positions I64 of rows that lie in `spans` (first, count), one span after another."""
    return torch.cat([torch.arange(first, first + count, device=device) for first, count in spans])
