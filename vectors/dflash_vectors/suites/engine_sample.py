"""Whole requests through the whole pipeline: penalties, masks and filters, greedy and sampled, that ends cut.

The planted pairs of this module say five tokens over and over, so that penalties bite inside a block. The target's
head is scaled down, so that at a temperature of 0.7 several tokens have a chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs, planted
from dflash_vectors.suite import Case, suite
from dflash_vectors.suites.commit import LEAN

CYCLE = {
    "gaps": ((5,), (2, 3)), "draft_windows": (7,), "hidden": 24, "code": 14, "heads": 2, "head_dim": 8, "idle": 0,
    "padding": 4,
}  # fmt: skip
"""Two cycles of five tokens, of which the draft goes wrong in the second, the decoy, and four padding rows."""
SECOND = {"backend": "dflash2", "rank": 6, "candidates": 5}
SOFT = 0.25
"""The scale of the target's head: the best token leads by two or three."""
TEMPERATURE = inputs.fp32(0.7)
FILTERS = {"top_k": 0, "min_p": 0.0, "top_p": 1.0, "presence": 0.0, "frequency": 0.0}
"""What leaves everything as it is."""


@cache
def _pair(backend: str, dtype: str) -> planted.Planted:
    return planted.pair("small", **LEAN, **CYCLE, **(SECOND if backend == "dflash2" else {}), dtype=dtype)


def request(
    backend: str, profile: Profile, max_new: int, forbidden: Sequence[int] = (), stops: Sequence[int] = (),
    temperature: float = TEMPERATURE, seed: int = 0, drafts: int = 4, **asked: float,
) -> dict[str, Any]:  # fmt: skip
    """`forbidden` and `stops` are token ids."""
    built = _pair(backend, "BF16" if profile.name == "ninfer" else "F32")
    config = planted.component_config(built.options) if profile.name == "ninfer" else built.draft_config
    allowed = np.ones(built.target_config["vocab_size"], dtype=np.int64)
    allowed[list(forbidden)] = 0
    filters = {name: value if name == "top_k" else inputs.fp32(value) for name, value in (FILTERS | asked).items()}
    head = {"target.lm_head.weight": built.target["lm_head.weight"] * SOFT}
    return {
        "target_config": inputs.text(built.target_config),
        "draft_config": inputs.text(config),
        **{f"target.{name}": value for name, value in built.target.items()},
        **{f"draft.{name}": value for name, value in built.draft.items()},
        **head,
        "prompt": np.array(built.prompts[0]),
        "drafts": drafts,
        "max_new": max_new,
        "stop_ids": np.array(stops, dtype=np.int64),
        "public": built.public,
        "temperature": temperature,
        **filters,
        "allowed": allowed,
        "seed": np.uint64(seed),
    }


@suite("engine.sample", profiles=("ninfer",))
def greedy(profile: Profile) -> Iterator[Case]:
    """Greedy requests that penalties and masks lead away from the cycle."""
    yield Case(
        "greedy-penalties", ("PROC-010", "PROC-009", "PROC-008", "PROC-007", "PROC-017"),
        request("dflash", profile, 15, temperature=0.0, presence=0.375, frequency=0.5),
        catches="greedy requests ignore penalties, or one penalty row serves the whole block",
        effect="output",
    )  # fmt: skip
    yield Case(
        "greedy-penalties-inside-a-block", ("PROC-009", "PROC-008", "PROC-010", "PROC-006"),
        request("dflash", profile, 14, temperature=0.0, forbidden=(5, 8, 10), presence=0.125, frequency=0.3125),
        catches="a block that repeats a token does not punish it before the block ends",
        effect="output",
    )  # fmt: skip
    yield Case(
        "greedy-mask", ("PROC-010", "PROC-006"),
        request("dflash", profile, 13, temperature=0.0, forbidden=(8, 10)),
        catches="proposals are accepted by the raw argmax, forbidden or not",
        effect="output",
    )  # fmt: skip
    yield Case(
        "dflash2-greedy-mask-and-penalties", ("PROC-010", "PROC-006", "PROC-007", "PROC-019"),
        request("dflash2", profile, 13, temperature=0.0, forbidden=(7,), presence=0.25, frequency=0.25),
        catches="a selector's proposals are judged by rows without the penalties",
        effect="output",
    )  # fmt: skip


@suite("engine.sample", profiles=("ninfer",))
def sampled(profile: Profile) -> Iterator[Case]:
    """Requests at a temperature of 0.7, whose rounds accept none, some and all; seeds found by search."""
    yield Case(
        "led-away-by-penalties", ("PROC-006", "PROC-007", "PROC-009", "PROC-013", "PROC-014", "LAW-003", "LAW-004"),
        request("dflash", profile, 14, forbidden=(0,), seed=564, drafts=5, min_p=0.15, top_p=0.7, presence=0.125,
                frequency=0.0625),
        catches="a verify pass is not processed as plain decoding is",
        effect="output",
    )  # fmt: skip
    yield Case(
        "up-to-the-budget", ("PROC-013", "PROC-014", "PROC-007", "LAW-003", "LAW-007"),
        request("dflash", profile, 14, forbidden=(0,), seed=633, drafts=5, min_p=0.13, top_p=0.7, presence=0.0625,
                frequency=0.0625),
        catches="filters hold for the first token alone",
        effect="output",
    )  # fmt: skip
    yield Case(
        "stop-inside-a-block", ("PROC-018", "STOP-001", "PROC-006", "LAW-003"),
        request("dflash", profile, 14, forbidden=(0,), stops=(3,), seed=633, drafts=5, min_p=0.13, top_p=0.7,
                presence=0.0625, frequency=0.0625),
        catches="text goes on after a stop inside a sampled block",
        effect="output",
    )  # fmt: skip
    yield Case(
        "dflash2-filtered-and-masked",
        ("PROC-006", "PROC-009", "PROC-011", "PROC-014", "PROC-019", "LAW-009", "LAW-011"),
        request("dflash2", profile, 10, forbidden=(0,), seed=365, top_k=2, top_p=0.91, presence=0.25, frequency=0.0625),
        catches="drawn proposals are verified against another row than plain decoding's",
        effect="output",
    )  # fmt: skip
    yield Case(
        "dflash2-penalties-below-0", ("PROC-017", "PROC-007", "PROC-008", "PROC-013", "LAW-009"),
        request("dflash2", profile, 14, seed=569, min_p=0.15, presence=-0.125, frequency=-0.125),
        catches="the counts stay those of the request's start",
        effect="output",
    )  # fmt: skip


@suite("engine.sample", profiles=("zlab",))
def published(profile: Profile) -> Iterator[Case]:
    """The authors' package at a temperature of 0.7: drawn proposals, and filters on both sides."""
    yield Case(
        "drawn-proposals", ("PROC-020", "PROC-012", "PROC-014", "PROC-015", "LAW-010", "LAW-011"),
        request("dflash", profile, 18, seed=10, top_k=6, top_p=0.9),
        catches="a DFlash draft proposes argmaxes where the package draws, or claims another law than drew",
        effect="output",
    )  # fmt: skip
    yield Case(
        "drawn-proposals-and-a-mask", ("PROC-020", "PROC-012", "LAW-010", "LAW-011"),
        request("dflash", profile, 21, forbidden=(0,), seed=17, drafts=5, top_k=3),
        catches="the draft's proposals leave the mask's law, and rejections do not correct them",
        effect="output",
    )  # fmt: skip
    yield Case(
        "drawn-proposals-and-a-stop", ("LAW-010", "PROC-020", "PROC-014", "STOP-001"),
        request("dflash", profile, 18, stops=(3,), seed=10, top_k=6, top_p=0.9),
        catches="text goes on after a stop inside a drawn block",
        effect="output",
    )  # fmt: skip
    yield Case(
        "dflash2-filters-on-the-target", ("PROC-014", "PROC-012", "LAW-010", "LAW-011", "SEL-005"),
        request("dflash2", profile, 19, seed=2, top_k=4, top_p=0.95),
        catches="the selector's law is filtered as the target's is, or the target's is not",
        effect="output",
    )  # fmt: skip


@suite("engine.sample")
def refused(profile: Profile) -> Iterator[Case]:
    """A request that may not say anything."""
    yield Case(
        "nothing-allowed", ("PROC-022",), request("dflash", profile, 5, forbidden=range(11)),
        catches="a request without a token to say yields one, or never ends",
        effect="liveness",
    )  # fmt: skip
