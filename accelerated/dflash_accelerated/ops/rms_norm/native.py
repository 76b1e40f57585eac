"""RMS norm in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels
from dflash_accelerated.numerics import Numerics


def rms_norm(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """As the torch function: x [..., n], weight [n] or what broadcasts to x, result ACT [..., n]."""
    return _run(x, weight, eps, numerics.act)


def normed(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """The same, not rounded to `act`: in the weight's dtype."""
    return _run(x, weight, eps, weight.dtype)


def _run(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    n = x.shape[-1]
    if weight.dim() > 2:
        weight = weight.expand(x.shape[x.dim() - weight.dim() :]).reshape(-1, n)
    x, weight = x.contiguous(), weight.contiguous()
    out = empty(x.shape, dtype)
    kernels().rms_norm(
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // n, n, weight.numel() // n,
        CODES[x.dtype], CODES[weight.dtype], CODES[dtype], eps, torch.get_num_threads(),
    )  # fmt: skip
    return out
