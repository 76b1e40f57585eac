"""The layer that drafts and Qwen3 targets share; they differ in what its attention reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.memory import KvCache
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import mlp, qkv, rope

Attend = Callable[[KvCache, Tensor, Tensor, Tensor], Tensor]
"""From a sequence's cache and its rows' query [R, QH, D], key and value [R, KV, D], all ACT, to ACT [R, QH·D]."""


def decoder_layer(
    x: Tensor,
    weights: LayerWeights,
    turn: rope.Tables,
    caches: Sequence[KvCache],
    counts: list[int],
    attend: Attend,
    eps: float,
    numerics: Numerics,
) -> Tensor:
    """Rows x ACT [R, H] after one layer. `counts` says how many rows belong to the sequence of each cache.

    Clause: TGT-006. Source: transformers 5.24.0 Qwen3DecoderLayer; NInfer docs/maintainer/dflash.md.
    """
    heads = qkv.project(x, weights, turn, eps, numerics)
    own = (torch.split(part, counts) for part in (heads.q, heads.k, heads.v))
    attended = torch.cat([attend(*each) for each in zip(caches, *own, strict=True)])
    y = mlp.attention_output(attended, weights.o_proj, x, numerics)
    return mlp.mlp(y, weights, eps, numerics).x_next
