"""Single questions about states: may it be kept, what is left to feed, what a copy carries, what a chain restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

NINFER, LUCE = ("ninfer",), ("luce",)


@suite("state.checkpoint")
def checkpoint(profile: Profile) -> Iterator[Case]:
    """States that may be kept, and those of which one part is ahead, behind or not valid."""
    why = "an image is made of parts that stand at different positions"
    names = ("execution", "target_rows", "context_rows", "uncommitted", "tail", "fork")
    for slug, clause, values in (
        ("settled", "STATE-001", (57, 57, 57, 0, 1, 0)),
        ("first-token", "STATE-001", (1, 1, 1, 0, 1, 0)),
        ("refused-target-ahead", "STATE-001", (57, 60, 57, 0, 1, 0)),
        ("refused-target-behind", "STATE-001", (57, 56, 57, 0, 1, 0)),
        ("refused-context-behind", "STATE-001", (57, 57, 54, 0, 1, 0)),
        ("refused-context-one-behind", "STATE-001", (57, 57, 56, 0, 1, 0)),
        ("refused-context-ahead", "STATE-001", (57, 57, 58, 0, 1, 0)),
        ("refused-both-ahead", "STATE-001", (57, 58, 58, 0, 1, 0)),
        ("refused-without-hidden", "STATE-001", (57, 57, 57, 0, 0, 0)),
        ("refused-being-forked", "STATE-001", (57, 57, 57, 0, 1, 1)),
        ("refused-uncommitted", "STATE-002", (57, 57, 57, 5, 1, 0)),
        ("refused-one-uncommitted", "STATE-002", (57, 57, 57, 1, 1, 0)),
    ):
        yield Case(slug, (clause,), dict(zip(names, values, strict=True)), catches=why, effect="acceptance")


def _restore(prompt: tuple[int, ...], identity: tuple[int, ...], target: int, draft: int) -> dict[str, Any]:
    return {
        "prompt": np.array(prompt, dtype=np.int64),
        "identity": np.array(identity, dtype=np.int64),
        "target_rows": target,
        "draft_rows": draft,
    }


PROMPT = (31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79)


@suite("state.restore")
def restore(profile: Profile) -> Iterator[Case]:
    """Prompts that go on from an image, end with it, or leave it; images whose parts do not agree."""
    rest = "the whole prompt is fed again, the position starts anew, or the last restored token is fed twice"
    for slug, cut in (("eight-of-twelve", 8), ("all-but-one", 11), ("one-of-twelve", 1), ("exact-hit", 12)):
        yield Case(
            slug, ("STATE-005",), _restore(PROMPT, PROMPT[:cut], cut, cut), catches=rest, effect="output"
        )  # fmt: skip
    other = "an image of another text is restored"
    for slug, prompt, identity in (
        ("refused-last-token-differs", PROMPT, (*PROMPT[:7], 62)),
        ("refused-first-token-differs", PROMPT, (32, *PROMPT[1:8])),
        ("refused-longer-than-the-prompt", PROMPT[:7], PROMPT[:8]),
    ):  # fmt: skip
        yield Case(
            slug, ("STATE-005",), _restore(prompt, identity, len(identity), len(identity)), catches=other,
            effect="output",
        )  # fmt: skip
    lost = "the draft attends to slots that were never written, or the frontier runs ahead of the rows"
    for slug, target, draft in (
        ("no-draft-rows", 8, 0), ("fewer-draft-rows", 8, 7), ("no-target-rows", 0, 8), ("more-draft-rows", 8, 9),
        ("more-rows-of-both", 9, 9), ("fewer-rows-of-both", 7, 7),
    ):  # fmt: skip
        yield Case(
            f"refused-{slug}", ("STATE-004",), _restore(PROMPT, PROMPT[:8], target, draft), catches=lost,
            effect="acceptance",
        )  # fmt: skip


def _slots(key: str, source: int, destination: int, kind: int, segment: int) -> dict[str, Any]:
    """Three slots in which every element is another, some of them -0 and subnormal."""
    given: dict[str, Any] = {
        "rings": inputs.telling(f"state/{key}/rings", (3, 2, 5, 3), "BF16"),
        "recurrent": inputs.telling(f"state/{key}/recurrent", (3, 7), "F32"),
        "hidden": inputs.telling(f"state/{key}/hidden", (3, 5), "BF16"),
    }
    for part in given.values():
        # Bits that a copy by arithmetic loses.
        part[source].reshape(-1)[1:3] = -0.0, 2.0**-130
    return {**given, "source": source, "destination": destination, "kind": kind, "segment": segment}


@suite("state.copy", profiles=NINFER)
def copy(profile: Profile) -> Iterator[Case]:
    """Whole copies on the device and through segments that end inside a component and inside a value; zeroed slots."""
    whole = "a component, the last segment, a sign or a subnormal is lost, or another slot is changed"
    for slug, source, destination, segment in (
        ("device", 2, 0, 0), ("device-up", 0, 1, 0), ("segments-of-16", 0, 2, 16), ("segments-of-7", 1, 0, 7),
        ("one-segment", 2, 1, 4096), ("onto-itself", 1, 1, 0),
    ):  # fmt: skip
        yield Case(
            f"whole-{slug}", ("STATE-014",), _slots(slug, source, destination, 0, segment), catches=whole,
            effect="output",
        )  # fmt: skip
    yield Case(
        "zeroed", ("STATE-014",), _slots("zeroed", 0, 2, 2, 0),
        catches="a component of a slot is not zeroed, so a request starts from another's state", effect="output",
    )  # fmt: skip
    for slug, segment in (("device", 0), ("segments-of-16", 16)):
        yield Case(
            f"local-fork-{slug}", ("STATE-015",), _slots(f"local/{slug}", 0, 2, 1, segment),
            catches="the recurrent state or the hidden row moves with the rings, or the rings stay", effect="output",
        )  # fmt: skip


Snapshot = tuple[int, int, int, int]


def _chain(key: str, snapshots: tuple[Snapshot, ...], capacity: int = 16, window: int = 6) -> dict[str, Any]:
    """Snapshots (thick, start, end, last token) whose every row is another."""
    thick, starts, ends, tokens = np.array(snapshots, dtype=np.int64).reshape(-1, 4).T
    rows = int(np.maximum(ends - starts, 0).sum())
    return {
        "thick": thick,
        "starts": starts,
        "ends": ends,
        "last_tokens": tokens,
        "snapshots": inputs.telling(f"state/chain/{key}", (rows, 3), "F32") if rows else np.zeros((0, 3)),
        "capacity": capacity,
        "window": window,
    }


CHAINS: dict[str, tuple[Snapshot, ...]] = {
    "two-thins-in-order": ((1, 0, 4, 71), (0, 4, 7, 73), (0, 7, 9, 79)),
    "overlapping": ((1, 0, 6, 71), (0, 4, 9, 73), (0, 5, 7, 79)),
    "within-the-thick": ((1, 0, 9, 71), (0, 2, 5, 73)),
    "fills-the-cache": ((1, 0, 12, 71), (0, 10, 16, 73)),
}
TOKENS: dict[str, tuple[Snapshot, ...]] = {
    "thick-alone": ((1, 0, 7, 71),),
    "thin-goes-on": ((1, 0, 7, 71), (0, 7, 8, 73)),
    "thin-overlaps": ((1, 0, 7, 71), (0, 3, 10, 73)),
}
BAD: dict[str, tuple[Snapshot, ...]] = {
    "empty": (),
    "without-a-thick": ((0, 0, 4, 71), (0, 4, 6, 73)),
    "thick-last": ((0, 0, 4, 71), (1, 0, 6, 73)),
    "two-thicks": ((1, 0, 4, 71), (1, 0, 6, 73)),
    "past-the-cache": ((1, 0, 4, 71), (0, 4, 17, 73)),
    "empty-range": ((1, 0, 4, 71), (0, 4, 4, 73)),
    "backward-range": ((1, 0, 6, 71), (0, 5, 3, 73)),
}
"""Snapshots (thick, start, end, last token) of chains, by the slugs of their cases."""


@suite("state.chain", profiles=LUCE)
def chain(profile: Profile) -> Iterator[Case]:
    """A thick snapshot alone and with thin ones that follow, overlap and lie within; windows around the position."""
    for chains, clause, why in (
        (CHAINS, "STATE-016", "an older row wins, or the position is that of the last snapshot or the sum of lengths"),
        (
            TOKENS,
            "STATE-017",
            "the last token of a thin snapshot is restored, or the recurrent state is put at the end",
        ),
    ):
        for slug, snapshots in chains.items():
            yield Case(slug, (clause,), _chain(slug, snapshots), catches=why, effect="output")
    mirror = "the draft's mirror keeps rows of the last conversation, or only the new rows are read"
    for slug, end in (("below-the-window", 5), ("on-the-window", 8), ("past-the-window", 13)):
        yield Case(
            f"mirror-{slug}", ("STATE-018",), _chain(slug, ((1, 0, 4, 71), (0, 4, end, 73)), window=8), catches=mirror,
            effect="acceptance",
        )  # fmt: skip
    bad = "K/V without the state that goes with it is served"
    for slug, snapshots in BAD.items():
        yield Case(f"refused-{slug}", ("STATE-019",), _chain(slug, snapshots), catches=bad, effect="output")
