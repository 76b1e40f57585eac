"""Config ops, answered by building the authors' draft model from a file and looking at what it became."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import dflash.model as package
import numpy as np
import torch
from dflash_spec.errors import ConfigError
from dflash_spec.tensors import Array
from transformers import Qwen3Config

from dflash_vectors.peers import scripted
from dflash_vectors.peers.modules import integer, quietly, qwen3_config, text
from dflash_vectors.peers.scripted import Reply, ScriptedDraft, ScriptedTarget, proposing

Answer = dict[str, Any]


def read_draft(draft: Array, target: Array) -> Answer:
    """What DFlashDraftModel is made of. The package looks at no target. Raises ConfigError where building it fails."""
    try:
        with quietly():
            config: Any = Qwen3Config.from_dict(json.loads(text(draft)))
            with torch.device("meta"):
                model = package.DFlashDraftModel(config)
            layers = [layer.self_attn for layer in model.layers]
            block_size = package._draft_value(config, "block_size", -1)
            return {
                "refused": 0,
                "taps": np.array(model.target_layer_ids, dtype=np.int64),
                "windows": np.array([part.sliding_window or 0 for part in layers], dtype=np.int64),
                "causal": np.array([part.is_causal for part in layers], dtype=np.int64),
                "mask_id": np.array(model.mask_token_id, dtype=np.int64),
                "block_size": np.array(block_size, dtype=np.int64),
                "theta": np.float32(config.rope_parameters["rope_theta"]),
                "eps": np.float32(model.norm.variance_epsilon),
                "shape": np.array(
                    [
                        model.fc.out_features, layers[0].config.intermediate_size, len(layers),
                        config.num_attention_heads, config.num_key_value_heads, layers[0].head_dim,
                    ]
                ),
            }  # fmt: skip
    except Exception as error:
        raise ConfigError(f"the package fails on this file: {type(error).__name__}: {error}") from error


def taps_half_even(target_layers: Array, taps: Array) -> Answer:
    """The package's own formula, for a draft of as many layers as taps. Raises ConfigError where it fails."""
    try:
        ids = package.build_target_layer_ids(integer(target_layers), integer(taps))
    except Exception as error:
        raise ConfigError(f"the package's formula fails: {type(error).__name__}: {error}") from error
    return {"refused": 0, "ids": np.array(ids, dtype=np.int64)}


def width(block_size: Array, requested: Array) -> Answer:
    """The proposals of the loop's first round, in a budget that does not bind."""
    size = {"block_size": integer(block_size)} if integer(block_size) else {}
    built = package.DFlashDraftModel(
        qwen3_config(num_target_layers=8, dflash_config={"mask_token_id": 0, "target_layer_ids": [0], **size})
    )
    draft = ScriptedDraft(0, built.block_size, proposing([1] * 64, 2))
    target = ScriptedTarget(2, [Reply([1])])
    try:
        scripted.generate(draft, target, [0], 1 << 16, drafts=integer(requested) or None)
    except Exception as error:
        raise ConfigError(f"the package's loop fails: {type(error).__name__}: {error}") from error
    return {"refused": 0, "drafts": len(target.calls[1].ids) - 1}


OPS: dict[str, Callable[..., Answer]] = {
    "config.read_draft": read_draft,
    "config.taps_half_even": taps_half_even,
    "config.width": width,
}
