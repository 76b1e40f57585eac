"""Small models for the reference's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
from dflash_reference import models
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs, planted


class Pair(NamedTuple):
    """A target, a draft for it, and the texts of their configs."""

    target: models.Target
    draft: models.Draft
    target_text: bytes
    draft_text: bytes


HIDDEN, VOCABULARY, POSITIONS = 20, 31, 96
SIZES = {
    "model_type": "qwen3",
    "intermediate_size": 28,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
}
SECOND = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 10, "selector_top_k": 6}


def _windows(windows: tuple[int, ...]) -> dict[str, Any]:
    layers = {
        "num_hidden_layers": len(windows),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }
    return layers | ({"sliding_window": max(windows)} if any(windows) else {})


def _weights(key: str, shapes: dict[str, tuple[int, ...]], dtype: str) -> dict[str, Array]:
    make = {1: inputs.norm_weights, 2: inputs.weights, 3: inputs.telling}
    return {name: make[len(shape)](f"{key}/{name}", shape, dtype) for name, shape in shapes.items()}


@cache
def build_tiny(
    profile: Profile,
    target_windows: tuple[int, ...] = (0, 5, 0),
    draft_windows: tuple[int, ...] = (4, 0),
    causal: bool | None = None,
    tied: bool = False,
    taps: tuple[int, ...] = (2, 0),
    second: bool = False,
) -> Pair:
    """Random weights and no plan: a draft, `second` of DFlash2, whose proposals are seldom right."""
    target = SIZES | _windows(target_windows) | {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "use_sliding_window": any(target_windows),
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": tied,
    }  # fmt: skip
    draft: dict[str, Any] = SIZES | _windows(draft_windows) | {
        "architectures": ["DFlashDraftModel"], "rope_parameters": {"rope_theta": 500.0},
        "dflash_config": {"target_layer_ids": list(taps), "mask_token_id": VOCABULARY - 1},
    }  # fmt: skip
    if second:
        draft["architectures"] = ["DFlash2DraftModel"]
        draft["dflash_config"] |= SECOND
    if profile.axes["config_schema"] == "published":
        draft |= {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_target_layers": len(target_windows)}
        draft |= {"use_sliding_window": any(draft_windows)} | ({} if causal is None else {"is_causal": causal})
    target_text, draft_text = json.dumps(target).encode(), json.dumps(draft).encode()
    config = read_target_config(target_text)
    draft_config = read_draft_config(draft_text, profile, config)
    dtype = profile.dtypes["WEIGHT"]
    return Pair(
        models.Target(config, _weights("tiny/target", target_tensors(config), dtype)),
        models.draft_of(draft_config, _weights("tiny/draft", draft_tensors(draft_config), dtype)),
        target_text,
        draft_text,
    )


class PlantedPair(NamedTuple):
    """A pair whose draft is right up to planned slots, and what is known of its output."""

    target: models.Target
    draft: models.Draft
    plan: planted.Planted


@cache
def build_planted(profile: Profile) -> PlantedPair:
    plan = planted.pair("small", dtype=profile.dtypes["WEIGHT"])
    published = profile.axes["config_schema"] == "published"
    config = read_target_config(json.dumps(plan.target_config).encode())
    text = json.dumps(plan.draft_config if published else planted.component_config(plan.options)).encode()
    draft = models.Draft(read_draft_config(text, profile, config), plan.draft)
    return PlantedPair(models.Target(config, plan.target), draft, plan)


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Pair]:
    return build_tiny


@pytest.fixture(scope="session")
def planted_pair() -> Callable[[Profile], PlantedPair]:
    return build_planted
