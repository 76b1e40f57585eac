"""The matrix product in PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dflash_accelerated.native import Packed
from dflash_accelerated.numerics import Numerics

MULTIPLY = torch.ops.mkldnn._linear_pointwise.default
MULTIPLY_AND_ADD = torch.ops.mkldnn._linear_pointwise.binary
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128), 64
FILLED = tuple(next(count for count in FEW_ROWS if count >= rows) for rows in range(FEW_ROWS[-1] + 1))
KERNEL_BYTES = 600 << 10
"""What the library keeps for each shape and number of rows that it has multiplied (PyTorch 2.13): a thousand of them
would be as large as a model, so that rows are filled up to few numbers."""
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

    def __init__(self, weights: Sequence[Tensor], numerics: Numerics, adds: bool = False) -> None:
        """`weights` [m, n] each, in the compute dtype; `adds` says that it is asked for by `plus`."""
        joined = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.outputs, self.inputs = joined.shape
        self.dtype, self.held_bytes = joined.dtype, joined.nbytes
        self.adds = adds
        self.packed = numerics.kernels == "torch" and _library_multiplies(joined)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(joined, ROWS_LAID_OUT_FOR) if self.packed else joined
        self.native: Packed | None = None
        if numerics.kernels == "native":
            from dflash_accelerated.ops.linear import native

            self._weight = native.pack(joined)
            self.native = native.reference(self._weight, self.outputs, self.inputs, joined.dtype)

    def make_ready(self, counts: Collection[int]) -> int:
        """Have the library make its kernels for so many rows: how many it has then."""
        if not self.packed:
            return 0
        for count in counts:
            rows = torch.zeros(count, self.inputs, dtype=self.dtype)
            if self.adds:
                MULTIPLY_AND_ADD(rows, rows.new_zeros(count, self.outputs), self._weight, None, "add")
            else:
                MULTIPLY(rows, self._weight, None, "none", [], "")
        return len(counts)

    @property
    def weight(self) -> Tensor:
        """The joined weight [m, n]. Raises RuntimeError where only the library can read it."""
        return self._weight.to_dense() if self.packed else self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """The product of rows x [R, n]: [R, m] in the weight's dtype."""
        if self.native:
            from dflash_accelerated.ops.linear import native

            return native.multiply(self.native, x, self.dtype)
        if not self.packed:
            return linear(x, self._weight)
        more = filled_up(x.shape[0]) - x.shape[0]
        made: Tensor = MULTIPLY(_with_zeros(x, more) if more else x, self._weight, None, "none", [], "")
        return made[:-more] if more else made

    def plus(self, x: Tensor, residual: Tensor, numerics: Numerics) -> Tensor:
        """residual + product, rounded to `act`: x [R, n], residual ACT [R, m].

        The product is not rounded to `act` before the sum; the library adds before it rounds at all.

        Clauses: DRAFT-009, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
        """
        if self.native:
            from dflash_accelerated.ops.linear import native

            return native.multiply(self.native, x, numerics.act, residual)
        if not self.packed:
            branch = self(x)
            return numerics.activation(residual.to(branch.dtype) + branch)
        more = filled_up(x.shape[0]) - x.shape[0]
        if more:
            x, residual = _with_zeros(x, more), _with_zeros(residual, more)
        made: Tensor = MULTIPLY_AND_ADD(x, residual, self._weight, None, "add")
        return made[:-more] if more else made


def filled_up(rows: int) -> int:
    """How many rows the library multiplies instead of `rows`: one of FEW_ROWS, or a multiple of 64."""
    return FILLED[rows] if rows < len(FILLED) else -(-rows // MANY_ROWS) * MANY_ROWS


def row_counts(most: int) -> list[int]:
    """All that `filled_up` gives for 1 to `most` rows."""
    few = [count for count in FEW_ROWS if count < filled_up(most)]
    return [*few, *range(FEW_ROWS[-1] + MANY_ROWS, filled_up(most), MANY_ROWS), filled_up(most)]


def _with_zeros(x: Tensor, more: int) -> Tensor:
    """The same rows, and so many of zeros after them."""
    return torch.nn.functional.pad(x, (0, 0, 0, more))


def _library_multiplies(weight: Tensor) -> bool:
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
