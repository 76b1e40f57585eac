"""The pairs that are measured: planted ones of a size at which a step is real work, or any pair on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_spec.config import DFlash2Config, read_draft_config, read_target_config
from dflash_spec.registry import load_profile

from dflash_vectors import inputs, planted

POSITIONS = 8192
"""`max_position_embeddings` of both models."""
WINDOW = 512
"""Rows that a local draft layer sees."""
LEVELS = (0, 1, 3, 7, 15)
"""Accepted proposals of every round, a prompt each."""
MIXED = (3, 5, 2, 7, 1, 16, 4, 10)
"""Gaps of the prompt whose rounds accept differently."""
CYCLE = 48
SETTLED = 3
"""The level whose prompt is timed: four tokens a round, as published drafts have on ordinary text."""


@dataclass(frozen=True)
class Pair:
    """Two folders, and prompts: `texts` by the name of what its rounds accept, each a cycle that goes on for ever.

    A pair from disk has one text of keyed ids, about which nothing is known.
    """

    target: Path
    draft: Path
    backend: str
    texts: dict[str, tuple[int, ...]]
    origin: str

    def prompt(self, tokens: int, text: str | None = None) -> list[int]:
        """`tokens` ids that end where the text's first round begins; None takes the text that is timed."""
        cycle = self.texts[text or self.timed]
        start = -tokens % len(cycle)
        return [cycle[(start + place) % len(cycle)] for place in range(tokens)]

    @property
    def timed(self) -> str:
        """The text whose rounds are timed."""
        return str(SETTLED) if str(SETTLED) in self.texts else next(iter(self.texts))


def options(geometry: str, windows: Sequence[int] | None = None) -> dict[str, Any]:
    """The planted options of a geometry, `bench` or `tiny`; `windows` are the draft's where they are other ones."""
    gaps = (*((level + 1,) * (CYCLE // (level + 1)) for level in LEVELS), MIXED)
    used = len(gaps) * CYCLE + 1
    if geometry == "tiny":
        return {
            "gaps": gaps, "hidden": 72, "code": 60, "taps": (1, 0), "padding": 7, "idle": 512 - used - 7,
            "draft_windows": tuple(windows or (64, 0)), "target_windows": (0, 0, 0), "copy_layer": 0, "dtype": "BF16",
        }  # fmt: skip
    return {
        "gaps": gaps, "hidden": 512, "code": 120, "heads": 8, "kv_heads": 2, "head_dim": 64, "intermediate": 1536,
        "padding": 64, "idle": 32_000 - used - 64, "target_windows": (0,) * 8,
        "draft_windows": tuple(windows or (WINDOW, WINDOW, 0)), "copy_layer": 0, "taps": (5, 3, 1), "rank": 64,
        "dtype": "BF16",
    }  # fmt: skip


def local_windows(geometry: str) -> tuple[int, ...]:
    """The draft's windows with every layer local."""
    windows = options(geometry)["draft_windows"]
    return (max(windows),) * len(windows)


def make(folder: Path, backend: str, geometry: str = "bench", windows: Sequence[int] | None = None) -> Pair:
    """A planted pair in BF16, written to a folder. Raises FileExistsError where that holds something else."""
    made = planted.pair("standard", backend=backend, **options(geometry, windows))
    for config in (made.target_config, made.draft_config):
        config["max_position_embeddings"] = POSITIONS
    planted.write(folder, made, "BF16")
    names = [*map(str, LEVELS), "mixed"]
    texts = dict(zip(names, made.words.cycles, strict=True))
    return Pair(folder / "target", folder / "draft", backend, texts, f"planted, geometry {geometry}")


def on_disk(target: Path, draft: Path) -> Pair:
    """A pair that is there. Its text is keyed ids. Raises ConfigError for a folder that is no model of a pair."""
    read = read_target_config(target)
    second = isinstance(read_draft_config(draft, load_profile("zlab"), read), DFlash2Config)
    ids = inputs.tokens("bench/text", 4096, read.vocab_size)
    backend = "dflash2" if second else "dflash"
    return Pair(target, draft, backend, {"keyed": tuple(ids.tolist())}, f"{target} and {draft}")


def longest(pair: Pair) -> int:
    """The most tokens that both models have positions for."""
    target = read_target_config(pair.target)
    return min(target.max_positions, read_draft_config(pair.draft, load_profile("zlab"), target).max_positions)
