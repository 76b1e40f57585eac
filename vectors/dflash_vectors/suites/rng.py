"""Keyed randomness: the counter hash, and which key each draw of a round uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

U64_MAX = 2**64 - 1
I32_MAX = 2**31 - 1
U32_MAX = 2**32 - 1

LOWEST_SEEDS = (11491553, 24181093, 58194281)
"""Found by search: at position 1234 with purpose 3 the top 24 bits of the key are all 0."""
HIGHEST_SEEDS = (23388808, 24725435, 44532443)
"""Found by search: at position 1234 with purpose 3 the top 24 bits are all 1, for the last two the top 25."""


def _keys(*keys: tuple[int, int, int, int]) -> dict[str, object]:
    seed, position, purpose, sub = zip(*keys, strict=True)
    return {
        "seed": np.array(seed, dtype=np.uint64),
        "position": np.array(position, dtype=np.int64),
        "purpose": np.array(purpose, dtype=np.int64),
        "sub": np.array(sub, dtype=np.uint64),
    }


@suite("rng.uniform", profiles=("ninfer",))
def uniform(profile: Profile) -> Iterator[Case]:
    """The hash at its edges, each key field alone, and the ends of the unit interval."""
    for bare in (*_mixing(), *_fields(), *_high_bits(), *_ends()):
        yield replace(bare, blame={"key": bare.clauses[0], "u": "RNG-003"})


def _mixing() -> Iterator[Case]:
    yield Case(
        "mix-of-zero", ("RNG-001",), _keys((0, 0, 0, 0)),
        catches="the additive constant is left out, or added after the multiply-xorshift rounds",
        effect="output",
    )  # fmt: skip
    yield Case(
        "mix-carries", ("RNG-001",),
        _keys((0x61C8864680B583EB, 0, 0, 0), (0x61C8864680B583EA, 0, 0, 0), (U64_MAX, 0, 0, 0), (2, 19, 0, 0)),
        catches="the sum with the additive constant saturates or is cut to 63 bits",
        effect="output",
    )  # fmt: skip


def _fields() -> Iterator[Case]:
    yield Case(
        "purposes", ("RNG-002",), _keys(*((2025, 811, purpose, 0) for purpose in range(6))),
        catches="the purpose is not shifted by 21 bits, or left out, so two kinds of draw share a stream",
        effect="output",
    )  # fmt: skip
    yield Case(
        "positions", ("RNG-002",),
        _keys(*((2025, position, 2, 0) for position in (0, 1, 2, 4095, 4096, 65536, 262143, I32_MAX - 1, I32_MAX))),
        catches="the position is multiplied in 32 bits, or added instead of mixed",
        effect="output",
    )  # fmt: skip
    yield Case(
        "subs", ("RNG-002",),
        _keys(*((99, 512, 5, sub) for sub in (0, 1, 31, 32, 33, 257, 1023, 2**31, U32_MAX))),
        catches="the sub-index is left out, sign-extended, or not multiplied",
        effect="output",
    )  # fmt: skip
    yield Case(
        "wide-seeds", ("RNG-002",), _keys((2**32 + 1, 73, 4, 0), (2**63 + 5, 73, 4, 0)),
        catches="the seed is cut to 32 bits or kept in a signed integer",
        effect="output",
    )  # fmt: skip
    yield Case(
        "seeds", ("RNG-002",),
        _keys(*((seed, 73, 4, 0) for seed in (0, 1, 2**31, 2**32, 2**32 + 1, 2**63, U64_MAX - 1, U64_MAX))),
        catches="the seed is cut to 32 bits or kept in a signed integer",
        effect="output",
    )  # fmt: skip
    yield Case(
        "one-field-at-a-time", ("RNG-002",),
        _keys((3, 5, 2, 7), (5, 3, 2, 7), (3, 2, 5, 7), (3, 7, 2, 5), (7, 5, 2, 3), (2, 5, 3, 7)),
        catches="two fields of the key are exchanged",
        effect="output",
    )  # fmt: skip


def _high_bits() -> Iterator[Case]:
    """Fields that fill their 32 or 64 bits."""
    yield Case(
        "positions-with-the-top-bit", ("RNG-002",),
        _keys(*((2025, position, 2, 0) for position in (-1, -2, -73, -65536, -I32_MAX, -I32_MAX - 1))),
        catches="the position is sign-extended to 64 bits, or taken by its magnitude",
        effect="output",
    )  # fmt: skip
    yield Case(
        "purposes-of-32-bits", ("RNG-002",),
        _keys(*((2025, 811, purpose, 0) for purpose in (6, 9, 31, 255, 256, 2048, 2**20, 2**30, I32_MAX, -1, -2**31))),
        catches="the purpose is masked to a few bits, sign-extended, or shifted in 32 bits",
        effect="output",
    )  # fmt: skip
    yield Case(
        "subs-of-32-bits", ("RNG-002",),
        _keys(*((99, 512, 5, sub) for sub in (65535, 65536, 0xDEADBEEF, 2**31 - 1, 2**31 + 1, U32_MAX - 1, U32_MAX))),
        catches="the sub-index is cut to 16 bits, sign-extended, or multiplied in 32 bits",
        effect="output",
    )  # fmt: skip
    yield Case(
        "every-field-high", ("RNG-002",),
        _keys((U64_MAX, -1, -1, U32_MAX), (2**63, -I32_MAX - 1, 9, 2**31), (2**63 + 2**31, I32_MAX, -2, 0x80000001)),
        catches="fields that overlap after their shift or product are added, or the sum is cut",
        effect="output",
    )  # fmt: skip


def _ends() -> Iterator[Case]:
    yield Case(
        "lowest-uniform", ("RNG-002", "RNG-003"), _keys(*((seed, 1234, 3, 0) for seed in LOWEST_SEEDS)),
        catches="half a step is added, or 0 is replaced, so the uniform lies in (0, 1)",
        effect="output",
    )  # fmt: skip
    yield Case(
        "highest-uniform", ("RNG-002", "RNG-003"), _keys(*((seed, 1234, 3, 0) for seed in HIGHEST_SEEDS)),
        catches="the whole key is divided by 2^64 and rounds up to 1",
        effect="output",
    )  # fmt: skip
    yield Case(
        "uniform-bits", ("RNG-002", "RNG-003"), _keys(*((k * 7919, 31 * k, k % 6, 0) for k in range(1, 18))),
        catches="the uniform takes the low bits of the key, or 23 or 25 of the high ones",
        effect="output",
    )  # fmt: skip


BLAME = {"accept": "RNG-004", "terminal": "RNG-005"}


def _round(frontier: int, extent: int, accepted: int) -> dict[str, object]:
    return {"frontier": frontier, "extent": extent, "accepted": accepted}


@suite("rng.round_keys", profiles=("ninfer",))
def round_keys(profile: Profile) -> Iterator[Case]:
    """Every draw of one round, for rounds that reject at once, in the middle, at the end, and not at all."""
    cases = (
        ("reject-first", (37, 5, 0), ("RNG-004", "RNG-005"), "the correction is keyed at the anchor's position"),
        ("reject-middle", (101, 7, 3), ("RNG-005",), "the correction shares purpose or position with an accept test"),
        ("reject-last", (4095, 6, 5), ("RNG-005",), "a rejection of the last proposal is keyed as a bonus"),
        ("accept-all", (4090, 6, 6), ("RNG-005",), "the bonus is keyed as a correction, or one position early"),
        ("widest", (262100, 15, 15), ("RNG-004",), "accept tests beyond a fixed count share a key"),
        ("one-proposal", (1, 1, 0), ("RNG-004", "RNG-005"), "the first proposal is tested at the anchor's position"),
    )
    for slug, numbers, clauses, catches in cases:
        yield Case(slug, clauses, _round(*numbers), catches=catches, effect="output", blame=BLAME)
    yield Case(
        "empty-proposal", ("RNG-005",), _round(640, 0, 0),
        catches="a round without proposals draws as a plain decode step or as a correction",
        effect="output", blame=BLAME,
    )  # fmt: skip


@suite("rng.plain_keys", profiles=("ninfer",))
def plain_keys(profile: Profile) -> Iterator[Case]:
    """The draws outside rounds."""
    for slug, prompt, frontier in (("short", 1, 1), ("apart", 17, 40), ("far", 262143, 262143)):
        yield Case(
            slug, ("RNG-006",), {"prompt_length": prompt, "frontier": frontier},
            catches="the first token is keyed at the last prompt position, or a decode step at the token it emits",
            effect="output",
        )  # fmt: skip
