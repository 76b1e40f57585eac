"""Where the context of a DFlash2 draft lives: rings for its local layers, whole caches for the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from dflash_spec.errors import RequestError, StateError
from torch import Tensor

from dflash_accelerated.lanes import Lanes, Snapshot
from dflash_accelerated.memory import Context, KvCache
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import ring
from dflash_accelerated.ops.attention import Rows, Store


class Rings:
    """Keys and values [lanes, L, KV, S + tail, D] of L local layers: a sequence has a lane, a position p the slot
    p mod S.

    A lane is used again when its sequence is closed. Past a lane's S slots lie `tail` rows that hold nothing which
    outlives a forward.

    Clause: CTX-013. Source: Infernix src/core/cyclic_kv_cache.h, include/infernix/ops/context_kv_materialize.h.
    """

    def __init__(self, store: Store) -> None:
        """Rings over given buffers, of which every lane is free."""
        self.store = store
        self.lanes = Lanes(len(store.keys))

    @staticmethod
    def empty(
        layers: int, slots: int, kv_heads: int, head_dim: int, numerics: Numerics, device: torch.device,
        lanes: int = 0, tail: int = 0,
    ) -> Rings:  # fmt: skip
        """Rings of `lanes` lanes: K in `numerics.act`, V in `numerics.value`."""
        shape = (lanes, layers, kv_heads, slots + tail, head_dim)
        keys = torch.empty(shape, dtype=numerics.act, device=device)
        return Rings(Store(keys, torch.empty(shape, dtype=numerics.value, device=device), slots))

    @property
    def slots(self) -> int:
        """S, the window of the layers."""
        return self.store.slots

    @property
    def held_bytes(self) -> int:
        return self.store.keys.nbytes + self.store.values.nbytes

    def planned_bytes(self, lanes: int) -> int:
        """Bytes of at least `lanes` lanes."""
        lane = math.prod(self.store.keys.shape[1:]) * (self.store.keys.itemsize + self.store.values.itemsize)
        return max(lanes, len(self.store.keys)) * lane

    def reserve(self, lanes: int) -> None:
        """Have at least `lanes` lanes. No row of a lane that is there moves to another."""
        more = lanes - len(self.store.keys)
        if more > 0:
            keys, values = (torch.cat((held, held.new_empty((more, *held.shape[1:])))) for held in self.store[:2])
            self.store = Store(keys, values, self.slots)
            self.lanes.add(more)

    def live(self, lane: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [L, KV, live, D] of the slots that are live before position `length`, each in its place."""
        keys, values = (held[lane, :, :, : min(length, self.slots)] for held in self.store[:2])
        return keys, values

    def read(self, lane: int, layer: int, length: int) -> Context:
        """What lives of one layer before position `length`: the last S positions, in the order of their slots."""
        key, value = (held[layer] for held in self.live(lane, length))
        return Context(Rows(key, value), ring.positions_held(length, self.slots, key.device))


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

    def check_room(self, rows: int) -> None:
        """Raise RequestError where so many rows more do not fit into the full layers; rings take any."""
        if self.pages:
            self.pages.check_room(rows)

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
        """What the context holds, without a copy: keys and values [L, KV, slots, D] of the slots that are live, each in
        its place, and then what the full layers hold.

        Clause: STATE-012. Source: NInfer docs/maintainer/dflash.md, storage.
        """
        return Snapshot(
            self.length, self._rings.live(self.lane, self.length) + (self.pages.view().parts if self.pages else ())
        )

    def load(self, held: Snapshot) -> None:
        """Hold what another context held, and nothing else. Raises StateError where it does not fit."""
        keys, values, *full = held.parts
        own_keys, own_values = self._rings.live(self.lane, held.length)
        if keys.shape != own_keys.shape or bool(full) != bool(self.pages):
            raise StateError(
                f"{held.length} positions in rings {list(keys.shape)}, expected live slots {list(own_keys.shape)}"
            )
        if self.pages:
            self.pages.load(Snapshot(held.length, tuple(full)))
        own_keys[:], own_values[:] = keys, values
        self.length = held.length

    def close(self) -> None:
        """Give the lane and the cache back."""
        self._loan.end()
        if self.pages:
            self.pages.close()
        self.length = 0
