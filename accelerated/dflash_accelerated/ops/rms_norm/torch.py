"""RMS norm in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched


@dispatched("native", "triton")
def rms_norm(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """weight · x / sqrt(mean(x²) + eps), the mean over the last axis: x [..., n], weight [n], result ACT [..., n].

    Clauses: DRAFT-002, DRAFT-003, CTX-002. Source: NInfer docs/maintainer/dflash.md (plain_rmsnorm); transformers
    5.24.0 Qwen3RMSNorm.
    """
    return numerics.activation(normed(x, weight, eps, numerics))


@dispatched("native", "triton")
def normed(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """The same, not rounded to `act`: in the weight's dtype. `weight` [..., n] may differ along other axes too.

    The quotient is FP32; it is cast to the weight's dtype before the weight multiplies it, which only BF16 modules can
    tell from one rounding at the end.

    Clauses: CONV-007, CTX-011, DRAFT-015. Source: Infernix include/infernix/ops/dynamic_grouped_conv.h,
    context_kv_materialize.h, rmsnorm_rope.h.
    """
    wide = x.to(torch.float32)
    quotient = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return quotient.to(weight.dtype) * weight
