"""The layer that drafts and Qwen3 targets share; they differ in what its attention reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import mlp, qkv, rope

State = TypeVar("State")
Attend = Callable[[State, Tensor, Tensor, Tensor], Tensor]
"""From what a sequence keeps and its rows' query [R, QH, D], key and value [R, KV, D], all ACT, to ACT [R, QH·D]."""


def decoder_layer(
    x: Tensor,
    weights: LayerWeights,
    turn: rope.Tables,
    states: Sequence[State],
    counts: list[int],
    attend: Attend[State],
    eps: float,
    numerics: Numerics,
) -> Tensor:
    """Rows x ACT [R, H] after one layer. `counts` says how many rows belong to each sequence.

    Clause: TGT-006. Source: transformers 5.24.0 Qwen3DecoderLayer; NInfer docs/maintainer/dflash.md.
    """
    heads = qkv.project(x, weights, turn, eps, numerics)
    attended = attend_all(states, heads.q, heads.k, heads.v, counts, attend)
    y = mlp.attention_output(attended, weights.o_proj, x, numerics)
    return mlp.mlp(y, weights, eps, numerics).x_next


def attend_all(
    states: Sequence[State], q: Tensor, k: Tensor, v: Tensor, counts: list[int], attend: Attend[State]
) -> Tensor:
    """Each sequence's own rows attend on their own: ACT [R, QH·D]."""
    own = (torch.split(part, counts) for part in (q, k, v))
    return torch.cat([attend(*each) for each in zip(states, *own, strict=True)])
