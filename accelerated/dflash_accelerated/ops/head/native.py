"""The argmax of logits in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, kernels, rows_of
from dflash_accelerated.numerics import Numerics


def argmax(scores: Tensor, public: int, numerics: Numerics) -> Tensor:
    """As the torch function: the lowest id I64 [P] of the largest of the first `public` logits [P, V]."""
    scores = rows_of(scores)
    ids = torch.empty(scores.shape[0], dtype=torch.int64)
    kernels().greatest(
        scores.data_ptr(), ids.data_ptr(), scores.shape[0], public, scores.stride(0), CODES[scores.dtype],
        torch.get_num_threads(),
    )  # fmt: skip
    return ids
