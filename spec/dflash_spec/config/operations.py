"""The CFG ops. A config op answers by returning, or refuses by raising ConfigError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dflash_spec.config import draft as drafts
from dflash_spec.config import folder, inventory, start, width
from dflash_spec.config import taps as formulas
from dflash_spec.config import target as targets
from dflash_spec.config import trainer as trainers
from dflash_spec.config.draft import DFlash2Config, DraftConfig
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array


class DraftAnswer(NamedTuple):
    refused: int
    taps: Array
    windows: Array
    causal: Array
    mask_id: int
    block_size: int
    theta: float
    eps: float
    shape: Array


class SecondAnswer(NamedTuple):
    refused: int
    taps: Array
    windows: Array
    causal: Array
    mask_id: int
    block_size: int
    theta: float
    eps: float
    shape: Array
    conv: Array
    selector: Array
    output_multiplier: float
    softcap: float


class Flag(NamedTuple):
    refused: int
    executable: int


class TargetAnswer(NamedTuple):
    refused: int
    windows: Array
    theta: float
    eps: float
    shape: Array
    tied: int
    stop_ids: Array


class TrainerAnswer(NamedTuple):
    refused: int
    taps: Array
    target_layers: int
    draft_layers: int
    mask_id: int


class Ids(NamedTuple):
    refused: int
    ids: Array


class Count(NamedTuple):
    refused: int
    drafts: int


class Admitted(NamedTuple):
    refused: int


def _text(values: Array) -> bytes:
    """The bytes of a U8 tensor, whatever numeric type the caller widened it to."""
    return np.asarray(values).astype(np.uint8).tobytes()


def _ints(values: Any) -> Array:
    return np.array(values, dtype=np.int64).reshape(-1)


def _list(values: Array) -> list[int]:
    return [int(value) for value in np.asarray(values).reshape(-1)]


def _draft_answer(config: DraftConfig) -> DraftAnswer:
    return DraftAnswer(
        0, _ints(config.taps), _ints(config.windows), _ints(config.causal), config.mask_id,
        -1 if config.block_size is None else config.block_size, config.theta, config.eps,
        _ints([config.hidden_size, config.intermediate_size, config.layers, config.heads, config.kv_heads,
               config.head_dim]),
    )  # fmt: skip


def read_draft(draft: Array, target: Array, profile: Profile) -> DraftAnswer:
    """config.read_draft: the profile's own schema."""
    return _draft_answer(
        drafts.read_draft_config(_text(draft), profile, targets.read_target_config(_text(target)), None, drafts.DFLASH)
    )


def convert_draft(draft: Array, target: Array, profile: Profile) -> DraftAnswer:
    """config.convert_draft: a published file by the rules of the profile."""
    target_config = targets.read_target_config(_text(target))
    return _draft_answer(drafts.read_draft_config(_text(draft), profile, target_config, "published", drafts.DFLASH))


def _second(draft: Array, target: Array, profile: Profile, schema: str | None) -> DFlash2Config:
    target_config = targets.read_target_config(_text(target))
    config = drafts.read_draft_config(_text(draft), profile, target_config, schema, drafts.DFLASH2)
    assert isinstance(config, DFlash2Config)
    return config


def _second_answer(config: DFlash2Config) -> SecondAnswer:
    return SecondAnswer(
        *_draft_answer(config), _ints([config.conv_taps, config.conv_group]),
        _ints([config.selector_rank, config.selector_top_k]), config.output_multiplier, config.softcap,
    )  # fmt: skip


def read_dflash2(draft: Array, target: Array, profile: Profile) -> SecondAnswer:
    """config.read_dflash2: the profile's own schema."""
    return _second_answer(_second(draft, target, profile, None))


def convert_dflash2(draft: Array, target: Array, profile: Profile) -> SecondAnswer:
    """config.convert_dflash2: a published file by the rules of the profile."""
    return _second_answer(_second(draft, target, profile, "published"))


def executable(draft: Array, target: Array, profile: Profile) -> Flag:
    """config.executable: the profile's own schema."""
    return Flag(0, int(start.executable(_second(draft, target, profile, None))))


def check_folder(draft: Array, target: Array, tensors: Array, profile: Profile) -> Admitted:
    """config.check_folder: a published draft of either backend."""
    config = drafts.read_draft_config(_text(draft), profile, targets.read_target_config(_text(target)), "published")
    found = folder.read_listing(_text(tensors).decode())
    folder.check_tensors(inventory.draft_tensors(config), found, lambda name: "tensor listing")
    return Admitted(0)


def draft_start(
    draft: Array, target: Array, backend: int, requested: int, public: int, indexed: int, profile: Profile
) -> Count:
    """config.start."""
    target_config = targets.read_target_config(_text(target))
    return Count(
        0,
        start.draft_start(
            _text(draft), profile, target_config, int(backend), _given(requested), int(public), int(indexed)
        ),
    )


def read_target(target: Array, profile: Profile) -> TargetAnswer:
    """config.read_target."""
    config = targets.read_target_config(_text(target))
    sizes = [config.hidden_size, config.intermediate_size, config.layers, config.heads, config.kv_heads,
             config.head_dim, config.vocab_size]  # fmt: skip
    return TargetAnswer(
        0, _ints(config.windows), config.theta, config.eps, _ints(sizes), int(config.tied), _ints(config.stop_ids)
    )


def read_trainer(trainer: Array, profile: Profile) -> TrainerAnswer:
    """config.read_trainer."""
    config = trainers.read_trainer_config(_text(trainer))
    return TrainerAnswer(0, _ints(config.taps), config.target_layers, config.draft_layers, config.mask_id)


def taps_half_even(target_layers: int, taps: int, profile: Profile) -> Ids:
    """config.taps_half_even."""
    return Ids(0, _ints(formulas.half_even_taps(int(target_layers), int(taps))))


def taps_integer_step(target_layers: int, taps: int, profile: Profile) -> Ids:
    """config.taps_integer_step."""
    return Ids(0, _ints(formulas.integer_step_taps(int(target_layers), int(taps))))


def taps_reduced(target_layers: int, ids: Array, profile: Profile) -> Admitted:
    """config.taps_reduced."""
    formulas.check_reduced_taps(int(target_layers), _list(ids))
    return Admitted(0)


def _given(value: int) -> int | None:
    """An argument of which 0 stands for absent."""
    return int(value) or None


def width_own(block_size: int, requested: int, profile: Profile) -> Count:
    """config.width: the profile's own rule."""
    return Count(0, width.draft_count(profile, _given(block_size), _given(requested)))


def width_matched(block_size: int, requested: int, profile: Profile) -> Count:
    """config.width_matched."""
    return Count(0, width.matched_count(_given(block_size), _given(requested)))


def width_bounded(block_size: int, requested: int, profile: Profile) -> Count:
    """config.width_bounded."""
    return Count(0, width.bounded_count(_given(block_size), _given(requested)))


def concurrency(requests: int, profile: Profile) -> Admitted:
    """config.concurrency."""
    start.check_concurrency(profile, int(requests))
    return Admitted(0)


def head_index(token_ids: Array, public: int, profile: Profile) -> Admitted:
    """config.head_index."""
    start.check_head_index(_list(token_ids), int(public))
    return Admitted(0)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "config.read_draft": read_draft,
    "config.convert_draft": convert_draft,
    "config.read_dflash2": read_dflash2,
    "config.convert_dflash2": convert_dflash2,
    "config.executable": executable,
    "config.check_folder": check_folder,
    "config.start": draft_start,
    "config.read_target": read_target,
    "config.read_trainer": read_trainer,
    "config.taps_half_even": taps_half_even,
    "config.taps_integer_step": taps_integer_step,
    "config.taps_reduced": taps_reduced,
    "config.width": width_own,
    "config.width_matched": width_matched,
    "config.width_bounded": width_bounded,
    "config.concurrency": concurrency,
    "config.head_index": head_index,
}
"""Op name -> function. Text arguments are U8 arrays; `profile` is a keyword like every input."""
