"""Context keys and values into their slots, in C."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref
from itertools import accumulate

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, Intake, empty, kernels, rows_of
from dflash_accelerated.native.kept import KeptCall
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.attention.seats import SeatTable
from dflash_accelerated.ops.materialize.torch import ContextWeights, Materializer
from dflash_accelerated.ops.rope import Tables, Turns
from dflash_accelerated.ops.rows import RowRange, gathered


class NativeMaterializer(Materializer):
    """As `Materializer`, in one call: the same kernels as the ops one by one, and the same bits."""

    def __init__(
        self, weights: ContextWeights, seats: Sequence[Seat], staged: bool, eps: float, numerics: Numerics
    ) -> None:
        super().__init__(weights, seats, staged, eps, numerics)
        self._table = SeatTable(seats)
        layers, dim = weights.norms.shape
        common = Intake(
            layers=self._table.address, fc=weights.fc.native, projection=weights.projection.native,
            hidden_norm=weights.hidden_norm.data_ptr(), norms=weights.norms.data_ptr(), count=layers,
            kv_heads=weights.projection.outputs // (2 * layers * dim), dim=dim, staged=staged,
            act=CODES[numerics.act], compute=CODES[numerics.compute], eps=eps,
        )  # fmt: skip
        self._kept = KeptCall("intake", common)
        self._turned: Tables | None = None
        self._outputs, self._width = weights.fc.outputs, weights.fc.inputs * numerics.act.itemsize
        self._widest = max(weights.fc.inputs, weights.fc.outputs)
        self._rows, self._room = empty(0, numerics.act), 0

    def working_bytes(self, rows: int) -> int:
        """Those of what is kept from call to call."""
        return self._kept.bytes_for(rows) + rows * self._widest * self._numerics.act.itemsize

    def __call__(self, features: Tensor, stores: Sequence[Store], turns: Turns, spans: Spans) -> Tensor:
        self._check(features)
        features, c = features.contiguous(), empty((features.shape[0], self._outputs), self._numerics.act)
        with self._kept.lock:
            self._run(features.data_ptr(), c.data_ptr(), features.shape[0], stores, turns, spans)
        return c

    def take(self, features: Sequence[RowRange], stores: Sequence[Store], turns: Turns, spans: Spans) -> None:
        """The same of rows wherever they lie, for none to see `c`."""
        for each in features:
            self._check(each.rows)
        if not all(each.rows.is_contiguous() for each in features):
            features = [RowRange.of(gathered(features).contiguous())]
        rows = sum(map(len, features))
        with self._kept.lock:
            if rows > self._room:
                self._room, self._rows = 0, empty((rows, self._widest), self._numerics.act)
                self._room = rows
            # All features have been projected before the first row of `c` is written, so it may lie where they lay.
            room = self._rows.data_ptr()
            self._run(self._gathered(features, room), room, rows, stores, turns, spans)

    def _gathered(self, features: Sequence[RowRange], room: int) -> int:
        """Where the rows lie one after another: in `room`, if they do not already."""
        width = self._width
        at = [each.rows.data_ptr() + each.first * width for each in features]
        sizes = [each.count * width for each in features]
        if list(accumulate(sizes[:-1], initial=at[0])) == at:
            return at[0]
        places, lengths = array("q", at), array("q", sizes)
        kernels().gather(places.buffer_info()[0], lengths.buffer_info()[0], len(features), room)
        return room

    def _run(self, features: int, c: int, rows: int, stores: Sequence[Store], turns: Turns, spans: Spans) -> None:
        """From rows at one address to rows at another."""
        call = self._kept.of(rows)
        self._table.read_from(stores)
        if turns.held is not self._turned:
            self._turned = None  # until both addresses are written: an interruption has the next call write them again
            call.cosine, call.sine = turns.held.cos.data_ptr(), turns.held.sin.data_ptr()
            self._turned = turns.held
        call.features, call.c = features, c
        call.spans, call.requests = self._table.place(spans), len(spans.counts)
        kernels().intake(byref(call))


def store(
    raw_k: Tensor, raw_v: Tensor, norms: Tensor, turn: Tables, eps: float, staged: bool,
    store: Store, spans: Spans, numerics: Numerics,
) -> None:  # fmt: skip
    """As the torch function: raw [T, L, KV, D] keys normed and turned, and values, to the slots of the spans."""
    raw_k, raw_v, norms = rows_of(raw_k), rows_of(raw_v), norms.contiguous()
    cos, sin = turn.cos.contiguous(), turn.sin.contiguous()
    _, layers, heads, dim = raw_k.shape
    lane, deep, head, _, _ = store.keys.stride()
    kernels().store_context(
        raw_k.data_ptr(), raw_v.data_ptr(), norms.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        store.keys.data_ptr(), store.values.data_ptr(), spans.table.data_ptr(),
        len(spans.counts), layers, heads, dim, store.slots, lane, deep, head, raw_k.stride(0), raw_v.stride(0),
        CODES[raw_k.dtype], CODES[norms.dtype], CODES[numerics.act], CODES[store.values.dtype], staged, eps,
        torch.get_num_threads(),
    )  # fmt: skip
