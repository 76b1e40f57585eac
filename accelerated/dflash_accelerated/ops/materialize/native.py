"""Context keys and values into their slots, in C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rope import Tables

if TYPE_CHECKING:
    from dflash_accelerated.ops.attention.spans import Spans, Store


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
