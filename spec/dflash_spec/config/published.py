"""The published schema: the `config.json` beside a draft's weights, where `dflash_config` nests what DFlash adds."""

from __future__ import annotations

from dflash_spec.config import members as read
from dflash_spec.config import rules
from dflash_spec.config.dflash2 import SCALARS
from dflash_spec.config.dflash2 import SIZES as DFLASH2
from dflash_spec.config.members import Members
from dflash_spec.config.target import KNOWN as QWEN3
from dflash_spec.config.target import TargetConfig
from dflash_spec.errors import UnsupportedConfigError

NESTED = (
    "block_size", "mask_token_id", "target_layer_ids", "input_embedding_scale", "output_multiplier",
    "final_logit_softcapping", "sample_from_anchor",
)  # fmt: skip
KNOWN = (
    *QWEN3, *NESTED, "auto_map", "dflash_config", "num_target_layers", "is_causal", "is_neox_style", "draft_vocab_size",
    *DFLASH2,
)  # fmt: skip


def holder(members: Members, nested: Members, key: str) -> Members:
    """Clause: CFG-038. Where `key` is read: in `dflash_config` if it is there, else at top level."""
    return nested if nested.has(key) else members


def same_as_target(members: Members, target: TargetConfig) -> None:
    """Sizes that a draft shares with the target whose embedding, head and taps it borrows.

    Clause: CFG-044. Raises ConfigError unless `hidden_size`, `vocab_size` and, where given, `num_target_layers` are the
    target's.
    """
    expected = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size, "num_target_layers": target.layers}
    for key, size in expected.items():
        if (key != "num_target_layers" or members.has(key)) and read.positive_int(members, key) != size:
            raise members.wrong(key, f"the target's {size}", "CFG-044")


def not_trainer(members: Members) -> None:
    """Clause: CFG-045. Raises ConfigError on `target_num_hidden_layers`, the mark of the trainer's schema.

    There `num_target_layers` counts taps, here it is the target's depth.
    """
    if members.has("target_num_hidden_layers"):
        raise members.wrong("target_num_hidden_layers", "a published config, not a trainer's", "CFG-045")


def plain_scalars(members: Members, nested: Members, scaled: bool) -> None:
    """Scalars around the embedding and the head.

    Clause: CFG-046. Raises UnsupportedConfigError unless `input_embedding_scale` is 1 and, where the backend is not
    `scaled`, `output_multiplier` is 1 and `final_logit_softcapping` is 0 or absent.
    """
    for key, plain in (("input_embedding_scale", 1), ("output_multiplier", 1), ("final_logit_softcapping", 0)):
        place = holder(members, nested, key)
        if place.has(key) and place.get(key) != plain and not (scaled and key in SCALARS):
            raise place.wrong(key, f"{plain}", "CFG-046", UnsupportedConfigError)


def same_head(members: Members, nested: Members) -> None:
    """Clause: CFG-047. Raises UnsupportedConfigError where the draft proposes from the anchor's slot or through a head
    of its own: `sample_from_anchor` true, or a `draft_vocab_size` other than `vocab_size`."""
    place = holder(members, nested, "sample_from_anchor")
    if read.flag(place, "sample_from_anchor"):
        raise place.wrong("sample_from_anchor", "false", "CFG-047", UnsupportedConfigError)
    if members.has("draft_vocab_size") and members.get("draft_vocab_size") != members.get("vocab_size"):
        raise members.wrong("draft_vocab_size", "vocab_size", "CFG-047", UnsupportedConfigError)


def check(members: Members, target: TargetConfig, more: tuple[str, ...], scaled: bool) -> Members:
    """Check what only this schema has, and return `dflash_config`. Raises ConfigError and UnsupportedConfigError.

    `more` are the members that the backend adds to `dflash_config`; `scaled` is whether it applies the head's scalars.
    """
    nested = read.inner(members, "dflash_config")
    read.closed(nested, (*NESTED, *more))
    not_trainer(members)
    rules.activation(members)
    rules.attention_bias(members)
    rules.plain_rope(members)
    rules.rope_style(members)
    same_as_target(members, target)
    plain_scalars(members, nested, scaled)
    same_head(members, nested)
    return nested


def layer_types(members: Members, layers: int) -> tuple[str, ...]:
    """One name a layer. Raises ConfigError."""
    types = rules.layer_types(members, layers)
    rules.switched_on(members, types)
    return types


def theta(members: Members) -> float:
    """The RoPE base. Raises ConfigError."""
    return rules.theta(members)


def block_size(members: Members, nested: Members) -> int | None:
    """Rows of a trained block; None where absent. Raises ConfigError."""
    place = holder(members, nested, "block_size")
    return read.positive_int(place, "block_size") if place.has("block_size") else None


def unknown(members: Members) -> tuple[str, ...]:
    """Top-level members that this reader does not know."""
    return read.unknown(members, KNOWN)
