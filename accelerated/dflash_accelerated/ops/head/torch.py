"""Embedding, final rows, logits and argmax in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import linear
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
