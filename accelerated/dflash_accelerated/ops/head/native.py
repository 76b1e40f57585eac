"""The best logit of each row in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.head.torch import Best


def best(scores: Tensor, public: int, numerics: Numerics) -> Best:
    """As the torch function: the largest of the first `public` logits [P, V] of each row, and its lowest id."""
    scores = rows_of(scores)
    rows = scores.shape[0]
    tops, ids = torch.empty(rows, dtype=scores.dtype), torch.empty(rows, dtype=torch.int64)
    kernels().greatest(
        scores.data_ptr(), tops.data_ptr(), ids.data_ptr(), rows, public, scores.stride(0), CODES[scores.dtype],
        torch.get_num_threads(),
    )  # fmt: skip
    return Best(tops, ids)
