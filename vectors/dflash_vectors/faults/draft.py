"""Faults of the draft's layers."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from dflash_reference import draft, elementary, layer, num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

LAYERS = "NInfer docs/maintainer/dflash.md, draft layers"
ROUTE = "Infernix src/models/qwen3_5/execution/draft.cpp"
WINDOW = "Infernix include/infernix/ops/sliding_window_attention.h"


@fault("dflash_reference.draft.embed", clauses=("DRAFT-001",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def embedding_scaled(true: Function) -> Function:
    """Rows are multiplied by the square root of the hidden size, as another model family's embedding does."""

    def wrong(embedding: Array, ids: Array, profile: Profile) -> Any:
        x = true(embedding, ids, profile).x
        return draft.Embed(layer.represent(x * np.sqrt(float(x.shape[1])), profile))

    return wrong


@fault("dflash_reference.draft.embed", clauses=("DRAFT-001",), report="NInfer docs/maintainer/dflash.md, proposal",
    effect="acceptance",
)  # fmt: skip
def embedding_normed(true: Function) -> Function:
    """Rows are normed before they enter the first layer."""

    def wrong(embedding: Array, ids: Array, profile: Profile) -> Any:
        return draft.Embed(layer.represent(layer.unit(true(embedding, ids, profile).x, 1e-6), profile))

    return wrong


@fault("dflash_reference.layer.rms_norm", clauses=("DRAFT-002",), effect="acceptance",
    report="NInfer docs/maintainer/qwen3_5-model.md, where the target's norms multiply by 1 + w",
)  # fmt: skip
def layer_norm_by_one_plus_weight(true: Function) -> Function:
    """The draft's norms multiply by 1 + weight, as the target's do."""
    return lambda x, weight, eps: true(x, 1.0 + weight, eps)


@fault("dflash_reference.layer.rms_norm", clauses=("DRAFT-002",), report=LAYERS, effect="acceptance")
def layer_norm_with_eps_outside(true: Function) -> Function:
    """eps is added to the root instead of the mean square."""

    def wrong(x: Array, weight: Array, eps: float) -> Array:
        return x / (np.sqrt(num.mean_square(x)) + eps)[..., np.newaxis] * weight

    return wrong


@fault("dflash_reference.layer.rms_norm", clauses=("DRAFT-002",), report=LAYERS, effect="acceptance")
def layer_norm_about_the_mean(true: Function) -> Function:
    """The channels' mean is subtracted first."""

    def wrong(x: Array, weight: Array, eps: float) -> Any:
        return true(x - (num.sum_last(x) / x.shape[-1])[..., np.newaxis], weight, eps)

    return wrong


@fault("dflash_reference.layer.head_norm", clauses=("DRAFT-003",), report=LAYERS, effect="acceptance")
def head_norm_over_all_heads(true: Function) -> Function:
    """The root mean square of a row's heads is taken over all of them together."""

    def wrong(x: Array, weight: Array, eps: float) -> Array:
        return layer.unit(x.reshape(len(x), -1), eps).reshape(x.shape) * weight

    return wrong


@fault("dflash_reference.layer.qkv", clauses=("DRAFT-003",), report=LAYERS, effect="acceptance")
def values_normed(true: Function) -> Function:
    """Values go through a head norm too."""

    def wrong(*args: Any, **named: Any) -> Any:
        done: layer.Qkv = true(*args, **named)
        profile = named["profile"] if "profile" in named else args[-1]
        return done._replace(v=layer.represent(layer.unit(done.v, 1e-6), profile))

    return wrong


@fault("dflash_reference.layer.rope", clauses=("DRAFT-004",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/issues/53063",
)  # fmt: skip
def rope_interleaved(true: Function) -> Function:
    """Channel 2j is paired with its neighbour 2j + 1."""

    def wrong(x: Array, positions: Array, theta: float, profile: Profile) -> Array:
        pairs = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
        turned = true(pairs, positions, theta, profile)
        half = x.shape[-1] // 2
        return np.stack([turned[..., :half], turned[..., half:]], axis=-1).reshape(x.shape)

    return wrong


@fault("dflash_reference.layer.rope", clauses=("DRAFT-005",), effect="acceptance",
    report="NInfer docs/maintainer/qwen3_5-model.md, where the target turns a part of each head",
)  # fmt: skip
def rope_on_half_the_head(true: Function) -> Function:
    """Only the first half of the channels is rotated, as in the target."""

    def wrong(x: Array, positions: Array, theta: float, profile: Profile) -> Array:
        turned = max(2, x.shape[-1] // 4 * 2)
        return np.concatenate([true(x[..., :turned], positions, theta, profile), x[..., turned:]], axis=-1)

    return wrong


@fault("dflash_reference.layer.rope_table", clauses=("DRAFT-005",), report=LAYERS, effect="acceptance")
def rope_with_half_the_exponent(true: Function) -> Function:
    """Pair j turns by position · theta^(-j/D)."""

    def wrong(positions: Array, theta: float, dim: int, profile: Profile) -> Any:
        return true(positions, float(np.sqrt(theta)), dim, profile)

    return wrong


@fault("dflash_reference.layer.rope_table", clauses=("DRAFT-005",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/7052a48",
)  # fmt: skip
def rope_with_a_tenth_of_theta(true: Function) -> Function:
    """The base is 10^6 where the weights were trained with 10^7."""
    return lambda positions, theta, dim, profile: true(positions, theta / 10 if theta > 1 else theta, dim, profile)


@fault("dflash_reference.layer.rope_table", clauses=("DRAFT-005",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/ggml-org/llama.cpp/issues/23544",
)  # fmt: skip
def angles_in_bf16(true: Function) -> Function:
    """Position times frequency is held in the activations' dtype."""

    def wrong(positions: Array, theta: float, dim: int, profile: Profile) -> tuple[Array, Array]:
        angles = positions[:, np.newaxis] * elementary.rope_frequencies(theta, dim)
        sine, cosine = elementary.sin_cos(num.round_to(angles, "BF16"))
        return cosine, sine

    return wrong


@fault("dflash_reference.layer.rope_table", clauses=("DRAFT-005",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/ggml-org/llama.cpp/issues/23544",
)  # fmt: skip
def angles_in_fp32(true: Function) -> Function:
    """Position times frequency is one FP32 product, as most tables are made."""

    def wrong(positions: Array, theta: float, dim: int, profile: Profile) -> tuple[Array, Array]:
        angles = positions[:, np.newaxis] * elementary.rope_frequencies_fp32(theta, dim)
        sine, cosine = elementary.sin_cos(num.round_to(angles, "F32"))
        return cosine, sine

    return wrong


@fault("dflash_reference.layer.norm_then_rope", clauses=("DRAFT-006",), report=LAYERS, effect="acceptance")
def rope_before_head_norm(true: Function) -> Function:
    """Heads are rotated first, so that a channel's norm weight meets another channel."""

    def wrong(raw: Array, weight: Array, positions: Array, theta: float, eps: float, profile: Profile) -> Any:
        normed, _ = true(raw, weight, positions, theta, eps, profile)
        turned = layer.represent(layer.rope(raw, positions, theta, profile), profile)
        return normed, layer.represent(layer.head_norm(turned, weight, eps), profile)

    return wrong


@fault("dflash_reference.layer.kv_head", clauses=("DRAFT-007",), report=WINDOW, effect="acceptance")
def query_heads_dealt_out_in_turn(true: Function) -> Function:
    """Query head h reads KV head h modulo the KV heads."""
    return lambda head, heads, kv_heads: head % kv_heads


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="acceptance")
def scores_not_scaled(true: Function) -> Function:
    """Scores go into the softmax without the factor 1 / sqrt(D)."""
    return lambda products, dim, visible: true(products, 1, visible)


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="acceptance")
def scores_divided_by_the_dimension(true: Function) -> Function:
    """Scores are divided by D instead of its root."""
    return lambda products, dim, visible: true(products, dim * dim, visible)


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="output")
def softmax_without_the_maximum(true: Function) -> Function:
    """Exponentials of the bare scores are summed in FP32, where they overflow."""

    def wrong(products: Array, dim: int, visible: Array) -> Array:
        scaled = products / np.sqrt(float(dim))
        powers = np.where(visible[:, np.newaxis, :], num.round_to(elementary.exp(scaled), "F32"), 0.0)
        with np.errstate(invalid="ignore"):
            return powers / num.sum_last(powers)[..., np.newaxis]

    return wrong


@fault("dflash_reference.layer.weighted_sum", clauses=("DRAFT-008",), effect="output",
    report="https://github.com/Luce-Org/lucebox-hub/commit/4926c39",
)  # fmt: skip
def hidden_values_added(true: Function) -> Function:
    """Hidden keys keep a weight, since a finite number stands for minus infinity."""

    def wrong(weights: Array, values: Array, visible: Array) -> Any:
        leaking = np.where(visible[:, np.newaxis, :], weights, 1e-3)
        return true(leaking, values, np.ones_like(visible))

    return wrong


@fault("dflash_reference.layer.output", clauses=("DRAFT-009",), report=LAYERS, effect="acceptance")
def attention_residual_left_out(true: Function) -> Function:
    """The attention branch replaces the row."""
    return lambda attended, o_proj, x, profile: true(attended, o_proj, np.zeros_like(x), profile)


@fault("dflash_reference.layer.output", clauses=("DRAFT-009",), report=LAYERS, effect="acceptance")
def attention_added_to_the_normed_row(true: Function) -> Function:
    """The residual is the row after the input norm."""
    return lambda attended, o_proj, x, profile: true(attended, o_proj, layer.unit(x, 1e-6), profile)


def _scores_in(dtype: str, true: Function) -> Function:
    def wrong(products: Array, dim: int, visible: Array) -> Any:
        return true(num.round_to(products / np.sqrt(float(dim)), dtype), 1, visible)

    return wrong


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def scores_in_bf16(true: Function) -> Function:
    """Scores are held in BF16 before the softmax, as one matrix product of the framework returns them."""
    return _scores_in("BF16", true)


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def scores_in_fp16(true: Function) -> Function:
    """Scores are held in FP16 before the softmax."""
    return _scores_in("F16", true)


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), report=LAYERS, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def scale_in_bf16(true: Function) -> Function:
    """The factor 1 / sqrt(D) is a BF16 value."""

    def wrong(products: Array, dim: int, visible: Array) -> Any:
        return true(products * num.round_to(np.array([1 / np.sqrt(float(dim))]), "BF16"), 1, visible)

    return wrong


@fault("dflash_reference.layer.attention_weights", clauses=("DRAFT-008",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/huggingface/transformers/pull/39923",
)  # fmt: skip
def attention_sink(true: Function) -> Function:
    """A sink takes one part in a thousand of every row's weight."""
    return lambda products, dim, visible: true(products, dim, visible) * 0.999


@fault("dflash_reference.draft.forward", clauses=("DRAFT-002",), report=LAYERS, effect="acceptance")
def eps_of_another_model(true: Function) -> Function:
    """The draft's norms add 1e-6, whatever its config says."""

    def wrong(model: Any, *rest: Any) -> Any:
        other = copy(model)
        other.config = replace(model.config, eps=1e-6)
        return true(other, *rest)

    return wrong
