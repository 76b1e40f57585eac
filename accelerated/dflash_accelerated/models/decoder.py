"""The layer that drafts and Qwen3 targets share; they differ in what its attention reads."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import mlp, qkv, rope

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the rows' query [R, QH, D], key and value [R, KV, D], all ACT, to what they attend to, ACT [R, QH·D]."""


def decoder_layer(
    x: Tensor, weights: LayerWeights, turn: rope.Tables, attend: Attend, eps: float, numerics: Numerics
) -> Tensor:
    """Rows x ACT [R, H] after one layer.

    Clause: TGT-006. Source: transformers 5.24.0 Qwen3DecoderLayer; NInfer docs/maintainer/dflash.md.
    """
    heads = qkv.project(x, weights, turn, eps, numerics)
    y = mlp.attention_output(attend(heads.q, heads.k, heads.v), weights.o_proj, x, numerics)
    return mlp.mlp(y, weights, eps, numerics).x_next
