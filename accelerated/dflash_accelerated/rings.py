"""Where the context of a DFlash2 draft lives: rings for its local layers, whole caches for the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dflash_spec.errors import RequestError, StateError
from torch import Tensor

from dflash_accelerated.lanes import Lanes, Snapshot
from dflash_accelerated.memory import Context, KvCache
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import ring
from dflash_accelerated.ops.attention import Rows


class Rings:
    """Keys and values [lanes, L, S, KV, D] of L local layers: a sequence has a lane, a position p the slot p mod S.

    A lane is used again when its sequence is closed.

    Clause: CTX-013. Source: Infernix src/core/cyclic_kv_cache.h, include/infernix/ops/context_kv_materialize.h.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        """Rings over given buffers, of which every lane is free."""
        self.keys, self.values = keys, values
        self.lanes = Lanes(len(keys))

    @staticmethod
    def empty(
        layers: int, slots: int, kv_heads: int, head_dim: int, numerics: Numerics, device: torch.device, lanes: int = 0
    ) -> Rings:
        """Rings of `lanes` lanes: K in `numerics.act`, V in `numerics.value`."""
        shape = (lanes, layers, slots, kv_heads, head_dim)
        keys = torch.empty(shape, dtype=numerics.act, device=device)
        return Rings(keys, torch.empty(shape, dtype=numerics.value, device=device))

    @property
    def slots(self) -> int:
        """S, the window of the layers."""
        return self.keys.shape[2]

    def reserve(self, lanes: int) -> None:
        """Have at least `lanes` lanes. No row of a lane that is there moves to another."""
        more = lanes - len(self.keys)
        if more > 0:
            self.keys, self.values = (
                torch.cat((held, held.new_empty((more, *held.shape[1:])))) for held in (self.keys, self.values)
            )
            self.lanes.add(more)

    def write(self, lanes: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put rows [T, L, KV, D] into lanes I64 [T] at absolute positions I64 [T]; no slot of a lane occurs twice."""
        slots = ring.slots(positions, self.slots)
        self.keys[lanes, :, slots] = keys
        self.values[lanes, :, slots] = values

    def read(self, lane: int, layer: int, length: int) -> Context:
        """What lives of one layer before position `length`: the last S positions, in the order of their slots."""
        positions = ring.positions_held(length, self.slots, self.keys.device)
        key, value = (held[lane, layer, : len(positions)].transpose(0, 1) for held in (self.keys, self.values))
        return Context(Rows(key, value), positions)


def lane_bytes(layers: int, kv_heads: int, head_dim: int, window: int, numerics: Numerics) -> int:
    """Bytes of one lane, whatever the width of a block: 41,943,040 for five layers of 8 heads of 128 and S = 2048.

    Clause: RING-001. Source: NInfer docs/maintainer/dflash.md, storage.
    """
    return layers * kv_heads * head_dim * window * (numerics.act.itemsize + numerics.value.itemsize)


class RingState:
    """The context of one sequence: a lane of the rings, a cache for the full layers, and a length."""

    def __init__(self, rings: Rings, pages: KvCache | None, windows: Sequence[int]) -> None:
        """`windows` has one window a layer; `pages` is the cache of those layers whose window is 0.

        Raises RequestError if no lane is free.
        """
        self._loan = rings.lanes.lend(self)
        self.lane = self._loan.lane
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

    def view(self) -> Snapshot:
        """What the context holds, without a copy: keys and values [L, slots, KV, D] of the slots that are live, each in
        its place, and then what the full layers hold.

        Clause: STATE-012. Source: NInfer docs/maintainer/dflash.md, storage.
        """
        live = min(self.length, self._rings.slots)
        rings = tuple(held[self.lane, :, :live] for held in (self._rings.keys, self._rings.values))
        return Snapshot(self.length, rings + (self.pages.view().parts if self.pages else ()))

    def load(self, held: Snapshot) -> None:
        """Hold what another context held, and nothing else. Raises StateError where it does not fit."""
        keys, values, *full = held.parts
        live = min(held.length, self._rings.slots)
        if keys.shape != self._rings.keys[self.lane, :, :live].shape or bool(full) != bool(self.pages):
            raise StateError(
                f"{held.length} positions in rings {list(keys.shape)}, expected {live} slots of "
                f"{list(self._rings.keys.shape[1:])}"
            )
        if self.pages:
            self.pages.load(Snapshot(held.length, tuple(full)))
        self._rings.keys[self.lane, :, :live] = keys
        self._rings.values[self.lane, :, :live] = values
        self.length = held.length

    def close(self) -> None:
        """Give the lane and the cache back."""
        self._loan.end()
        if self.pages:
            self.pages.close()
        self.length = 0
