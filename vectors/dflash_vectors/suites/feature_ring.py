"""Luce's feature ring: flat BF16 rows, captured by the verify pass itself, read back after rejections, mirrored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.rows import NAN, canaries, ring_of, tagged
from dflash_vectors.suite import Case, suite

LUCE = ("luce",)
WIDTH = 3


def _capture(start: int, count: int, capacity: int, width: int = WIDTH) -> dict[str, Any]:
    """Rows on a ring that is full of rows before them, or of canaries; rows that do not stay are NaN."""
    rows = tagged(range(start, start + count), width)
    rows[: max(0, count - capacity)] = NAN
    ring = ring_of(range(max(0, start - capacity), start), capacity, width)
    return {"ring": ring.reshape(-1), "rows": rows, "start": start, "capacity": capacity}


@suite("feature.append", profiles=LUCE)
def append(profile: Profile) -> Iterator[Case]:
    """Where features go, captures over one wrap and several, and what BF16 makes of a feature."""
    for slug, start, count, capacity, width in (
        ("side-by-side", 2, 2, 5, 4),
        ("one-row", 11, 1, 5, 6),
        ("far-out", 262143, 2, 7, 5),
    ):
        yield Case(
            slug, ("RING-010",), _capture(start, count, capacity, width),
            catches="features of one position lie apart, feature by feature, instead of side by side",
            effect="acceptance",
        )  # fmt: skip
    for slug, start, count, capacity in (
        ("up-to-the-wrap", 4, 3, 7),
        ("onto-the-wrap", 7, 2, 7),
        ("over-the-wrap", 5, 4, 7),
        ("as-long-as-the-ring", 3, 5, 5),
        ("one-row-longer-than-the-ring", 3, 6, 5),
        ("nine-rows-in-four", 0, 9, 4),
        ("three-wraps", 3, 14, 4),
        ("nothing", 6, 0, 5),
    ):
        yield Case(
            slug, ("RING-012",), _capture(start, count, capacity),
            catches="a capture is split once only, or its second part begins where the first did",
            effect="crash" if count > capacity else "acceptance",
        )  # fmt: skip
    for slug, values in (
        ("rounded-to-even", [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, -1 - 3 * 2.0**-8]),
        ("rounded-to-nearest", [1 + 2.0**-8 + 2.0**-20, 1 + 2.0**-8 - 2.0**-20, 3 - 2.0**-9, -7 + 2.0**-9]),
        ("rounded-at-the-ends", [2.0**128 * (1 - 2.0**-9), 2.0**128 * (1 - 3 * 2.0**-10), 2.0**-134, 3 * 2.0**-134]),
        ("zeros-and-infinities", [0.0, -0.0, np.inf, -np.inf]),
    ):
        given = _capture(3, 1, 2, 4) | {"rows": np.array([values])}
        yield Case(
            slug, ("RING-011",), given,
            catches="features are cut to BF16, or large and small ones are lost",
            effect="acceptance",
        )  # fmt: skip


@suite("feature.live", profiles=LUCE)
def live(profile: Profile) -> Iterator[Case]:
    """Verify passes of four rows of which some, all or none were rejected, around the wrap."""
    for slug, frontier, written, capacity in (
        ("nothing-written", 0, 0, 7),
        ("all-accepted-before-the-wrap", 6, 6, 7),
        ("all-accepted-at-the-wrap", 7, 7, 7),
        ("all-accepted-after-the-wrap", 8, 8, 7),
        ("three-rejected-before-the-wrap", 3, 6, 7),
        ("three-rejected-at-the-wrap", 5, 8, 7),
        ("one-rejected-after-the-wrap", 14, 15, 7),
        ("three-rejected-after-several-wraps", 37, 40, 7),
        ("written-to-the-last-slot", 4, 7, 7),
        ("large", 4100, 4115, 4096),
    ):
        yield Case(
            slug, ("RING-013",), {"frontier": frontier, "written": written, "capacity": capacity},
            catches="after a rejection the ring is held for full, though rejected rows lie on its oldest ones",
            effect="acceptance",
        )  # fmt: skip


def _read(frontier: int, written: int, window: int, capacity: int) -> dict[str, Any]:
    """A ring whose rows from the frontier on are of rejected tokens, and NaN where nothing may be read."""
    ring = ring_of(range(max(0, written - capacity), written), capacity, WIDTH, NAN)
    first = frontier - min(frontier, window)
    for position in range(max(0, written - capacity), written):
        if not first <= position < frontier:
            ring[position % capacity] = NAN
    return {
        "ring": ring.reshape(-1), "capacity": capacity, "frontier": frontier, "written": written, "window": window,
    }  # fmt: skip


@suite("feature.window", profiles=LUCE)
def window(profile: Profile) -> Iterator[Case]:
    """What the draft reads: rings that are large enough, and rings as large as the window alone."""
    for slug, frontier, written, size, capacity in (
        ("shorter-than-the-window", 3, 5, 5, 9),
        ("as-long-as-the-window", 5, 9, 5, 9),
        ("one-row-past", 6, 10, 5, 9),
        ("rejected-rows-over-the-wrap", 16, 20, 5, 9),
        ("all-accepted", 20, 20, 5, 9),
        ("at-the-wrap", 9, 13, 5, 9),
        ("committed-rows-alone", 11, 11, 5, 5),
        ("oldest-row-just-lives", 12, 14, 5, 7),
        ("empty", 0, 4, 5, 9),
    ):
        yield Case(
            slug, ("RING-014",), _read(frontier, written, size, capacity),
            catches="rejected rows count as context, or the window ends at the last row written",
            effect="acceptance", blame={"features": "RING-014", "first": "RING-014"},
        )  # fmt: skip
    for slug, frontier, written, size, capacity in (
        ("ring-as-large-as-the-window", 9, 12, 7, 7),
        ("oldest-row-just-lost", 12, 15, 5, 7),
        ("all-rejected-in-a-small-ring", 13, 16, 6, 8),
    ):
        yield Case(
            slug, ("RING-014",), _read(frontier, written, size, capacity),
            catches="verify writes a ring as large as the window, and rejected rows are read in place of old ones",
            effect="acceptance",
        )  # fmt: skip
    for slug, values in (
        ("ends-of-bf16", [2.0**128 - 2.0**120, -(2.0**-133), 2.0**-126, 65504.0 + 32.0, np.inf, -0.0]),
        ("ordinary-features", list(inputs.uniform("feature/ordinary", (6,), -300.0, 300.0, "BF16"))),
    ):
        ring = np.array([*canaries(1, WIDTH)[0], *values])
        yield Case(
            slug, ("RING-015",), {"ring": ring, "capacity": 3, "frontier": 3, "written": 3, "window": 2},
            catches="features pass through FP16, or subnormal ones are flushed",
            effect="acceptance",
        )  # fmt: skip


@suite("feature.positions", profiles=LUCE)
def positions(profile: Profile) -> Iterator[Case]:
    """Frontiers before, on and after the window."""
    for slug, frontier, size, width in (
        ("nothing-yet", 0, 5, 4),
        ("before-the-window-is-full", 3, 5, 4),
        ("just-full", 5, 5, 3),
        ("past-it", 6, 5, 4),
        ("far-past-it", 9001, 6, 5),
        ("one-row", 7, 4, 1),
    ):
        yield Case(
            slug, ("RING-016",), {"frontier": frontier, "window": size, "width": width},
            catches="keys keep their absolute positions while queries count from the window, or the other way round",
            effect="acceptance",
        )  # fmt: skip


def _mirror(written: int, capacity: int, mirror_capacity: int, start: int, count: int) -> dict[str, Any]:
    """A source with the rows that it still holds, and a mirror of another request's rows."""
    held = range(max(0, written - capacity), written)
    ring: Array = ring_of(held, capacity, WIDTH, NAN)
    for position in held:
        if not start <= position < start + count:
            ring[position % capacity] = NAN
    return {
        "ring": ring.reshape(-1), "capacity": capacity, "written": written,
        "mirror": canaries(mirror_capacity, WIDTH).reshape(-1), "mirror_capacity": mirror_capacity,
        "start": start, "count": count,
    }  # fmt: skip


@suite("feature.sync", profiles=LUCE)
def sync(profile: Profile) -> Iterator[Case]:
    """After rounds and after restores, between rings of one size and of two."""
    for slug, written, capacity, mirror_capacity, start, count in (
        ("one-round", 6, 9, 9, 4, 2),
        ("both-wrap", 12, 7, 7, 5, 7),
        ("source-wraps", 9, 7, 11, 5, 4),
        ("mirror-wraps", 9, 11, 7, 5, 4),
        ("as-many-as-the-mirror-has", 14, 16, 4, 3, 4),
        ("whole-window-after-a-restore", 23, 9, 6, 17, 6),
        ("nothing", 5, 7, 7, 5, 0),
        ("from-the-first-row", 5, 7, 5, 0, 5),
    ):
        yield Case(
            slug, ("RING-017",), _mirror(written, capacity, mirror_capacity, start, count),
            catches="the mirror keeps rows of before the restore, or one of the two wraps is not handled",
            effect="acceptance",
        )  # fmt: skip
    for slug, mirror_capacity, start, count in (
        ("row-that-is-gone", 7, 4, 3),
        ("row-that-is-not-written-yet", 7, 11, 2),
        ("more-than-the-mirror-has", 4, 6, 5),
    ):
        yield Case(
            slug, ("RING-017",), _mirror(12, 7, mirror_capacity, start, count),
            catches="a slot is copied that holds another position by now, or is written twice",
            effect="acceptance",
        )  # fmt: skip
