"""What a trace holds: its files, their tensors, and which of them there must be (docs/traces.md has it in words)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from dflash_spec.config import DFlash2Config, DraftConfig, TargetConfig, read_draft_config, read_target_config
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array, Tensor

FORMAT, VERSION = "dflash-trace", 1
START, PREFILL, END = "start.safetensors", "prefill.safetensors", "end.safetensors"
ROUND_FILE = re.compile(r"round-(\d{6,})\.safetensors")

NUMBERS = ("in.frontier", "in.anchor", "in.extent", "decision.accepted", "decision.kept")
"""The numbers that every round has, each a tensor of shape []."""
LISTS = ("decision.proposals", "decision.licensed")
"""The lists of token ids that every round has: [extent], and [accepted + 1] or as many of these as were kept."""
FRONTIERS = ("execution", "kv", "context")
"""What `frontier.*` may name, after the round: the anchor's position, the target's rows, the draft's context rows."""

DRAFTED = ("features", "c", "layer", "hidden")
"""Stages of the proposal that both kinds of draft have, in order; `layer` stands for `layer.0`, `layer.1`, …"""
CHOSEN = {1: ("logits", "q"), 2: ("candidates", "unary", "g", "scores", "q")}
"""Stages with which a DFlash draft, and a DFlash2 draft, chooses its proposals, in order; a DFlash draft has a law q
only where it draws them."""
VERIFIED = ("target.features", "target.logits")
"""Stages of the target's verify pass, and of its prefill."""

REASONS = ("stop", "length", "capacity", "cancelled", "error")
DRAWS = ("keyed", "opaque")
SAMPLING = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence": 0.0, "frequency": 0.0}
"""What a request may ask of its sampling, and what each is where it does not: nothing."""


def round_file(number: int) -> str:
    """The name of a round's file."""
    return f"round-{number:06d}.safetensors"


@dataclass(frozen=True)
class Configuration:
    """What was asked, of which pair, in which profile, and who answered.

    `run` is any text that tells this run from others. `target_config` and `draft_config` are the texts of both
    `config.json`. `drafts` is K; `public` counts the ids that a text can hold and `capacity` the positions that there
    are, None for what the configs say. `draws` is `keyed` where the uniforms of a sampled request are those of its seed
    and each draw's key, else `opaque`. `sampling` has the members of SAMPLING that are not at their default, and
    `dtypes` says what the implementation holds the roles ACT, CTX_K, CTX_V and LOGIT in. `allowed` has a byte for each
    id that a text can hold, 0 where it may not come; None lets all of them.
    """

    name: str
    version: str
    profile: str
    run: str
    target_config: bytes
    draft_config: bytes
    prompt: tuple[int, ...]
    drafts: int
    max_new: int
    stop_ids: tuple[int, ...] = ()
    public: int | None = None
    capacity: int | None = None
    temperature: float = 0.0
    seed: int = 0
    chunks: tuple[int, ...] = ()
    draws: str = "keyed"
    sampling: Mapping[str, float] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    allowed: bytes | None = None

    @cached_property
    def rules(self) -> Profile:
        """The profile itself. Raises SpecDataError."""
        return load_profile(self.profile)

    @cached_property
    def target(self) -> TargetConfig:
        """The target's config. Raises ConfigError."""
        return read_target_config(self.target_config)

    @cached_property
    def draft(self) -> DraftConfig:
        """The draft's config, in the published schema. Raises ConfigError."""
        return read_draft_config(self.draft_config, self.rules, self.target, "published")

    @property
    def second(self) -> bool:
        """Whether the draft is a DFlash2 draft."""
        return isinstance(self.draft, DFlash2Config)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that a round of this draft may have, in the order of the round."""
        layers = [f"layer.{index}" for index in range(self.draft.layers)]
        drafted = [name for stage in DRAFTED for name in (layers if stage == "layer" else [stage])]
        return (*drafted, *CHOSEN[2 if self.second else 1], *VERIFIED)

    @property
    def positions(self) -> int:
        """How many positions there are: tokens stand at [0, positions)."""
        most = min(self.target.max_positions, self.draft.max_positions)
        return most if self.capacity is None else min(most, self.capacity)

    @property
    def budget(self) -> int:
        """How many tokens may be emitted."""
        return min(self.max_new, self.positions - len(self.prompt) + 1)

    @property
    def ids(self) -> int:
        """How many ids a text can hold: tokens are [0, ids)."""
        return self.target.vocab_size if self.public is None else self.public


@dataclass(frozen=True)
class Prefill:
    """The prompt's pass: the token after it, and stages `target.features` [T, n·H] and `target.logits` [1, V]."""

    first: int
    frontiers: Mapping[str, int]
    stages: Mapping[str, Tensor]
    hashes: Mapping[str, bytes]
    extras: Mapping[str, Tensor]


@dataclass(frozen=True)
class Round:
    """One round: what it was given, what it decided, where it left the state, and whatever else was recorded of it.

    `proposals` [P]; `licensed` [accepted + 1], or fewer where the engine knows the kept ones alone. `hashes` are
    digests of state and `extras` tensors of the implementation's own, which only another trace of the same
    implementation can be compared with.
    """

    number: int
    frontier: int
    anchor: int
    extent: int
    proposals: Array
    accepted: int
    licensed: Array
    kept: int
    frontiers: Mapping[str, int]
    stages: Mapping[str, Tensor]
    hashes: Mapping[str, bytes]
    extras: Mapping[str, Tensor]

    @property
    def kept_tokens(self) -> list[int]:
        return [int(token) for token in self.licensed[: self.kept]]

    @property
    def verified(self) -> Array:
        """What the target's verify pass read: the anchor and the proposals, [P + 1]."""
        return np.append(np.int64(self.anchor), self.proposals)


@dataclass(frozen=True)
class End:
    """How the run ended: the reason, how many rounds it had, and the whole answer if it was recorded."""

    reason: str
    rounds: int
    tokens: tuple[int, ...] | None
