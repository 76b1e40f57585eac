"""transformers' Qwen3 as a peer for the target's ops, in FP32."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from dflash_spec.errors import ConfigError, UnsupportedError
from dflash_spec.tensors import Array
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from dflash_vectors.peers.modules import (
    Given,
    array,
    batch,
    capture,
    fill,
    integer,
    quietly,
    qwen3_config,
    text,
    unrotated,
)

Answer = dict[str, Any]


class _Unrotated(nn.Module):
    """Stands in for the rotary tables, for heads that a vector gives already rotated."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim

    def forward(self, rows: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return unrotated(rows.shape[1], self._dim)


def attention(q: Array, key: Array, value: Array, positions: Array, length: Array, window: Array) -> Answer:
    """One layer of Qwen3Model, with its cache, its mask and its attention; the heads are given.

    The cache holds the rows before the appended ones, as it does when a verify pass begins.
    """
    (rows, heads, dim), kv_heads, total = q.shape, key.shape[1], integer(length)
    before = total - rows
    if positions.tolist() != list(range(before, total)):
        raise UnsupportedError("transformers appends rows at the positions that follow its cache")
    config = qwen3_config(hidden=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim, window=integer(window))
    model: Any = Qwen3Model(config)
    model.eval()
    part = model.layers[0].self_attn
    part.q_proj, part.k_proj, part.v_proj = Given(q), Given(key[before:total]), Given(value[before:total])
    part.q_norm = part.k_norm = part.o_proj = nn.Identity()
    model.rotary_emb = _Unrotated(dim)
    cache = DynamicCache(config=config)
    if before:
        cache.update(batch(key[:before]).transpose(1, 2), batch(value[:before]).transpose(1, 2), 0)
    with capture(attended=part) as seen:
        model(inputs_embeds=torch.zeros(1, rows, heads * dim), cache=cache, use_cache=True)
    return {"attended": array(seen["attended"][0])}


def logits(x: Array, norm: Array, head: Array, eps: Array) -> Answer:
    """Qwen3ForCausalLM without layers: its final norm and its head."""
    config = qwen3_config(hidden=x.shape[1], vocabulary=len(head), layers=0, eps=float(eps))
    model = Qwen3ForCausalLM(config)
    fill(model, {"model.norm.weight": norm, "lm_head.weight": head}, whole=False)
    with capture(hidden=model.model.norm) as seen:
        out = model(inputs_embeds=batch(x), use_cache=False)
    return {"stage.hidden": array(seen["hidden"][0]), "logits": array(out.logits)}


def forward(config: Array, ids: Array, chunks: Array, taps: Array, public: Array, **weights: Array) -> Answer:
    """Qwen3ForCausalLM fed chunk by chunk through its cache. Taps are read as its users read them, as hidden states."""
    model = Qwen3ForCausalLM(Qwen3Config.from_dict(json.loads(text(config))))
    named = {name.removeprefix("target."): values for name, values in weights.items()}
    fill(model, named, whole=not model.config.tie_word_embeddings)
    cache = DynamicCache(config=model.config)
    rows, features, start = [], [], 0
    with capture(**{f"layer.{index}": layer for index, layer in enumerate(model.model.layers)}) as seen:
        for length in chunks.tolist():
            out = model(batch(ids[start : start + length]), cache=cache, use_cache=True, output_hidden_states=True)
            rows.append(out.logits)
            features.append(torch.cat([out.hidden_states[tap + 1] for tap in taps.tolist()], dim=-1))
            start += length
    whole = torch.cat(rows, dim=1)
    return {
        **{f"stage.{name}": array(torch.cat(parts, dim=1)) for name, parts in seen.items()},
        "stage.logits": array(whole),
        "features": array(torch.cat(features, dim=1)),
        "tokens": array(whole.argmax(dim=-1)),
    }


def read_target(target: Array) -> Answer:
    """What Qwen3ForCausalLM is made of. Raises ConfigError where building it fails."""
    try:
        with quietly():
            config: Any = Qwen3Config.from_dict(json.loads(text(target)))
            with torch.device("meta"):
                model = Qwen3ForCausalLM(config)
            layers = [layer.self_attn for layer in model.model.layers]
            stops = config.eos_token_id
            return {
                "refused": 0,
                "windows": np.array([part.sliding_window or 0 for part in layers], dtype=np.int64),
                "theta": np.float32(config.rope_parameters["rope_theta"]),
                "eps": np.float32(model.model.norm.variance_epsilon),
                "shape": np.array(
                    [
                        config.hidden_size, config.intermediate_size, len(layers), config.num_attention_heads,
                        config.num_key_value_heads, layers[0].head_dim, config.vocab_size,
                    ]
                ),
                "tied": np.array(model.lm_head.weight is model.model.embed_tokens.weight, dtype=np.int64),
                "stop_ids": np.array([] if stops is None else stops, dtype=np.int64).reshape(-1),
            }  # fmt: skip
    except Exception as error:
        raise ConfigError(f"transformers fails on this file: {type(error).__name__}: {error}") from error


OPS: dict[str, Callable[..., Answer]] = {
    "target.attention": attention,
    "target.logits": logits,
    "target.forward": forward,
    "config.read_target": read_target,
}


class Qwen3:
    """Answers the ops of OPS in FP32."""

    def describe(self) -> dict[str, Any]:
        return {
            "name": "transformers",
            "version": transformers.__version__,
            "profile": "zlab",
            "ops": sorted(OPS),
            "dtypes": ["F32"],
        }

    def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Any]:
        """Outputs by name and stages as `stage.<name>`.

        Raises UnsupportedError for an op or a case that transformers cannot answer, ConfigError where it fails on a
        config, and whatever else it raises.
        """
        if op not in OPS:
            raise UnsupportedError(f"op {op}: transformers has no code of its own that answers it")
        with torch.inference_mode():
            return OPS[op](**inputs)


def create(profile: str) -> Qwen3:
    """transformers in profile zlab. Raises UnsupportedError for another one."""
    if profile != "zlab":
        raise UnsupportedError(f"transformers' FP32 target follows profile zlab, not {profile}")
    return Qwen3()
