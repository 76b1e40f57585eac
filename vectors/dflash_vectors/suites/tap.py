"""Taps of the target: which boundary each id means, and the order of the slices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

BLOCKS, ROWS, WIDTH = 7, 5, 24


def _taps(key: str, profile: Profile, *ids: int, rows: int = ROWS, width: int = WIDTH) -> dict[str, Array]:
    """Residuals at the boundaries 0 to BLOCKS, where boundary b lies around 8 b."""
    own = inputs.lattice(f"tap/{key}", (BLOCKS + 1, rows, width), 0.25, 3.0)
    return {"residuals": own + 8.0 * np.arange(BLOCKS + 1)[:, None, None], "ids": np.array(ids)}


@suite("tap.concat")
def concat(profile: Profile) -> Iterator[Case]:
    """Sorted ids for the boundary rule, unsorted ones for the order."""
    entered = "the tap is taken on entering the block, one boundary early"
    yield Case(
        "block-output", ("TAP-001",), _taps("block-output", profile, 1, 4, rows=2, width=10),
        catches=entered, effect="acceptance",
    )  # fmt: skip
    yield Case(
        "first-block", ("TAP-001",), _taps("first-block", profile, 0, rows=3, width=6),
        catches="id 0 is taken for the embedding", effect="acceptance",
    )  # fmt: skip
    yield Case(
        "last-block", ("TAP-001",), _taps("last-block", profile, BLOCKS - 1, rows=3, width=6),
        catches="the last block has no boundary after it, because taps are read where a block is entered",
        effect="crash",
    )  # fmt: skip
    yield Case(
        "neighbours", ("TAP-001",), _taps("neighbours", profile, 2, 3, 4),
        catches="ids count from 1", effect="acceptance",
    )  # fmt: skip
    yield Case(
        "recorded-order", ("TAP-002",), _taps("recorded-order", profile, 5, 1, 3),
        catches="slices are sorted by id", effect="acceptance",
    )  # fmt: skip
    yield Case(
        "reversed-order", ("TAP-002",), _taps("reversed-order", profile, 6, 4, 2, 0, rows=1),
        catches="slices come in the order in which the blocks ran", effect="acceptance",
    )  # fmt: skip
    yield Case(
        "single-row", ("TAP-002",), _taps("single-row", profile, 3, 0, rows=1, width=9),
        catches="with one row, taps and channels are exchanged", effect="acceptance",
    )  # fmt: skip
    many = "slices past the usual number of taps are sorted, or left out"
    for slug, ids in (("six-unsorted", (5, 0, 6, 2, 4, 1)), ("every-block-unsorted", (3, 6, 0, 5, 2, 4, 1))):
        yield Case(slug, ("TAP-002",), _taps(slug, profile, *ids, rows=2, width=9), catches=many, effect="acceptance")
