"""A model's layers in one call of C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref
from struct import pack_into

import torch
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.native import CODES, Forward, Layer, Pass, empty, kernels
from dflash_accelerated.native.kept import KeptCall
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import rope
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.attention.seats import SeatTable
from dflash_accelerated.ops.decoder.torch import Decoded, Decoder, Ends, Scored, Wanted
from dflash_accelerated.ops.qkv import prepared_staged
from dflash_accelerated.ops.rows import without_columns

CPU = torch.device("cpu")
WANTED = {"none": 0, "all": 1, "last": 2, "proposing": 3}
"""The codes of decoder.h."""


class Room:
    """What lies between the parts of a pass of so many rows: ids, embedding rows, and the rows that the head reads."""

    def __init__(self, rows: int, hidden: int, act: torch.dtype) -> None:
        self.rows = rows
        self.ids, self.best = (ctypes.c_int64 * rows)(), (ctypes.c_int64 * rows)()
        self.ids_at, self.best_at = ctypes.addressof(self.ids), ctypes.addressof(self.best)
        self._rows = empty((2, rows, hidden), act)
        self.x, self.out = (part.data_ptr() for part in self._rows)


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
        common = _call(self.layers, norm, self._table.address, keep, eps, numerics)
        self._kept, self._hidden = KeptCall("forward", common), self.layers[0].qkv.inputs
        self._pass = Pass(forward=ctypes.addressof(common))
        self._room = Room(0, self._hidden, numerics.act)
        self._logits = empty(0, numerics.act)
        self._ends: Ends | None = None
        self._turned: rope.Tables | None = None
        self._taps, self._tapped = tuple[int, ...](), (ctypes.c_int64 * 0)()

    def working_bytes(self, rows: int) -> int:
        """Those of what is kept from call to call."""
        return self._kept.bytes_for(rows) + 2 * rows * self._hidden * self._numerics.act.itemsize

    def __call__(
        self, x: Tensor, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Decoded:
        with self._kept.lock:
            return self._run(x, stores, turns, spans, taps, wanted)

    def scored(
        self, ids: list[int] | Tensor, ends: Ends, stores: Sequence[Store], turns: rope.Turns, spans: Spans,
        taps: Sequence[int], wanted: Wanted, choosing: bool = False,
    ) -> Scored:  # fmt: skip
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        with self._kept.lock:
            features = self._aim(len(ids), stores, turns, spans, taps, wanted)
            count = _count(len(ids), len(spans.counts), wanted)
            logits = empty((count, ends.head.outputs), self._numerics.act) if count else None
            self._run_pass(ids, ends, count, logits, choosing, finite=True)
            return Scored(logits, features, self._room.best[:count] if choosing else None)

    def best(
        self, ids: list[int], ends: Ends, stores: Sequence[Store], turns: rope.Turns, spans: Spans, wanted: Wanted
    ) -> list[int]:
        with self._kept.lock:
            self._aim(len(ids), stores, turns, spans, (), wanted)
            count = _count(len(ids), len(spans.counts), wanted)
            if count * ends.head.outputs > self._logits.shape[0]:
                self._logits = empty(count * ends.head.outputs, self._numerics.act)
            self._run_pass(ids, ends, count, self._logits, choosing=True, finite=False)
            return self._room.best[:count]

    def _run(
        self, x: Tensor, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Decoded:
        rows, x = x.shape[0], x.contiguous()
        features = self._aim(rows, stores, turns, spans, taps, wanted)
        call = self._kept.arguments
        hidden = empty((_count(rows, len(spans.counts), wanted), self._hidden), self._numerics.act)
        call.x, call.out = x.data_ptr(), hidden.data_ptr()
        kernels().forward(byref(call))
        return Decoded(hidden, features)

    def _aim(
        self, rows: int, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Tensor:
        """Have the next call read and write all but where rows come from and where they go: the features it makes."""
        call = self._kept.of(rows)
        self._table.read_from(stores)
        # What is remembered of an address is written after it: an interruption has the next call write it again.
        if turns.held is not self._turned:
            self._turned = None
            call.cosine, call.sine = turns.held.cos.data_ptr(), turns.held.sin.data_ptr()
            self._turned = turns.held
        call.spans, call.requests, call.wanted = self._table.place(spans), len(spans.counts), WANTED[wanted]
        call.tapped = len(taps)
        if not taps:
            return without_columns(rows, self._numerics.act, CPU)
        taps = tuple(taps)
        if taps != self._taps:
            self._check_taps(taps)
            self._taps, self._tapped = (), (ctypes.c_int64 * len(taps))(*taps)
            call.taps = ctypes.addressof(self._tapped)
            self._taps = taps
        features = empty((rows, len(taps) * self._hidden), self._numerics.act)
        call.features = features.data_ptr()
        return features

    def _run_pass(
        self, ids: list[int], ends: Ends, count: int, logits: Tensor | None, choosing: bool, finite: bool
    ) -> None:
        """Fill in `logits` of `count` rows, and the best ids in the room where one is choosing."""
        rows, call, layers = len(ids), self._pass, self._kept.arguments
        if rows > self._room.rows:
            self._room = Room(rows, self._hidden, self._numerics.act)
        if ends is not self._ends:
            self._ends = None
            call.table, call.known = ends.table.data_ptr(), ends.table.shape[0]
            call.head, call.public = ends.head.native, ends.public
            self._ends = ends
        room = self._room
        pack_into(f"{rows}q", room.ids, 0, *ids)
        call.ids, layers.x, layers.out = room.ids_at, room.x, room.out
        call.scores, call.scored, call.finite = None if logits is None else logits.data_ptr(), count, finite
        call.best = room.best_at if choosing else None
        if kernels().run_pass(byref(call)):
            raise IndexError(f"ids {min(ids)} to {max(ids)}, expected 0 to {call.known - 1}, rows of the table")


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
