"""Context rows, keys and values in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import rms_norm
from dflash_accelerated.ops.rope import Tables, rotate


class Feature(NamedTuple):
    """The projection of the taps and the common context row, each ACT [T, H]."""

    projected: Tensor
    c: Tensor


class Keys(NamedTuple):
    """Raw, normed and rotated keys, each ACT [T, KV, D]."""

    raw: Tensor
    normed: Tensor
    key: Tensor


class Values(NamedTuple):
    """Raw values ACT [T, KV, D] and what is stored of them."""

    raw: Tensor
    value: Tensor


def feature(features: Tensor, fc: Tensor, hidden_norm: Tensor, eps: float, numerics: Numerics) -> Feature:
    """c = norm(fc · s): features ACT [T, n·H], fc [H, n·H], hidden_norm [H].

    Clauses: CTX-001, CTX-002, CTX-003. Source: Infernix src/models/qwen3_5/execution/draft.cpp; dflash 0.1.0
    DFlashDraftModel.forward.
    """
    projected = numerics.activation(linear(features, fc))
    return Feature(projected, rms_norm(projected, hidden_norm, eps, numerics))


def keys(c: Tensor, k_proj: Tensor, k_norm: Tensor, turn: Tables, eps: float, numerics: Numerics) -> Keys:
    """One layer's keys from context rows c ACT [T, H]; `turn` holds the rows' absolute positions.

    Also the keys of any rows that the layer has already normed: a block's or a target's.

    Clauses: CTX-004, CTX-005, CTX-006, DRAFT-006. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0
    Qwen3DFlashAttention.forward.
    """
    raw = _heads(numerics.activation(linear(c, k_proj)), k_norm.shape[0])
    normed = rms_norm(raw, k_norm, eps, numerics)
    return Keys(raw, normed, rotate(normed, turn, numerics))


def values(c: Tensor, v_proj: Tensor, kv_heads: int, numerics: Numerics) -> Values:
    """One layer's values from context rows c ACT [T, H]: neither normed nor rotated.

    Clauses: CTX-007, CTX-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/kv_cache_append.h.
    """
    raw = _heads(numerics.activation(linear(c, v_proj)), v_proj.shape[0] // kv_heads)
    return Values(raw, numerics.stored_value(raw))


def _heads(rows: Tensor, head_dim: int) -> Tensor:
    return rows.view(rows.shape[0], -1, head_dim)
