"""Luce's rounds, in both forms: every accepted count, and every place where a stop or the budget cuts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

LUCE = ("luce",)
TEXT = (211, 223, 227, 229, 233, 239, 241)
"""What the target says from the anchor on; the sixth token is the bonus of a round of width 5, or what follows it."""
WRONG = 17
WIDTH = 5


def _round(
    accepted: int, fast: int, remaining: int = 90, stop_ids: tuple[int, ...] = (), width: int = WIDTH
) -> dict[str, Any]:
    """A round that accepts its anchor and accepted - 1 proposals. Argmaxes after the first wrong row mean nothing."""
    block = np.array(TEXT[:width])
    target = np.array(TEXT[1 : width + 1])
    block[accepted:] = WRONG + np.arange(width - accepted)
    target[accepted:] = block[accepted:] + 40
    # After the first wrong proposal the target often agrees with the draft again; that counts for nothing.
    target[accepted : width - 1] = block[accepted + 1 :]
    return {
        "block": block,
        "target": target,
        "replayed": TEXT[accepted + 1] if accepted < width else -1,
        "fast": fast,
        "frontier": 57,
        "remaining": remaining,
        "stop_ids": np.array(stop_ids, dtype=np.int64),
    }


@suite("commit.replay_round", profiles=LUCE)
def forms(profile: Profile) -> Iterator[Case]:
    """Accepted counts from the anchor alone to the whole block."""
    for accepted in range(1, WIDTH + 1):
        for fast, name, clause in ((0, "replayed", "COMMIT-019"), (1, "fast", "COMMIT-020")):
            yield Case(
                f"{name}-{accepted}-of-{WIDTH}", (clause, "COMMIT-018"), _round(accepted, fast),
                catches="correction or bonus is emitted twice or lost, or the anchor is not counted",
                effect="output", blame={"accepted": "COMMIT-018"},
            )  # fmt: skip
    for accepted in (1, 3, WIDTH):
        yield Case(
            f"counted-{accepted}", ("COMMIT-018",), _round(accepted, 1),
            catches="proposals after the first wrong one are counted, or the last right one is not", effect="output",
        )  # fmt: skip
    for fast, name, clause in ((0, "replayed", "COMMIT-019"), (1, "fast", "COMMIT-020")):
        yield Case(
            f"{name}-anchor-alone", (clause,), _round(1, fast, width=1),
            catches="a block of the anchor alone crashes, or emits two tokens", effect="crash",
            blame={"accepted": "COMMIT-018"},
        )  # fmt: skip


@suite("commit.replay_round", profiles=LUCE)
def cuts(profile: Profile) -> Iterator[Case]:
    """Rounds of four accepted rows that a budget or a stop cuts, before, at and after the correction."""
    state = "anchor or state are those of the uncut round, so that a snapshot pairs them with an earlier position"
    for fast, name in ((0, "replayed"), (1, "fast")):
        for slug, remaining, stops in (
            ("budget-1", 1, ()), ("budget-3", 3, ()), ("budget-4", 4, ()), ("budget-5", 5, ()),
            ("stop-first", 90, (211,)), ("stop-inside", 90, (227,)),
            ("stop-last-accepted", 90, (229,)), ("stop-correction", 90, (233,)),
            ("two-stops", 90, (229, 223)), ("stop-before-budget", 3, (223, 229)), ("stop-past-budget", 2, (229,)),
        ):  # fmt: skip
            yield Case(
                f"{name}-{slug}", ("COMMIT-021",), _round(4, fast, remaining, stops), catches=state, effect="output"
            )  # fmt: skip
        yield Case(
            f"{name}-stop-in-a-whole-block", ("COMMIT-021",), _round(5, fast, 90, (227,)), catches=state,
            effect="output",
        )  # fmt: skip
        yield Case(
            f"{name}-rejected-stop", ("COMMIT-021",), _round(3, fast, 90, (WRONG, WRONG + 1)),
            catches="a rejected proposal that is a stop id ends the round", effect="output",
        )  # fmt: skip
