"""RMS norm in Triton: several short rows, or one long one, in a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.rounding.triton import narrow, rounded, widen

TILE = 2048
"""Elements of a program's rows, unless one row is longer."""


@triton.jit
def reciprocal_root(squares, N: tl.constexpr, eps):
    """1 / sqrt(mean + eps) from a row's sum of N squares, FP32; each operation rounded once."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, N * 1.0) + eps))


@triton.jit
def weighted(x, root, weight, dtype: tl.constexpr):
    """The FP32 quotient x · root cast to `dtype`, times `weight` in `dtype`; widened."""
    return rounded(rounded(x * root, dtype) * weight, dtype)


@triton.jit
def _rms_norm(
    x, weight, out, rows, x_row, x_head, weight_row, eps,
    HEADS: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS rows of N; row i of the result is head i mod HEADS of row i div HEADS of x."""
    HELD: tl.constexpr = weight.dtype.element_ty
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    channel = tl.arange(0, BLOCK)[None, :]
    live = (row < rows) & (channel < N)
    wide = widen(tl.load(x + row // HEADS * x_row + row % HEADS * x_head + channel, mask=live, other=0))
    scale = widen(tl.load(weight + row % HEADS * weight_row + channel, mask=live, other=0))
    root = reciprocal_root(tl.sum(wide * wide, axis=1, keep_dims=True), N, eps)
    tl.store(out + row * N + channel, narrow(weighted(wide, root, scale, HELD), out.dtype.element_ty), mask=live)


def rms_norm(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """weight · x / sqrt(mean(x²) + eps), the mean over the last axis: x [..., n], result ACT [..., n].

    `weight` is [n], or what broadcasts to x; nothing is copied for [N, n] where x is [R, N, n]. The quotient is FP32
    and cast to the weight's dtype, which the product is rounded to.

    Clauses: DRAFT-002, DRAFT-003, CTX-002. Source: NInfer docs/maintainer/dflash.md (plain_rmsnorm); transformers
    5.24.0 Qwen3RMSNorm.
    """
    return _run(x, weight, eps, numerics.act)


def normed(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """The same, not rounded to `act`: in the weight's dtype.

    Clauses: CONV-007, CTX-011, DRAFT-015. Source: Infernix include/infernix/ops/dynamic_grouped_conv.h,
    context_kv_materialize.h, rmsnorm_rope.h.
    """
    return _run(x, weight, eps, weight.dtype)


def _run(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    n = x.shape[-1]
    headed = x if x.dim() == 3 else x.reshape(-1, 1, n)
    if weight.dim() > 1 and weight.shape != headed.shape[1:]:
        headed, weight = x.reshape(1, -1, n), weight.expand(x.shape).reshape(-1, n)
    headed = headed if headed.stride(-1) == 1 else headed.contiguous()
    held = weight.contiguous()
    out, rows, heads = x.new_empty(x.shape, dtype=dtype), headed.shape[0] * headed.shape[1], headed.shape[1]
    block = triton.next_power_of_2(n)
    tall = min(triton.next_power_of_2(max(1, rows)), max(1, TILE // block))
    if rows:
        _rms_norm[(triton.cdiv(rows, tall),)](
            headed, held, out, rows, headed.stride(0), headed.stride(1), n if held.dim() == 2 else 0, eps,
            HEADS=heads, N=n, ROWS=tall, BLOCK=block, **OPTIONS,
        )  # fmt: skip
    return out
