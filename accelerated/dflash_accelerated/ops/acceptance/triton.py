"""Acceptance and correction in Triton: one program to a request."""

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
from dflash_accelerated.ops.sampling.triton import draw


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
def _holds_nan(values, row, live, size, BLOCK: tl.constexpr):
    """Whether a row of values [N, size] holds a NaN, as an integer."""
    found = tl.full([], 0, tl.int32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(values + row * size + at, mask=live & (at < size), other=0)
        found = tl.maximum(found, tl.max((value != value).to(tl.int32), axis=0))
    return found


@triton.jit
def _residual(
    ids, q, support, p, accepted, counts, first, coins, rest, goals, drawn_size, size,
    DRAWN_SPARSE: tl.constexpr, SUPPORTED: tl.constexpr, TO_TARGET: tl.constexpr, TO_TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """What the terminal token is drawn from, float64 [B, size], and the goal of that draw."""
    request = tl.program_id(0).to(tl.int64)
    kept, coin = tl.load(accepted + request), tl.load(coins + request).to(tl.float64)
    row, corrected = tl.load(first + request) + kept, kept < tl.load(counts + request)
    unknown = _holds_nan(q, row - request, corrected, drawn_size, BLOCK)
    mass = tl.full([], 0, tl.float64)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        token = at.to(tl.int64)
        if SUPPORTED:
            token = tl.load(support + row * size + at, mask=at < size, other=-1)
        target = tl.load(p + row * size + at, mask=at < size, other=0).to(tl.float64)
        left = target - _drawn_at(ids, q, row - request, token, corrected, drawn_size, DRAWN_SPARSE)
        left = tl.where(unknown != 0, float("nan"), tl.where(left < 0, 0.0, left))
        left = tl.where(corrected, left, target)
        mass += tl.sum(tl.where(at < size, left, 0.0), axis=0)
        tl.store(rest + request * size + at, left, mask=at < size)
    goal = tl.where(corrected, coin * mass, coin)
    if corrected & (mass <= 0) & (TO_TARGET or TO_TOP):
        tl.debug_barrier()
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            other = (at == 0).to(tl.float64)
            if TO_TARGET:
                other = tl.load(p + row * size + at, mask=at < size, other=0).to(tl.float64)
            tl.store(rest + request * size + at, other, mask=at < size)
        goal = coin
    tl.store(goals + request, goal)


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
    rest = p.new_empty(len(accepted), p.shape[1], dtype=torch.float64)
    goals, instead = rest.new_empty(len(accepted)), numerics.profile.axes["zero_residual"]
    block = min(2048, triton.next_power_of_2(max(p.shape[1], q.shape[1])))
    _residual[(len(accepted),)](
        ids, q, support, p, accepted, chains.counts, chains.first, coins.contiguous(), rest, goals, q.shape[1],
        p.shape[1], DRAWN_SPARSE=drawn_from.ids is not None, SUPPORTED=law.support is not None,
        TO_TARGET=instead == "target", TO_TOP=instead == "top_token" and law.support is not None, BLOCK=block,
        **OPTIONS,
    )  # fmt: skip
    top = None if law.support is None else law.support[chains.first + accepted]
    return draw(Distribution(top, rest), goals, numerics)


def _tables(drawn_from: SparseLaw, law: Distribution, unused: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, q, support and p; `unused` stands for ids that a law over every id does not have."""
    ids, support = (unused if held is None else held.contiguous() for held in (drawn_from.ids, law.support))
    return ids, drawn_from.q.contiguous(), support, law.p.contiguous()


def _places(width: int) -> int:
    return int(triton.next_power_of_2(width + 1))


def _padded(ids: Tensor | None, values: Tensor) -> int:
    """How wide a program holds a row of candidates; a row over every id it does not hold."""
    return 1 if ids is None else int(triton.next_power_of_2(max(1, values.shape[1])))
