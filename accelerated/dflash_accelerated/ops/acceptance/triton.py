"""Acceptance and correction in Triton: a program to a request, and to each tile of a row that is added up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.acceptance.chains import Chains
from dflash_accelerated.ops.acceptance.laws import SparseLaw
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.filters import Distribution
from dflash_accelerated.ops.sampling.triton import FAR, SLACK, crossed, crossings, last_above, tile_sums, tiled


@triton.jit
def _of_tokens(ids, values, row, token, live, size, SPARSE: tl.constexpr, WIDTH: tl.constexpr):
    """The FP32 value [P] of `token` in row `row` of values [N, size]; 0 where its ids do not hold it."""
    if SPARSE:
        at = tl.arange(0, WIDTH)[None, :]
        held = live[:, None] & (at < size)
        own = tl.load(ids + row[:, None] * size + at, mask=held, other=-1)
        value = tl.load(values + row[:, None] * size + at, mask=held, other=0)
        found = tl.sum(tl.where((own == token[:, None]) & held, value, 0.0), axis=1)
    else:
        found = tl.load(values + row * size + token, mask=live & (token >= 0) & (token < size), other=0)
    return found


@triton.jit
def _accepted_count(
    proposals, counts, first, ids, q, support, p, coins, accepted, width, coin_row, drawn_size, size,
    DRAWN_SPARSE: tl.constexpr, SUPPORTED: tl.constexpr, COVERED: tl.constexpr,
    DRAWN_WIDTH: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """How many tests pass before the first that fails. Request b has b fewer rows of q before it than of p."""
    request, place = tl.program_id(0).to(tl.int64), tl.arange(0, PLACES)
    count, row = tl.load(counts + request), tl.load(first + request)
    live = place < count
    token = tl.load(proposals + request * width + place, mask=live, other=-1)
    coin = tl.load(coins + request * coin_row + place, mask=live, other=0)
    target = _of_tokens(support, p, row + place, token, live, size, SUPPORTED, WIDTH)
    draft = _of_tokens(ids, q, row - request + place, token, live, drawn_size, DRAWN_SPARSE, DRAWN_WIDTH)
    passed = coin * draft < target
    if COVERED:
        passed = passed | (target >= draft)
    tl.store(accepted + request, tl.min(tl.where(live & passed, PLACES, place), axis=0).to(tl.int64))


def accepted_count(
    chains: Chains, drawn_from: SparseLaw, law: Distribution, coins: Tensor, numerics: Numerics
) -> Tensor:
    """How many proposals of each request pass the test of u · q(d) against p(d) in a row: I64 [B].

    `drawn_from` has T rows, `law` R rows, `coins` FP32 [B, P] in [0, 1). The product is an FP32 one. Profile axis
    `accept_test`: `strict` is u · q < p; `covered_or_strict` also p >= q. A NaN passes nothing.

    Clauses: LAW-003, LAW-009, LAW-010, LAW-013. Source: Infernix include/infernix/ops/speculative_round.h,
    src/ops/kernel/speculative_round.cuh; dflash 0.1.0 _rejection_sample.
    """
    requests, width = chains.proposals.shape
    accepted = torch.empty_like(chains.counts)
    ids, q, support, p = _tables(drawn_from, law, accepted)
    _accepted_count[(requests,)](
        chains.proposals, chains.counts, chains.first, ids, q, support, p, coins.contiguous(), accepted, width,
        coins.shape[1], q.shape[1], p.shape[1], DRAWN_SPARSE=drawn_from.ids is not None,
        SUPPORTED=law.support is not None, COVERED=numerics.profile.axes["accept_test"] == "covered_or_strict",
        DRAWN_WIDTH=_padded(drawn_from.ids, q), WIDTH=_padded(law.support, p), PLACES=_places(width), **OPTIONS,
    )  # fmt: skip
    return accepted


@triton.jit
def _drawn_at(ids, q, row, token, live, size, SPARSE: tl.constexpr):
    """q float64 of each token [BLOCK] in row `row` of a draft's law; 0 where it has none."""
    if SPARSE:
        found = tl.zeros([token.shape[0]], tl.float64)
        for candidate in range(size):
            own = tl.load(ids + row * size + candidate, mask=live, other=-2)
            value = tl.load(q + row * size + candidate, mask=live, other=0).to(tl.float64)
            found += tl.where(token == own, value, 0.0)
    else:
        found = tl.load(q + row * size + token, mask=live & (token >= 0) & (token < size), other=0).to(tl.float64)
    return found


@triton.jit
def _left(
    ids, q, support, p, row, drawn_row, at, corrected, drawn_size, size,
    DRAWN_SPARSE: tl.constexpr, SUPPORTED: tl.constexpr,
):  # fmt: skip
    """What the terminal token is drawn from at places `at` [BLOCK] of a row: p, less q where it is `corrected`."""
    token = at.to(tl.int64)
    if SUPPORTED:
        token = tl.load(support + row * size + at, mask=at < size, other=-1)
    target = tl.load(p + row * size + at, mask=at < size, other=0).to(tl.float64)
    left = target - _drawn_at(ids, q, drawn_row, token, corrected, drawn_size, DRAWN_SPARSE)
    return tl.where(corrected, tl.where(left < 0, 0.0, left), target)


@triton.jit
def _sum_residuals(
    ids, q, support, p, accepted, counts, first, sums, lasts, drawn_size, size,
    DRAWN_SPARSE: tl.constexpr, SUPPORTED: tl.constexpr, TO_TARGET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one tile of what is left the sum, and the last place above 0; with TO_TARGET the same of p, in a second plane.

    The sum is a NaN where such a tile of the draft's row holds one, at whichever id.
    """
    request, tile, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    kept, into = tl.load(accepted + request), request * tiles + tile
    row, corrected = tl.load(first + request) + kept, kept < tl.load(counts + request)
    at = tile * BLOCK + tl.arange(0, BLOCK)
    drawn = tl.load(q + (row - request) * drawn_size + at, mask=corrected & (at < drawn_size), other=0)
    unknown = tl.max((drawn != drawn).to(tl.int32), axis=0) != 0
    left = _left(ids, q, support, p, row, row - request, at, corrected, drawn_size, size, DRAWN_SPARSE, SUPPORTED)
    tl.store(sums + into, tl.where(unknown, float("nan"), tl.sum(left, axis=0)))
    tl.store(lasts + into, last_above(left, tile * BLOCK))
    if TO_TARGET:
        into += tl.num_programs(0) * tiles
        target = tl.load(p + row * size + at, mask=at < size, other=0).to(tl.float64)
        tl.store(sums + into, tl.sum(target, axis=0))
        tl.store(lasts + into, last_above(target, tile * BLOCK))


@triton.jit
def _terminal(
    ids, q, support, p, accepted, counts, first, coins, sums, lasts, tokens, drawn_size, size, tiles,
    DRAWN_SPARSE: tl.constexpr, SUPPORTED: tl.constexpr, TO_TARGET: tl.constexpr, TO_TOP: tl.constexpr,
    BLOCK: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """One request's draw from what is left, of which the tiles between which the goal is passed are made again."""
    request, place = tl.program_id(0).to(tl.int64), tl.arange(0, TILES)
    kept, goal = tl.load(accepted + request), tl.load(coins + request).to(tl.float64)
    row, corrected = tl.load(first + request) + kept, kept < tl.load(counts + request)
    held, own = place < tiles, request * tiles + place
    of_tiles = tl.load(sums + own, mask=held, other=0)
    mass = tl.sum(of_tiles, axis=0)
    nothing = corrected & (mass <= 0)
    if TO_TARGET:
        corrected = corrected & (nothing == 0)
        own += tl.where(nothing, tl.num_programs(0) * tiles, 0)
        of_tiles = tl.load(sums + own, mask=held, other=0)
    last = tl.max(tl.load(lasts + own, mask=held, other=-1), axis=0)
    goal = tl.where(corrected, goal * mass, goal)
    slack = tl.full([], SLACK, tl.float64) * size
    begin, end, total = crossed(of_tiles, goal, slack)
    rank, maybe = tl.full([], FAR, tl.int32), tl.full([], FAR, tl.int32)
    for tile in range(begin, tl.minimum(end + 1, tiles)):
        at = tile * BLOCK + tl.arange(0, BLOCK)
        left = _left(ids, q, support, p, row, row - request, at, corrected, drawn_size, size, DRAWN_SPARSE, SUPPORTED)
        here, near = crossings(left, tile * BLOCK, total, goal, slack)
        rank, maybe, total = tl.minimum(rank, here), tl.minimum(maybe, near), total + tl.sum(left, axis=0)
    if rank != maybe:
        rank, total = tl.full([], FAR, tl.int32), tl.full([], 0, tl.float64)
        for one in range(size):
            at = one + tl.arange(0, 1)
            left = _left(
                ids, q, support, p, row, row - request, at, corrected, drawn_size, size, DRAWN_SPARSE, SUPPORTED
            )
            total += tl.sum(left, axis=0)
            rank = tl.where((total > goal) & (rank == FAR), one, rank)
    rank = tl.where(rank == FAR, last, rank)
    found = (last >= 0) & (mass == mass)
    if TO_TOP:
        rank, found = tl.where(nothing, 0, rank), found | nothing
    token = rank.to(tl.int64)
    if SUPPORTED:
        token = tl.load(support + row * size + rank, mask=found, other=-1)
    tl.store(tokens + request, tl.where(found, token, -1))


def terminal(
    chains: Chains, accepted: Tensor, drawn_from: SparseLaw, law: Distribution, coins: Tensor, numerics: Numerics
) -> Tensor:
    """The token after `accepted` I64 [B] proposals, from that row of `law`, with `coins` FP32 [B] below 1: I64 [B].

    A correction is drawn from max(p - q, 0), where q is looked up by id; where all of that is 0, profile axis
    `zero_residual` says what happens. After all proposals it is a bonus, with nothing subtracted. A draw from a row
    that holds a NaN gives -1, and so does one from a row of which such a q is subtracted.

    Clauses: LAW-004 to LAW-007, LAW-011, LAW-013. Source: Infernix include/infernix/ops/speculative_round.h; dflash
    0.1.0 _rejection_sample; vllm-project/vllm pull 50183.
    """
    ids, q, support, p = _tables(drawn_from, law, accepted)
    tokens, instead = torch.empty_like(accepted), numerics.profile.axes["zero_residual"]
    requests, size, drawn_size, to_target = len(accepted), p.shape[1], q.shape[1], instead == "target"
    block, tiles = tiled(max(size, drawn_size))
    sums, lasts = tile_sums(p, 2 if to_target else 1, requests, tiles)
    kinds = {"DRAWN_SPARSE": drawn_from.ids is not None, "SUPPORTED": law.support is not None}
    rows = (ids, q, support, p, accepted, chains.counts, chains.first)
    _sum_residuals[(requests, tiles)](
        *rows, sums, lasts, drawn_size, size, TO_TARGET=to_target, BLOCK=block, **kinds, **OPTIONS
    )
    _terminal[(requests,)](
        *rows, coins.contiguous(), sums, lasts, tokens, drawn_size, size, tiles, TO_TARGET=to_target,
        TO_TOP=instead == "top_token" and law.support is not None, BLOCK=block,
        TILES=triton.next_power_of_2(tiles), **kinds, **OPTIONS,
    )  # fmt: skip
    return tokens


def _tables(drawn_from: SparseLaw, law: Distribution, unused: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, q, support and p; `unused` stands for ids that a law over every id does not have."""
    ids, support = (unused if held is None else held.contiguous() for held in (drawn_from.ids, law.support))
    return ids, drawn_from.q.contiguous(), support, law.p.contiguous()


def _places(width: int) -> int:
    return int(triton.next_power_of_2(width + 1))


def _padded(ids: Tensor | None, values: Tensor) -> int:
    """How wide a program holds a row of candidates; a row over every id it does not hold."""
    return 1 if ids is None else int(triton.next_power_of_2(max(1, values.shape[1])))
