"""Config ops, answered by building the authors' draft model from a file and looking at what it became."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    with _built():
        return _common(_on_paper(package.DFlashDraftModel, draft))


def read_dflash2(draft: Array, target: Array) -> Answer:
    """What DFlash2DraftModel is made of; its scalars are those that its `compute_logits` would read."""
    with _built():
        model = _on_paper(package.DFlash2DraftModel, draft)
        conv, selector = model.layers[0].attention_conv, model.candidate_selector
        softcap = package._draft_value(model.config, "final_logit_softcapping")
        return {
            **_common(model),
            "conv": np.array([conv.kernel_size, conv.group_size]),
            "selector": np.array([selector.hidden_projection.out_features, selector.top_k]),
            "output_multiplier": np.float32(float(package._draft_value(model.config, "output_multiplier", 1.0))),
            "softcap": np.float32(0.0 if softcap is None else max(float(softcap), 0.0)),
        }


@contextmanager
def _built() -> Iterator[None]:
    """Turn what the package raises into ConfigError."""
    try:
        with quietly():
            yield
    except Exception as error:
        raise ConfigError(f"the package fails on this file: {type(error).__name__}: {error}") from error


def _on_paper(kind: Any, draft: Array) -> Any:
    """A model of a config file, without memory for its weights."""
    with torch.device("meta"):
        return kind(Qwen3Config.from_dict(json.loads(text(draft))))


def _common(model: Any) -> Answer:
    config, layers = model.config, [layer.self_attn for layer in model.layers]
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
    "config.read_dflash2": read_dflash2,
    "config.taps_half_even": taps_half_even,
    "config.width": width,
}
