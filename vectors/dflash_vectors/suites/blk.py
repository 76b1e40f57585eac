"""Block inputs: extents, ids and positions of the draft's block and of the verify pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

AMPLE = 40960
"""A capacity that never binds."""


@suite("block.extent")
def extent(profile: Profile) -> Iterator[Case]:
    """The tail of a budget and, where the engine has a capacity, the tail of the cache."""
    keyed = profile.name == "ninfer"
    clauses = ("BLK-004",) if keyed else ("BLK-005",)
    drafts = 7
    for slug, remaining in (
        ("one-left", 1), ("two-left", 2), ("as-many-as-drafts", drafts), ("one-more-than-drafts", drafts + 1),
        ("two-more-than-drafts", drafts + 2), ("ample", 523),
    ):  # fmt: skip
        yield Case(
            slug, clauses, {"drafts": drafts, "remaining": remaining, "capacity": AMPLE, "frontier": 29},
            catches="the budget's tail is off by one: the block is a row too wide or too narrow",
            effect="acceptance",
        )  # fmt: skip
    for slug, drafts, remaining in (("single-draft-one-left", 1, 1), ("single-draft", 1, 2), ("widest", 15, 16)):
        yield Case(
            slug, clauses, {"drafts": drafts, "remaining": remaining, "capacity": AMPLE, "frontier": 4099},
            catches="the narrowest or the widest block is treated apart",
            effect="acceptance",
        )  # fmt: skip
    if not keyed:
        return
    for slug, free in (("cache-full", 1), ("cache-one-free", 2), ("cache-just-short", 7), ("cache-just-enough", 8)):
        yield Case(
            slug, clauses, {"drafts": 7, "remaining": 91, "capacity": 2048, "frontier": 2048 - free},
            catches="the verify pass writes past the cache, or stops a row short of its end",
            effect="crash",
        )  # fmt: skip
    for slug, beyond in (("cache-overfull-by-none", 0), ("cache-overfull", 3)):
        yield Case(
            slug, clauses, {"drafts": 7, "remaining": 91, "capacity": 2048, "frontier": 2048 + beyond},
            catches="the extent falls below 0 where no row of the cache is free",
            effect="crash",
        )  # fmt: skip
    yield Case(
        "all-three-limits", clauses, {"drafts": 6, "remaining": 5, "capacity": 77, "frontier": 73},
        catches="the capacity is applied to the budget's result as a sum, not as a minimum",
        effect="crash",
    )  # fmt: skip


@suite("block.extent", profiles=("zlab-2026-04",))
def extent_of_the_block(profile: Profile) -> Iterator[Case]:
    """Blocks that do not shrink."""
    for slug, drafts, remaining, capacity, frontier in (
        ("one-left", 7, 1, AMPLE, 29), ("as-many-as-drafts", 7, 7, AMPLE, 29), ("ample", 7, 523, AMPLE, 29),
        ("single-draft-one-left", 1, 1, AMPLE, 4099), ("widest-two-left", 15, 2, AMPLE, 4099),
        ("cache-one-free", 7, 91, 2048, 2046),
    ):  # fmt: skip
        yield Case(
            slug, ("BLK-010",),
            {"drafts": drafts, "remaining": remaining, "capacity": capacity, "frontier": frontier},
            catches="the last block shrinks, as that of the later package does", effect="acceptance",
        )  # fmt: skip


def _block(anchor: int, frontier: int, drafts: int, extent: int, mask_id: int = 151669) -> dict[str, object]:
    return {"anchor": anchor, "mask_id": mask_id, "frontier": frontier, "drafts": drafts, "extent": extent}


BLAME = {"ids": "BLK-001", "live": "BLK-003", "positions": "BLK-002"}


@suite("block.inputs")
def inputs(profile: Profile) -> Iterator[Case]:
    """Whole blocks, tails, and blocks of the extreme widths."""
    yield Case(
        "whole", ("BLK-001",), _block(8123, 41, 7, 7),
        catches="the anchor's slot holds the mask id, or the anchor is repeated in every slot",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "positions", ("BLK-002",), _block(17, 262100, 5, 5),
        catches="the block starts one position after the anchor, or counts from the block's own start",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "widest", ("BLK-001", "BLK-002"), _block(151668, 2047, 15, 15),
        catches="a block of sixteen rows is cut or padded",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "narrowest", ("BLK-001",), _block(3, 1, 1, 1, mask_id=4),
        catches="a block of one anchor and one mask is taken for a plain decode step",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    yield Case(
        "anchor-is-zero", ("BLK-001",), _block(0, 12, 4, 4, mask_id=9),
        catches="token 0 as an anchor is taken for an empty slot and replaced",
        effect="acceptance", blame=BLAME,
    )  # fmt: skip
    for slug, drafts, extent in (("tail", 7, 3), ("tail-one", 7, 1), ("tail-all-but-one", 6, 5), ("tail-none", 5, 0)):
        yield Case(
            slug, ("BLK-003", "BLK-002"), _block(2711, 97, drafts, extent),
            catches="rows past the extent count as live, or go on to positions that do not exist yet",
            effect="acceptance", blame=BLAME,
        )  # fmt: skip


@suite("block.verify_inputs")
def verify_inputs(profile: Profile) -> Iterator[Case]:
    """Ids and positions of the verify pass, with proposals that tell their slots apart."""
    proposals = np.array([211, 223, 227, 229, 233, 239, 241])
    yield Case(
        "whole", ("BLK-006",), {"anchor": 199, "proposals": proposals, "frontier": 53, "extent": 7},
        catches="the anchor is left out, or proposal j is verified one position early or late",
        effect="output",
    )  # fmt: skip
    yield Case(
        "one", ("BLK-006",), {"anchor": 5, "proposals": np.array([5]), "frontier": 1, "extent": 1},
        catches="a proposal that repeats the anchor is merged with it",
        effect="output",
    )  # fmt: skip
    yield Case(
        "widest", ("BLK-006",),
        {"anchor": 248076, "proposals": 248000 + 5 * np.arange(15), "frontier": 262128, "extent": 15},
        catches="the last proposals of a wide block are cut",
        effect="output",
    )  # fmt: skip
    clauses = ("BLK-007", "BLK-006") if profile.name == "ninfer" else ("BLK-006",)
    for slug, extent in (("tail", 4), ("tail-one", 1), ("tail-all-but-one", 6), ("tail-none", 0)):
        yield Case(
            slug, clauses, {"anchor": 199, "proposals": proposals, "frontier": 71, "extent": extent},
            catches="dead columns hold unverified proposals, the mask id, or positions past the live ones",
            effect="output",
        )  # fmt: skip
