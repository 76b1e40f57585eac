"""The best rows of a head in Triton: tiles of the vocabulary keep their own best, so that no row of logits is held."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.head.torch import Best, Candidates
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.ranking.triton import CHUNK, NOTHING, best_keys, id_of, key_of, merged, score_of
from dflash_accelerated.ops.rounding.triton import INTERPRETED, narrow, rounded, widen

TILE, ROWS, DEPTH = 128, 64, 64
"""Rows of the head to a program, at most so many rows of hidden, and columns at a time."""

TRITON = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _operand(x, dtype: tl.constexpr):
    """A product's operand: in `dtype`, which holds it exactly, but FP32 where the interpreter multiplies."""
    return widen(x) if INTERPRETED else x.to(dtype)


@triton.jit
def _tanh(x):
    """FP32; computed in float64, near 0 by its series, which leaves out x⁵."""
    wide = x.to(tl.float64)
    size = tl.minimum(tl.abs(wide), 20.0)
    near, far = size - size * size * size / 3, 1 - 2 / (tl.exp(2 * size) + 1)
    found = tl.where(size < 1e-3, near, far)
    return tl.where(x != x, x, tl.where(wide < 0, -found, found).to(tl.float32))


@triton.jit
def _tile_scores(
    hidden, weight, row, column, rows, columns, inputs, OPERAND: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """The products FP32 [ROWS, TILE] of hidden rows `row` and head rows `column`."""
    total = tl.zeros([row.shape[0], column.shape[0]], tl.float32)
    for start in range(0, inputs, DEPTH):
        at = start + tl.arange(0, DEPTH)
        left = tl.load(
            hidden + row[:, None] * inputs + at[None, :], mask=(row < rows)[:, None] & (at < inputs)[None, :], other=0
        )
        right = tl.load(
            weight + column[None, :] * inputs + at[:, None],
            mask=(column < columns)[None, :] & (at < inputs)[:, None],
            other=0,
        )
        total = tl.dot(_operand(left, OPERAND), _operand(right, OPERAND), total, input_precision="ieee")
    return total


@triton.jit
def _top_of_tile(
    hidden, weight, global_ids, keys, rows, columns, inputs, multiplier, softcap,
    OPERAND: tl.constexpr, MULTIPLIED: tl.constexpr, CAPPED: tl.constexpr, COUNT: tl.constexpr, PLACES: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The COUNT best of a tile of the head for ROWS rows of hidden: keys [rows, tiles, COUNT]."""
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    total = _tile_scores(hidden, weight, row, column, rows, columns, inputs, OPERAND, DEPTH)
    score = rounded(total, weight.dtype.element_ty)
    if MULTIPLIED:
        score = score * multiplier
    if CAPPED:
        score = softcap * _tanh(tl.div_rn(score, score * 0 + softcap))
    ids = tl.load(global_ids + column, mask=column < columns, other=0)
    own = tl.where((column < columns)[None, :], key_of(score, ids[None, :]), NOTHING)
    best = best_keys(own, COUNT, PLACES)
    place = tl.arange(0, PLACES)[None, :]
    to = keys + (row[:, None] * tl.num_programs(0) + tile) * COUNT + place
    tl.store(to, best, mask=(row < rows)[:, None] & (place < COUNT))


@triton.jit
def _top_of_row(keys, ids, scores, width, COUNT: tl.constexpr, PLACES: tl.constexpr, CHUNK: tl.constexpr):
    """The COUNT best of a row of keys [P, width], at most CHUNK of them: ids and scores [P, COUNT]."""
    row, at, place = tl.program_id(0).to(tl.int64), tl.arange(0, CHUNK), tl.arange(0, PLACES)[None, :]
    own = tl.load(keys + row * width + at, mask=at < width, other=NOTHING)
    best = best_keys(own[None, :], COUNT, PLACES)
    tl.store(ids + row * COUNT + place, id_of(best), mask=place < COUNT)
    tl.store(scores + row * COUNT + place, score_of(best), mask=place < COUNT)


def top(
    hidden: Tensor, head: Product, global_ids: Tensor, multiplier: float, softcap: float, count: int,
    numerics: Numerics,
) -> Candidates:  # fmt: skip
    """The `count` best rows of a head for hidden ACT [P, H]: each of its first V rows takes part.

    `global_ids` I64 [V] are the rows' ids, by which equal scores are ordered. A score is multiplied by `multiplier` and
    then limited by `softcap` where that is above 0. Scores are not rounded to `act`. A weight of the engine holds
    values of `act`, whatever it is held in, and is multiplied as such.

    Clauses: HEAD-005, HEAD-006, HEAD-007, HEAD-009. Source: Infernix include/infernix/ops/linear_topk.h; dflash 0.1.0
    DFlashDraftModel.compute_logits.
    """
    (rows, inputs), columns, hidden = hidden.shape, len(global_ids), hidden.contiguous()
    ids = global_ids.new_empty(rows, count)
    made = Candidates(ids, hidden.new_empty(rows, count, dtype=torch.float32))
    if not rows:
        return made
    block, places = min(ROWS, max(16, triton.next_power_of_2(rows))), triton.next_power_of_2(count)
    tiles = triton.cdiv(columns, TILE)
    keys = ids.new_empty(rows, tiles * min(count, TILE))
    _top_of_tile[(tiles, triton.cdiv(rows, block))](
        hidden, head.weight, global_ids, keys, rows, columns, inputs, multiplier, softcap,
        OPERAND=TRITON[numerics.act], MULTIPLIED=multiplier != 1, CAPPED=softcap > 0, COUNT=min(count, TILE),
        PLACES=min(places, TILE), ROWS=block, TILE=TILE, DEPTH=DEPTH, **OPTIONS,
    )  # fmt: skip
    keys = merged(keys, count)
    _top_of_row[(rows,)](keys, *made, keys.shape[1], COUNT=count, PLACES=places, CHUNK=CHUNK, **OPTIONS)
    return made


@triton.jit
def _best(scores, best, best_id, row_stride, public, BLOCK: tl.constexpr):
    """The largest of a row, or its first NaN, which stands above infinity here."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    keys = tl.full([BLOCK], NOTHING, tl.int64)
    for start in range(0, public, BLOCK):
        column = start + at
        score = widen(tl.load(scores + row * row_stride + column, mask=column < public, other=0))
        above = tl.where(score != score, (0x7FFFFFFF << 32) - column.to(tl.int64), key_of(score, column.to(tl.int64)))
        keys = tl.maximum(keys, tl.where(column < public, above, NOTHING))
    key = tl.max(keys, axis=0)
    tl.store(best_id + row, id_of(key))
    tl.store(best + row, narrow(score_of(key), best.dtype.element_ty))


def best(scores: Tensor, public: int, numerics: Numerics) -> Best:
    """The best of the first `public` logits [P, V] of each row. +0 and -0 are equal.

    Clauses: HEAD-002, HEAD-003, PROC-001, PROC-002. Source: Infernix include/infernix/ops/argmax.h.
    """
    rows = len(scores)
    made = Best(scores.new_empty(rows), scores.new_empty(rows, dtype=torch.int64))
    if rows:
        block = min(4096, triton.next_power_of_2(public))
        _best[(rows,)](scores, *made, scores.stride(0), public, BLOCK=block, num_warps=8, **OPTIONS)
    return made
