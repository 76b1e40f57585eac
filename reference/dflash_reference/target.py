"""The target: a Qwen3 dense decoder with a K/V cache, whose residuals can be tapped."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from dflash_spec.config import TargetConfig, read_target_config
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import layer, num, processing, tap
from dflash_reference.models import Layer, Target
from dflash_reference.rows import Rows


class Attention(NamedTuple):
    """attended: [R, QH·D], represented in ACT."""

    attended: Array


class Logits(NamedTuple):
    """hidden: [R, H], represented in ACT. logits: [R, V], represented in LOGIT."""

    hidden: Array
    logits: Array


class Forward(NamedTuple):
    """layer: the residual output [T, H] of each block. logits: [T, V]. features: [T, n·H]. tokens: [T] argmaxes."""

    layer: dict[str, Array]
    logits: Array
    features: Array
    tokens: Array


class Cache:
    """Keys and values of the rows that the target has consumed; row t is the token at position t."""

    def __init__(self, config: TargetConfig) -> None:
        shape = (config.kv_heads, config.head_dim)
        self.keys = [Rows(*shape) for _ in range(config.layers)]
        self.values = [Rows(*shape) for _ in range(config.layers)]

    @property
    def length(self) -> int:
        return self.keys[-1].length

    def copy(self) -> Cache:
        """A cache of the same rows, which shares nothing with this one."""
        other = copy.copy(self)
        other.keys, other.values = [rows.copy() for rows in self.keys], [rows.copy() for rows in self.values]
        return other

    def cut(self, length: int) -> None:
        """Forget every row from `length` on."""
        for rows in (*self.keys, *self.values):
            rows.cut(length)


def attention(
    q: Array, key: Array, value: Array, positions: Array, length: int, window: int, profile: Profile
) -> Attention:
    """Attention of rows q [R, QH, D] at positions [R] over the first `length` of key and value [C, KV, D].

    The appended rows are among the keys. Window 0 is a full layer; rows from `length` on are never read.
    Raises TensorError if length is outside 1 to C or a row has no key of its own.
    """
    if not 1 <= length <= len(key):
        raise TensorError(f"target.attention: length is {length}, expected 1 to {len(key)}, the rows given")
    if positions.min() < 0 or positions.max() >= length:
        raise TensorError(f"target.attention: positions {positions.tolist()}, expected 0 to {length - 1}")
    visible = up_to_itself(positions, length)
    if window:
        visible &= within(positions, length, window)
    return Attention(layer.attention(q, key[:length], value[:length], visible, profile))


def up_to_itself(positions: Array, length: int) -> Array:
    """Whether the key at position 0 to length - 1 lies at or before each row: positions [R] -> [R, length] bool.

    Clause: TGT-001
    Source: NInfer docs/maintainer/dflash.md, verification.
    """
    return np.arange(length) <= positions[:, np.newaxis]


def within(positions: Array, length: int, window: int) -> Array:
    """Whether each key is less than `window` positions before each row: positions [R] -> [R, length] bool.

    Clause: TGT-002
    Source: transformers 5.24.0 masking_utils.sliding_window_overlay.
    """
    return positions[:, np.newaxis] - np.arange(length) < window


def logits(x: Array, norm: Array, head: Array, eps: float, profile: Profile) -> Logits:
    """The final norm of the last residual rows x [R, H], and the head [V, H] applied to it.

    Clause: TGT-004
    Source: transformers 5.24.0 Qwen3ForCausalLM.
    """
    hidden = layer.represent(layer.rms_norm(x, norm, eps), profile)
    return Logits(hidden, num.round_to(num.contract(hidden, head), profile.dtypes["LOGIT"]))


def head(target: Target) -> Array:
    """The head [V, H]: lm_head.weight, or the embedding table where the config ties them.

    Clause: TGT-005
    Source: transformers 5.24.0 Qwen3Config.
    """
    return target.embedding if target.config.tied else target.weights["lm_head.weight"]


def stored(k: Array, v: Array, profile: Profile) -> tuple[Array, Array]:
    """Keys and values as the cache holds them: CTX_K, and the profile's value formats in order."""
    for dtype in profile.context_value_rounding:
        v = num.round_to(v, dtype)
    return num.round_to(k, profile.dtypes["CTX_K"]), v


def decoder_layer(
    w: Layer, x: Array, keys: Rows, values: Rows, positions: Array, window: int, config: TargetConfig, profile: Profile
) -> Array:
    """One block on rows x [R, H] at positions [R], which are appended to the block's cache: -> [R, H].

    It is the draft's layer, head norms and full-head RoPE included, with causal attention over the cache.

    Clause: TGT-006
    Source: transformers 5.24.0 Qwen3Attention.
    """
    heads = layer.qkv(
        x, w.input_norm, w.q_proj, w.k_proj, w.v_proj, w.q_norm, w.k_norm,
        positions, config.theta, config.eps, profile,
    )  # fmt: skip
    key, value = stored(heads.k, heads.v, profile)
    keys.append(key)
    values.append(value)
    attended = attention(heads.q, keys.view, values.view, positions, keys.length, window, profile).attended
    y = layer.output(attended, w.o_proj, x, profile).y
    return layer.mlp(y, w.post_norm, w.gate_proj, w.up_proj, w.down_proj, config.eps, profile).x_next


def extend(target: Target, cache: Cache, ids: Array, profile: Profile) -> Array:
    """Consume ids [T] at the positions that follow the cache's rows: the residual boundaries [layers + 1, T, H].

    Raises RequestError if an id has no embedding row.

    Clause: TGT-003
    Source: NInfer docs/maintainer/dflash.md, commit; transformers 5.24.0 Qwen3Model.forward.
    """
    config = target.config
    for slot, id_ in enumerate(ids):
        if not 0 <= id_ < config.vocab_size:
            raise RequestError(f"token {slot} of the input is {id_}, expected 0 to {config.vocab_size - 1}")
    positions = cache.length + np.arange(len(ids))
    residuals = [target.embedding[ids]]
    for w, keys, values, window in zip(target.layers, cache.keys, cache.values, config.windows, strict=True):
        residuals.append(decoder_layer(w, residuals[-1], keys, values, positions, window, config, profile))
    return np.stack(residuals)


def captured(target: Target, residuals: Array, taps: Sequence[int], profile: Profile) -> Array:
    """The features [T, n·H] of the rows whose boundaries these are; the last block's too stands before the final norm.

    Clause: TAP-003
    Source: NInfer docs/maintainer/dflash.md, conditioning; sgl-project/sglang issue 32204.
    """
    return tap.concat(residuals, np.array(taps, dtype=np.int64), profile).features


class Prefill(NamedTuple):
    """residuals: [layers + 1, T, H] and features: [T, n·H] of every row of every chunk."""

    residuals: Array
    features: Array


def prefill(
    target: Target, cache: Cache, ids: Array, chunks: Sequence[int], taps: Sequence[int], profile: Profile
) -> Prefill:
    """Consume ids [T] in chunks of the given lengths, and keep the features of all of them.

    Raises RequestError if a chunk is empty or the lengths do not add up to T.

    Clause: TAP-004
    Source: NInfer docs/maintainer/dflash.md, conditioning; Blaizzy/mlx-vlm pull 2096.
    """
    if any(length < 1 for length in chunks) or sum(chunks) != len(ids):
        raise RequestError(f"prefill chunks {list(chunks)}, expected positive lengths that add up to {len(ids)}")
    parts = []
    for start, length in zip(np.cumsum([0, *chunks[:-1]]), chunks, strict=True):
        parts.append(extend(target, cache, ids[start : start + length], profile))
    features = [captured(target, part, taps, profile) for part in parts]
    return Prefill(np.concatenate(parts, axis=1), np.concatenate(features))


def forward(
    config: Array, target: dict[str, Array], ids: Array, chunks: Array, taps: Array, public: int, profile: Profile
) -> Forward:
    """The op target.forward: a prefill of ids [T], with the logits and the argmax of every row."""
    model = Target(read_target_config(config.astype(np.uint8).tobytes()), target)
    residuals, features = prefill(model, Cache(model.config), ids, chunks.tolist(), taps.tolist(), profile)
    rows = logits(residuals[-1], model.norm, head(model), model.config.eps, profile).logits
    layers = {str(index): rows_ for index, rows_ in enumerate(residuals[1:])}
    return Forward(layers, rows, features, processing.greedy(rows, public, profile).tokens)
