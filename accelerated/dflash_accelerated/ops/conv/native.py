"""The grouped dynamic convolution in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics


def convolve(
    z: Tensor, base: Tensor, delta: Tensor, slot: Tensor, residual: Tensor | None, numerics: Numerics
) -> Tensor:
    """As the torch function: (residual +) the sum over taps t of (base[t] + delta[:, t]) · z[row - t], ACT [R, H]."""
    z, base, delta, slot = z.contiguous(), base.contiguous(), rows_of(delta), slot.contiguous()
    if residual is not None:
        residual = residual.contiguous()
    (rows, channels), (_, taps, groups) = z.shape, delta.shape
    out = empty((rows, channels), numerics.act)
    kernels().convolve(
        z.data_ptr(), base.data_ptr(), delta.data_ptr(), slot.data_ptr(),
        None if residual is None else residual.data_ptr(), out.data_ptr(),
        rows, channels, taps, groups, delta.stride(0), CODES[z.dtype], CODES[numerics.act], torch.get_num_threads(),
    )  # fmt: skip
    return out
