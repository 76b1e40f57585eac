"""The candidate path in PyTorch: all requests at once, step by step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.sampling import drawn_rank


class Selector(NamedTuple):
    """The product that gives [rank], and codebooks [V, rank] by global id, in the compute dtype."""

    projection: Product
    predecessor: Tensor
    successor: Tensor


class Path(NamedTuple):
    """Scores FP32 [B, K, C], tokens I64 [B, K], and the law that chose them: q FP32 [B, K, C]."""

    scores: Tensor
    tokens: Tensor
    q: Tensor


def project(hidden: Tensor, projection: Product, numerics: Numerics) -> Tensor:
    """The selector's rows ACT [P, rank] of final rows hidden ACT [P, H].

    Clauses: SEL-006, SEL-007. Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return numerics.activation(projection(hidden))


@dispatched("native", "triton")
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
    after = selector.successor[candidates.ids].to(torch.float32) * g.to(torch.float32)[:, :, None]
    hot, before = temperatures > 0, anchors
    scores, tokens, laws = [], [], []
    for step in range(g.shape[1]):
        edge = selector.predecessor[before].to(torch.float32)[:, None]
        score = candidates.unary[:, step] + (after[:, step] * edge).sum(dim=-1)
        best = score.argmax(dim=-1)
        certain = torch.nn.functional.one_hot(best, score.shape[1]).to(torch.float32)
        below = score - score.amax(dim=-1, keepdim=True)  # 0 at the largest: a tiny temperature cannot overflow it
        drawn = torch.softmax(below / torch.where(hot, temperatures, 1.0)[:, None], dim=-1)
        q = torch.where(hot[:, None], drawn, certain)
        rank = torch.where(hot, drawn_rank(q, uniforms[:, step], _fallback(q, numerics)), best)
        before = candidates.ids[:, step].gather(1, rank[:, None])[:, 0]
        scores.append(score)
        tokens.append(before)
        laws.append(q)
    return Path(torch.stack(scores, 1), torch.stack(tokens, 1), torch.stack(laws, 1))


def _fallback(q: Tensor, numerics: Numerics) -> Tensor:
    """The rank I64 [B] of a coin past the sum of q [B, C]. Profile axis `walk_fallback`.

    Clause: SEL-005. Source: Infernix include/infernix/ops/candidate_selector.h (the last rank, also where its q is 0).
    """
    ranks = torch.arange(q.shape[1], device=q.device).expand(q.shape)
    if numerics.profile.axes["walk_fallback"] == "last_rank":
        return ranks[:, -1]
    return torch.where(q > 0, ranks, 0).amax(dim=1)
