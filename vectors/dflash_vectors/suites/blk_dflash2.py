"""DFlash2's block: how many rows it computes, and how many the target verifies."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite


@suite("block.dflash2_inputs")
def inputs(profile: Profile) -> Iterator[Case]:
    """Whole blocks and tails, down to a round without a proposal."""
    clause = "BLK-008" if profile.name == "ninfer" else "BLK-009"
    blame = {"live": clause, "target_live": "BLK-003", "ids": "BLK-001", "positions": "BLK-002"}
    tail = "a tail computes another number of rows, or the rows that are verified are taken for those"
    for slug, drafts, extent, frontier, catches in (
        ("whole", 7, 7, 41, "the anchor's slot holds the mask id, or the block starts a position late"),
        ("widest", 15, 15, 262128, "a block of sixteen rows is cut or padded"),
        ("narrowest", 1, 1, 1, "a block of one anchor and one mask is taken for a plain decode step"),
        ("tail", 7, 3, 97, tail), ("tail-one", 7, 1, 98, tail), ("tail-all-but-one", 6, 5, 3, tail),
        ("tail-none", 5, 0, 2047, tail), ("tail-none-of-one", 1, 0, 12, tail),
    ):  # fmt: skip
        yield Case(
            slug, (clause, "BLK-003", "BLK-002"),
            {"anchor": 8123, "mask_id": 248070, "frontier": frontier, "drafts": drafts, "extent": extent},
            catches=catches, effect="acceptance", blame=blame,
        )  # fmt: skip
