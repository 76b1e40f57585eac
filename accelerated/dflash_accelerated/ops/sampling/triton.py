"""Inverse-CDF draws in Triton.

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
def _draw(weights, support, goals, tokens, size, SUPPORTED: tl.constexpr, BLOCK: tl.constexpr):
    """One row's draw."""
    row = tl.program_id(0).to(tl.int64)
    own, goal = weights + row * size, tl.load(goals + row).to(tl.float64)
    slack, total = tl.full([], SLACK, tl.float64) * size, tl.full([], 0, tl.float64)
    rank, maybe = tl.full([], FAR, tl.int32), tl.full([], FAR, tl.int32)
    last, unknown = tl.full([], -1, tl.int32), tl.full([], 0, tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        part = tl.load(own + at, mask=at < size, other=0).to(tl.float64)
        here, near = crossings(part, start, total, goal, slack)
        rank, maybe, total = tl.minimum(rank, here), tl.minimum(maybe, near), total + tl.sum(part, axis=0)
        last = tl.maximum(last, tl.max(tl.where(part > 0, at, -1), axis=0))
        unknown = tl.maximum(unknown, tl.max((part != part).to(tl.int32), axis=0))
    if rank != maybe:
        rank, total = tl.full([], FAR, tl.int32), tl.full([], 0, tl.float64)
        for one in range(size):
            total += tl.load(own + one).to(tl.float64)
            rank = tl.where((total > goal) & (rank == FAR), one, rank)
    rank = tl.where(rank == FAR, last, rank)
    found = (last >= 0) & (unknown == 0)
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
    size = weights.shape[1]
    block = min(2048, triton.next_power_of_2(size))
    if len(weights):
        _draw[(len(weights),)](
            weights, support, goal.contiguous(), tokens, size, SUPPORTED=supported, BLOCK=block, **OPTIONS
        )
    return tokens
