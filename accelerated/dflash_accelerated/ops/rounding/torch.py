"""Rounding in PyTorch.

PyTorch converts float64 to BF16 or FP16 through FP32, which rounds twice. Here the detour rounds to odd: the FP32 (or
float64) neighbour with an odd last bit stands for "inexact", and a format at least two bits shorter then rounds as from
the exact value (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 2008).
"""

from __future__ import annotations

import torch
from torch import Tensor


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` rounded to `dtype` once, to nearest, ties to even. Any shape; FP16, BF16, FP32 or float64 in.

    Clauses: NUM-001 to NUM-005. Source: IEEE 754-2019 4.3.1.
    """
    if x.dtype == dtype:
        return x
    if x.dtype == torch.float64 and dtype in (torch.bfloat16, torch.float16):
        x = _odd_float32(x)
    return x.to(dtype)


def round_sum(high: Tensor, low: Tensor, dtype: torch.dtype) -> Tensor:
    """The exact sum of two FP32 tensors of one shape, rounded to `dtype` once.

    Clauses: NUM-001 to NUM-005. Source: IEEE 754-2019 4.3.1.
    """
    a, b = high.to(torch.float64), low.to(torch.float64)
    total = a + b
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    inexact = (error != 0) & torch.isfinite(error)
    return narrow(_make_odd(total, torch.int64, inexact, (error > 0) == (total > 0)), dtype)


def _odd_float32(x: Tensor) -> Tensor:
    nearest = x.to(torch.float32)
    back = nearest.to(torch.float64)
    inexact = (back != x) & ~torch.isnan(x)
    return _make_odd(nearest, torch.int32, inexact, x.abs() > back.abs())


def _make_odd(nearest: Tensor, bits_dtype: torch.dtype, inexact: Tensor, outward: Tensor) -> Tensor:
    """`nearest`, or where it is inexact and even, its neighbour on the exact value's side.

    Adding 1 to a float's bits moves it one step away from zero, whatever its sign.
    """
    bits = nearest.view(bits_dtype)
    step = torch.where(outward, 1, -1).to(bits_dtype)
    move = inexact & ((bits & 1) == 0)
    return torch.where(move, bits + step, bits).view(nearest.dtype)
