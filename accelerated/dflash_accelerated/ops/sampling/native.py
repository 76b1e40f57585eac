"""Inverse-CDF draws in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.filters import Distribution


def draw(law: Distribution, goal: Tensor, numerics: Numerics) -> Tensor:
    """As the torch function: the first id whose inclusive cumulative weight [N, S] is above `goal` [N]."""
    weights, goal = rows_of(law.p), goal.to(torch.float64).contiguous()
    support = None if law.support is None else rows_of(law.support)
    rows, places = weights.shape
    tokens = empty(rows, torch.int64)
    kernels().draw(
        weights.data_ptr(), None if support is None else support.data_ptr(), goal.data_ptr(), tokens.data_ptr(),
        rows, places, weights.stride(0), 0 if support is None else support.stride(0),
        weights.dtype == torch.float64, torch.get_num_threads(),
    )  # fmt: skip
    return tokens
