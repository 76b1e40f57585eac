"""Embedding, final rows, logits, argmax and candidates in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.ranking import ranked
from dflash_accelerated.ops.rms_norm import rms_norm


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """The table's rows of `ids` I64 [R], raw: [R, H] in the table's dtype.

    Clause: DRAFT-001. Source: dflash 0.1.0 _raw_input_embeddings.
    """
    return torch.nn.functional.embedding(ids, table)


def final_rows(x: Tensor, norm: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """The final norm of a block's rows x ACT [P + 1, H] without the anchor's: ACT [P, H].

    Clause: DRAFT-011. Source: NInfer docs/maintainer/dflash.md.
    """
    return rms_norm(x[1:], norm, eps, numerics)


def logits(hidden: Tensor, head: Tensor, numerics: Numerics) -> Tensor:
    """The head's product with rows already normed: hidden ACT [P, H], head [V, H], result LOGIT [P, V].

    Clauses: HEAD-001, HEAD-004, TGT-004. Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return numerics.activation(linear(hidden, head))


def argmax(scores: Tensor, public: int) -> Tensor:
    """The lowest id of the largest of the first `public` logits [P, V]: I64 [P]. +0 and -0 are equal.

    Clauses: HEAD-002, HEAD-003, PROC-001, PROC-002. Source: Infernix include/infernix/ops/argmax.h.
    """
    return torch.argmax(scores[:, :public], dim=-1)


def indexed_argmax(scores: Tensor, global_ids: Tensor) -> Tensor:
    """The global id of the lowest row of the largest logits [P, V] of an indexed head: I64 [P].

    Clause: HEAD-008. Source: Infernix src/models/qwen3_5/load/text.cpp, execution/draft.cpp.
    """
    return global_ids[torch.argmax(scores, dim=-1)]


class Candidates(NamedTuple):
    """Global ids I64 [P, C], best first, and their scores FP32 [P, C]."""

    ids: Tensor
    unary: Tensor


def top(hidden: Tensor, head: Tensor, global_ids: Tensor, multiplier: float, softcap: float, count: int) -> Candidates:
    """The `count` best rows of a head for hidden ACT [P, H]: every row of head [V, H] takes part.

    `global_ids` I64 [V] are the rows' ids, by which equal scores are ordered. A score is multiplied by `multiplier` and
    then limited by `softcap` where that is above 0. Scores are not rounded to `act`.

    Clauses: HEAD-005, HEAD-006, HEAD-007, HEAD-009. Source: Infernix include/infernix/ops/linear_topk.h; dflash 0.1.0
    DFlashDraftModel.compute_logits.
    """
    scores = linear(hidden, head).to(torch.float32)
    if multiplier != 1:
        scores = scores * multiplier
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    rows = ranked(scores, global_ids, count)
    return Candidates(global_ids[rows], scores.gather(1, rows))
