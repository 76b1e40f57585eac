"""Queries, keys and values of a layer's rows in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.context_kv import keys
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import normed, rms_norm
from dflash_accelerated.ops.rope import Tables, rotate, turned


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


class Prepared(NamedTuple):
    """Queries [R, QH, D], keys and values [R, KV, D] of rows that are prepared already; all ACT."""

    q_raw: Tensor
    k_raw: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


def project_prepared(prepared: Tensor, layer: LayerWeights, turn: Tables, eps: float, numerics: Numerics) -> Prepared:
    """Queries, keys and values of DFlash2's prepared rows ACT [R, H] at the positions of `turn`.

    The rows are not normed again. Profile axis `dflash2_keys`: `fused` rounds after the projection and after RoPE,
    `staged` after the head norm too.

    Clauses: DRAFT-003 to DRAFT-006, DRAFT-015, DRAFT-016. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/rmsnorm_rope.h; dflash 0.1.0 Qwen3DFlashDecoderLayer.
    """

    def heads(weight: Tensor) -> Tensor:
        return numerics.activation(linear(prepared, weight)).view(prepared.shape[0], -1, layer.q_norm.shape[0])

    def placed(raw: Tensor, norm: Tensor) -> Tensor:
        if numerics.profile.axes["dflash2_keys"] == "fused":
            return numerics.activation(turned(normed(raw, norm, eps), turn))
        return rotate(rms_norm(raw, norm, eps, numerics), turn, numerics)

    q_raw, k_raw, v = heads(layer.q_proj), heads(layer.k_proj), heads(layer.v_proj)
    return Prepared(q_raw, k_raw, placed(q_raw, layer.q_norm), placed(k_raw, layer.k_norm), v)
