"""Context keys and values of all layers in Triton: norm, rotation, roundings and the ring's slots in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.norm_rope.triton import normed_turned
from dflash_accelerated.ops.rope import Tables
from dflash_accelerated.ops.rounding.triton import narrow, rounded, widen


@triton.jit
def _place(table, row, REQUESTS: tl.constexpr, LISTED: tl.constexpr, S: tl.constexpr):
    """Lane and slot of a row, and whether it is to be written: in a span, and of its last S rows."""
    request = tl.arange(0, LISTED)
    entry, listed = table + request * 4, request < REQUESTS
    lane, start = tl.load(entry, mask=listed, other=0), tl.load(entry + 1, mask=listed, other=0)
    count, first = tl.load(entry + 2, mask=listed, other=0), tl.load(entry + 3, mask=listed, other=0)
    mine = (row >= first) & (row < first + count)
    written = tl.max((mine & (row >= first + count - S)).to(tl.int32), 0) > 0
    lane = tl.sum(tl.where(mine, lane, 0), 0)
    position = tl.sum(tl.where(mine, start + row - first, 0), 0)
    return lane, position % S, written


@triton.jit
def _store(
    raw_k, raw_v, norms, cos, sin, keys, values, table,
    k_row, k_layer, v_row, v_layer, lane_stride, layer_stride, head_stride, eps,
    KV: tl.constexpr, D: tl.constexpr, S: tl.constexpr, STAGED: tl.constexpr, REQUESTS: tl.constexpr,
    LISTED: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row's heads in one layer; a head's halves apart, as the rotation pairs them."""
    ACT: tl.constexpr = keys.dtype.element_ty
    VALUE: tl.constexpr = values.dtype.element_ty
    COMPUTE: tl.constexpr = norms.dtype.element_ty
    HALF: tl.constexpr = D // 2
    row, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    lane, slot, written = _place(table, tl.program_id(0), REQUESTS, LISTED, S)
    if written:
        head, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, BLOCK)[None, :]
        live, within = (head < KV) & (pair < HALF), head * D + pair
        source = raw_k + row * k_row + layer * k_layer + within
        first, second = widen(tl.load(source, mask=live, other=0)), widen(tl.load(source + HALF, mask=live, other=0))
        if STAGED:
            first, second = rounded(first, ACT), rounded(second, ACT)
        scale, angle = norms + layer * D + pair, row * HALF + pair
        first, second = normed_turned(
            first, second,
            widen(tl.load(scale, mask=pair < HALF, other=0)),
            widen(tl.load(scale + HALF, mask=pair < HALF, other=0)),
            widen(tl.load(cos + angle, mask=pair < HALF, other=0)),
            widen(tl.load(sin + angle, mask=pair < HALF, other=0)),
            eps, D, STAGED, ACT, COMPUTE,
        )  # fmt: skip
        into = lane.to(tl.int64) * lane_stride + layer * layer_stride + head * head_stride + slot * D + pair
        tl.store(keys + into, narrow(first, ACT), mask=live)
        tl.store(keys + into + HALF, narrow(second, ACT), mask=live)
        source = raw_v + row * v_row + layer * v_layer + within
        first, second = widen(tl.load(source, mask=live, other=0)), widen(tl.load(source + HALF, mask=live, other=0))
        tl.store(values + into, narrow(rounded(first, ACT), VALUE), mask=live)
        tl.store(values + into + HALF, narrow(rounded(second, ACT), VALUE), mask=live)


def store(
    raw_k: Tensor, raw_v: Tensor, norms: Tensor, turn: Tables, eps: float, staged: bool,
    held: Store, spans: Spans, numerics: Numerics,
) -> None:  # fmt: skip
    """Write T context rows to their slots in every layer: keys normed and turned, values rounded as they are stored.

    raw_k and raw_v [T, L, KV, D] in ACT or the compute dtype, norms [L, D], `turn` the tables of the T positions. Where
    the stages are rounded (`staged`), raw and normed keys are rounded to `act` too. Request b's rows are those of its
    span; the row at position p goes to slot p mod S, and of a span longer than S only the last S rows do.

    Clauses: CTX-005 to CTX-008, CTX-011, CTX-015. Source: Infernix include/infernix/ops/context_kv_materialize.h;
    dflash 0.1.0 Qwen3DFlashAttention.forward.
    """
    rows, layers, kv_heads, dim = raw_k.shape
    raw_k, raw_v = (raw if raw.stride()[2:] == (dim, 1) else raw.contiguous() for raw in (raw_k, raw_v))
    requests = len(spans.counts)
    if rows and requests:
        _store[(rows, layers)](
            raw_k, raw_v, norms.contiguous(), turn.cos.contiguous(), turn.sin.contiguous(), held.keys, held.values,
            spans.table, *raw_k.stride()[:2], *raw_v.stride()[:2], *held.keys.stride()[:3], eps,
            KV=kv_heads, D=dim, S=held.slots, STAGED=staged, REQUESTS=requests,
            LISTED=triton.next_power_of_2(requests), HEADS=triton.next_power_of_2(kv_heads),
            BLOCK=triton.next_power_of_2(dim // 2), **OPTIONS,
        )  # fmt: skip
