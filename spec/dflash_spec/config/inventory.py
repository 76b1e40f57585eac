"""Which tensors a checkpoint must hold, by published name, with their shapes."""

from __future__ import annotations

from dflash_spec.config import arguments
from dflash_spec.config.draft import DraftConfig
from dflash_spec.config.target import TargetConfig

Shapes = dict[str, tuple[int, ...]]


def _layer(config: DraftConfig | TargetConfig, prefix: str) -> Shapes:
    hidden, inner, channels = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.heads * channels, config.kv_heads * channels
    return {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
        f"{prefix}self_attn.q_proj.weight": (queries, hidden),
        f"{prefix}self_attn.k_proj.weight": (keys, hidden),
        f"{prefix}self_attn.v_proj.weight": (keys, hidden),
        f"{prefix}self_attn.o_proj.weight": (hidden, queries),
        f"{prefix}self_attn.q_norm.weight": (channels,),
        f"{prefix}self_attn.k_norm.weight": (channels,),
        f"{prefix}mlp.gate_proj.weight": (inner, hidden),
        f"{prefix}mlp.up_proj.weight": (inner, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, inner),
    }


def draft_tensors(config: DraftConfig) -> Shapes:
    """A draft's tensors: 11 a layer and 3 more, with no embedding and no head, which are the target's.

    Raises ConfigError where `config` is no DraftConfig.
    """
    arguments.check_instance("config", config, DraftConfig)
    shapes: Shapes = {
        "fc.weight": (config.hidden_size, len(config.taps) * config.hidden_size),
        "hidden_norm.weight": (config.hidden_size,),
        "norm.weight": (config.hidden_size,),
    }
    for layer in range(config.layers):
        shapes.update(_layer(config, f"layers.{layer}."))
    return shapes


def target_tensors(config: TargetConfig) -> Shapes:
    """A Qwen3 target's tensors. A tied target has no `lm_head.weight`.

    Raises ConfigError where `config` is no TargetConfig.
    """
    arguments.check_instance("config", config, TargetConfig)
    table = (config.vocab_size, config.hidden_size)
    shapes: Shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (config.hidden_size,)}
    if not config.tied:
        shapes["lm_head.weight"] = table
    for layer in range(config.layers):
        shapes.update(_layer(config, f"model.layers.{layer}."))
    return shapes
