"""The trainer's own schema, flat, in which `num_target_layers` counts the taps and not the target's depth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_spec.config import draft, taps
from dflash_spec.config import members as read
from dflash_spec.config.members import Members

KNOWN = (
    "hidden_size", "num_hidden_layers", "num_target_layers", "target_hidden_size", "target_num_hidden_layers",
    "target_layer_ids", "mask_token_id", "vocab_size", "block_size", "rope_theta",
)  # fmt: skip


@dataclass(frozen=True)
class TrainerConfig:
    """What a trainer config says. Sizes count channels, layers or tokens; `theta` is an FP32 value."""

    vocab_size: int
    hidden_size: int
    draft_layers: int
    target_layers: int
    """Depth of the target: `target_num_hidden_layers`."""
    taps: tuple[int, ...]
    mask_id: int
    block_size: int | None
    theta: float | None
    unknown: tuple[str, ...] = ()


def depth(members: Members) -> int:
    """Clause: CFG-058. The target's depth is `target_num_hidden_layers`. Raises ConfigError where it is absent."""
    return read.positive_int(members, "target_num_hidden_layers")


def tap_ids(members: Members, target_layers: int) -> tuple[int, ...]:
    """The recorded ids.

    Clause: CFG-059. Raises ConfigError unless `num_target_layers` is their number.
    """
    ids = taps.listed(members)
    if read.positive_int(members, "num_target_layers") != len(ids):
        raise members.wrong("num_target_layers", f"{len(ids)}, the number of tap ids", "CFG-059")
    taps.check_distinct(ids)
    taps.check_in_range(ids, target_layers)
    return ids


def width(members: Members) -> int:
    """Clause: CFG-060. The hidden width. Raises ConfigError unless `target_hidden_size` is the same: the draft borrows
    the target's embedding and head."""
    size = read.positive_int(members, "hidden_size")
    if read.positive_int(members, "target_hidden_size") != size:
        raise members.wrong("target_hidden_size", f"hidden_size, {size}", "CFG-060")
    return size


def read_trainer_config(source: bytes | Path) -> TrainerConfig:
    """Read a trainer config: the JSON text itself or its file. Raises ConfigError."""
    members = read.read(source, "trainer config")
    target_layers = depth(members)
    vocab_size = read.positive_int(members, "vocab_size")
    return TrainerConfig(
        vocab_size=vocab_size,
        hidden_size=width(members),
        draft_layers=read.positive_int(members, "num_hidden_layers"),
        target_layers=target_layers,
        taps=tap_ids(members, target_layers),
        mask_id=draft.mask_id(members, vocab_size),
        block_size=read.positive_int(members, "block_size") if members.has("block_size") else None,
        theta=read.positive_float(members, "rope_theta") if members.has("rope_theta") else None,
        unknown=read.unknown(members, KNOWN),
    )
