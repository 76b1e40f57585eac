"""Queries, keys and values of a layer's rows in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.context_kv import keys
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import rms_norm
from dflash_accelerated.ops.rope import Tables, rotate


class Projections(NamedTuple):
    """n [R, H]; queries [R, QH, D]; keys and values [R, KV, D]; all ACT."""

    n: Tensor
    q_raw: Tensor
    k_raw: Tensor
    q_normed: Tensor
    k_normed: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


def project(x: Tensor, layer: LayerWeights, turn: Tables, eps: float, numerics: Numerics) -> Projections:
    """Queries, keys and values of rows x ACT [R, H] at the positions of `turn`.

    Clauses: DRAFT-002 to DRAFT-006, DRAFT-012, TGT-006. Source: NInfer docs/maintainer/dflash.md; Infernix
    src/models/qwen3_5/execution/draft.cpp (version 1 route).
    """
    head_dim = layer.q_norm.shape[0]
    n = rms_norm(x, layer.input_norm, eps, numerics)
    q_raw = numerics.activation(linear(n, layer.q_proj)).view(x.shape[0], -1, head_dim)
    q_normed = rms_norm(q_raw, layer.q_norm, eps, numerics)
    k_raw, k_normed, k = keys(n, layer.k_proj, layer.k_norm, turn, eps, numerics)
    v = numerics.activation(linear(n, layer.v_proj)).view(x.shape[0], -1, head_dim)
    return Projections(n, q_raw, k_raw, q_normed, k_normed, rotate(q_normed, turn, numerics), k, v)
