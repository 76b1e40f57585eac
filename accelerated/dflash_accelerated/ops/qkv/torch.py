"""Queries, keys and values of a layer's rows in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.norm_rope import norm_rope
from dflash_accelerated.ops.rms_norm import rms_norm
from dflash_accelerated.ops.rope import Tables


class Prepared(NamedTuple):
    """Queries [R, QH, D], keys and values [R, KV, D] of rows, and queries and keys as they were projected; all ACT."""

    q_raw: Tensor
    k_raw: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


class Projections(NamedTuple):
    """The rows' norm n ACT [R, H], and what `Prepared` has of it."""

    n: Tensor
    q_raw: Tensor
    k_raw: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


def project(x: Tensor, layer: LayerWeights, turn: Tables, eps: float, numerics: Numerics) -> Projections:
    """Queries, keys and values of rows x ACT [R, H] at the positions of `turn`.

    Clauses: DRAFT-002 to DRAFT-006, DRAFT-012, TGT-006. Source: NInfer docs/maintainer/dflash.md; Infernix
    src/models/qwen3_5/execution/draft.cpp (version 1 route).
    """
    n = rms_norm(x, layer.input_norm, eps, numerics)
    return Projections(n, *_heads(n, layer, turn, eps, True, numerics))


def project_prepared(prepared: Tensor, layer: LayerWeights, turn: Tables, eps: float, numerics: Numerics) -> Prepared:
    """Queries, keys and values of DFlash2's prepared rows ACT [R, H] at the positions of `turn`.

    The rows are not normed again. Profile axis `dflash2_keys`: `fused` rounds after the projection and after RoPE,
    `staged` after the head norm too.

    Clauses: DRAFT-003 to DRAFT-006, DRAFT-015, DRAFT-016. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/rmsnorm_rope.h; dflash 0.1.0 Qwen3DFlashDecoderLayer.
    """
    return _heads(prepared, layer, turn, eps, prepared_staged(numerics), numerics)


def prepared_staged(numerics: Numerics) -> bool:
    """Whether DFlash2's heads are rounded between norm and RoPE too."""
    return bool(numerics.profile.axes["dflash2_keys"] == "staged")


def _heads(n: Tensor, layer: LayerWeights, turn: Tables, eps: float, staged: bool, numerics: Numerics) -> Prepared:
    """One product, and one norm and rotation of queries and keys together."""
    turning, head_dim = layer.head_norm.shape
    raw = numerics.activation(layer.qkv(n)).view(n.shape[0], -1, head_dim)
    placed = norm_rope(raw[:, :turning], layer.head_norm, turn, eps, staged, numerics)
    queries = 2 * turning - raw.shape[1]  # of QH + KV heads that turn, and QH + 2 KV in all
    q_raw, k_raw, v = raw[:, :queries], raw[:, queries:turning], raw[:, turning:]
    return Prepared(q_raw, k_raw, placed[:, :queries], placed[:, queries:], v)
