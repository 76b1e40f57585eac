"""Context keys and values into their slots, in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, Intake, empty, kernels, rows_of
from dflash_accelerated.native.kept import KeptCall
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.attention.seats import SeatTable, spans_table
from dflash_accelerated.ops.materialize.torch import ContextWeights, Materializer
from dflash_accelerated.ops.rope import Tables, Turns


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

    def working_bytes(self, rows: int) -> int:
        """Those of a workspace that is kept from call to call."""
        return self._kept.bytes_for(rows)

    def __call__(self, features: Tensor, stores: Sequence[Store], turns: Turns, spans: Spans) -> Tensor:
        with self._kept.lock:
            return self._run(features, stores, turns, spans)

    def _run(self, features: Tensor, stores: Sequence[Store], turns: Turns, spans: Spans) -> Tensor:
        rows = features.shape[0]
        call = self._kept.of(rows)
        features, table = features.contiguous(), spans_table(spans)
        c = empty((rows, call.fc.outputs), self._numerics.act)
        self._table.read_from(stores)
        call.features, call.c = features.data_ptr(), c.data_ptr()
        call.cosine, call.sine = turns.held.cos.data_ptr(), turns.held.sin.data_ptr()
        call.spans, call.requests = ctypes.addressof(table), len(spans.counts)
        kernels().intake(byref(call))
        return c


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
