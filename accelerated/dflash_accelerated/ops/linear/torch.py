"""The matrix product in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ, in the weight's dtype: x [..., n], weight [m, n], result [..., m].

    The sum runs in FP32 or wider: PyTorch's FP32 product is FP32 throughout, its BF16 product adds in FP32 and rounds
    the result once.

    Clause: NUM-006. Source: NInfer op-development.md.
    """
    if weight.device.type == "cpu":
        return torch.nn.functional.linear(x.to(weight.dtype), weight)
    with _added_in_fp32():
        return torch.nn.functional.linear(x.to(weight.dtype), weight)


@contextmanager
def _added_in_fp32() -> Iterator[None]:
    """cuBLAS may not round parts of a BF16 sum to BF16 before it adds them, as PyTorch lets it by default."""
    module = torch.backends.cuda.matmul
    before = module.allow_bf16_reduced_precision_reduction, module.allow_bf16_reduced_precision_reduction_split_k
    module.allow_bf16_reduced_precision_reduction = (False, before[1])
    try:
        yield
    finally:
        module.allow_bf16_reduced_precision_reduction = before


class DenseWeight:
    """A weight [m, n] as it is."""

    def __init__(self, weight: Tensor) -> None:
        self.dense, self.held_bytes = weight, weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        return linear(x, self.dense)

    def multiply_and_add(self, x: Tensor, residual: Tensor) -> Tensor:
        branch = self.multiply(x)
        return residual.to(branch.dtype) + branch
