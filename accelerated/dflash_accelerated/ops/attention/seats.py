"""What kernels in C read of layers' stores."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from operator import is_

from dflash_accelerated.native import CODES, Layer
from dflash_accelerated.ops.attention.spans import Seat, Spans, Store


class SeatTable:
    """A `struct layer` for each seat, whose stores are written in when they have moved, and the spans of a call."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.layers = (Layer * len(seats))(*(Layer(window=seat.window, causal=seat.causal) for seat in seats))
        self.address = ctypes.addressof(self.layers)
        self._seats, self._stores = tuple(seats), tuple[Store, ...]()
        self._spans, self._placed = array("i"), tuple[tuple[int, ...], ...]()

    def read_from(self, stores: Sequence[Store]) -> None:
        """Have the layers read `stores`, by their seats' groups."""
        if len(stores) == len(self._stores) and all(map(is_, stores, self._stores)):
            return
        self._stores = ()  # until all is written: an interruption has the next call write it again
        for layer, seat in zip(self.layers, self._seats, strict=True):
            store = stores[seat.group]
            keys, values = (part[:, seat.place] for part in store[:2])
            layer.keys, layer.values, layer.slots = keys.data_ptr(), values.data_ptr(), store.slots
            layer.lane_stride, layer.head_stride, layer.held = keys.stride(0), keys.stride(1), CODES[values.dtype]
        self._stores = tuple(stores)

    def place(self, spans: Spans) -> int:
        """The address of the table I32 [B, 4] of `Spans.table`, which stays until the next call."""
        placed = spans.lanes, spans.counts
        if placed == self._placed:  # the same requests, further on
            self._spans[1::4] = array("i", spans.starts)
        else:
            self._placed = ()  # as for stores
            self._spans = array("i", spans.numbers)
            self._placed = placed
        return self._spans.buffer_info()[0]
