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
    keys = (scores + 0.0).view(torch.int32).to(torch.int64)
    keys ^= (keys >> 63) & 0x7FFFFFFF
    keys <<= 32
    keys -= ids
    return torch.topk(keys, count, dim=1).indices
