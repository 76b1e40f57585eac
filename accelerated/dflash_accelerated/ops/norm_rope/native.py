"""Head norm and RoPE in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rope import Tables


def norm_rope(raw: Tensor, norm: Tensor, turn: Tables, eps: float, staged: bool, numerics: Numerics) -> Tensor:
    """As the torch function: heads raw [R, N, D] normed and turned, ACT [R, N, D]."""
    raw, norm, cos, sin = rows_of(raw), norm.contiguous(), turn.cos.contiguous(), turn.sin.contiguous()
    rows, heads, dim = raw.shape
    out = empty((rows, heads, dim), numerics.act)
    kernels().norm_rope(
        raw.data_ptr(), norm.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr(),
        rows, heads, dim, raw.stride(0), norm.numel() // dim,
        CODES[raw.dtype], CODES[norm.dtype], CODES[numerics.act], staged, eps, torch.get_num_threads(),
    )  # fmt: skip
    return out
