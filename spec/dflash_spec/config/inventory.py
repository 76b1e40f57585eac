"""Which tensors a checkpoint must hold, by published name, with their shapes."""

from __future__ import annotations

from dflash_spec.config import arguments
from dflash_spec.config.draft import DFlash2Config, DraftConfig
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


def backbone(config: DraftConfig) -> Shapes:
    """Clause: CFG-071. 11 tensors a layer and 3 more, with no embedding and no head, which are the target's."""
    shapes: Shapes = {
        "fc.weight": (config.hidden_size, len(config.taps) * config.hidden_size),
        "hidden_norm.weight": (config.hidden_size,),
        "norm.weight": (config.hidden_size,),
    }
    for layer in range(config.layers):
        shapes.update(_layer(config, f"layers.{layer}."))
    return shapes


def convolutions(config: DFlash2Config) -> Shapes:
    """Clause: CFG-072. 4 tensors a layer: the base kernels, and the rows that make the increments of each group."""
    hidden, taps = config.hidden_size, config.conv_taps
    shapes: Shapes = {}
    for layer in range(config.layers):
        for branch in ("attention_conv", "mlp_conv"):
            prefix = f"layers.{layer}.{branch}."
            shapes[f"{prefix}base_kernel"] = (2, taps, hidden)
            shapes[f"{prefix}kernel_projection.weight"] = (2 * taps * (hidden // config.conv_group), hidden)
    return shapes


def selector(config: DFlash2Config) -> Shapes:
    """Clause: CFG-073. 3 tensors; the codebooks' names have no `.weight`, as they are on disk."""
    return {
        "candidate_selector.hidden_projection.weight": (config.selector_rank, config.hidden_size),
        "candidate_selector.predecessor_codebook": (config.codebook_rows, config.selector_rank),
        "candidate_selector.successor_codebook": (config.codebook_rows, config.selector_rank),
    }


def draft_tensors(config: DraftConfig) -> Shapes:
    """A draft's tensors: for five layers 58 of DFlash, 81 of DFlash2.

    Raises ConfigError where `config` is no DraftConfig.
    """
    arguments.check_instance("config", config, DraftConfig)
    shapes = backbone(config)
    if isinstance(config, DFlash2Config):
        shapes |= convolutions(config) | selector(config)
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
