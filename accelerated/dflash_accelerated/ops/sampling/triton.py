"""Inverse-CDF draws in Triton: first the sums of a row's tiles, each in a program of its own, then the tile that tells.

The rule adds weights one after another in float64. A GPU adds many at once, in another order, and knows how far apart
the two can be; where a goal lies within that of a sum, it adds again, one after another. So the rank is the rule's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.filters import Distribution

FAR = tl.constexpr(2**30)
"""Past every rank."""

TILE = 1024
"""The most weights to a program of the first pass."""

SLACK = tl.constexpr(2.0**-50)
"""Two sums of n weights, in whatever orders, differ by less than n times this share: each addition by 2⁻⁵³ of it."""


@triton.jit
def crossings(weights, start, before, goal, slack):
    """The first of the ranks from `start` whose sum is surely above the goal, and the first whose sum may be.

    `weights` float64 [N] follow on weights whose sum is `before`. FAR where there is none; a NaN is above nothing.
    """
    rank = start + tl.arange(0, weights.shape[0])
    sums = before + tl.cumsum(weights, axis=0)
    surely = tl.min(tl.where(sums * (1 - slack) > goal, rank, FAR), axis=0)
    maybe = tl.min(tl.where(sums * (1 + slack) > goal, rank, FAR), axis=0)
    return surely, maybe


@triton.jit
def drawn_rank(weights, goal, COUNT: tl.constexpr):
    """The first rank of float64 weights [N], of which COUNT count, whose inclusive sum is above `goal`, else FAR."""
    slack = tl.full([], SLACK, tl.float64) * COUNT
    rank, maybe = crossings(weights, 0, tl.full([], 0, tl.float64), goal, slack)
    if rank != maybe:
        rank = tl.full([], FAR, tl.int32)
        place, total = tl.arange(0, weights.shape[0]), tl.full([], 0, tl.float64)
        for at in range(COUNT):
            total += tl.sum(tl.where(place == at, weights, 0.0), axis=0)
            rank = tl.where((total > goal) & (rank == FAR), at, rank)
    return rank


@triton.jit
def crossed(sums, goal, slack):
    """The first tile in which a goal may be passed, the first in which it surely is, and the sum before the former.

    `sums` float64 [TILES] are those of a row's tiles, in order. FAR where there is no such tile.
    """
    tile, after = tl.arange(0, sums.shape[0]), tl.cumsum(sums, axis=0)
    begin = tl.min(tl.where(after * (1 + slack) > goal, tile, FAR), axis=0)
    end = tl.min(tl.where(after * (1 - slack) > goal, tile, FAR), axis=0)
    return begin, end, tl.sum(tl.where(tile < begin, sums, 0.0), axis=0)


@triton.jit
def last_above(weights, start):
    """The last of the ranks from `start` whose weight [N] is above 0, else -1."""
    return tl.max(tl.where(weights > 0, start + tl.arange(0, weights.shape[0]), -1), axis=0)


@triton.jit
def _sum_tiles(weights, sums, lasts, size, BLOCK: tl.constexpr):
    """Of one tile of a row the sum, a NaN where it holds one, and the last rank of weight above 0."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, into = tile * BLOCK + tl.arange(0, BLOCK), row * tl.num_programs(1) + tile
    part = tl.load(weights + row * size + at, mask=at < size, other=0).to(tl.float64)
    tl.store(sums + into, tl.sum(part, axis=0))
    tl.store(lasts + into, last_above(part, tile * BLOCK))


@triton.jit
def _draw(
    weights, support, goals, sums, lasts, tokens, size, tiles,
    SUPPORTED: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One row's draw, which reads the tiles between which the goal is passed."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, TILES)
    own, goal = weights + row * size, tl.load(goals + row).to(tl.float64)
    of_tiles = tl.load(sums + row * tiles + place, mask=place < tiles, other=0)
    last = tl.max(tl.load(lasts + row * tiles + place, mask=place < tiles, other=-1), axis=0)
    slack, mass = tl.full([], SLACK, tl.float64) * size, tl.sum(of_tiles, axis=0)
    begin, end, total = crossed(of_tiles, goal, slack)
    rank, maybe = tl.full([], FAR, tl.int32), tl.full([], FAR, tl.int32)
    for tile in range(begin, tl.minimum(end + 1, tiles)):
        at = tile * BLOCK + tl.arange(0, BLOCK)
        part = tl.load(own + at, mask=at < size, other=0).to(tl.float64)
        here, near = crossings(part, tile * BLOCK, total, goal, slack)
        rank, maybe, total = tl.minimum(rank, here), tl.minimum(maybe, near), total + tl.sum(part, axis=0)
    if rank != maybe:
        rank, total = tl.full([], FAR, tl.int32), tl.full([], 0, tl.float64)
        for one in range(size):
            total += tl.load(own + one).to(tl.float64)
            rank = tl.where((total > goal) & (rank == FAR), one, rank)
    rank = tl.where(rank == FAR, last, rank)
    found = (last >= 0) & (mass == mass)
    token = rank.to(tl.int64)
    if SUPPORTED:
        token = tl.load(support + row * size + rank, mask=found, other=-1)
    tl.store(tokens + row, tl.where(found, token, -1))


def draw(law: Distribution, goal: Tensor, numerics: Numerics) -> Tensor:
    """The first id whose inclusive cumulative weight is above `goal`, else the last id of weight above 0: I64 [N].

    The weights [N, S] in `law.p` need not sum to 1; `goal` [N]. A row that holds a NaN, or no weight, gives -1.

    Clauses: PROC-005, LAW-013. Source: Infernix src/ops/kernel/sampling_device.cuh; vllm-project/vllm pull 50183.
    """
    weights, supported = law.p.contiguous(), law.support is not None
    tokens = weights.new_empty(len(weights), dtype=torch.int64)
    support = tokens if law.support is None else law.support.contiguous()
    rows, size = weights.shape
    block, tiles = tiled(size)
    if rows:
        sums, lasts = tile_sums(weights, rows, tiles)
        _sum_tiles[(rows, tiles)](weights, sums, lasts, size, BLOCK=block, **OPTIONS)
        _draw[(rows,)](
            weights, support, goal.contiguous(), sums, lasts, tokens, size, tiles, SUPPORTED=supported, BLOCK=block,
            TILES=triton.next_power_of_2(tiles), **OPTIONS,
        )  # fmt: skip
    return tokens


def tiled(size: int) -> tuple[int, int]:
    """How many weights of a row of `size` a program adds up, and how many programs that are."""
    block = min(TILE, int(triton.next_power_of_2(max(1, size))))
    return block, max(1, -(-size // block))


def tile_sums(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Room for the sums of tiles, and for the last ranks in them."""
    return like.new_empty(shape, dtype=torch.float64), like.new_empty(shape, dtype=torch.int32)
