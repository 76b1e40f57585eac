"""SwiGLU's product in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.compiling import OPTIONS
from dflash_accelerated.ops.rounding.triton import narrow, rounded, widen

BLOCK = 1024


@triton.jit
def _gated(gate_up, product, width, gate_up_row, BLOCK: tl.constexpr):
    """BLOCK channels of one row.

    SiLU is x · s with s = exp(min(x, 0)) / (1 + exp(-|x|)), which overflows nowhere.
    """
    COMPUTE: tl.constexpr = gate_up.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = channel < width
    gate = widen(tl.load(gate_up + row * gate_up_row + channel, mask=live, other=0))
    up = widen(tl.load(gate_up + row * gate_up_row + width + channel, mask=live, other=0))
    small = tl.exp(-tl.abs(gate))
    silu = rounded(tl.div_rn(tl.where(gate < 0, gate * small, gate), 1.0 + small), COMPUTE)
    gated = narrow(rounded(silu * up, COMPUTE), product.dtype.element_ty)
    tl.store(product + row * width + channel, gated, mask=live)


def gated(gate_up: Tensor, numerics: Numerics) -> Tensor:
    """SiLU(gate) · up of rows [R, 2 I] in the compute dtype: ACT [R, I].

    SiLU is taken in FP32 and rounded to the compute dtype, as the product is.

    Clause: DRAFT-010. Source: NInfer docs/maintainer/dflash.md.
    """
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    gate_up = gate_up if gate_up.stride(1) == 1 else gate_up.contiguous()
    product = gate_up.new_empty(rows, width, dtype=numerics.act)
    block = min(BLOCK, triton.next_power_of_2(width))
    if rows:
        _gated[(rows, triton.cdiv(width, block))](
            gate_up, product, width, gate_up.stride(0), BLOCK=block, **OPTIONS
        )  # fmt: skip
    return product
