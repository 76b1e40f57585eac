"""Transactions: one commit, and whole requests of three rounds and more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

BLAME = {
    "rows": "COMMIT-001",
    "next_anchor": "COMMIT-001",
    "next_frontier": "COMMIT-001",
    "target_rows_kept": "COMMIT-002",
}


def _round(anchor: int, licensed: tuple[int, ...], kept: int, frontier: int, extent: int) -> dict[str, object]:
    """A commit after a verify that wrote extent + 1 rows of the target's K/V."""
    return {
        "anchor": anchor,
        "licensed": np.array(licensed, dtype=np.int64),
        "kept": kept,
        "frontier": frontier,
        "target_rows": frontier + extent + 1,
    }


@suite("commit.round")
def commit_round(profile: Profile) -> Iterator[Case]:
    """Rounds that reject everything, something and nothing, and rounds that a stop cut short."""
    licensed = (301, 303, 305, 307, 309)
    rows = "the committed rows are the licensed tokens, without the anchor, so the anchor is processed twice or never"
    yield Case(
        "accept-all", ("COMMIT-001",), _round(299, licensed, 5, 41, 4), catches=rows, effect="output", blame=BLAME
    )  # fmt: skip
    yield Case(
        "reject-all", ("COMMIT-001",), _round(299, (301,), 1, 41, 4), catches=rows, effect="output", blame=BLAME
    )  # fmt: skip
    yield Case(
        "no-proposals", ("COMMIT-001",), _round(17, (18,), 1, 1, 0),
        catches="a round without proposals does not move the frontier", effect="liveness", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "cut-by-a-stop", ("COMMIT-001",), _round(299, licensed, 2, 262100, 4),
        catches="the frontier moves over tokens that were dropped, or the anchor is the last licensed token",
        effect="output", blame=BLAME,
    )  # fmt: skip
    cut = "rows of rejected proposals stay in the target's K/V"
    for slug, tokens, kept, extent in (
        ("cut-back-after-rejection", (11, 13), 2, 7), ("cut-back-after-rejecting-all", (11,), 1, 15),
        ("cut-back-after-a-stop", (11, 13, 17, 19), 3, 3), ("nothing-to-cut", (11, 13, 17, 19), 4, 3),
    ):  # fmt: skip
        yield Case(
            slug, ("COMMIT-002",), _round(7, tokens, kept, 96, extent), catches=cut, effect="output", blame=BLAME
        )
