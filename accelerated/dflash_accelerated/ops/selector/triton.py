"""The candidate path in Triton: all steps of a request in one program, because each waits for the one before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.ops.rounding.triton import widen
from dflash_accelerated.ops.sampling.triton import FAR, drawn_rank
from dflash_accelerated.ops.selector.torch import Path, Selector


@triton.jit
def _softmax(score, live, temperature):
    """q FP32 of scores [C] / temperature where `live`; exponentials in float64, for GPUs have rough ones in FP32."""
    unknown = tl.max((live & (score != score)).to(tl.int32), axis=0) != 0
    largest = tl.max(tl.where(live & (score == score), score, float("-inf")), axis=0)
    largest = tl.where(unknown, float("nan"), largest)
    heated = tl.div_rn(score - largest, tl.zeros_like(score) + temperature)
    weight = tl.where(live, tl.exp(heated.to(tl.float64)), 0.0)
    return (weight / tl.sum(weight, axis=0)).to(tl.float32)


@triton.jit
def _first_largest(score, live, PLACES: tl.constexpr):
    """The lowest rank of the largest score, or of the first NaN."""
    place = tl.arange(0, PLACES)
    largest = tl.max(tl.where(live & (score == score), score, float("-inf")), axis=0)
    known = tl.min(tl.where(live & (score == largest), place, PLACES), axis=0)
    unknown = tl.min(tl.where(live & (score != score), place, PLACES), axis=0)
    return tl.where(unknown < PLACES, unknown, known)


@triton.jit
def _walk(
    ids, unary, g, predecessor, successor, anchors, temperatures, uniforms, scores, tokens, laws, steps, rank,
    COUNT: tl.constexpr, PLACES: tl.constexpr, RANK: tl.constexpr, LAST_RANK: tl.constexpr,
):  # fmt: skip
    """One request's path. Codebooks [V, rank]; candidates [B, steps, COUNT]."""
    request, place, column = tl.program_id(0).to(tl.int64), tl.arange(0, PLACES), tl.arange(0, RANK)
    live, within = place < COUNT, column < rank
    temperature, before = tl.load(temperatures + request), tl.load(anchors + request)
    for step in range(steps):
        at = request * steps + step
        own = tl.load(ids + at * COUNT + place, mask=live, other=0)
        after = widen(tl.load(successor + own[:, None] * rank + column, mask=live[:, None] & within, other=0))
        after = after * widen(tl.load(g + at * rank + column, mask=within, other=0))[None, :]
        edge = widen(tl.load(predecessor + before * rank + column, mask=within, other=0))
        score = tl.load(unary + at * COUNT + place, mask=live, other=0) + tl.sum(after * edge[None, :], axis=1)
        chosen = _first_largest(score, live, PLACES)
        q = (place == chosen).to(tl.float32)
        if temperature > 0:
            q = _softmax(score, live, temperature)
            drawn = drawn_rank(q.to(tl.float64), tl.load(uniforms + at).to(tl.float64), COUNT)
            otherwise = COUNT - 1 if LAST_RANK else tl.max(tl.where(q > 0, place, 0), axis=0)
            chosen = tl.where(drawn == FAR, otherwise, drawn)
        before = tl.sum(tl.where(place == chosen, own, 0), axis=0)
        tl.store(scores + at * COUNT + place, score, mask=live)
        tl.store(laws + at * COUNT + place, q, mask=live)
        tl.store(tokens + at, before)


def walk(
    candidates: Candidates, g: Tensor, selector: Selector, anchors: Tensor, temperatures: Tensor, uniforms: Tensor,
    numerics: Numerics,
) -> Path:  # fmt: skip
    """Walk the candidates [B, K, C] of B requests, each conditioned on the token that the step before chose.

    `g` ACT [B, K, rank]; `anchors` I64, `temperatures` FP32 [B]; `uniforms` FP32 [B, K], unused where a temperature is
    not above 0. Slots past a request's own may hold anything that the codebooks have a row for. `q` holds the very FP32
    values that the draw compared.

    Clauses: SEL-001 to SEL-005. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/candidate_selector.h; dflash 0.1.0 CandidateSelector.
    """
    (requests, steps, count), rank = candidates.ids.shape, g.shape[2]
    unary = candidates.unary.contiguous()
    path = Path(torch.empty_like(unary), anchors.new_empty(requests, steps), torch.empty_like(unary))
    _walk[(requests,)](
        candidates.ids.contiguous(), unary, g.contiguous(), selector.predecessor, selector.successor,
        anchors.contiguous(), temperatures.contiguous(), uniforms.contiguous(), *path, steps, rank, COUNT=count,
        PLACES=triton.next_power_of_2(count), RANK=triton.next_power_of_2(rank),
        LAST_RANK=numerics.profile.axes["walk_fallback"] == "last_rank", **OPTIONS,
    )  # fmt: skip
    return path
