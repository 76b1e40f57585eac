"""Whole requests as ops: from the texts of two configs, and weights by name, to the tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import engine
from dflash_reference.models import Target, draft_of
from dflash_reference.request import Settings


class Generate(NamedTuple):
    """proposals: [rounds, K] int64, those that were verified, then -1. tokens: [N]. accepted: [rounds].

    What engine.generate and engine.sample return.
    """

    proposals: Array
    tokens: Array
    accepted: Array


def generate(
    target_config: Array, draft_config: Array, target: dict[str, Array], draft: dict[str, Array], prompt: Array,
    drafts: int, max_new: int, stop_ids: Array, public: int, temperature: float, seed: int, profile: Profile,
) -> Generate:  # fmt: skip
    """The op engine.generate: configs as U8 texts, weights by published name, prompt [T] and stop_ids [E] token ids."""
    settings = Settings(drafts, max_new, tuple(stop_ids.tolist()), public, temperature, seed)
    return _served(target_config, draft_config, target, draft, prompt, settings, profile)


def sample(
    target_config: Array, draft_config: Array, target: dict[str, Array], draft: dict[str, Array], prompt: Array,
    drafts: int, max_new: int, stop_ids: Array, public: int, temperature: float, top_k: int, min_p: float,
    top_p: float, presence: float, frequency: float, allowed: Array, seed: int, profile: Profile,
) -> Generate:  # fmt: skip
    """The op engine.sample: as engine.generate, with the target's whole pipeline; allowed [V] is 1 where it may say."""
    settings = Settings(
        drafts, max_new, tuple(stop_ids.tolist()), public, temperature, seed, top_k=top_k, top_p=top_p, min_p=min_p,
        presence=presence, frequency=frequency, allowed=allowed[:public],
    )  # fmt: skip
    return _served(target_config, draft_config, target, draft, prompt, settings, profile)


def _served(
    target_text: Array, draft_text: Array, target: dict[str, Array], weights: dict[str, Array], prompt: Array,
    settings: Settings, profile: Profile,
) -> Generate:  # fmt: skip
    config = read_target_config(target_text.astype(np.uint8).tobytes())
    model = draft_of(read_draft_config(draft_text.astype(np.uint8).tobytes(), profile, config), weights)
    done = engine.generate(Target(config, target), model, prompt.tolist(), settings, profile)
    proposals = np.full((len(done.accepted), settings.drafts or 0), -1)
    for row, ids in zip(proposals, done.proposals, strict=True):
        row[: len(ids)] = ids
    return Generate(proposals, np.array(done.tokens), np.array(done.accepted, dtype=np.int64))
