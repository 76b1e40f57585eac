"""Planted pairs whose drafts are accepted 0, 4, 2, 3, 1 times in turn, in folders, and every engine that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash.model import DFlash2DraftModel, DFlashDraftModel
from dflash_accelerated import Engine
from dflash_accelerated.kernels import Choice
from dflash_reference.request import Settings
from dflash_spec.registry import load_profile
from dflash_vectors import planted
from dflash_vectors.planted import Planted
from dflash_vectors.replay import Pair, Replay, Report
from dflash_vectors.replay.loading import load_pair
from dflash_vectors.replay.recording import record_reference
from dflash_vectors.trace import Trace
from transformers import AutoModelForCausalLM

DRAFTS = 4
GAPS = ((1, 5, 3, 4, 2),)
ROUNDS_150 = 170
"""New tokens in which the pairs come to more than fifty rounds."""


@dataclass(frozen=True)
class Made:
    """A planted pair, in memory and in published folders."""

    pair: Planted
    folder: Path

    @property
    def texts(self) -> tuple[Any, Any]:
        return self.pair.target_config, self.pair.draft_config

    @property
    def folders(self) -> tuple[Path, Path]:
        return self.folder / "target", self.folder / "draft"

    def reference(self, profile: str) -> Pair:
        """Both models for the reference."""
        from dflash_reference.models import Target, draft_of
        from dflash_spec.config import read_draft_config, read_target_config

        rules = load_profile(profile)
        target = read_target_config(self.folders[0])
        draft = read_draft_config(self.folders[1], rules, target, "published")
        return Pair(Target(target, self.pair.target), draft_of(draft, self.pair.draft), rules)

    def settings(self, max_new: int, **more: Any) -> Settings:
        return Settings(DRAFTS, max_new, (self.pair.words.decoy,), self.pair.public, **more)

    @cached_property
    def authors(self) -> tuple[Any, Any]:
        """The authors' draft, and transformers' target."""
        kind = DFlash2DraftModel if self.pair.options.second else DFlashDraftModel
        return (
            kind.from_pretrained(self.folder / "draft", dtype=torch.float32),
            AutoModelForCausalLM.from_pretrained(self.folder / "target", dtype=torch.float32),
        )

    def engine(self, profile: str, kernels: Choice = "auto") -> Engine:
        return Engine.from_pretrained(
            *self.folders, profile=profile, public_tokens=self.pair.public, draft_tokens=DRAFTS, kernels=kernels
        )  # fmt: skip

    def replayed(self, folder: Path, only: Any = None) -> Report:
        """The report on a trace, by the weights in the folders."""
        trace = Trace.open(folder)
        return Replay(trace, load_pair(trace.configuration, *self.folders), only).run()


Make = Callable[..., Made]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Builds a pair, each once."""
    torch.set_num_threads(1)
    made: dict[str, Made] = {}

    def one(backend: str = "dflash", dtype: str = "F32", **options: Any) -> Made:
        key = f"{backend} {dtype} {options}"
        if key not in made:
            chosen = {"gaps": GAPS, "draft_windows": (19, 0), **options}
            pair = planted.pair("small", backend=backend, dtype=dtype, **chosen)
            folder = tmp_path_factory.mktemp("pair")
            planted.write(folder, pair, dtype)
            made[key] = Made(pair, folder)
        return made[key]

    return one


@pytest.fixture(scope="session")
def clean(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A trace of the reference without a fault, of each backend once."""
    made: dict[str, Path] = {}

    def one(backend: str) -> Path:
        if backend not in made:
            pair, folder = make(backend), tmp_path_factory.mktemp("clean") / "trace"
            record_reference(folder, pair.reference("zlab"), pair.texts, pair.pair.prompts[0], pair.settings(120))
            made[backend] = folder
        return made[backend]

    return one


@contextmanager
def nothing(_watcher: Any) -> Iterator[None]:
    """No fault."""
    yield
