"""A pair of published folders as adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import (
    DFlash2Config,
    DraftConfig,
    TargetConfig,
    check_head_index,
    draft_count,
    draft_tensors,
    read_draft_config,
    read_target_config,
    target_tensors,
)
from dflash_spec.config.dflash2 import check_candidates
from dflash_spec.config.start import proposal_rows
from dflash_spec.errors import ConfigError, RequestError
from dflash_spec.registry import ALL_PROFILES, PROFILES, Profile, load_profile
from torch import Tensor

from dflash_accelerated import weights
from dflash_accelerated.arguments import check_ids, check_integer, shown
from dflash_accelerated.models.dflash import DFlashDraft
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.models.qwen3 import Qwen3Target
from dflash_accelerated.numerics import DTYPES, Kernels, Numerics


class Pair(NamedTuple):
    """A target and a draft that fit together, and what their configs say of requests."""

    target: Qwen3Target
    draft: DFlashDraft
    numerics: Numerics
    drafts: int
    positions: int
    stop_ids: tuple[int, ...]


def load_pair(
    target: Path, draft: Path, profile: Profile, draft_tokens: int | None, dtype: torch.dtype | None, kernels: Kernels,
    device: torch.device, public_tokens: int | None, proposal_ids: Sequence[int] | None,
) -> Pair:  # fmt: skip
    """The pair in two folders; `Engine.from_pretrained` says what each argument means and what is raised.

    A tensor is read when it is packed, and held no longer.
    """
    check_profile(profile)
    target_config = read_target_config(target)
    draft_config = read_draft_config(draft, profile, target_config, "published")
    drafts = _drafts(profile, draft_config.block_size, draft_tokens)
    public = target_config.vocab_size if public_tokens is None else public_tokens
    public = check_integer("public_tokens", public, 1, target_config.vocab_size)
    index = _proposal_index(profile, target_config, draft_config, public, proposal_ids)
    folders = Checkpoint.open(target), Checkpoint.open(draft)
    numerics = Numerics.of(profile, dtype or _files_dtype(*folders), kernels)
    return Pair(
        Qwen3Target(
            target_config, weights.Folder(folders[0], target_tensors(target_config)), public, numerics, device, index
        ),
        load_draft(draft_config, weights.Folder(folders[1], draft_tensors(draft_config)), numerics, device),
        numerics,
        drafts,
        min(target_config.max_positions, draft_config.max_positions),
        target_config.stop_ids,
    )


def load_draft(
    config: DraftConfig, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
) -> DFlashDraft:
    """The draft that a config asks for."""
    if isinstance(config, DFlash2Config):
        return DFlash2Draft(config, tensors, numerics, device)
    return DFlashDraft(config, tensors, numerics, device)


def read_profile(name: object) -> Profile:
    """The profile of that name. Raises RequestError, which offers those that decode."""
    if not isinstance(name, str) or name not in ALL_PROFILES:
        raise RequestError(f"profile is {shown(name)}, expected one of {', '.join(PROFILES)}")
    return load_profile(name)


def check_profile(profile: Profile) -> None:
    """Raise RequestError for a profile that does not state all that decoding needs."""
    if profile.name not in PROFILES:
        raise RequestError(
            f"profile {profile.name} is stated on some ops only, expected one of {', '.join(PROFILES)} to decode with"
        )


def _drafts(profile: Profile, block_size: int | None, asked: int | None) -> int:
    """K by the profile's width rule. Raises RequestError where `asked` breaks it, ConfigError where the file does."""
    try:
        return draft_count(profile, block_size, asked)
    except ConfigError as error:
        if error.key == "draft_tokens":
            raise RequestError(str(error)) from error
        raise


def _files_dtype(target: Checkpoint, draft: Checkpoint) -> torch.dtype | None:
    """The dtype of both folders; None where one lacks the tensor that tells, which its loading will say.

    Raises RequestError where they differ.
    """
    told = target.entries.get("model.embed_tokens.weight"), draft.entries.get("fc.weight")
    if told[0] is None or told[1] is None:
        return None
    first, second = (DTYPES.get(entry.dtype) for entry in told if entry)
    if first != second:
        raise RequestError(f"dtype None: the target is {first} and the draft {second}, expected one dtype")
    return first


def _proposal_index(
    profile: Profile, target: TargetConfig, draft: DraftConfig, public: int, ids: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The rows of an indexed proposal head. Raises ConfigError, and RequestError where `ids` are no token ids."""
    index = None if ids is None else check_ids("proposal_ids", ids, target.vocab_size)
    if index is not None:
        if not index:
            raise RequestError("proposal_ids has 0 ids, expected at least 1")
        if profile.axes["proposal_head"] != "full_or_index":
            raise RequestError(
                f"proposal_ids in profile {profile.name}, expected None: profile ninfer has it [CFG-075]"
            )
        check_head_index(index, public)
    rows = proposal_rows(profile, target.vocab_size, public, len(index or ()))
    if isinstance(draft, DFlash2Config):
        check_candidates(draft.selector_top_k, rows)
    return index
