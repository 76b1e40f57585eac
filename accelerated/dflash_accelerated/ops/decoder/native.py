"""A model's layers in one call of C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.native import CODES, Forward, Layer, empty, kernels
from dflash_accelerated.native.kept import KeptCall
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import rope
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.attention.seats import SeatTable, spans_table
from dflash_accelerated.ops.decoder.torch import Decoded, Decoder, Wanted
from dflash_accelerated.ops.qkv import prepared_staged

WANTED = {"none": 0, "all": 1, "last": 2, "proposing": 3}
"""The codes of decoder.h."""


class NativeDecoder(Decoder):
    """As `Decoder`: the same kernels as the ops one by one, and the same bits."""

    def __init__(
        self, layers: Sequence[LayerWeights], norm: Tensor, seats: Sequence[Seat], keep: bool, eps: float,
        numerics: Numerics,
    ) -> None:  # fmt: skip
        super().__init__(layers, norm, seats, keep, eps, numerics)
        self._table = SeatTable(seats)
        for held, weights in zip(self._table.layers, self.layers, strict=True):
            _fill(held, weights)
        self._kept = KeptCall("forward", _call(self.layers, norm, self._table.address, keep, eps, numerics))

    def working_bytes(self, rows: int) -> int:
        """Those of a workspace that is kept from call to call."""
        return self._kept.bytes_for(rows)

    def __call__(
        self, x: Tensor, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Decoded:
        with self._kept.lock:
            return self._run(x, stores, turns, spans, taps, wanted)

    def _run(
        self, x: Tensor, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Decoded:
        rows, hidden = x.shape
        call, act = self._kept.of(rows), self._numerics.act
        x, table, tapped = x.contiguous(), spans_table(spans), (ctypes.c_int64 * len(taps))(*taps)
        made = Decoded(
            empty((_count(rows, len(spans.counts), wanted), hidden), act),
            empty((rows, len(taps) * hidden), act),
        )
        self._table.read_from(stores)
        call.x, call.cosine, call.sine = x.data_ptr(), turns.held.cos.data_ptr(), turns.held.sin.data_ptr()
        call.spans, call.requests = ctypes.addressof(table), len(spans.counts)
        call.taps, call.tapped, call.wanted = ctypes.addressof(tapped), len(taps), WANTED[wanted]
        call.out, call.features = made.hidden.data_ptr(), made.features.data_ptr()
        kernels().forward(byref(call))
        return made


def _count(rows: int, requests: int, wanted: Wanted) -> int:
    """How many rows are wanted."""
    return {"none": 0, "all": rows, "last": requests, "proposing": rows - requests}[wanted]


def _fill(held: Layer, weights: LayerWeights) -> None:
    """Write a layer's weights into what kernels read of it."""
    held.input_norm, held.head_norm = weights.input_norm.data_ptr(), weights.head_norm.data_ptr()
    held.post_norm = weights.post_norm.data_ptr()
    held.qkv, held.o_proj = weights.qkv.native, weights.o_proj.native
    held.gate_up, held.down_proj = weights.gate_up.native, weights.down_proj.native
    if weights.convolutions:
        outer, inner = weights.convolutions
        held.outer, held.outer_base = outer.projection.native, outer.base.data_ptr()
        held.inner, held.inner_base = inner.projection.native, inner.base.data_ptr()


def _call(
    layers: Sequence[LayerWeights], norm: Tensor, table: int, keep: bool, eps: float, numerics: Numerics
) -> Forward:
    """What every forward has in common."""
    first = layers[0]
    turning, dim = first.head_norm.shape
    queries = first.o_proj.inputs // dim
    call = Forward(
        layers=table, norm=norm.data_ptr(), count=len(layers), hidden=first.qkv.inputs, query_heads=queries,
        kv_heads=turning - queries, dim=dim, keep=keep, staged=True, act=CODES[numerics.act],
        compute=CODES[numerics.compute], eps=eps,
    )  # fmt: skip
    if first.convolutions:
        base = first.convolutions[0].base
        groups = first.convolutions[0].projection.outputs // (2 * base.shape[1])
        call.conv_taps, call.groups, call.staged = base.shape[1], groups, prepared_staged(numerics)
    return call
