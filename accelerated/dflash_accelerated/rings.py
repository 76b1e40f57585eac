"""Where the context of a DFlash2 draft lives: rings for its local layers, whole caches for the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dflash_spec.errors import RequestError
from torch import Tensor

from dflash_accelerated.memory import Context, KvCache
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Rows


class Rings:
    """Keys and values [lanes, L, S, KV, D] of L local layers: a sequence has a lane, a position p the slot p mod S.

    There are as many lanes as sequences have been open at once; a lane is used again when its sequence is closed.

    Clause: CTX-013. Source: Infernix src/core/cyclic_kv_cache.h, include/infernix/ops/context_kv_materialize.h.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """Rings over given buffers, of which every lane is free."""
        self.keys, self.values = keys, values
        self._free = list(range(len(keys)))

    @staticmethod
    def empty(layers: int, slots: int, kv_heads: int, head_dim: int, numerics: Numerics, device: torch.device) -> Rings:
        """Rings without a lane: K in `numerics.act`, V in `numerics.value`."""
        shape = (0, layers, slots, kv_heads, head_dim)
        keys = torch.empty(shape, dtype=numerics.act, device=device)
        return Rings(keys, torch.empty(shape, dtype=numerics.value, device=device))

    @property
    def slots(self) -> int:
        """S, the window of the layers."""
        return self.keys.shape[2]

    @property
    def free(self) -> int:
        """Lanes that no sequence has."""
        return len(self._free)

    def take(self) -> int:
        """A lane for a new sequence. Its slots hold anything."""
        if not self._free:
            lanes = len(self.keys)
            more = max(1, lanes)
            self.keys = torch.cat((self.keys, self.keys.new_empty((more, *self.keys.shape[1:]))))
            self.values = torch.cat((self.values, self.values.new_empty((more, *self.values.shape[1:]))))
            self._free = list(range(lanes, lanes + more))
        return self._free.pop(0)

    def give(self, lane: int) -> None:
        """Give a lane back."""
        self._free.append(lane)

    def write(self, lanes: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put rows [T, L, KV, D] into lanes I64 [T] at absolute positions I64 [T]; no slot of a lane occurs twice."""
        slots = positions % self.slots
        self.keys[lanes, :, slots] = keys
        self.values[lanes, :, slots] = values

    def read(self, lane: int, layer: int, length: int) -> Context:
        """What lives of one layer before position `length`: the last S positions, in the order of their slots."""
        slots = torch.arange(min(length, self.slots), device=self.keys.device)
        positions = slots if length <= self.slots else length - 1 - (length - 1 - slots) % self.slots
        key, value = (held[lane, layer, : len(slots)].transpose(0, 1) for held in (self.keys, self.values))
        return Context(Rows(key, value), positions)


def lane_bytes(layers: int, kv_heads: int, head_dim: int, window: int, numerics: Numerics) -> int:
    """Bytes of one lane, whatever the width of a block: 41,943,040 for five layers of 8 heads of 128 and S = 2048.

    Clause: RING-001. Source: NInfer docs/maintainer/dflash.md, storage.
    """
    return layers * kv_heads * head_dim * window * (numerics.act.itemsize + numerics.value.itemsize)


class RingState:
    """The context of one sequence: a lane of the rings, a cache for the full layers, and a length."""

    def __init__(self, rings: Rings, pages: KvCache | None, windows: Sequence[int]) -> None:
        """`windows` has one window a layer; `pages` is the cache of those layers whose window is 0."""
        self.lane = rings.take()
        self.pages = pages
        self.length = 0
        self._rings = rings
        self._places = [sum(bool(other) == bool(own) for other in windows[:at]) for at, own in enumerate(windows)]

    def context(self, layer: int, window: int) -> Context:
        """What the rows after the last one may see of one layer; a `window` of 0 is a full layer."""
        place = self._places[layer]
        if window:
            return self._rings.read(self.lane, place, self.length)
        if self.pages is None:
            raise RequestError(f"layer {layer} is a full layer, expected a cache for it")
        return self.pages.context(place, 0)

    def advance(self, rows: int) -> None:
        """Count `rows` rows that every layer has taken in, though a ring holds the last S alone. Clause: CTX-014."""
        self.length += rows
        if self.pages:
            self.pages.advance(rows)

    def rollback(self, length: int) -> None:
        """Forget every row from position `length` on.

        Raises RequestError if that would lengthen the sequence, or needs rows that the ring no longer holds.
        """
        if not 0 <= length <= self.length:
            raise RequestError(f"rollback to {length} rows, expected 0 to {self.length}")
        if length < self.length > self._rings.slots:
            raise RequestError(f"rollback to {length} of {self.length} rows, expected no ring that has wrapped")
        self.length = length
        if self.pages:
            self.pages.rollback(length)

    def close(self) -> None:
        """Give the lane and the cache back."""
        self._rings.give(self.lane)
        if self.pages:
            self.pages.close()
        self.length = 0
