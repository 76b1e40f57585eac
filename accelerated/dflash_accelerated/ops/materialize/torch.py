"""DFlash2's context keys and values in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import normed, rms_norm
from dflash_accelerated.ops.rope import Tables, rotate, turned


class ContextWeights(NamedTuple):
    """The context-role weights of L layers: projections [L · KV · D, H], layer by layer; k_norm [L, D]."""

    k_proj: Tensor
    v_proj: Tensor
    k_norm: Tensor


def keys(c: Tensor, weights: ContextWeights, turn: Tables, eps: float, numerics: Numerics) -> Tensor:
    """Keys ACT [T, L, KV, D] of context rows c ACT [T, H] at the positions of `turn`.

    Profile axis `dflash2_keys`: `fused` rounds once, at the end; `staged` rounds raw and normed keys too, as DFlash.

    Clauses: CTX-005, CTX-006, CTX-011, CTX-015. Source: Infernix include/infernix/ops/context_kv_materialize.h; dflash
    0.1.0 Qwen3DFlashAttention.forward.
    """
    raw = _heads(linear(c, weights.k_proj), weights)
    norm = weights.k_norm[:, None]
    if numerics.profile.axes["dflash2_keys"] == "fused":
        return numerics.activation(turned(normed(raw, norm, eps).flatten(1, 2), turn)).view(raw.shape)
    return rotate(rms_norm(numerics.activation(raw), norm, eps, numerics).flatten(1, 2), turn, numerics).view(raw.shape)


def values(c: Tensor, weights: ContextWeights, numerics: Numerics) -> Tensor:
    """Values [T, L, KV, D] of context rows c ACT [T, H], as they are stored.

    Clauses: CTX-007, CTX-008, CTX-015. Source: Infernix include/infernix/ops/context_kv_materialize.h.
    """
    raw = numerics.activation(linear(c, weights.v_proj))
    return _heads(numerics.stored_value(raw), weights)


def _heads(rows: Tensor, weights: ContextWeights) -> Tensor:
    layers, head_dim = weights.k_norm.shape
    return rows.view(rows.shape[0], layers, rows.shape[1] // (layers * head_dim), head_dim)
