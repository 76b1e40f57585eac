"""Context rows in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.rms_norm import rms_norm


class Feature(NamedTuple):
    """The projection of the taps and the common context row, each ACT [T, H]."""

    projected: Tensor
    c: Tensor


def feature(features: Tensor, fc: Product, hidden_norm: Tensor, eps: float, numerics: Numerics) -> Feature:
    """c = norm(fc · s): features ACT [T, n·H], fc [H, n·H], hidden_norm [H].

    Clauses: CTX-001, CTX-002, CTX-003. Source: Infernix src/models/qwen3_5/execution/draft.cpp; dflash 0.1.0
    DFlashDraftModel.forward.
    """
    projected = numerics.activation(fc(features))
    return Feature(projected, rms_norm(projected, hidden_norm, eps, numerics))
