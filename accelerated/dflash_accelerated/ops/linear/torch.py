"""The matrix product in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics

MULTIPLY = torch.ops.mkldnn._linear_pointwise.default
MULTIPLY_AND_ADD = torch.ops.mkldnn._linear_pointwise.binary
ROWS_LAID_OUT_FOR = 16
"""A block's rows. The layout that the library picks for them serves 1 to 128 rows equally well."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ, in the weight's dtype: x [..., n], weight [m, n], result [..., m].

    The sum runs in FP32 or wider: PyTorch's FP32 product is FP32 throughout, its BF16 product adds in FP32 and rounds
    the result once.

    Clause: NUM-006. Source: NInfer op-development.md.
    """
    return torch.nn.functional.linear(x.to(weight.dtype), weight)


class Product:
    """`linear` of one weight [m, n], or of several that read one input, joined in their order.

    On a CPU whose matrix library multiplies BF16, a BF16 weight is held in that library's own layout and in no other.

    Clause: NUM-006. Source: NInfer op-development.md.
    """

    def __init__(self, weights: Sequence[Tensor], numerics: Numerics) -> None:
        """`weights` [m, n] each, in the compute dtype."""
        joined = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.outputs, self.inputs = joined.shape
        self.dtype, self.held_bytes = joined.dtype, joined.nbytes
        self._packed = numerics.kernels != "triton" and _library_multiplies(joined)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(joined, ROWS_LAID_OUT_FOR) if self._packed else joined

    @property
    def weight(self) -> Tensor:
        """The joined weight [m, n]. Raises RuntimeError where only the library can read it."""
        return self._weight.to_dense() if self._packed else self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """The product of rows x [R, n]: [R, m] in the weight's dtype."""
        if self._packed and x.shape[0]:
            made: Tensor = MULTIPLY(x, self._weight, None, "none", [], "")
            return made
        return x.new_empty(0, self.outputs) if self._packed else linear(x, self._weight)

    def plus(self, x: Tensor, residual: Tensor, numerics: Numerics) -> Tensor:
        """residual + product, rounded to `act`: x [R, n], residual ACT [R, m].

        The product is not rounded to `act` before the sum; the library adds before it rounds at all.

        Clauses: DRAFT-009, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
        """
        if self._packed and x.shape[0]:
            made: Tensor = MULTIPLY_AND_ADD(x, residual, self._weight, None, "add")
            return made
        branch = self(x)
        return numerics.activation(residual.to(branch.dtype) + branch)


def _library_multiplies(weight: Tensor) -> bool:
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
