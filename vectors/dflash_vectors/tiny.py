"""Tiny layers and models for the suites: odd sizes, weights far from 1, values that tell everything apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY, PUBLIC = 24, 6, 2, 6, 20, 53, 49
"""Sizes of the tiny geometry; heads times head dim is not the hidden size, and some rows of the head are padding."""

LOUD = 13
"""Every so many public rows of a head are loud: the few that compete lie well apart."""

GAINS = {"self_attn.v_proj": 1.0, "self_attn.o_proj": 1.0}
"""Gains of a tiny model's projections where they are not GROWTH: attention adds about as much as the row holds."""

GROWTH = 0.35
"""Gain of the other projections: the MLP adds to a row without drowning it."""

CONV_TAPS, CONV_GROUP, SELECTOR_RANK = 2, 4, 10
"""Sizes that DFlash2 adds."""

INCREMENTS = 0.25
"""Gain of the kernel projections: increments change a base of about 1 by a quarter."""

CONTEXT_SCALE = 4.0
"""Scale of a tiny draft's context rows: another norm on the way to its values would show."""


def signs(key: str, shape: tuple[int, ...]) -> Array:
    """Keyed +1 and -1."""
    return np.where(inputs.hashes(key, shape) >> np.uint64(63), 1.0, -1.0)


def picking(key: str, rows: int, width: int, gains: list[float]) -> Array:
    """A projection [rows, width] with one entry a row, ± the gain of the row's head: rows of ±1 become heads of ±gain.

    Entries walk through the channels, so that neighbouring rows read different ones.
    """
    weights = np.zeros((rows, width))
    channels = (np.arange(rows) * 3 + inputs.hashes(key, (rows,)).astype(np.int64) % 2) % width
    weights[np.arange(rows), channels] = signs(f"{key}/signs", (rows,)) * np.repeat(gains, rows // len(gains))
    return weights


def mirrored(given: dict[str, Any], *projections: str) -> dict[str, Any]:
    """`given` with heads of four channels a, b, b, -a: with equal angles, neighbours and halves turn them alike."""
    for name in projections:
        weights = given[name]
        for head in range(0, len(weights), 4):
            weights[head + 2] = weights[head + 1]
            weights[head + 3] = 0.0 - weights[head]
    return given


def bold_norm(key: str, width: int, dtype: str) -> Array:
    """Norm weights from 0.25 to 4, every fifth of them negative."""
    weights = inputs.uniform(key, (width,), 0.25, 4.0, dtype)
    return np.where(np.arange(width) % 5 == 3, -weights, weights)


@dataclass(frozen=True)
class Model:
    """A config as a mapping, and the tensors that it asks for, by published name."""

    config: dict[str, Any]
    tensors: dict[str, Array]


def _layer(key: str, profile: Profile) -> dict[str, Array]:
    weight, queries, keys = profile.dtypes["WEIGHT"], HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    norms = {
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
        "self_attn.q_norm": HEAD_DIM,
        "self_attn.k_norm": HEAD_DIM,
    }
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = inputs.weights(f"{key}/{name}", shape, weight, GAINS.get(name, GROWTH))
    for name, size in norms.items():
        make = _head_norm if name.startswith("self_attn") else inputs.norm_weights
        tensors[f"{name}.weight"] = make(f"{key}/{name}", (size,), weight)
    return tensors


def _head_norm(key: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Weights from 1 to 3, some negative: attention prefers some rows by far, so that it matters which it sees."""
    return inputs.uniform(key, shape, 1.0, 3.0, dtype) * signs(f"{key}/signs", shape)


def _config(windows: tuple[int, ...]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "intermediate_size": INNER,
        "num_hidden_layers": len(windows),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0},
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }
    if max(windows):
        config["sliding_window"] = max(windows)
    return config


def _published(windows: tuple[int, ...]) -> dict[str, Any]:
    config = _config(windows) | {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "hidden_act": "silu"}
    if max(windows):
        config["use_sliding_window"] = True
    return config


def target(key: str, profile: Profile, *, windows: tuple[int, ...], tied: bool = False) -> Model:
    """A Qwen3 target with one layer for each window (0 is a full layer)."""
    weight = profile.dtypes["WEIGHT"]
    tensors = {
        "model.embed_tokens.weight": inputs.telling(f"{key}/embedding", (VOCABULARY, HIDDEN), weight),
        "model.norm.weight": inputs.norm_weights(f"{key}/norm", (HIDDEN,), weight),
    }
    if not tied:
        tensors["lm_head.weight"] = inputs.weights(f"{key}/head", (VOCABULARY, HIDDEN), weight)
    head = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"]
    head[:PUBLIC:LOUD] *= 4.0
    for index in range(len(windows)):
        layer = _layer(f"{key}/{index}", profile)
        tensors |= {f"model.layers.{index}.{name}": value for name, value in layer.items()}
    architecture = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": tied, "eos_token_id": 0}
    return Model(_published(windows) | architecture, tensors)


def draft(
    key: str, profile: Profile, *, windows: tuple[int, ...], taps: tuple[int, ...], causal: bool | None = None
) -> Model:
    """A DFlash draft in the schema of the profile; `causal` None leaves `is_causal` out of its config."""
    weight = profile.dtypes["WEIGHT"]
    tensors = {
        "fc.weight": inputs.weights(f"{key}/fc", (HIDDEN, len(taps) * HIDDEN), weight),
        "hidden_norm.weight": CONTEXT_SCALE * inputs.norm_weights(f"{key}/hidden_norm", (HIDDEN,), weight),
        "norm.weight": inputs.norm_weights(f"{key}/norm", (HIDDEN,), weight),
    }
    for index in range(len(windows)):
        tensors |= {f"layers.{index}.{name}": value for name, value in _layer(f"{key}/{index}", profile).items()}
    nested = {"mask_token_id": PUBLIC, "target_layer_ids": list(taps)}
    component = profile.axes["config_schema"] == "component"
    config = _config(windows) if component else _published(windows)
    if causal is not None:
        config["is_causal"] = causal
    return Model(config | {"architectures": ["DFlashDraftModel"], "dflash_config": nested}, tensors)


def draft2(key: str, profile: Profile, *, top: int, scalars: dict[str, float] | None = None, **dflash: Any) -> Model:
    """A DFlash2 draft of `top` candidates: a DFlash draft of the arguments `dflash`, convolutions and a selector."""
    plain, weight, tensors = draft(key, profile, **dflash), profile.dtypes["WEIGHT"], {}
    for index in range(plain.config["num_hidden_layers"]):
        for branch in ("attention_conv", "mlp_conv"):
            place = f"layers.{index}.{branch}"
            base = inputs.uniform(f"{key}/{place}/base", (2, CONV_TAPS, HIDDEN), -0.5, 0.5, "F32")
            base[:, 0] += signs(f"{key}/{place}/signs", (2, HIDDEN))
            rows = 2 * CONV_TAPS * (HIDDEN // CONV_GROUP)
            tensors[f"{place}.base_kernel"] = inputs.represent(base, weight)
            tensors[f"{place}.kernel_projection.weight"] = inputs.weights(
                f"{key}/{place}/projection", (rows, HIDDEN), weight, INCREMENTS
            )
    tensors["candidate_selector.hidden_projection.weight"] = inputs.weights(
        f"{key}/selector", (SELECTOR_RANK, HIDDEN), weight
    )
    for name in ("predecessor_codebook", "successor_codebook"):
        tensors[f"candidate_selector.{name}"] = inputs.normal_like(
            f"{key}/{name}", (VOCABULARY, SELECTOR_RANK), 1.0, weight
        )
    nested = {
        "conv_kernel_size": CONV_TAPS, "conv_group_size": CONV_GROUP, "selector_rank": SELECTOR_RANK,
        "selector_top_k": top, **(scalars or {}),
    }  # fmt: skip
    config = plain.config | {"architectures": ["DFlash2DraftModel"]}
    return Model(config | {"dflash_config": plain.config["dflash_config"] | nested}, plain.tensors | tensors)
