"""Stable ranking in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def ranked(scores: Tensor, ids: Tensor, count: int) -> Tensor:
    """Columns I64 [N, count] of the largest scores FP32 [N, V], descending, lower id first on ties; `ids` I64 [V].

    Sorts one 64-bit key, because a top-k of floats leaves the order of ties open: the score's bits mapped to an
    integer of the same order (adding 0 turns -0 into +0), then the id, negated.

    Clauses: PROC-003, HEAD-005, HEAD-007. Source: Infernix src/ops/common/score_id_order.cuh.
    """
    bits = (scores + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    return torch.topk((ordered << 32) - ids, count, dim=1).indices
