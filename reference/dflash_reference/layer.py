"""One decoder layer, as draft and target share it: norms, RoPE, attention, SwiGLU, and where values are rounded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import elementary, num


class Qkv(NamedTuple):
    """n: [R, H]. q_raw, q_normed, q: [R, QH, D]. k_raw, k_normed, k, v: [R, KV, D]. All represented in ACT."""

    n: Array
    q_raw: Array
    k_raw: Array
    q_normed: Array
    k_normed: Array
    q: Array
    k: Array
    v: Array


class Output(NamedTuple):
    """y: [R, H], represented in ACT."""

    y: Array


class Mlp(NamedTuple):
    """m: [R, H], product: [R, I], x_next: [R, H], all represented in ACT."""

    m: Array
    product: Array
    x_next: Array


def represent(x: Array, profile: Profile) -> Array:
    """Round to ACT, any shape: norm outputs, raw, normed and rotated heads, attention, SwiGLU product, residual sums.

    Clause: DRAFT-012
    Source: Infernix src/models/qwen3_5/execution/draft.cpp (version 1 route).
    """
    return num.round_to(x, profile.dtypes["ACT"])


def unit(x: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) over the last axis, [..., n], not rounded."""
    return x / np.sqrt(num.mean_square(x) + eps)[..., np.newaxis]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """A layer norm: x [..., H] over all H channels, times weight [H] itself; not rounded.

    Clause: DRAFT-002
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    return unit(x, eps) * weight


def head_norm(x: Array, weight: Array, eps: float) -> Array:
    """A head norm: x [R, heads, D], each head over its own D channels, times weight [D]; not rounded.

    Clause: DRAFT-003
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    return unit(x, eps) * weight


def split_heads(x: Array, dim: int, where: str) -> Array:
    """[R, heads·dim] -> [R, heads, dim]; head h is columns h·dim to h·dim + dim - 1.

    Raises TensorError, with `where` in it, if the columns are no whole number of heads.
    """
    rows, columns = x.shape
    if dim < 1 or columns % dim:
        raise TensorError(f"{where}: {columns} columns, expected a multiple of the head dim {dim}")
    return x.reshape(rows, columns // dim, dim)


def rope_table(positions: Array, theta: float, dim: int, profile: Profile) -> tuple[Array, Array]:
    """Cosine and sine of position · theta^(-2j/dim) for positions [R] and j < dim/2, each [R, dim/2].

    Where the profile's table is fp32, frequency, angle and both results are rounded to F32.

    Clause: DRAFT-005
    Source: NInfer docs/maintainer/dflash.md, draft layers; transformers 5.24.0 Qwen3RotaryEmbedding.
    """
    steps = positions[:, np.newaxis].astype(np.float64)
    if profile.axes["rope_table"] == "ideal":
        sine, cosine = elementary.sin_cos(steps * elementary.rope_frequencies(theta, dim))
        return cosine, sine
    angles = num.round_to(steps * elementary.rope_frequencies_fp32(theta, dim), "F32")
    sine, cosine = elementary.sin_cos(angles)
    return num.round_to(cosine, "F32"), num.round_to(sine, "F32")


def rope(x: Array, positions: Array, theta: float, profile: Profile) -> Array:
    """Turn channel pairs (j, j + D/2) of x [R, heads, D] by the angles of positions [R]; not rounded.

    Clause: DRAFT-004
    Source: NInfer docs/maintainer/dflash.md, draft layers; vllm-project/vllm issue 53063.
    """
    dim = x.shape[-1]
    cosine, sine = rope_table(positions, theta, dim, profile)
    cosine, sine = cosine[:, np.newaxis, :], sine[:, np.newaxis, :]
    first, second = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def fused_norm_and_rope(
    raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile
) -> Array:
    """The heads normed and rotated with no rounding in between or after: raw [R, heads, D] -> [R, heads, D]."""
    return rope(head_norm(raw, weight, eps), positions, theta, profile)


def norm_then_rope(
    raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile
) -> tuple[Array, Array]:
    """The normed heads and, from these, the rotated ones: raw [R, heads, D] -> two [R, heads, D], represented.

    Clause: DRAFT-006
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    normed = represent(head_norm(raw, weight, eps), profile)
    return normed, represent(rope(normed, positions, theta, profile), profile)


def qkv(
    x: Array, input_norm: Array, q_proj: Array, k_proj: Array, v_proj: Array, q_norm: Array, k_norm: Array,
    positions: Array, theta: float, eps: float, profile: Profile,
) -> Qkv:  # fmt: skip
    """Normed and rotated queries and keys, and raw values, of rows x [R, H] at positions [R]."""
    dim = len(q_norm)
    n = represent(rms_norm(x, input_norm, eps), profile)
    q_raw = represent(split_heads(num.contract(n, q_proj), dim, "q_proj"), profile)
    k_raw = represent(split_heads(num.contract(n, k_proj), dim, "k_proj"), profile)
    v = represent(split_heads(num.contract(n, v_proj), dim, "v_proj"), profile)
    q_normed, q = norm_then_rope(q_raw, q_norm, positions, theta, eps, profile)
    k_normed, k = norm_then_rope(k_raw, k_norm, positions, theta, eps, profile)
    return Qkv(n, q_raw, k_raw, q_normed, k_normed, q, k, v)


def kv_head(head: int, heads: int, kv_heads: int) -> int:
    """The KV head that query head `head` reads: consecutive query heads share one.

    Clause: DRAFT-007
    Source: Infernix include/infernix/ops/sliding_window_attention.h.
    """
    return head // (heads // kv_heads)


def scores(q: Array, keys: Array) -> Array:
    """q · k for q [R, QH, D] and keys [N, KV, D] -> [R, QH, N].

    Raises TensorError if the query heads are no multiple of the KV heads.
    """
    heads, kv_heads = q.shape[1], keys.shape[1]
    if heads % kv_heads:
        raise TensorError(f"attention: {heads} query heads, expected a multiple of the {kv_heads} KV heads")
    return np.stack([num.contract(q[:, h], keys[:, kv_head(h, heads, kv_heads)]) for h in range(heads)], axis=1)


def attention_weights(products: Array, dim: int, visible: Array) -> Array:
    """Softmax of products [R, QH, N] / sqrt(dim) over the keys that visible [R, N] allows, exactly 0 elsewhere.

    Clause: DRAFT-008
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    seen = visible[:, np.newaxis, :]
    scaled = np.where(seen, products / np.sqrt(float(dim)), -np.inf)
    powers = np.where(seen, elementary.exp(scaled - scaled.max(axis=-1, keepdims=True)), 0.0)
    return powers / num.sum_last(powers)[..., np.newaxis]


def weighted_sum(weights: Array, values: Array, visible: Array) -> Array:
    """Each row's sum of weight · value over its visible keys, from key 0 upwards.

    weights [R, QH, N], values [N, KV, D], visible [R, N] -> [R, QH, D]. A hidden value adds nothing, whatever it is.
    """
    heads, kv_heads = weights.shape[1], values.shape[1]
    read = values[:, [kv_head(h, heads, kv_heads) for h in range(heads)]]
    total = np.zeros((len(weights), heads, values.shape[2]))
    for key in range(len(values)):
        term = weights[:, :, key, np.newaxis] * read[key]
        np.add(total, term, out=total, where=visible[:, key, np.newaxis, np.newaxis])
    return total


def attention(q: Array, keys: Array, values: Array, visible: Array, profile: Profile) -> Array:
    """Attention of q [R, QH, D] over keys and values [N, KV, D], where visible [R, N] -> [R, QH·D], represented.

    Keys that no row sees are left out before anything is computed; each row must see at least one key.
    """
    used = visible.any(axis=0)
    keys, values, visible = keys[used], values[used], visible[:, used]
    # A live but hidden row may hold infinities; what they produce is thrown away.
    with np.errstate(over="ignore", invalid="ignore"):
        weights = attention_weights(scores(q, keys), q.shape[2], visible)
        attended = weighted_sum(weights, values, visible)
    return represent(attended.reshape(len(q), -1), profile)


def output(attended: Array, o_proj: Array, x: Array, profile: Profile) -> Output:
    """The attention branch: x + o_proj · attended, for attended [R, QH·D] and the layer's own input row x [R, H].

    Clause: DRAFT-009
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    return Output(represent(x + num.contract(attended, o_proj), profile))


def silu(x: Array) -> Array:
    """x / (1 + e^-x), elementwise."""
    return x / (1.0 + elementary.exp(-x))


def mlp(
    y: Array, post_norm: Array, gate_proj: Array, up_proj: Array, down_proj: Array, eps: float, profile: Profile
) -> Mlp:
    """The MLP branch of rows y [R, H]: y + down · (SiLU(gate · m) ∘ (up · m)), where m is the norm of y.

    Clause: DRAFT-010
    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    m = represent(rms_norm(y, post_norm, eps), profile)
    product = represent(silu(num.contract(m, gate_proj)) * num.contract(m, up_proj), profile)
    return Mlp(m, product, represent(y + num.contract(product, down_proj), profile))
