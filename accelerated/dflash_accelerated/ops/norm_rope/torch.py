"""Head norm and RoPE in PyTorch."""

from __future__ import annotations

from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.rms_norm import normed, rms_norm
from dflash_accelerated.ops.rope import Tables, rotate, turned


@dispatched("native", "triton")
def norm_rope(raw: Tensor, norm: Tensor, turn: Tables, eps: float, staged: bool, numerics: Numerics) -> Tensor:
    """Heads raw [R, N, D] after their norm, turned to the R positions of `turn`: ACT [R, N, D].

    `norm` [D], or [N, D] where each head has its own. Where the stages are rounded (`staged`), the normed heads are
    rounded to `act` before they are turned; else only the end is.

    Clauses: CTX-005, CTX-006, CTX-011, DRAFT-003 to DRAFT-005, DRAFT-012, DRAFT-015. Source: NInfer
    docs/maintainer/dflash.md; Infernix include/infernix/ops/rmsnorm_rope.h; dflash 0.1.0 Qwen3DFlashAttention.forward.
    """
    if staged:
        return rotate(rms_norm(raw, norm, eps, numerics), turn, numerics)
    return numerics.activation(turned(normed(raw, norm, eps, numerics), turn))
