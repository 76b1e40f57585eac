"""Embedding, final rows, logits, argmax and candidates in PyTorch."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.ranking import ranked
from dflash_accelerated.ops.rms_norm import rms_norm


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """The table's rows of `ids` I64 [R], raw: [R, H] in the table's dtype.

    Clause: DRAFT-001. Source: dflash 0.1.0 _raw_input_embeddings.
    """
    return torch.nn.functional.embedding(ids, table)


def final_rows(x: Tensor, spans: Spans, norm: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """The final norm of the blocks' rows x ACT [R, H], without each block's anchor: ACT [R - B, H].

    Clause: DRAFT-011. Source: NInfer docs/maintainer/dflash.md.
    """
    return rms_norm(without_anchors(x, spans), norm, eps, numerics)


def without_anchors(x: Tensor, spans: Spans) -> Tensor:
    """The rows of every block but its first."""
    if len(spans.counts) == 1:
        return x[1:]
    return torch.cat([x[first + 1 : first + count] for first, count in zip(spans.firsts, spans.counts, strict=True)])


def logits(hidden: Tensor, head: Product, numerics: Numerics) -> Tensor:
    """The head's product with rows already normed: hidden ACT [P, H], head [V, H], result LOGIT [P, V].

    Clauses: HEAD-001, HEAD-004, TGT-004. Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return numerics.activation(head(hidden))


class Best(NamedTuple):
    """The largest score of each row [P], NaN where the row holds one, and the lowest id I64 [P] that has it."""

    score: Tensor
    id: Tensor


@dispatched("native", "triton")
def best(scores: Tensor, public: int, numerics: Numerics) -> Best:
    """The best of the first `public` logits [P, V] of each row. +0 and -0 are equal.

    Clauses: HEAD-002, HEAD-003, PROC-001, PROC-002. Source: Infernix include/infernix/ops/argmax.h.
    """
    return Best(*torch.max(scores[:, :public], dim=-1))  # reads each row once, eight times as fast as argmax


@dispatched("native")
def chosen(scores: Tensor, public: int, numerics: Numerics) -> list[int]:
    """The best id of each row, as `best`, on the host; -1 where its score is no finite number.

    Clauses: PROC-002, PROC-022. Source: Infernix include/infernix/ops/sampling.h.
    """
    found = best(scores, public, numerics)
    return cast("list[int]", found.id.where(found.score.abs() < torch.inf, -1).tolist())  # the host waits once


def indexed_argmax(scores: Tensor, global_ids: Tensor, numerics: Numerics) -> Tensor:
    """The global id of the lowest row of the largest logits [P, V] of an indexed head: I64 [P].

    Clause: HEAD-008. Source: Infernix src/models/qwen3_5/load/text.cpp, execution/draft.cpp.
    """
    return global_ids[best(scores, scores.shape[1], numerics).id]


class Candidates(NamedTuple):
    """Global ids I64 [P, C], best first, and their scores FP32 [P, C]."""

    ids: Tensor
    unary: Tensor


@dispatched("native", "triton")
def top(
    hidden: Tensor, head: Product, global_ids: Tensor, multiplier: float, softcap: float, count: int,
    numerics: Numerics,
) -> Candidates:  # fmt: skip
    """The `count` best rows of a head for hidden ACT [P, H]: each of its first V rows takes part.

    `global_ids` I64 [V] are the rows' ids, by which equal scores are ordered. A score is multiplied by `multiplier` and
    then limited by `softcap` where that is above 0. Scores are not rounded to `act`.

    Clauses: HEAD-005, HEAD-006, HEAD-007, HEAD-009. Source: Infernix include/infernix/ops/linear_topk.h; dflash 0.1.0
    DFlashDraftModel.compute_logits.
    """
    scores = limited(head(hidden)[:, : len(global_ids)], multiplier, softcap)
    rows = ranked(scores, global_ids, count)
    return Candidates(global_ids[rows], scores.gather(1, rows))


def limited(scores: Tensor, multiplier: float, softcap: float) -> Tensor:
    """Scores times `multiplier`, then limited by `softcap` where that is above 0: FP32."""
    scores = scores.to(torch.float32)
    if multiplier != 1:
        scores = scores * multiplier
    return softcap * torch.tanh(scores / softcap) if softcap > 0 else scores
