"""The matrix product in C, with weights packed for it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, Packed, kernels


def pack(weight: Tensor) -> Tensor:
    """A weight [m, n] in the layout of products.h, as bytes."""
    weight = weight.contiguous()
    code = CODES[weight.dtype]
    made = torch.empty(kernels().packed_bytes(*weight.shape, code), dtype=torch.uint8)
    kernels().pack(weight.data_ptr(), made.data_ptr(), *weight.shape, code)
    return made


def reference(packed: Tensor, outputs: int, inputs: int, dtype: torch.dtype) -> Packed:
    """What kernels are given of a packed weight, which must outlive it."""
    return Packed(packed.data_ptr(), outputs, inputs, CODES[dtype])


def multiply(held: Packed, x: Tensor, dtype: torch.dtype, residual: Tensor | None = None) -> Tensor:
    """(residual +) x · weightᵀ, rounded once to `dtype`: x [R, n], residual [R, m], result [R, m]."""
    x = x.contiguous()
    if residual is not None:
        residual = residual.contiguous()
    made = torch.empty((x.shape[0], held.outputs), dtype=dtype)
    kernels().product(
        ctypes.byref(held), x.data_ptr(), CODES[x.dtype], x.shape[0],
        None if residual is None else residual.data_ptr(), CODES[dtype if residual is None else residual.dtype],
        made.data_ptr(), CODES[dtype], torch.get_num_threads(),
    )  # fmt: skip
    return made
