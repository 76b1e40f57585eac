"""The uniforms of a batch's round: those of each request depend on nothing but its own seed and positions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

U64_MAX = 2**64 - 1
I32_MAX = 2**31 - 1
Lane = tuple[int, int, int, int]
"""Seed, frontier, extent, accepted."""


def _case(slug: str, why: str, drafts: int, drawn: int, *lanes: Lane) -> Case:
    seeds, frontiers, extents, accepted = zip(*lanes, strict=True)
    given = {
        "seeds": np.array(seeds, dtype=np.uint64),
        "frontiers": np.array(frontiers),
        "extents": np.array(extents),
        "accepted": np.array(accepted),
        "drafts": drafts,
        "drawn": drawn,
    }
    blame = {"accept": "RNG-007", "terminal": "RNG-007"}
    return Case(slug, ("RNG-007",), given, catches=why, effect="output", blame=blame)


ALONE: Lane = (20251129, 311, 5, 2)
"""One request that appears in several vectors, always with the same uniforms."""


@suite("rng.batch_uniforms", profiles=("ninfer",))
def batches(profile: Profile) -> Iterator[Case]:
    """Batches of one, three and eight, of equal and of ragged extents."""
    age = "draws depend on how many came before them in this engine"
    yield _case("one-request", "the uniforms of a round are one uniform", 5, 0, ALONE)
    yield _case("one-request-of-an-old-engine", age, 5, 1000003, ALONE)
    yield _case("oldest-engine", age, 5, I32_MAX, ALONE)
    width = "draws depend on the block's width"
    yield _case("one-request-in-a-wide-block", width, 15, 17, ALONE)
    row = "draws depend on the request's row in the batch"
    others: tuple[Lane, ...] = ((7, 4095, 7, 7), (U64_MAX, 23, 3, 0))
    yield _case("first-of-three", row, 7, 90, ALONE, *others)
    yield _case("last-of-three", row, 7, 90, *others, ALONE)
    yield _case("same-seed-and-place-twice", row, 7, 90, ALONE, (7, 4095, 7, 7), ALONE)
    yield _case(
        "same-seed-at-other-places", "the stream of a seed goes on from request to request", 4, 90,
        (99, 17, 4, 1), (99, 18, 4, 1), (99, 4096, 4, 4),
    )  # fmt: skip
    yield _case(
        "one-seed-for-the-batch", "the first request's seed serves the batch", 3, 0,
        (1, 50, 3, 3), (2, 50, 3, 3), (3, 50, 3, 3),
    )  # fmt: skip
    ragged = "the uniforms of a ragged batch are packed without their gaps, or those of dead columns are not 0"
    lanes = tuple(
        (1009 * (lane + 1) + lane * 2**40, 61 + 37 * lane, extent, accepted)
        for lane, (extent, accepted) in enumerate(((6, 6), (0, 0), (3, 1), (6, 0), (1, 1), (5, 4), (2, 0), (4, 2)))
    )
    yield _case("ragged-batch-of-eight", ragged, 6, 4242, *lanes)
    yield _case("ragged-batch-of-eight-reversed", row, 6, 4242, *lanes[::-1])
    yield _case("ragged-batch-in-a-wide-block", width, 13, 4242, *lanes)
    yield _case("nothing-proposed", "a request without proposals has no terminal draw", 3, 5, (8, 71, 0, 0))
    yield _case("widest-and-narrowest", ragged, 15, 3, (11, 262100, 15, 14), (12, 1, 1, 0), (13, 4096, 1, 1))
