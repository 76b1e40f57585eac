"""Attention in C: a store read in place, keys streamed past the rows, scores never kept."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, Attention, empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics

if TYPE_CHECKING:
    from dflash_accelerated.ops.attention.spans import Spans, Store


def attend(
    q: Tensor, k: Tensor, v: Tensor, store: Store, layer: int, spans: Spans,
    window: int, causal: bool, keep: bool, numerics: Numerics,
) -> Tensor:  # fmt: skip
    """As the torch function: q [R, QH, D], k and v [R, KV, D] of the spans' own rows, result ACT [R, QH·D]."""
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    rows, query_heads, dim = q.shape
    keys, values = store.keys, store.values
    lane, deep, head, _, _ = keys.stride()
    out = empty((rows, query_heads * dim), numerics.act)
    call = Attention(
        q.data_ptr(), k.data_ptr(), v.data_ptr(),
        keys.data_ptr() + layer * deep * keys.element_size(), values.data_ptr() + layer * deep * values.element_size(),
        out.data_ptr(), None, spans.table.data_ptr(), rows, len(spans.counts), query_heads, k.shape[1], dim,
        store.slots, lane, head, q.stride(0), k.stride(0), v.stride(0),
        window, causal, keep, CODES[q.dtype], CODES[v.dtype], CODES[values.dtype], torch.get_num_threads(),
    )  # fmt: skip
    workspace = empty(kernels().attention_bytes(byref(call)), torch.uint8)
    call.workspace = workspace.data_ptr()
    kernels().attend(byref(call))
    return out
