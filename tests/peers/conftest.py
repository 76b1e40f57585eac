"""Planted pairs on disk, and every implementation that loads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from dflash_accelerated import Engine
from dflash_reference.models import Draft, Target, draft_of
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.registry import load_profile
from dflash_vectors import planted
from transformers import AutoModelForCausalLM, DynamicCache

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Loaded:
    """One planted pair in published folders. Everything but the reference reads it from there."""

    pair: planted.Planted
    folder: Path

    @cached_property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.pair.options.dtype]

    @cached_property
    def reference(self) -> tuple[Target, Draft]:
        config = read_target_config(self.folder / "target")
        draft = read_draft_config(self.folder / "draft", load_profile("zlab"), config)
        return Target(config, self.pair.target), draft_of(draft, self.pair.draft)

    @cached_property
    def authors(self) -> Any:
        """The authors' draft, which the package's loader reads unchanged."""
        kind = DFlash2DraftModel if self.pair.options.second else DFlashDraftModel
        return kind.from_pretrained(self.folder / "draft", dtype=self.dtype)

    @cached_property
    def transformers(self) -> Any:
        """transformers' target, through its automatic class."""
        return AutoModelForCausalLM.from_pretrained(self.folder / "target", dtype=self.dtype)

    def engine(self, drafts: int, profile: str = "zlab", public: int | None = None) -> Engine:
        """`public` None is the pair's own count."""
        return Engine.from_pretrained(
            self.folder / "target", self.folder / "draft", profile=profile, draft_tokens=drafts,
            public_tokens=self.pair.public if public is None else public,
        )  # fmt: skip

    @torch.inference_mode()
    def plain(self, prompt: list[int], count: int) -> list[int]:
        """Greedy tokens of transformers, one at a time."""
        cache, tokens, step = DynamicCache(config=self.transformers.config), [], torch.tensor([prompt])
        for _ in range(count):
            logits = self.transformers(step, cache=cache, use_cache=True).logits[0, -1]
            tokens.append(int(logits.argmax()))
            step = torch.tensor([tokens[-1:]])
        return tokens


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Loaded]:
    """Builds a pair from a preset and options and writes it, each once."""
    made: dict[str, Loaded] = {}

    def one(preset: str, shards: int = 1, **options: Any) -> Loaded:
        key = f"{preset} {shards} {options}"
        if key not in made:
            pair, folder = planted.pair(preset, **options), tmp_path_factory.mktemp("pair")
            planted.write(folder, pair, pair.options.dtype, shards)
            made[key] = Loaded(pair, folder)
        return made[key]

    return one
