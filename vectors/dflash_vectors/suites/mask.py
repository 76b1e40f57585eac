"""Visibility of context rows and block rows, window by window."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

GARBAGE = 2**31 - 1
"""A position that no populated row has."""


def _mask(
    context: tuple[int, int], rows: tuple[int, int], window: int, causal: int, unpopulated: tuple[int, ...] = ()
) -> dict[str, object]:
    """Context rows at [start, end), then rows that were never written; block rows at [first, first + count)."""
    populated = np.arange(*context)
    return {
        "context_positions": np.concatenate([populated, np.array(unpopulated, dtype=np.int64)]),
        "context_length": populated.size,
        "positions": np.arange(rows[0], rows[0] + rows[1]),
        "window": window,
        "causal": causal,
    }


@suite("mask.draft")
def symmetric(profile: Profile) -> Iterator[Case]:
    """Layers that see both ways: both profiles have them."""
    full = "rows do not see the masks after them, or a window is applied where there is none"
    for slug, context, rows in (
        ("full-two-rows", (0, 0), (0, 2)),
        ("full", (0, 13), (13, 6)),
        ("full-far", (0, 61), (61, 3)),
        ("full-widest", (0, 5), (5, 16)),
        ("full-restored-prefix", (37, 48), (48, 4)),
    ):
        yield Case(slug, ("MASK-001",), _mask(context, rows, 0, 0), catches=full, effect="acceptance")
    edge = "the window includes distance S, or ends at S - 2"
    for slug, length, window in (
        ("edge", 3, 2),
        ("edge-context-below-window", 6, 7),
        ("edge-context-is-window", 7, 7),
        ("edge-long-context", 23, 7),
    ):
        case = _mask((0, length), (length, 1), window, 0)
        yield Case(slug, ("MASK-002",), case, catches=edge, effect="acceptance")
    yield Case(
        "two-rows-slide", ("MASK-006",), _mask((0, 2), (2, 2), 2, 0),
        catches="the window of the second row is the first row's",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "sliding-rows", ("MASK-006", "MASK-002"), _mask((0, 29), (29, 6), 11, 0),
        catches="the window of later rows is fixed at the anchor, or counted from the end of the block",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "window-start-above-zero", ("MASK-006", "MASK-002"), _mask((50, 70), (70, 5), 8, 0),
        catches="row indices of the stored context are compared with absolute positions",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "two-rows-see-each-other", ("MASK-003",), _mask((0, 0), (0, 2), 3, 0),
        catches="a local layer is causal inside the block",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "three-rows-window-two", ("MASK-003",), _mask((0, 1), (1, 3), 2, 0),
        catches="the window does not bind rows that lie ahead",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "block-wider-than-window", ("MASK-003",), _mask((0, 9), (9, 8), 4, 0),
        catches="block rows see each other whatever the window, or see only backwards",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "block-as-wide-as-window", ("MASK-003",), _mask((0, 3), (3, 6), 6, 0),
        catches="the window ends one row early inside the block",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "window-of-one", ("MASK-003", "MASK-002"), _mask((0, 4), (4, 3), 1, 0),
        catches="a row does not see itself, or sees a neighbour at distance 1",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "local-looks-ahead", ("MASK-003",), _mask((0, 12), (12, 5), 9, 0),
        catches="a local layer is causal inside the block",
        effect="acceptance",
    )  # fmt: skip


@suite("mask.draft")
def populated(profile: Profile) -> Iterator[Case]:
    """Context rows that were never written, at positions that tempt."""
    stale = "rows past the context's length are visible"
    yield Case(
        "unwritten-full", ("MASK-005",), _mask((0, 7), (7, 4), 0, 0, (7, 8, 9, 0)), catches=stale, effect="output"
    )  # fmt: skip
    yield Case(
        "unwritten-local", ("MASK-005",), _mask((20, 27), (27, 3), 5, 0, (27, 28, 26, -1, GARBAGE)),
        catches=stale, effect="output",
    )  # fmt: skip
    yield Case(
        "context-shorter-than-block", ("MASK-005",), _mask((0, 2), (2, 6), 0, 0, (2, 3, 4)),
        catches="the block's row count is used as the context's length",
        effect="output",
    )  # fmt: skip
    for slug, window in (("nothing-written-full", 0), ("nothing-written-local", 3)):
        yield Case(
            slug, ("MASK-005",), _mask((0, 0), (0, 4), window, 0, (0, 1, 2)),
            catches="an empty context is taken for a whole one",
            effect="output",
        )  # fmt: skip


@suite("mask.draft", profiles=("ninfer",))
def by_position(profile: Profile) -> Iterator[Case]:
    """Rows whose order in storage is not their order in time; dead rows repeat the last live position."""
    ring = _mask((24, 31), (31, 3), 5, 0)
    ring["context_positions"] = np.array([28, 29, 30, 24, 25, 26, 27])
    yield Case(
        "ring-order", ("MASK-002",), ring,
        catches="distance is counted in stored rows, not in positions",
        effect="acceptance",
    )  # fmt: skip
    repeated = _mask((0, 10), (10, 6), 3, 0)
    repeated["positions"] = np.array([10, 11, 12, 12, 12, 12])
    yield Case(
        "repeated-positions", ("MASK-003", "MASK-002"), repeated,
        catches="distance inside the block is counted in rows, not in positions",
        effect="acceptance",
    )  # fmt: skip


@suite("mask.draft", profiles=("zlab",))
def causal(profile: Profile) -> Iterator[Case]:
    """Layers that do not look ahead: a file that says so, or a local layer of a file that says nothing."""
    ahead = "a causal layer sees the masks after the row"
    for slug, context, rows in (("causal-full", (0, 11), (11, 5)), ("causal-no-context", (0, 0), (0, 7))):
        yield Case(slug, ("MASK-004",), _mask(context, rows, 0, 1), catches=ahead, effect="acceptance")
    yield Case(
        "causal-itself", ("MASK-004",), _mask((0, 3), (3, 2), 0, 1),
        catches="a row does not see itself",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "causal-local", ("MASK-004", "MASK-006"), _mask((0, 17), (17, 6), 8, 1), catches=ahead, effect="acceptance"
    )  # fmt: skip
    yield Case(
        "causal-wider-than-window", ("MASK-004", "MASK-002"), _mask((5, 14), (14, 8), 3, 1),
        catches="a causal local layer forgets its window inside the block",
        effect="acceptance",
    )  # fmt: skip
