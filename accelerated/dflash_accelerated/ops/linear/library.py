"""The matrix product of PyTorch's matrix library (oneDNN), with weights in its own layout."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

MULTIPLY = torch.ops.mkldnn._linear_pointwise.default
MULTIPLY_AND_ADD = torch.ops.mkldnn._linear_pointwise.binary
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128), 64
FILLED = tuple(next(count for count in FEW_ROWS if count >= rows) for rows in range(FEW_ROWS[-1] + 1))
KERNEL_BYTES = 600 << 10
"""What the library keeps for each shape and number of rows that it has multiplied (PyTorch 2.13): a thousand of them
would be as large as a model, so that rows are filled up to few numbers."""
ROWS_LAID_OUT_FOR = 16
"""A block's rows. The layout that the library picks for them serves 1 to 128 rows equally well."""


class LibraryWeight:
    """A BF16 weight [m, n] that only the library can read."""

    def __init__(self, weight: Tensor) -> None:
        self.held_bytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_LAID_OUT_FOR)

    @property
    def dense(self) -> Tensor:
        made: Tensor = self._weight.to_dense()
        return made

    def make_ready(self, counts: Collection[int], adds: bool) -> int:
        """Have the library make its kernels for so many rows: how many it has then."""
        outputs, inputs = self._weight.shape
        for count in counts:
            rows = torch.zeros(count, inputs, dtype=torch.bfloat16, device="cpu")
            if adds:
                MULTIPLY_AND_ADD(rows, rows.new_zeros(count, outputs), self._weight, None, "add")
            else:
                MULTIPLY(rows, self._weight, None, "none", [], "")
        return len(counts)

    def multiply(self, x: Tensor) -> Tensor:
        more = filled_up(x.shape[0]) - x.shape[0]
        made: Tensor = MULTIPLY(_with_zeros(x, more) if more else x, self._weight, None, "none", [], "")
        return made[:-more] if more else made

    def multiply_and_add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The library adds before it rounds at all."""
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


def multiplies(weight: Tensor) -> bool:
    """Whether the library multiplies this weight itself."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _with_zeros(x: Tensor, more: int) -> Tensor:
    """The same rows, and so many of zeros after them."""
    return torch.nn.functional.pad(x, (0, 0, 0, more))
