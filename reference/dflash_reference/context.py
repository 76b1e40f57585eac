"""Context: what the draft keeps of the tokens that the target has processed."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
from dflash_spec.config import DraftConfig
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import layer, num
from dflash_reference.models import Draft, Draft2, Layer
from dflash_reference.rows import Rows


class Feature(NamedTuple):
    """projected: [T, H] and c: [T, H], represented in ACT."""

    projected: Array
    c: Array


class Key(NamedTuple):
    """raw: [T, KV, D] and normed: [T, KV, D], represented in ACT; key: [T, KV, D], represented in CTX_K."""

    raw: Array
    normed: Array
    key: Array


class Value(NamedTuple):
    """raw: [T, KV, D], represented in ACT; value: [T, KV, D], represented in CTX_V."""

    raw: Array
    value: Array


def feature(features: Array, fc: Array, hidden_norm: Array, eps: float, profile: Profile) -> Feature:
    """The context row c of each position: project features [T, n·H] by fc [H, n·H], then norm by hidden_norm [H].

    Clause: CTX-001
    Source: NInfer docs/maintainer/dflash.md, conditioning; dflash 0.1.0 DFlashDraftModel.forward.
    """
    projected = represent_row(num.contract(features, fc), profile)
    return Feature(projected, represent_row(context_norm(projected, hidden_norm, eps), profile))


def represent_row(x: Array, profile: Profile) -> Array:
    """Round projections and context rows, [T, H], to ACT.

    Clause: CTX-003
    Source: Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return num.round_to(x, profile.dtypes["ACT"])


def context_norm(projected: Array, weight: Array, eps: float) -> Array:
    """projected [T, H] over its root mean square, times the learned weight [H] itself; not rounded.

    Clause: CTX-002
    Source: NInfer docs/maintainer/dflash.md, conditioning; dflash 0.1.0 DFlashDraftModel.
    """
    return layer.unit(projected, eps) * weight


def key(c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Profile) -> Key:
    """One layer's keys of the context rows c [T, H], normed and rotated as block keys are.

    Clause: CTX-005
    Source: NInfer docs/maintainer/dflash.md, conditioning; dflash 0.1.0 Qwen3DFlashAttention.forward.
    """
    raw = layer.represent(layer.split_heads(num.contract(c, k_proj), len(k_norm), "k_proj"), profile)
    at = rotation_positions(positions)
    normed, rotated = layer.norm_then_rope(raw, k_norm, at, theta, eps, profile)
    return Key(raw, normed, num.round_to(rotated, profile.dtypes["CTX_K"]))


def fused_key(
    c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Profile
) -> Array:
    """One DFlash2 layer's keys of the context rows c [T, H]: not rounded before they are stored, [T, KV, D].

    Clause: CTX-011
    Source: Infernix include/infernix/ops/context_kv_materialize.h.
    """
    raw = layer.split_heads(num.contract(c, k_proj), len(k_norm), "k_proj")
    rotated = layer.fused_norm_and_rope(raw, k_norm, rotation_positions(positions), theta, eps, profile)
    return num.round_to(rotated, profile.dtypes["CTX_K"])


def rotation_positions(positions: Array) -> Array:
    """Where a context key is rotated to: its token's absolute position in the sequence, [T] -> [T].

    Not its index in a window, and not its distance from a restored prefix.

    Clause: CTX-006
    Source: NInfer docs/maintainer/dflash.md, conditioning.
    """
    return positions


def value(c: Array, v_proj: Array, kv_heads: int, profile: Profile) -> Value:
    """One layer's values of the context rows c [T, H]: the projection alone, head by head.

    Clause: CTX-008
    Source: NInfer docs/maintainer/dflash.md, conditioning.
    """
    product = layer.split_heads(num.contract(c, v_proj), len(v_proj) // kv_heads, "v_proj")
    return Value(layer.represent(product, profile), stored_value(product, profile))


def stored_value(product: Array, profile: Profile) -> Array:
    """Round a value as the cache stores it, format after format in the profile's order, any shape.

    Clause: CTX-007
    Source: NInfer docs/maintainer/dflash.md, storage; Infernix include/infernix/ops/kv_cache_append.h.
    """
    for dtype in profile.context_value_rounding:
        product = num.round_to(product, dtype)
    return product


def layer_key(draft: Draft, c: Array, w: Layer, positions: Array, profile: Profile) -> Array:
    """The keys [T, KV, D] of context rows c [T, H] in the layer of weights w, rounded as the draft's kind asks."""
    given = c, w.k_proj, w.k_norm, positions, draft.config.theta, draft.config.eps, profile
    if isinstance(draft, Draft2) and profile.axes["dflash2_keys"] == "fused":
        return fused_key(*given)
    return key(*given).key


class Context:
    """The draft's context so far: per layer a key and a value of each row, and the rows' positions."""

    def __init__(self, config: DraftConfig) -> None:
        shape = (config.kv_heads, config.head_dim)
        self.keys = [Rows(*shape) for _ in range(config.layers)]
        self.values = [Rows(*shape) for _ in range(config.layers)]
        self.positions = Rows(dtype=np.int64)

    @property
    def length(self) -> int:
        return self.positions.length

    def copy(self) -> Context:
        """A context of the same rows, which shares nothing with this one."""
        other = copy.copy(self)
        other.keys, other.values = [rows.copy() for rows in self.keys], [rows.copy() for rows in self.values]
        other.positions = self.positions.copy()
        return other


def materialise(draft: Draft, context: Context, features: Array, positions: Array, profile: Profile) -> Array:
    """Append features [T, n·H] at positions [T] to the context, and return their common rows c [T, H].

    Every layer projects the same c, which no layer norms again. Raises TensorError if n·H is not what fc reads.

    Clause: CTX-004
    Source: NInfer docs/maintainer/dflash.md, conditioning; dflash 0.1.0 Qwen3DFlashAttention.forward.
    """
    config = draft.config
    if features.shape[1] != draft.fc.shape[1]:
        raise TensorError(f"features of {features.shape[1]} columns, expected {draft.fc.shape[1]}, the columns of fc")
    c = feature(features, draft.fc, draft.hidden_norm, config.eps, profile).c
    for w, keys, values in zip(draft.layers, context.keys, context.values, strict=True):
        keys.append(layer_key(draft, c, w, positions, profile))
        values.append(value(c, w.v_proj, config.kv_heads, profile).value)
    context.positions.append(positions)
    return c
