"""Head norm and RoPE in Triton: a head is read once and written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.rms_norm.triton import reciprocal_root, weighted
from dflash_accelerated.ops.rope import Tables
from dflash_accelerated.ops.rounding.triton import narrow, rounded, widen

TILE = 1024
"""Pairs of channels that a program turns."""


@triton.jit
def normed_turned(
    first, second, norm_first, norm_second, cos, sin, eps,
    D: tl.constexpr, STAGED: tl.constexpr, ACT: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The halves [rows, D/2] of heads after their norm, turned; all FP32, rounded as tensors of COMPUTE would be."""
    squares = tl.sum(first * first, axis=1, keep_dims=True) + tl.sum(second * second, axis=1, keep_dims=True)
    root = reciprocal_root(squares, D, eps)
    first, second = weighted(first, root, norm_first, COMPUTE), weighted(second, root, norm_second, COMPUTE)
    if STAGED:
        first, second = rounded(first, ACT), rounded(second, ACT)
    turned_first = rounded(first * cos, COMPUTE) - rounded(second * sin, COMPUTE)
    turned_second = rounded(second * cos, COMPUTE) + rounded(first * sin, COMPUTE)
    return rounded(turned_first, COMPUTE), rounded(turned_second, COMPUTE)


@triton.jit
def _norm_rope(
    raw, norm, cos, sin, out, heads, raw_row, raw_head, norm_head, eps,
    HEADS: tl.constexpr, D: tl.constexpr, STAGED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of all `heads` heads: head i of the result is head i mod HEADS of row i div HEADS."""
    ACT: tl.constexpr = out.dtype.element_ty
    COMPUTE: tl.constexpr = norm.dtype.element_ty
    HALF: tl.constexpr = D // 2
    head = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    pair = tl.arange(0, BLOCK)[None, :]
    live = (head < heads) & (pair < HALF)
    source = raw + head // HEADS * raw_row + head % HEADS * raw_head + pair
    scale = norm + head % HEADS * norm_head + pair
    angle = head // HEADS * HALF + pair
    first, second = normed_turned(
        widen(tl.load(source, mask=live, other=0)),
        widen(tl.load(source + HALF, mask=live, other=0)),
        widen(tl.load(scale, mask=live, other=0)),
        widen(tl.load(scale + HALF, mask=live, other=0)),
        widen(tl.load(cos + angle, mask=live, other=0)),
        widen(tl.load(sin + angle, mask=live, other=0)),
        eps, D, STAGED, ACT, COMPUTE,
    )  # fmt: skip
    tl.store(out + head * D + pair, narrow(first, ACT), mask=live)
    tl.store(out + head * D + HALF + pair, narrow(second, ACT), mask=live)


def norm_rope(raw: Tensor, norm: Tensor, turn: Tables, eps: float, staged: bool, numerics: Numerics) -> Tensor:
    """Heads raw [R, N, D] after their norm, turned to the R positions of `turn`: ACT [R, N, D].

    `raw` in ACT or the compute dtype; `norm` [D], or [N, D] where each head has its own. Where the stages are rounded
    (`staged`), the normed heads are rounded to `act` before they are turned; else only the end is.

    Clauses: CTX-005, CTX-006, CTX-011, DRAFT-003 to DRAFT-005, DRAFT-012, DRAFT-015. Source: NInfer
    docs/maintainer/dflash.md; Infernix include/infernix/ops/rmsnorm_rope.h; dflash 0.1.0 Qwen3DFlashAttention.forward.
    """
    rows, heads, dim = raw.shape
    raw = raw if raw.stride(-1) == 1 else raw.contiguous()
    held, out = norm.contiguous(), raw.new_empty(raw.shape, dtype=numerics.act)
    block = triton.next_power_of_2(dim // 2)
    tall = min(triton.next_power_of_2(max(1, rows * heads)), max(1, TILE // block))
    if rows:
        _norm_rope[(triton.cdiv(rows * heads, tall),)](
            raw, held, turn.cos.contiguous(), turn.sin.contiguous(), out, rows * heads, raw.stride(0), raw.stride(1),
            dim if held.dim() == 2 else 0, eps,
            HEADS=heads, D=dim, STAGED=staged, ROWS=tall, BLOCK=block, **OPTIONS,
        )  # fmt: skip
    return out
