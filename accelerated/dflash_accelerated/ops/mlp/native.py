"""SwiGLU's product in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels
from dflash_accelerated.numerics import Numerics


def gated(gate_up: Tensor, numerics: Numerics) -> Tensor:
    """As the torch function: SiLU(gate) · up of rows [R, 2 I] in the compute dtype, ACT [R, I]."""
    gate_up = gate_up.contiguous()
    rows, both = gate_up.shape
    out = empty((rows, both // 2), numerics.act)
    codes = CODES[gate_up.dtype], CODES[numerics.act]
    kernels().gated(gate_up.data_ptr(), out.data_ptr(), rows, both // 2, *codes, torch.get_num_threads())
    return out
