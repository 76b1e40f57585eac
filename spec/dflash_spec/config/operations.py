"""The CFG ops. A config op answers by returning, or refuses by raising ConfigError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dflash_spec.config import draft as drafts
from dflash_spec.config import start, width
from dflash_spec.config import taps as formulas
from dflash_spec.config import target as targets
from dflash_spec.config import trainer as trainers
from dflash_spec.config.draft import DraftConfig
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
