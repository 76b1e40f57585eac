"""Where a sequence's keys and values live: buffers reserved once, and a length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from dflash_spec.errors import RequestError, StateError
from torch import Tensor

from dflash_accelerated.lanes import Lanes, Snapshot
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Rows, Store


class Context(NamedTuple):
    """Rows that a layer may read, and the absolute positions I64 [C] of each."""

    rows: Rows
    positions: Tensor


class KvPool:
    """Keys and values of L layers [lanes, L, KV, capacity + tail, D], in which a row is an absolute position.

    Each sequence has a lane. Once reserved, lanes and capacity are fixed, and the buffers never move; until then they
    grow as sequences are opened. A page of memory that no sequence has reached is not touched.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, numerics: Numerics, device: torch.device, tail: int = 0
    ) -> None:
        """A pool without lanes. `tail` rows past the capacity hold nothing that outlives a forward."""
        shape = (0, layers, kv_heads, tail, head_dim)
        keys = torch.empty(shape, dtype=numerics.act, device=device)
        self.store = Store(keys, torch.empty(shape, dtype=numerics.value, device=device), 0)
        self.lanes = Lanes()
        self._tail = tail
        self._reserved = False

    @property
    def capacity(self) -> int:
        """How many rows a lane has."""
        return self.store.slots

    @property
    def reserved(self) -> bool:
        """Whether the buffers stay where they are."""
        return self._reserved

    @property
    def held_bytes(self) -> int:
        return self.store.keys.nbytes + self.store.values.nbytes

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        """Bytes of `lanes` lanes of `capacity` rows, or of what is promised already where that is more."""
        lanes, capacity = self._promised(lanes, capacity)
        layers, kv_heads, _, head_dim = self.store.keys.shape[1:]
        row = layers * kv_heads * head_dim * (self.store.keys.itemsize + self.store.values.itemsize)
        return lanes * (capacity + self._tail) * row

    def reserve(self, lanes: int, capacity: int) -> None:
        """From now on `lanes` sequences of `capacity` rows, and no more; of each as many as were promised before.

        Raises RequestError where the pool would have to grow while sequences are open.
        """
        lanes, capacity = self._promised(lanes, capacity)
        if self._reserved and (lanes, capacity) == (self.lanes.count, self.capacity):
            return
        if self.lanes.free < self.lanes.count:
            raise RequestError(f"{self.lanes.count - self.lanes.free} sequences are open, expected none to reserve for")
        self._resize(lanes, capacity)
        self.lanes, self._reserved = Lanes(lanes), True

    def open(self, capacity: int) -> KvCache:
        """A cache of `capacity` rows in a free lane. Raises RequestError if there is none, or if it has fewer rows."""
        if not self._reserved and (not self.lanes.free or capacity > self.capacity):
            more = 0 if self.lanes.free else 1
            self._resize(self.lanes.count + more, max(capacity, self.capacity))
            self.lanes.add(more)
        if capacity > self.capacity:
            raise RequestError(f"a sequence of {capacity} rows, expected at most {self.capacity}, a lane's")
        return KvCache(self, capacity)

    def _promised(self, lanes: int, capacity: int) -> tuple[int, int]:
        """What is asked for, and what an engine that shares this pool has been promised."""
        if not self._reserved:
            return lanes, capacity
        return max(lanes, self.lanes.count), max(capacity, self.capacity)

    def _resize(self, lanes: int, capacity: int) -> None:
        """Other buffers that hold what these held."""
        keys, values = (self._resized(held, lanes, capacity) for held in self.store[:2])
        self.store = Store(keys, values, capacity)

    def _resized(self, held: Tensor, lanes: int, capacity: int) -> Tensor:
        layers, kv_heads, rows, head_dim = held.shape[1:]
        made = held.new_empty(lanes, layers, kv_heads, capacity + self._tail, head_dim)
        kept = min(rows, made.shape[3])
        made[: min(len(held), lanes), :, :, :kept] = held[:lanes, :, :, :kept]
        return made


def check_reserved(pool: KvPool) -> None:
    """Raise StateError for a pool whose buffers may move yet."""
    if not pool.reserved:
        raise StateError("buffers that may yet move, expected `reserve` before what reads them is recorded")


class KvCache:
    """Keys and values of one sequence; row = absolute position.

    Rows past `length` are never read, so a rollback only moves the length.
    """

    def __init__(self, pool: KvPool, capacity: int) -> None:
        """A free lane of `pool`, which has at least `capacity` rows. Raises RequestError if there is none."""
        self._pool = pool
        self._loan = pool.lanes.lend(self)
        self.lane = self._loan.lane
        self.capacity = capacity
        self.length = 0

    @property
    def keys(self) -> Tensor:
        """The lane's own keys [L, KV, capacity, D]."""
        return self._pool.store.keys[self.lane, :, :, : self.capacity]

    @property
    def values(self) -> Tensor:
        """The lane's own values [L, KV, capacity, D]."""
        return self._pool.store.values[self.lane, :, :, : self.capacity]

    def check_room(self, rows: int) -> None:
        """Raise RequestError where so many rows more do not fit."""
        end = self.length + rows
        if end > self.capacity:
            raise RequestError(f"rows {self.length} to {end - 1} of a sequence, expected at most {self.capacity} rows")

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        """Put rows [R, KV, D] of one layer at positions start to start + R - 1, before `advance` counts them."""
        self.keys[layer, :, start : start + len(key)] = key.transpose(0, 1)
        self.values[layer, :, start : start + len(key)] = value.transpose(0, 1)

    def context(self, layer: int, window: int) -> Context:
        """What the rows after the last one may see of one layer; a `window` of 0 is a full layer."""
        begin = max(0, self.length - window + 1) if window else 0
        rows = Rows(*(held[layer, :, begin : self.length] for held in (self.keys, self.values)))
        return Context(rows, torch.arange(begin, self.length, device=self.keys.device))

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
        """Give the lane back."""
        self._loan.end()
        self.capacity = self.length = 0
