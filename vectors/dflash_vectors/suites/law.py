"""Acceptance and correction: greedy, and sampled with one-hot proposals.

Probabilities are multiples of 2^-5 or of 2^-24 whose sums and products with the uniforms are exact in FP32, so that
every decision has one right outcome, at the edges too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

ALMOST_ONE = 1.0 - 2.0**-24
TICK = 2.0**-24


def _greedy(proposals: tuple[int, ...], target: tuple[int, ...]) -> dict[str, object]:
    return {"proposals": np.array(proposals, dtype=np.int64), "target": np.array(target, dtype=np.int64)}


@suite("law.greedy")
def greedy(profile: Profile) -> Iterator[Case]:
    """Every accepted count from none to all, and targets that tempt beyond the first mismatch."""
    drafts = (101, 103, 107, 109, 113)
    counted = "matches after the first mismatch are counted"
    for accepted in range(1, 5):
        target = (*drafts[:accepted], 900, *drafts[accepted + 1 :], 901)
        yield Case(
            f"mismatch-at-{accepted}", ("LAW-001", "LAW-002"), _greedy(drafts, target), catches=counted, effect="output"
        )  # fmt: skip
    yield Case(
        "mismatch-at-once", ("LAW-001",), _greedy(drafts, (900, *drafts[1:], 901)), catches=counted, effect="output"
    )  # fmt: skip
    yield Case(
        "nothing-matches", ("LAW-002",), _greedy((1, 2, 3), (11, 12, 13, 14)),
        catches="the correction comes from another row than the first",
        effect="output",
    )  # fmt: skip
    yield Case(
        "all-match", ("LAW-001", "LAW-002"), _greedy(drafts, (*drafts, 127)),
        catches="the bonus is left out, or the last proposal is not tested",
        effect="output",
    )  # fmt: skip
    yield Case(
        "no-proposals", ("LAW-002",), _greedy((), (53,)),
        catches="an empty proposal yields no token",
        effect="crash",
    )  # fmt: skip
    shifted = "a proposal is compared with the row after, or before, its own"
    yield Case("row-after-matches", ("LAW-001",), _greedy((7, 8, 9), (6, 7, 8, 9)), catches=shifted, effect="output")
    yield Case("row-before-matches", ("LAW-001",), _greedy((7, 8, 9), (8, 9, 7, 7)), catches=shifted, effect="output")
    yield Case(
        "repeated-token", ("LAW-001", "LAW-002"), _greedy((5, 5, 5, 5), (5, 5, 6, 5, 5)),
        catches="proposals are matched as a set of tokens",
        effect="output",
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "tail-is-zero", ("LAW-008",), _greedy((61, 67, 71, 73), (61, 68, 71, 73, 79)),
            catches="rejected proposals, or the target's tokens of later rows, stay in the licensed slots",
            effect="output",
        )  # fmt: skip


Row = tuple[tuple[int, float], ...]
"""A support in draw order with its probabilities."""


def _one_hot(
    proposals: tuple[int, ...], rows: tuple[Row, ...], u_accept: tuple[float, ...], u_terminal: float, width: int = 4
) -> dict[str, object]:
    """One row for each proposal and one more; supports shorter than `width` end in -1 with probability 0."""
    padded = [(*row, *(((-1, 0.0),) * (width - len(row)))) for row in rows]
    return {
        "proposals": np.array(proposals, dtype=np.int64),
        "support": np.array([[token for token, _ in row] for row in padded]),
        "p": np.array([[p for _, p in row] for row in padded]),
        "u_accept": np.array(u_accept, dtype=np.float64),
        "u_terminal": u_terminal,
    }


A: Row = ((30, 0.5), (10, 0.25), (20, 0.125), (40, 0.125))
B: Row = ((11, 0.375), (21, 0.3125), (31, 0.1875), (41, 0.125))
C: Row = ((22, 0.5), (12, 0.5))
D: Row = ((33, 0.75), (13, 0.125), (23, 0.125))


def _case(slug: str, clauses: tuple[str, ...], why: str, inputs: dict[str, object]) -> Case:
    return Case(slug, clauses, inputs, catches=why, effect="output", tags=("tie",))


@suite("law.one_hot")
def accept(profile: Profile) -> Iterator[Case]:
    """The accept test, at its edges and in rounds of several proposals."""
    coin = "the coin is compared with <= or with the wrong side"
    yield _case("below-p", ("LAW-003",), coin, _one_hot((10,), (A, C), (0.25 - TICK,), 0.25))
    yield _case("equal-to-p", ("LAW-003",), coin, _one_hot((10,), (A, C), (0.25,), 0.125))
    yield _case("zero-coin", ("LAW-003",), coin, _one_hot((40,), (A, C), (0.0,), 0.5))
    outside = "a coin of exactly 0 accepts a token of probability 0"
    yield _case("zero-coin-outside-support", ("LAW-003",), outside, _one_hot((99,), (A, C), (0.0,), 0.0))
    zero = ((30, 0.75), (10, 0.25), (20, 0.0))
    yield _case("zero-coin-zero-probability", ("LAW-003",), outside, _one_hot((20,), (zero, C), (0.0,), 0.5))
    certain: Row = ((8, 1.0),)
    yield _case(
        "certain-token", ("LAW-003",), "a token of probability 1 is rejected by the highest coin",
        _one_hot((8,), (certain, A), (ALMOST_ONE,), 0.0),
    )  # fmt: skip
    later = "acceptances after the first rejection are counted"
    yield _case(
        "reject-first", ("LAW-003", "LAW-004"), later, _one_hot((10, 11, 22), (A, B, C, D), (0.25, 0.0, 0.0), 0.5)
    )  # fmt: skip
    yield _case(
        "reject-middle", ("LAW-003", "LAW-004"), later,
        _one_hot((30, 41, 22), (A, B, C, D), (0.375, 0.125, 0.0), 0.375),
    )  # fmt: skip
    yield _case(
        "reject-last", ("LAW-003", "LAW-004"), "the rejection of the last proposal ends in a bonus",
        _one_hot((30, 11, 12), (A, B, C, D), (0.375, 0.25, 0.5), 0.75),
    )  # fmt: skip
    yield _case(
        "own-row-decides", ("LAW-003",), "a proposal is tested with the row after, or before, its own",
        _one_hot((30, 21), (((30, 0.25), (21, 0.75)), ((21, 0.25), (30, 0.75)), C), (0.125, 0.5), 0.5),
    )  # fmt: skip
    yield _case(
        "own-coin-decides", ("LAW-003",), "all proposals of a round share one coin",
        _one_hot((30, 11, 22), (A, B, C, D), (0.125, 0.25, 0.625), 0.5),
    )  # fmt: skip


@suite("law.one_hot")
def correct(profile: Profile) -> Iterator[Case]:
    """The draw after a rejection: the support without the rejected token, in its own order."""
    biased = "the correction is drawn from p, so the rejected token comes again"
    for slug, u in (("low", 0.0), ("below-edge", 0.5 - TICK), ("at-edge", 0.5), ("high", ALMOST_ONE)):
        yield _case(f"correction-without-first-{slug}", ("LAW-004",), biased, _one_hot((30,), (A, C), (0.5,), u))
    yield _case(
        "correction-without-middle", ("LAW-004",), "the goal is u itself, not u times the mass that is left",
        _one_hot((10,), (A, C), (0.75,), 0.75),
    )  # fmt: skip
    yield _case(
        "correction-outside-support", ("LAW-004",), "a proposal outside the support takes mass from some rank",
        _one_hot((77,), (A, C), (0.75,), 0.875),
    )  # fmt: skip
    short: Row = ((50, 0.25), (60, 0.25), (70, 0.25), (80, 0.125))
    yield _case(
        "correction-without-last", ("LAW-004",), "the fall-back picks the rejected token, which is the last rank",
        _one_hot((80,), (short, C), (0.125,), ALMOST_ONE),
    )  # fmt: skip
    padded: Row = ((50, 0.5), (60, 0.25))
    yield _case(
        "correction-in-padded-support", ("LAW-004",), "the padding of a short support is drawn",
        _one_hot((50,), (padded, C), (0.5,), ALMOST_ONE),
    )  # fmt: skip
    yield _case(
        "correction-skips-zero", ("LAW-004",), "a rank of probability 0 is drawn at u = 0",
        _one_hot((30,), (((30, 0.5), (40, 0.0), (20, 0.5)), C), (0.5,), 0.0),
    )  # fmt: skip
    yield _case(
        "correction-by-support-order", ("LAW-004",), "the draw goes by token id and not by the support's order",
        _one_hot((21,), (B, C), (0.5,), 0.5),
    )  # fmt: skip


@suite("law.one_hot")
def nothing_left(profile: Profile) -> Iterator[Case]:
    """A rejected token that held the whole mass; reachable where rounded probabilities sum to less than 1."""
    clause = "LAW-005" if profile.name == "ninfer" else "LAW-006"
    why = "a draw from no mass yields the padding, NaN or an index of -1"
    alone: Row = ((64, ALMOST_ONE),)
    yield _case("no-mass-left", (clause,), why, _one_hot((64,), (alone, C), (ALMOST_ONE,), 0.5))
    yield _case("no-mass-left-high", (clause,), why, _one_hot((64,), (alone, C), (ALMOST_ONE,), ALMOST_ONE))
    yield _case(
        "no-mass-left-later", (clause,), why,
        _one_hot((30, 64, 12), (A, ((64, ALMOST_ONE), (65, 0.0)), C, D), (0.0, ALMOST_ONE, 0.0), 0.25),
    )  # fmt: skip
    first: Row = ((5, 0.0), (64, ALMOST_ONE), (9, 0.0))
    yield _case(
        "no-mass-left-not-first", (clause,), "the other profile's rule for an empty remainder",
        _one_hot((64,), (first, C), (ALMOST_ONE,), 0.5),
    )  # fmt: skip


@suite("law.one_hot")
def bonus(profile: Profile) -> Iterator[Case]:
    """Rounds that accept everything, among them the round without a proposal."""
    subtracted = "a proposal is subtracted from the bonus row"
    yield _case("bonus", ("LAW-007",), subtracted, _one_hot((12, 30), (C, A, A), (0.25, 0.25), 0.25))
    yield _case("bonus-at-edge", ("LAW-007",), subtracted, _one_hot((33,), (D, A), (0.5,), 0.5))
    yield _case(
        "bonus-repeats-proposal", ("LAW-007",), subtracted, _one_hot((30, 30), (A, A, A), (0.25, 0.375), 0.375)
    )  # fmt: skip
    yield _case(
        "bonus-from-the-last-row", ("LAW-007",), "the bonus is drawn from the last proposal's row",
        _one_hot((22, 33), (C, D, B), (0.0, 0.0), 0.9375),
    )  # fmt: skip
    for slug, u in (("low", 0.0), ("edge", 0.6875), ("high", ALMOST_ONE)):
        yield _case(
            f"no-proposals-{slug}", ("LAW-007",), "an empty proposal yields no token, or skips the draw",
            _one_hot((), (B,), (), u),
        )  # fmt: skip


@suite("law.one_hot", profiles=("ninfer",))
def tail(profile: Profile) -> Iterator[Case]:
    """Slots after the terminal token."""
    why = "rejected proposals stay in the licensed slots"
    yield _case("tail-is-zero", ("LAW-008",), why, _one_hot((10, 11, 22), (A, B, C, D), (0.125, 0.5, 0.0), 0.5))
    yield _case("tail-is-zero-at-once", ("LAW-008",), why, _one_hot((99, 11, 22), (A, B, C, D), (0.5, 0.0, 0.0), 0.5))
