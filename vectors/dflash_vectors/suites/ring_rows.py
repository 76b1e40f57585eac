"""Rings without weights: slots, live rows, chunks, the order of reading, rounds in turn, and sizes.

Every row tells its position and channel. Slots that nothing may write hold canaries, slots that nothing may read NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.rows import NAN, ring_of, tagged
from dflash_vectors.suite import Case, suite

NINFER = ("ninfer",)
WIDTH = 3


@suite("ring.slots", profiles=NINFER)
def slots(profile: Profile) -> Iterator[Case]:
    """Around the capacity, over several wraps, far out, and before the first position."""
    for slug, positions, capacity in (
        ("before-on-and-after-the-capacity", [6, 7, 8], 7),
        ("several-wraps", list(range(3, 26)), 7),
        ("of-one-slot", [0, 1, 5], 1),
        ("official-capacity", [2047, 2048, 2049, 4095, 4096, 262143], 2048),
        ("no-power-of-two", [999, 1000, 1001, 2000, 262144], 1000),
        ("at-the-last-position", [2147483646, 2147483647], 4096),
        ("no-rows", [], 7),
    ):
        yield Case(
            slug, ("RING-002",), {"positions": np.array(positions, dtype=np.int64), "capacity": capacity},
            catches="the ring wraps a row early or late, once only, or by a mask that fits powers of two alone",
            effect="acceptance",
        )  # fmt: skip
    yield Case(
        "before-the-first", ("RING-002",), {"positions": np.array([0, 3, -1]), "capacity": 7},
        catches="a placeholder of -1 becomes the ring's last slot, or a slot in front of it",
        effect="output",
    )  # fmt: skip


@suite("ring.live", profiles=NINFER)
def live(profile: Profile) -> Iterator[Case]:
    """Frontiers around the capacity and far from it."""
    for slug, frontier, capacity in (
        ("empty", 0, 7),
        ("one-short-of-full", 6, 7),
        ("just-full", 7, 7),
        ("one-past-full", 8, 7),
        ("after-several-wraps", 38, 7),
        ("of-one-slot", 5, 1),
        ("official-at-the-wrap", 2048, 2048),
        ("far-out", 262143, 4096),
    ):
        yield Case(
            slug, ("RING-003",), {"frontier": frontier, "capacity": capacity},
            catches="nothing is ever evicted, or the window is a row too long or too short once the ring is full",
            effect="acceptance",
        )  # fmt: skip


def _chunk(frontier: int, count: int, capacity: int, start: int | None = None) -> dict[str, Any]:
    """A chunk on a ring that holds what came before; rows that no slot keeps are NaN."""
    rows = tagged(range(frontier, frontier + count), WIDTH)
    rows[: max(0, count - capacity)] = NAN
    return {
        "ring": ring_of(range(max(0, frontier - capacity), frontier), capacity, WIDTH),
        "rows": rows,
        "start": frontier if start is None else start,
        "frontier": frontier,
    }


@suite("ring.append", profiles=NINFER)
def append(profile: Profile) -> Iterator[Case]:
    """Chunks up to, onto and over the wrap, as long as the ring and longer; and chunks that do not follow."""
    for slug, frontier, count, capacity in (
        ("up-to-the-wrap", 4, 3, 7),
        ("onto-the-wrap", 7, 2, 7),
        ("over-the-wrap", 5, 4, 7),
        ("after-the-wrap", 8, 2, 7),
        ("three-and-three-in-four", 3, 3, 4),
        ("second-wrap", 13, 3, 7),
        ("nothing", 9, 0, 7),
        ("first-rows", 0, 2, 7),
    ):
        yield Case(
            slug, ("RING-005",), _chunk(frontier, count, capacity),
            catches="rows go to other slots than their positions', or slots that get none are cleared",
            effect="acceptance", blame={"frontier_next": "RING-005"},
        )  # fmt: skip
    for slug, frontier, count, capacity in (
        ("as-long-as-the-ring", 2, 5, 5),
        ("one-row-longer-than-the-ring", 0, 6, 5),
        ("nine-rows-in-four", 0, 9, 4),
        ("three-wraps", 11, 17, 5),
        ("one-slot", 3, 4, 1),
    ):
        yield Case(
            slug, ("RING-005",), _chunk(frontier, count, capacity),
            catches="a chunk longer than the ring writes past its end, or leaves older rows in place of newer ones",
            effect="crash",
        )  # fmt: skip
    for slug, start in (("behind-a-gap", 9), ("over-live-rows", 7), ("counted-from-zero-again", 0)):
        yield Case(
            slug, ("RING-004",), _chunk(8, 3, 5, start),
            catches="a chunk that does not follow on the context is taken, and a hole or a lost row becomes context",
            effect="acceptance",
        )  # fmt: skip


@suite("ring.gather", profiles=NINFER)
def gather(profile: Profile) -> Iterator[Case]:
    """Rings before, on and after their wrap; what is not live is NaN."""
    for slug, frontier, capacity in (
        ("empty", 0, 5),
        ("part-full", 3, 5),
        ("one-short-of-full", 4, 5),
        ("just-full", 5, 5),
        ("one-past-full", 6, 5),
        ("several-wraps", 23, 5),
        ("at-the-second-wrap", 10, 5),
        ("far-out", 262146, 7),
    ):
        ring = ring_of(range(max(0, frontier - capacity), frontier), capacity, WIDTH, NAN)
        yield Case(
            slug, ("RING-006",), {"ring": ring, "frontier": frontier},
            catches="rows come in the order of slots, or slots are read that hold nothing yet",
            effect="acceptance", blame={"positions": "RING-003"} if frontier > capacity else {},
        )  # fmt: skip


@suite("ring.rounds", profiles=NINFER)
def rounds(profile: Profile) -> Iterator[Case]:
    """Rounds of equal and of unequal length, across the wrap."""
    for slug, frontier, counts, capacity in (
        ("two-replays-across-the-wrap", 7, [2, 2], 5),
        ("one-row-a-round", 4, [1] * 7, 3),
        ("unequal-rounds", 0, [4, 1, 3, 5, 2], 7),
        ("a-round-of-nothing", 5, [2, 0, 2], 4),
        ("a-round-longer-than-the-ring", 3, [1, 9, 1], 4),
        ("filling-up", 0, [2, 2, 2], 9),
    ):
        rows = tagged(range(frontier, frontier + sum(counts)), WIDTH)
        ring = ring_of(range(max(0, frontier - capacity), frontier), capacity, WIDTH, NAN)
        yield Case(
            slug, ("RING-009",), {"ring": ring, "rows": rows, "counts": np.array(counts), "frontier": frontier},
            catches="a captured graph reads or writes the slots of the round in which it was captured",
            effect="acceptance", blame={"counted": "RING-003"},
        )  # fmt: skip


@suite("ring.capacity", profiles=("ninfer", "luce"))
def capacity(profile: Profile) -> Iterator[Case]:
    """Official windows and a small one, narrow and wide blocks."""
    clause = "RING-007" if profile.name == "ninfer" else "RING-008"
    for slug, window, width in (
        ("official-block-of-8", 2048, 8),
        ("official-block-of-16", 2048, 16),
        ("large-window", 4096, 16),
        ("small", 7, 4),
        ("block-of-one-row", 5, 1),
        ("block-wider-than-the-window", 3, 8),
    ):
        yield Case(
            slug, (clause,), {"window": window, "width": width},
            catches="the ring is as large as the window though verify writes it, or grows with the block in vain",
            effect="acceptance",
        )  # fmt: skip
