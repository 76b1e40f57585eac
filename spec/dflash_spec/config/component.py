"""NInfer's component schema: closed at every level, with the hidden width and the vocabulary left to the target."""

from __future__ import annotations

from dflash_spec.config import members as read
from dflash_spec.config import rules
from dflash_spec.config.members import Members
from dflash_spec.config.target import TargetConfig

TOP = (
    "architectures", "model_type", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "layer_types", "dflash_config",
    "sliding_window",
)  # fmt: skip
NESTED = ("target_layer_ids", "mask_token_id")
ROPE = ("rope_theta",)


def check(members: Members, target: TargetConfig, more: tuple[str, ...], scaled: bool) -> Members:
    """Clause: CFG-057. Refuse every member that the schema does not name, and return `dflash_config`.

    `more` are the members that the backend adds to it. Raises ConfigError. `target` and `scaled` have no part in it:
    this schema repeats no size of the target, and has no scalar.
    """
    read.closed(members, TOP, "CFG-057")
    nested = read.inner(members, "dflash_config")
    read.closed(nested, (*NESTED, *more))
    read.closed(read.inner(members, "rope_parameters"), ROPE, "CFG-057")
    return nested


def layer_types(members: Members, layers: int) -> tuple[str, ...]:
    """One name a layer, always listed. Raises ConfigError."""
    return rules.listed_layer_types(members, layers)


def theta(members: Members) -> float:
    """The RoPE base. Raises ConfigError."""
    return rules.theta(members)


def holder(members: Members, nested: Members, key: str) -> Members:
    """Where `key` is read: in `dflash_config`, always."""
    return nested


def block_size(members: Members, nested: Members) -> None:
    """The schema has none: the width is the start's choice."""


def unknown(members: Members) -> tuple[str, ...]:
    """None: the schema is closed."""
    return ()
