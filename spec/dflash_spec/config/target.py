"""Configs of Qwen3 dense targets, as transformers writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_spec.config import members as read
from dflash_spec.config import rules
from dflash_spec.config.members import Members

KNOWN = (
    "architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "hidden_act", "attention_bias", "max_position_embeddings", "layer_types", "sliding_window",
    "use_sliding_window", "max_window_layers", "tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id",
    "attention_dropout", "initializer_range", "use_cache", "dtype", "torch_dtype", "transformers_version",
)  # fmt: skip


@dataclass(frozen=True)
class TargetConfig:
    """What a target is made of. Sizes count channels, heads, layers or tokens; `eps` and `theta` are FP32 values."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    windows: tuple[int, ...]
    """The window of each layer in positions; 0 for a full layer."""
    tied: bool
    """The head is the embedding table."""
    stop_ids: tuple[int, ...]
    max_positions: int
    unknown: tuple[str, ...] = ()
    """Top-level members that this reader does not know, in file order."""


def stop_ids(members: Members, vocab_size: int) -> tuple[int, ...]:
    """The token ids of `eos_token_id`: none, one, or a list.

    Clause: CFG-048. Raises ConfigError where one is not an id below the vocabulary.
    """
    value = members.get("eos_token_id")
    given = () if value is None else value if isinstance(value, list) else (value,)
    for token in given:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise members.wrong("eos_token_id", f"ids from 0 to {vocab_size - 1}", "CFG-048")
    return tuple(given)


def tied(members: Members) -> bool:
    """Clause: CFG-049. Whether `tie_word_embeddings` is true; absent is false."""
    return bool(read.flag(members, "tie_word_embeddings"))


def _generation_stops(source: bytes | Path, vocab_size: int) -> tuple[int, ...] | None:
    """Stop ids of the folder's generation_config.json, which transformers prefers; None where it names none."""
    if isinstance(source, bytes) or not (source / "generation_config.json").is_file():
        return None
    members = read.read(source / "generation_config.json", "generation config")
    return stop_ids(members, vocab_size) if members.has("eos_token_id") else None


def read_target_config(source: bytes | Path) -> TargetConfig:
    """Read a Qwen3 target's config: the JSON text itself, its file, or the model's folder.

    In a folder, the stop ids of generation_config.json come before those of config.json. Raises ConfigError, and
    UnsupportedConfigError where the model is well-formed but not executable here.
    """
    members = read.read(source, "target config")
    architecture = rules.architecture(members, "Qwen3ForCausalLM")
    rules.model_type(members)
    rules.activation(members)
    rules.attention_bias(members)
    rules.plain_rope(members)
    layers = read.positive_int(members, "num_hidden_layers")
    heads, kv_heads = rules.heads(members)
    types = rules.layer_types(members, layers)
    rules.switched_on(members, types)
    vocab_size = read.positive_int(members, "vocab_size")
    stops = _generation_stops(source, vocab_size)
    return TargetConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=read.positive_int(members, "hidden_size"),
        intermediate_size=read.positive_int(members, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=rules.head_dim(members),
        eps=read.positive_float(members, "rms_norm_eps"),
        theta=rules.theta(members),
        windows=rules.windows(members, types),
        tied=tied(members),
        stop_ids=stop_ids(members, vocab_size) if stops is None else stops,
        max_positions=read.positive_int(members, "max_position_embeddings"),
        unknown=read.unknown(members, KNOWN),
    )
