"""Attention in Triton: rows in tiles, keys streamed past them, scores never kept.

A program has one request, one KV head and a tile of the rows of all query heads that read it, so that a key is read
once for all of them. It streams the stored positions, then the request's own rows, and keeps for each row the greatest
score, the sum of weights and the weighted sum of values so far (Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018; Dao, "FlashAttention-2", 2023). Where that gives a GPU too few programs, several share a context and
a second kernel joins what they found. Where a request begins and how long it is are read on the device: one launch
serves every length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.rounding.triton import INTERPRETED, narrow, widen

LOG2_E = 1.4426950408889634
TILES = {torch.bfloat16: (64, 64), torch.float32: (16, 16)}
"""By the keys' dtype: the most rows of a tile (query rows times the heads of a group), and the keys read at a time.

FP32 products do without tensor cores and hold their operands in registers.
"""

SHARE = 512
"""Stored rows that are worth a program of their own."""

ENOUGH = 264
"""How many programs keep a GPU busy: two for each multiprocessor."""


@triton.jit
def _scores(q, k):
    """q · kᵀ, summed in FP32: on the tensor cores in the rows' own dtype, or in full FP32."""
    if INTERPRETED:
        scores = tl.dot(widen(q), tl.trans(widen(k)), input_precision="ieee")
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    return scores


@triton.jit
def _add_values(total, weights, v):
    """total + weights · v. Tensor cores take weights in two parts of v's dtype, which keeps twice its digits."""
    if INTERPRETED or v.dtype == tl.float32:
        total = tl.dot(weights, widen(v), total, input_precision="ieee")
    else:
        high = narrow(weights, v.dtype)
        total = tl.dot(high, v, total)
        total = tl.dot(narrow(weights - widen(high), v.dtype), v, total)
    return total


@triton.jit
def _fold(q, k, v, seen, peak, sums, total, SCALE: tl.constexpr):
    """The running softmax after some more keys. Where nothing is seen yet, `peak` is -inf and the weights are 0."""
    scores = tl.where(seen, _scores(q, k) * SCALE, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    shrink, weights = tl.exp2(peak - base), tl.exp2(scores - base[:, None])
    return higher, sums * shrink + tl.sum(weights, 1), _add_values(total * shrink[:, None], weights, v)


@triton.jit
def _keep(k, v, keys, values, start, count, begin, step, k_row, v_row, S: tl.constexpr, D: tl.constexpr,
          COLUMNS: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """Own rows [begin, begin + COLUMNS) and every `step` on go to their slots."""
    channel = tl.arange(0, WIDE)[None, :]
    for base in range(begin, count, step):
        own = base + tl.arange(0, COLUMNS)[:, None]
        live, slot, row = (own < count) & (channel < D), (start + own) % S, own.to(tl.int64)
        key = tl.load(k + row * k_row + channel, mask=live, other=0)
        value = tl.load(v + row * v_row + channel, mask=live, other=0)
        tl.store(keys + slot * D + channel, key, mask=live)
        tl.store(values + slot * D + channel, value, mask=live)


@triton.jit
def _attend(
    q, k, v, keys, values, table, out, peaks, weights,
    q_row, q_head, k_row, k_head, v_row, v_head, lane_stride, head_stride, rows,
    GROUP: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, S: tl.constexpr, WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr, KEEP: tl.constexpr, SCALE: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One tile of a request's rows for one KV head, and of the stored positions the share `split`."""
    head, tile, split = tl.program_id(0) % KV, tl.program_id(1), tl.program_id(2)
    entry = table + tl.program_id(0) // KV * 4
    lane, start, count, first = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    keys += lane.to(tl.int64) * lane_stride + head * head_stride
    values += lane.to(tl.int64) * lane_stride + head * head_stride
    k += first.to(tl.int64) * k_row + head * k_head
    v += first.to(tl.int64) * v_row + head * v_head
    if KEEP:
        begin = tl.where(split == 0, tile * COLUMNS, count)
        _keep(k, v, keys, values, start, count, begin, tl.num_programs(1) * COLUMNS, k_row, v_row, S, D, COLUMNS, WIDE)
    if tile * ROWS < count * GROUP:
        member = tile * ROWS + tl.arange(0, ROWS)
        live, channel = member < count * GROUP, tl.arange(0, WIDE)[None, :]
        own = tl.minimum(member // GROUP, count - 1)  # rows past the last one do as it does
        top, bottom = tile * ROWS // GROUP, tl.minimum((tile * ROWS + ROWS - 1) // GROUP, count - 1)
        row, query = first.to(tl.int64) + own, head * GROUP + member % GROUP
        within = live[:, None] & (channel < D)
        rotated = tl.load(q + row[:, None] * q_row + query[:, None] * q_head + channel, mask=within, other=0)
        peak, sums = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
        total = tl.zeros([ROWS, WIDE], tl.float32)

        low = tl.maximum(start - S, 0)
        if WINDOW > 0:
            low = tl.minimum(tl.maximum(low, start + top - WINDOW + 1), start)
        share = tl.cdiv(tl.cdiv(start - low, SPLITS), COLUMNS) * COLUMNS
        end = tl.minimum(low + (split + 1) * share, start)
        for base in range(low + split * share, end, COLUMNS):
            position = base + tl.arange(0, COLUMNS)
            seen = (position < end)[None, :]
            reads, place = (position < end)[:, None] & (channel < D), (position % S)[:, None] * D + channel
            if WINDOW > 0:
                seen = seen & (start + own[:, None] - position[None, :] < WINDOW)
            key, value = tl.load(keys + place, mask=reads, other=0), tl.load(values + place, mask=reads, other=0)
            peak, sums, total = _fold(rotated, key, value, seen, peak, sums, total, SCALE)

        low, end = 0, tl.where(split == 0, count, 0)
        if CAUSAL:
            end = tl.minimum(end, bottom + 1)
        if WINDOW > 0:
            low, end = tl.maximum(top - WINDOW + 1, 0), tl.minimum(end, bottom + WINDOW)
        for base in range(low, end, COLUMNS):
            other = base + tl.arange(0, COLUMNS)
            behind, reads = own[:, None] - other[None, :], (other < end)[:, None] & (channel < D)
            seen = (other < end)[None, :]
            if CAUSAL:
                seen = seen & (behind >= 0)
            if WINDOW > 0:
                seen = seen & (tl.abs(behind) < WINDOW)
            far = other.to(tl.int64)[:, None]
            key = tl.load(k + far * k_row + channel, mask=reads, other=0)
            value = tl.load(v + far * v_row + channel, mask=reads, other=0)
            peak, sums, total = _fold(rotated, key, value, seen, peak, sums, total, SCALE)

        into = row * (KV * GROUP) + query
        if SPLITS == 1:
            total = total / sums[:, None]
        else:
            into += split.to(tl.int64) * rows * (KV * GROUP)
            tl.store(peaks + into, peak, mask=live)
            tl.store(weights + into, sums, mask=live)
        tl.store(out + into[:, None] * D + channel, narrow(total, out.dtype.element_ty), mask=within)


@triton.jit
def _join(parts, peaks, weights, out, heads, D: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr):
    """One query head of one row: the shares' sums, each measured from its own greatest score, from a common one."""
    place, channel = tl.program_id(0).to(tl.int64), tl.arange(0, WIDE)[None, :]
    shares = tl.arange(0, SPLITS).to(tl.int64) * heads + place
    peak = tl.load(peaks + shares)
    scale = tl.exp2(peak - tl.max(peak, 0))
    part = tl.load(parts + shares[:, None] * D + channel, mask=channel < D, other=0)
    total = tl.sum(part * scale[:, None], 0) / tl.sum(tl.load(weights + shares) * scale, 0)
    into = tl.arange(0, WIDE)
    tl.store(out + place * D + into, narrow(total, out.dtype.element_ty), mask=into < D)


def attend(
    q: Tensor, k: Tensor, v: Tensor, store: Store, layer: int, spans: Spans,
    window: int, causal: bool, keep: bool, numerics: Numerics,
) -> Tensor:  # fmt: skip
    """softmax(q·k / sqrt(D)) · v of each own row over the stored rows of its request and the own rows: ACT [R, QH·D].

    q [R, QH, D], k and v [R, KV, D]: request b has rows at positions starts[b] to starts[b] + counts[b] - 1, and of the
    positions before them the last S in `store`. A row sees a key that is not after it where the layer is `causal`, and
    nearer than `window` unless that is 0. Scores, softmax and sums are FP32; a hidden row has weight 0, and slots that
    hold none of those positions are not read. `keep` writes k and v to the slots of their positions.

    Clauses: DRAFT-007, DRAFT-008, MASK-001 to MASK-004, MASK-006, TGT-001, TGT-002. Source: NInfer
    docs/maintainer/dflash.md; Infernix include/infernix/ops/sliding_window_attention.h.
    """
    (rows, query_heads, dim), kv_heads = q.shape, k.shape[1]
    q, k, v = (part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v))
    keys, values = store.keys[:, layer], store.values[:, layer]
    out = q.new_empty(rows, query_heads * dim, dtype=numerics.act)
    requests, longest = len(spans.counts), max(spans.counts, default=0) * (query_heads // kv_heads)
    if longest == 0:
        return out
    tallest, columns = TILES[numerics.act]
    tall = min(max(triton.next_power_of_2(longest), 16), tallest)
    tiles, wide = triton.cdiv(longest, tall), max(16, triton.next_power_of_2(dim))
    splits = _splits(requests * kv_heads * tiles, min(store.slots, window or store.slots))
    shares = out if splits == 1 else q.new_empty(splits, rows, query_heads * dim, dtype=torch.float32)
    peaks = weights = shares
    if splits > 1:
        peaks, weights = q.new_empty(2, splits, rows * query_heads, dtype=torch.float32)
    _attend[(requests * kv_heads, tiles, splits)](
        q, k, v, keys, values, spans.table, shares, peaks, weights,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *keys.stride()[:2], rows,
        GROUP=query_heads // kv_heads, KV=kv_heads, D=dim, S=store.slots, WINDOW=window, CAUSAL=causal, KEEP=keep,
        SCALE=dim**-0.5 * LOG2_E, SPLITS=splits, ROWS=tall, COLUMNS=columns, WIDE=wide, **OPTIONS,
    )  # fmt: skip
    if splits > 1:
        _join[(rows * query_heads,)](
            shares, peaks, weights, out, rows * query_heads, D=dim, SPLITS=splits, WIDE=wide, **OPTIONS
        )  # fmt: skip
    return out


def _splits(programs: int, reach: int) -> int:
    """Among how many programs a context is shared: a power of two, from what is known before it is."""
    wanted = min(reach // SHARE, ENOUGH // programs)
    return 1 << max(0, wanted.bit_length() - 1)
