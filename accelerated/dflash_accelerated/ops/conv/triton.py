"""The grouped dynamic convolution in Triton: all taps, the residual and the rounding in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.rounding.triton import narrow, rounded, widen

BLOCK = 1024


@triton.jit
def _convolve(
    z, base, delta, slot, residual, mixed, width, delta_row, delta_tap, delta_group,
    GROUP: tl.constexpr, TAPS: tl.constexpr, RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK channels of one row; each step is rounded to the compute dtype, as a tensor of it would be."""
    COMPUTE: tl.constexpr = z.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live, place = channel < width, tl.load(slot + row)
    increments = delta + row * delta_row + (channel // GROUP) * delta_group
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        before = widen(tl.load(z + (row - tap) * width + channel, mask=live & (place >= tap), other=0))
        fixed = widen(tl.load(base + tap * width + channel, mask=live, other=0))
        own = widen(tl.load(increments + tap * delta_tap, mask=live, other=0))
        term = rounded(rounded(fixed + own, COMPUTE) * before, COMPUTE)
        total = term if tap == 0 else rounded(total + term, COMPUTE)
    if RESIDUAL:
        total = rounded(widen(tl.load(residual + row * width + channel, mask=live, other=0)) + total, COMPUTE)
    tl.store(mixed + row * width + channel, narrow(total, mixed.dtype.element_ty), mask=live)


def convolve(
    z: Tensor, base: Tensor, delta: Tensor, slot: Tensor, residual: Tensor | None, numerics: Numerics
) -> Tensor:
    """The sum over taps t of (base[t] + delta[:, t]) · z[row - t], nothing before slot 0, and the residual: ACT [R, H].

    z [R, H], base [taps, H] and delta [R, taps, G] in the compute dtype: each increment serves H / G neighbouring
    channels. `slot` I64 [R] is a row's place in its block, `residual` ACT [R, H] or None.

    Clauses: CONV-003 to CONV-006, CONV-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/dynamic_grouped_conv.h; dflash 0.1.0 _grouped_dynamic_convolve.
    """
    (rows, width), (_, taps, groups) = z.shape, delta.shape
    z, base, mixed = z.contiguous(), base.contiguous(), z.new_empty(rows, width, dtype=numerics.act)
    added = mixed if residual is None else residual.contiguous()
    block = min(BLOCK, triton.next_power_of_2(width))
    if rows:
        _convolve[(rows, triton.cdiv(width, block))](
            z, base, delta, slot, added, mixed, width, *delta.stride(), GROUP=width // groups, TAPS=taps,
            RESIDUAL=residual is not None, BLOCK=block, **OPTIONS,
        )  # fmt: skip
    return mixed
