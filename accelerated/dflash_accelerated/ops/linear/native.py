"""The matrix product in C, with weights packed for it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

from dflash_accelerated.native import CODES, Packed, empty, kernels

HELD = (torch.float32, torch.bfloat16)


class PackedWeight:
    """A weight [m, n], FP32 or BF16, in the layout of products.h."""

    def __init__(self, weight: Tensor, act: torch.dtype) -> None:
        """`act` is the dtype of sums with a residual."""
        if weight.dtype not in HELD:
            raise TensorError(f"product: a weight of dtype {weight.dtype}, expected one of {HELD}")
        weight, code = weight.contiguous(), CODES[weight.dtype]
        self.dtype, self._act = weight.dtype, act
        self._bytes = empty(kernels().packed_bytes(*weight.shape, code), torch.uint8)
        self.reference = Packed(self._bytes.data_ptr(), *weight.shape, code)
        """What kernels are given; the weight must outlive it."""
        self._move(weight, back=False)

    @property
    def held_bytes(self) -> int:
        return self._bytes.nbytes

    @property
    def dense(self) -> Tensor:
        made = empty((self.reference.outputs, self.reference.inputs), self.dtype)
        self._move(made, back=True)
        return made

    def _move(self, weight: Tensor, back: bool) -> None:
        kernels().pack(
            weight.data_ptr(), self._bytes.data_ptr(), *weight.shape, CODES[self.dtype], back, torch.get_num_threads()
        )

    def multiply(self, x: Tensor) -> Tensor:
        return multiply(self.reference, x, self.dtype)

    def multiply_and_add(self, x: Tensor, residual: Tensor) -> Tensor:
        return multiply(self.reference, x, self._act, residual)


def multiply(held: Packed, x: Tensor, dtype: torch.dtype, residual: Tensor | None = None) -> Tensor:
    """(residual +) x · weightᵀ, rounded once to `dtype`: x [R, n], residual [R, m], result [R, m].

    Raises TensorError for other shapes.
    """
    if x.ndim != 2 or x.shape[1] != held.inputs:
        raise TensorError(f"product: rows of shape {tuple(x.shape)}, expected [R, {held.inputs}]")
    made = empty((x.shape[0], held.outputs), dtype)
    if residual is not None:
        if residual.shape != made.shape:
            raise TensorError(f"product: a residual {tuple(residual.shape)}, expected {tuple(made.shape)}")
        residual = residual.contiguous()
    x = x.contiguous()
    kernels().product(
        ctypes.byref(held), x.data_ptr(), CODES[x.dtype], x.shape[0],
        None if residual is None else residual.data_ptr(), CODES[dtype if residual is None else residual.dtype],
        made.data_ptr(), CODES[dtype], torch.get_num_threads(),
    )  # fmt: skip
    return made


class BareProducts:
    """Products with nothing between them, for measuring: what a step cannot go below."""

    def __init__(self, held: Sequence[tuple[Packed, int]]) -> None:
        """Each weight, and how many rows of `x` it multiplies into `out`: all from and to one place."""
        self._count = len(held)
        self._list = (Packed * len(held))(*(weight for weight, _ in held))
        self._rows = (ctypes.c_int64 * len(held))(*(rows for _, rows in held))
        widest = [max((rows * size(weight) for weight, rows in held), default=0) for size in (_inputs, _outputs)]
        numbers = torch.randn(2 * widest[0], dtype=torch.float32, device="cpu").bfloat16()
        self.x, self.out = numbers.view(torch.float32), empty(widest[1], torch.float32)
        """Rows of numbers in either dtype, the bits of two of BF16 being one of FP32; on zeros tiles are faster."""

    def __len__(self) -> int:
        return self._count

    def __call__(self) -> None:
        kernels().products(
            self._list, self._rows, self._count, self.x.data_ptr(), self.out.data_ptr(), torch.get_num_threads()
        )


def _inputs(weight: Packed) -> int:
    return int(weight.inputs)


def _outputs(weight: Packed) -> int:
    return int(weight.outputs)
