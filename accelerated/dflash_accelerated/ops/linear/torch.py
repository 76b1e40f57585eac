"""The matrix product in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ, in the weight's dtype: x [..., n], weight [m, n], result [..., m].

    The sum runs in FP32 or wider: PyTorch's FP32 product is FP32 throughout, its BF16 product adds in FP32 and rounds
    the result once.

    Clause: NUM-006. Source: NInfer op-development.md.
    """
    return torch.nn.functional.linear(x.to(weight.dtype), weight)


class DenseWeight:
    """A weight [m, n] as it is."""

    def __init__(self, weight: Tensor) -> None:
        self.dense, self.held_bytes = weight, weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        return linear(x, self.dense)

    def multiply_and_add(self, x: Tensor, residual: Tensor) -> Tensor:
        branch = self.multiply(x)
        return residual.to(branch.dtype) + branch
