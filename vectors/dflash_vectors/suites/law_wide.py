"""Rows as wide and blocks as long as engines have them: 20 ranks, 16 candidates, a whole vocabulary, 7 or 15 proposals.

Probabilities are multiples of 2^-8, so that every sum is exact in FP32, and what decides lies past the places at which
a kernel's tile may end: past rank 16, at candidate 15, at proposal 6 and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.suite import Case, suite

RANKS, CANDIDATES, VOCABULARY = 20, 16, 131
TICK = 2.0**-24
LENGTHS = (7, 15)


def ranked(row: int) -> tuple[Array, Array]:
    """Support and p [20] of a row whose ids no other row has: twelve ranks of 1/16, then eight of 1/32."""
    return 1000 * (row + 1) - 7 * np.arange(RANKS), np.repeat([1 / 16, 1 / 32], [12, 8])


def whole(row: int) -> tuple[Array, Array]:
    """Every id in ascending order, 1/128 each, but for six of 1/256 that are others in each row."""
    p = np.full(VOCABULARY, 1 / 128)
    p[(np.array([0, 1, 64, 65, 129, 130]) + 3 * row) % VOCABULARY] = 1 / 256
    return np.arange(VOCABULARY), p


def rows_of(profile: Profile, count: int) -> tuple[Array, Array]:
    made = [(ranked if profile.name == "ninfer" else whole)(row) for row in range(count)]
    return np.array([ids for ids, _ in made]), np.array([p for _, p in made])


def middle(p: Array, rank: int) -> float:
    """A uniform in the middle of a rank's share."""
    return float(p[:rank].sum() + p[rank] / 2)


def late(profile: Profile) -> tuple[int, ...]:
    """Ranks past every likely tile."""
    return (16, 17, 19) if profile.name == "ninfer" else (16, 64, 128, 130)


@suite("proc.draw")
def draw(profile: Profile) -> Iterator[Case]:
    """Draws of late ranks."""
    why = "ranks past the first 16, or past a tile of the vocabulary, are out of reach"
    support, p = rows_of(profile, 3)
    for rank in late(profile):
        u = np.array([middle(row, rank) for row in p])
        given = {"support": support, "p": p, "u": u}
        yield Case(f"wide-at-rank-{rank}", ("PROC-005",), given, catches=why, effect="output", tags=("tie",))


@suite("law.greedy")
def greedy(profile: Profile) -> Iterator[Case]:
    """Blocks of 7 and 15, rejected late or not at all."""
    for length in LENGTHS:
        drafts = 211 + 13 * np.arange(length)
        for accepted in sorted({6, length - 1, length}):
            target = np.append(drafts, 77)
            target[accepted] = 900 + accepted
            given = {"proposals": drafts, "target": target}
            yield Case(
                f"block-of-{length}-accepts-{accepted}", ("LAW-001", "LAW-002"), given, effect="output",
                catches="proposals past the first few are not tested, or are taken untested",
                blame={"accepted": "LAW-001", "licensed": "LAW-002"},
            )  # fmt: skip


def _round(length: int, accepted: int, ratios: Sequence[float]) -> Array:
    """Coins just below each proposal's ratio, but on it at the first that is rejected; 0 after it."""
    coins = np.array(ratios) - TICK
    if accepted < length:
        coins[accepted] = ratios[accepted]
    coins[accepted + 1 :] = 0.0
    return coins


@suite("law.one_hot")
def certain(profile: Profile) -> Iterator[Case]:
    """Certain proposals of late ranks, and ends of late ranks."""
    why = "ranks past the first 16, or proposals past the first few, are not looked at"
    for length in LENGTHS:
        support, p = rows_of(profile, length + 1)
        places = [late(profile)[slot % len(late(profile))] for slot in range(length)]
        proposals = np.array([support[slot, place] for slot, place in enumerate(places)])
        ratios = [float(p[slot, place]) for slot, place in enumerate(places)]
        for accepted in sorted({0, 6, length - 1, length}):
            end = "LAW-007" if accepted == length else "LAW-004"
            yield Case(
                f"wide-block-of-{length}-accepts-{accepted}", ("LAW-003", end),
                {
                    "proposals": proposals, "support": support, "p": p, "u_accept": _round(length, accepted, ratios),
                    "u_terminal": 0.953125,
                },
                catches=why, effect="output", tags=("tie",), blame={"accepted": "LAW-003", "licensed": end},
            )  # fmt: skip


def _drawn_from(profile: Profile, support: Array, side: int) -> tuple[Array, Array]:
    """Candidates and q of one row: uniform, and leaving out one end of the support."""
    if profile.name == "ninfer":
        return support[:CANDIDATES] if side else support[-CANDIDATES:], np.full(CANDIDATES, 1 / 16)
    q = np.full(VOCABULARY, 1 / 128)
    q[slice(-3, None) if side else slice(3)] = 0.0
    return support, q


@suite("law.sparse")
def drawn(profile: Profile) -> Iterator[Case]:
    """Proposals in the last candidate slot, and corrections that only the whole of q leaves."""
    why = "candidates past the first 8, or ranks past the first 16, are not looked at"
    test = "LAW-009" if profile.name == "ninfer" else "LAW-010"
    for length in LENGTHS:
        support, p = rows_of(profile, length + 1)
        for side, accepted in ((0, 0), (1, 0), (0, 6), (1, 6), (0, length), (1, length)):
            laws = [_drawn_from(profile, support[slot], side) for slot in range(length)]
            candidates, q = np.array([ids for ids, _ in laws]), np.array([weights for _, weights in laws])
            slots = [_half(ids, weights, support[at], p[at]) for at, (ids, weights) in enumerate(laws)]
            proposals = np.array([candidates[at, slot] for at, slot in enumerate(slots)])
            end = "LAW-007" if accepted == length else "LAW-011"
            yield Case(
                f"wide-block-of-{length}-side-{side}-accepts-{accepted}", (test, end),
                {
                    "proposals": proposals, "candidates": candidates, "q": q, "support": support, "p": p,
                    "u_accept": _round(length, accepted, [0.5] * length), "u_terminal": 0.953125,
                },
                catches=why, effect="output", tags=("tie",), blame={"accepted": test, "licensed": end},
            )  # fmt: skip


def _half(candidates: Array, q: Array, support: Array, p: Array) -> int:
    """The last candidate that the target gives half of what drew it."""
    wanted = {int(token): float(weight) for token, weight in zip(support, p, strict=True)}
    return max(slot for slot, token in enumerate(candidates) if q[slot] and wanted[int(token)] == q[slot] / 2)


@suite("law.match", profiles=("zlab-2026-04",))
def matched(profile: Profile) -> Iterator[Case]:
    """Matches late in the vocabulary and late in the block."""
    for length in LENGTHS:
        support, p = rows_of(profile, length + 1)
        places = [(64 + 5 * slot) % VOCABULARY for slot in range(length + 1)]
        u = np.array([middle(row, place) for row, place in zip(p, places, strict=True)])
        for accepted in sorted({6, length}):
            proposals = np.array(places[:length])
            if accepted < length:
                proposals[accepted] = 3
            given = {"proposals": proposals, "support": support, "p": p, "u": u}
            yield Case(
                f"wide-block-of-{length}-accepts-{accepted}", ("LAW-012",), given, effect="output", tags=("tie",),
                catches="ids past a tile of the vocabulary, or proposals past the first few, are not looked at",
            )  # fmt: skip
