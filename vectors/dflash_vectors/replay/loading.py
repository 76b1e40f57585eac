"""The pair that a trace was recorded with, from its two folders."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from dflash_reference import num
from dflash_reference.models import Target, draft_of
from dflash_reference.request import check_pair
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.errors import TraceError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.replay.lanes import Pair
from dflash_vectors.trace import Configuration

ELSEWHERE = ("stop_ids", "unknown")
"""Members of a config that do not say which model it is, and that a folder may hold in another file."""


def load_pair(asked: Configuration, target: Path, draft: Path) -> Pair:
    """Both models, in the dtypes of the trace's profile.

    Raises TraceError where a folder's config is not the recorded one, ConfigError, CheckpointError and TensorError for
    folders that hold no such models.
    """
    target_config = read_target_config(target)
    draft_config = read_draft_config(draft, asked.rules, target_config, "published")
    _check_same(target, target_config, asked.target)
    _check_same(draft, draft_config, asked.draft)
    pair = Pair(
        Target(target_config, _weights(target, target_tensors(target_config), asked.rules)),
        draft_of(draft_config, _weights(draft, draft_tensors(draft_config), asked.rules)),
        asked.rules,
    )
    check_pair(pair.target, pair.draft)
    return pair


def _check_same(folder: Path, found: Any, recorded: Any) -> None:
    """Raise TraceError where two configs describe other models."""
    if type(found) is not type(recorded):
        raise TraceError(f"{folder}: a {found.architecture}, expected a {recorded.architecture}, as it was recorded")
    for member in fields(found):
        values = getattr(found, member.name), getattr(recorded, member.name)
        if member.name not in ELSEWHERE and values[0] != values[1]:
            raise TraceError(f"{folder}: {member.name} is {values[0]}, the trace was recorded with {values[1]}")


def _weights(folder: Path, expected: Any, profile: Profile) -> dict[str, Array]:
    """The folder's tensors, rounded to the profile's dtype of weights as an engine rounds them, once."""
    checkpoint = Checkpoint.open(folder)
    checkpoint.check(expected)
    return {name: num.round_to(checkpoint.read(name).values, profile.dtypes["WEIGHT"]) for name in expected}


def parameters(*folders: Path) -> int:
    """How many numbers the folders hold. Raises CheckpointError."""
    total = 0
    for folder in folders:
        for entry in Checkpoint.open(folder).entries.values():
            size = 1
            for extent in entry.shape:
                size *= extent
            total += size
    return total
