"""Output projection, SwiGLU and residual sums in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.rms_norm import rms_norm


class Mlp(NamedTuple):
    """m [R, H], product [R, I] and the layer's output x_next [R, H]; all ACT."""

    m: Tensor
    product: Tensor
    x_next: Tensor


def attention_output(attended: Tensor, o_proj: Product, x: Tensor, numerics: Numerics) -> Tensor:
    """x + o_proj · attended: attended ACT [R, QH·D], x ACT [R, H] as it entered the layer.

    The product itself is not rounded to `act` before the sum.

    Clauses: DRAFT-009, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
    """
    return o_proj.plus(attended, x, numerics)


def mlp(y: Tensor, layer: LayerWeights, eps: float, numerics: Numerics) -> Mlp:
    """y + down(SiLU(gate m) · up m), m the post-attention norm of y ACT [R, H].

    Only the SwiGLU product and the sum are rounded to `act`.

    Clauses: DRAFT-002, DRAFT-010, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
    """
    m = rms_norm(y, layer.post_norm, eps, numerics)
    product = swiglu(m, layer.gate_up, numerics)
    return Mlp(m, product, layer.down_proj.plus(product, y, numerics))


def swiglu(m: Tensor, gate_up: Product, numerics: Numerics) -> Tensor:
    """SiLU(gate m) · up m of rows m ACT [R, H] that are normed or prepared: ACT [R, I].

    Clauses: DRAFT-010, DRAFT-016. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 Qwen3DFlashDecoderLayer.
    """
    return gated(gate_up(m), numerics)


@dispatched("native", "triton")
def gated(gate_up: Tensor, numerics: Numerics) -> Tensor:
    """SiLU(gate) · up of rows [R, 2 I] in the compute dtype: ACT [R, I].

    Clause: DRAFT-010. Source: NInfer docs/maintainer/dflash.md.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return numerics.activation(_silu(gate) * up)


def _silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)) in FP32, rounded to x's dtype.

    PyTorch's own rounds a tensor's last few elements otherwise than the rest, so that a row's values would depend on
    how many rows follow it.
    """
    wide = x.to(torch.float32)
    return (wide / (1.0 + torch.exp(-wide))).to(x.dtype)
