"""Output projection, SwiGLU and residual sums in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import rms_norm


class Mlp(NamedTuple):
    """m [R, H], product [R, I] and the layer's output x_next [R, H]; all ACT."""

    m: Tensor
    product: Tensor
    x_next: Tensor


def attention_output(attended: Tensor, o_proj: Tensor, x: Tensor, numerics: Numerics) -> Tensor:
    """x + o_proj · attended: attended ACT [R, QH·D], o_proj [H, QH·D], x ACT [R, H] as it entered the layer.

    The product itself is not rounded to `act` before the sum.

    Clauses: DRAFT-009, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
    """
    branch = linear(attended, o_proj)
    return numerics.activation(x.to(branch.dtype) + branch)


def mlp(y: Tensor, layer: LayerWeights, eps: float, numerics: Numerics) -> Mlp:
    """y + down(SiLU(gate m) · up m), m the post-attention norm of y ACT [R, H].

    Only the SwiGLU product and the sum are rounded to `act`.

    Clauses: DRAFT-002, DRAFT-010, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
    """
    m = rms_norm(y, layer.post_norm, eps, numerics)
    product = swiglu(m, layer.gate_proj, layer.up_proj, numerics)
    branch = linear(product, layer.down_proj)
    return Mlp(m, product, numerics.activation(y.to(branch.dtype) + branch))


def swiglu(m: Tensor, gate_proj: Tensor, up_proj: Tensor, numerics: Numerics) -> Tensor:
    """SiLU(gate m) · up m of rows m ACT [R, H] that are normed or prepared: ACT [R, I].

    Clauses: DRAFT-010, DRAFT-016. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 Qwen3DFlashDecoderLayer.
    """
    gate = linear(m, gate_proj)
    return numerics.activation(_silu(gate) * linear(m, up_proj))


def _silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)) in FP32, rounded to x's dtype.

    PyTorch's own rounds a tensor's last few elements otherwise than the rest, so that a row's values would depend on
    how many rows follow it.
    """
    wide = x.to(torch.float32)
    return (wide / (1.0 + torch.exp(-wide))).to(x.dtype)
