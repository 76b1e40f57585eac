"""Acceptance and correction: greedy, and sampled with one-hot proposals.

Probabilities are multiples of 2^-5, or 1 - 2^-24, whose sums and products with the uniforms are exact in FP32, so
that every decision has one right outcome, at the edges too. A wrong accepted count is the accept test's fault; a right
count with wrong tokens is the correction's, the bonus's or the tail's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

ALMOST_ONE = 1.0 - 2.0**-24
TICK = 2.0**-24


def _greedy(
    slug: str, proposals: tuple[int, ...], target: tuple[int, ...], why: str, licensed: str = "LAW-002"
) -> Case:
    """`licensed` is blamed where the accepted count is right and the tokens are not."""
    return Case(
        slug, ("LAW-001", licensed),
        {"proposals": np.array(proposals, dtype=np.int64), "target": np.array(target, dtype=np.int64)},
        catches=why, effect="output", blame={"accepted": "LAW-001", "licensed": licensed},
    )  # fmt: skip


@suite("law.greedy")
def greedy(profile: Profile) -> Iterator[Case]:
    """Every accepted count from none to all, and targets that tempt beyond the first mismatch."""
    drafts = (101, 103, 107, 109, 113)
    yield _greedy("one-match", (103,), (103, 7), "the bonus is left out, or the proposal is not tested")
    yield _greedy("one-mismatch", (103,), (8, 7), "the correction is the rejected proposal, or the next row's token")
    counted = "matches after the first mismatch are counted"
    for accepted in range(5):
        target = (*drafts[:accepted], 900, *drafts[accepted + 1 :], 901)
        yield _greedy(f"mismatch-at-{accepted}", drafts, target, counted)
    yield _greedy(
        "nothing-matches", (1, 2, 3), (11, 12, 13, 14), "the correction comes from another row than the first"
    )
    yield _greedy("all-match", drafts, (*drafts, 127), "the bonus is left out, or the last proposal is not tested")
    yield _greedy("no-proposals", (), (53,), "an empty proposal yields no token")
    shifted = "a proposal is compared with the row after, or before, its own"
    yield _greedy("row-after-matches", (7, 8, 9), (6, 7, 8, 9), shifted)
    yield _greedy("row-before-matches", (7, 8, 9), (8, 9, 7, 7), shifted)
    yield _greedy("repeated-token", (5, 5, 5, 5), (5, 5, 6, 5, 5), "proposals are matched as a set of tokens")
    stays = "rejected proposals, or the target's tokens of later rows, stay in the licensed slots"
    yield _greedy("tail-is-zero-at-once", (61, 67), (62, 71, 73), stays, "LAW-008")
    yield _greedy("tail-is-zero", (61, 67, 71, 73), (61, 68, 71, 73, 79), stays, "LAW-008")


Row = tuple[tuple[int, float], ...]
"""A support in draw order with its probabilities."""


def _case(
    slug: str, licensed: str, why: str, proposals: tuple[int, ...], rows: tuple[Row, ...],
    u_accept: tuple[float, ...], u_terminal: float,
) -> Case:  # fmt: skip
    """One row for each proposal and one more; shorter supports end in -1 with probability 0.

    `licensed` is blamed where the accepted count is right and the tokens are not.
    """
    width = max(len(row) for row in rows)
    padded = [(*row, *(((-1, 0.0),) * (width - len(row)))) for row in rows]
    inputs = {
        "proposals": np.array(proposals, dtype=np.int64),
        "support": np.array([[token for token, _ in row] for row in padded]),
        "p": np.array([[p for _, p in row] for row in padded]),
        "u_accept": np.array(u_accept, dtype=np.float64),
        "u_terminal": u_terminal,
    }
    clauses = ("LAW-003", licensed) if proposals else (licensed,)
    blame = {"accepted": clauses[0], "licensed": licensed}
    return Case(slug, clauses, inputs, catches=why, effect="output", tags=("tie",), blame=blame)


A: Row = ((30, 0.5), (10, 0.25), (20, 0.125), (40, 0.125))
B: Row = ((11, 0.375), (21, 0.3125), (31, 0.1875), (41, 0.125))
C: Row = ((22, 0.5), (12, 0.5))
D: Row = ((33, 0.75), (13, 0.125), (23, 0.125))


@suite("law.one_hot")
def accept(profile: Profile) -> Iterator[Case]:
    """The accept test, at its edges and in rounds of several proposals."""
    coin = "the coin is compared with <= or with the wrong side"
    yield _case("below-p", "LAW-007", coin, (10,), (A, C), (0.25 - TICK,), 0.25)
    yield _case("equal-to-p", "LAW-004", coin, (10,), (A, C), (0.25,), 0.125)
    yield _case("zero-coin", "LAW-007", coin, (40,), (A, C), (0.0,), 0.5)
    outside = "a coin of exactly 0 accepts a token of probability 0"
    yield _case("zero-coin-outside-support", "LAW-004", outside, (99,), (C, C), (0.0,), 0.0)
    zero = ((30, 0.75), (10, 0.25), (20, 0.0))
    yield _case("zero-coin-zero-probability", "LAW-004", outside, (20,), (zero, C), (0.0,), 0.5)
    certain: Row = ((8, 1.0),)
    highest = "a token of probability 1 is rejected by the highest coin"
    yield _case("certain-token", "LAW-007", highest, (8,), (certain, A), (ALMOST_ONE,), 0.0)
    later = "acceptances after the first rejection are counted"
    yield _case("reject-first", "LAW-004", later, (10, 11, 22), (A, B, C, D), (0.25, 0.0, 0.0), 0.5)
    yield _case("reject-middle", "LAW-004", later, (30, 41, 22), (A, B, C, D), (0.375, 0.125, 0.0), 0.375)
    ended = "the rejection of the last proposal ends in a bonus"
    yield _case("reject-last", "LAW-004", ended, (30, 11, 12), (A, B, C, D), (0.375, 0.25, 0.5), 0.75)
    crossed: tuple[Row, ...] = (((30, 0.25), (21, 0.75)), ((21, 0.25), (30, 0.75)), C)
    own = "a proposal is tested with the row after, or before, its own"
    yield _case("own-row-decides", "LAW-004", own, (30, 21), crossed, (0.125, 0.5), 0.5)
    again = "a proposal that occurs twice is tested with its first coin, or not tested again"
    yield _case("own-coin-of-a-repeated-proposal", "LAW-004", again, (30, 30, 30), (A, A, A, D), (0.25, 0.5, 0.0), 0.25)
    shared = "all proposals of a round share one coin"
    yield _case("own-coin-decides", "LAW-004", shared, (30, 11, 22), (A, B, C, D), (0.125, 0.25, 0.625), 0.5)


@suite("law.one_hot")
def correct(profile: Profile) -> Iterator[Case]:
    """The draw after a rejection: the support without the rejected token, in its own order."""

    def one(slug: str, why: str, rejected: int, row: Row, coin: float, u: float) -> Case:
        return _case(slug, "LAW-004", why, (rejected,), (row, C), (coin,), u)

    biased = "the correction is drawn from p, so the rejected token comes again"
    yield one("correction-of-two", biased, 22, C, 0.5, 0.0)
    for slug, u in (("low", 0.0), ("below-edge", 0.5 - TICK), ("at-edge", 0.5), ("high", ALMOST_ONE)):
        yield one(f"correction-without-first-{slug}", biased, 30, A, 0.5, u)
    three: Row = ((30, 0.5), (20, 0.125), (10, 0.375))
    likeliest = "the correction is the most likely token that is left, or goes by token id"
    yield one("correction-of-three", likeliest, 30, three, 0.5, 0.0)
    unscaled = "the goal is u itself, not u times the mass that is left"
    yield one("correction-without-middle", unscaled, 10, A, 0.75, 0.75)
    takes = "a proposal outside the support takes mass from some rank"
    yield one("correction-outside-support", takes, 77, A, 0.75, 0.875)
    short: Row = ((50, 0.25), (60, 0.25), (70, 0.25), (80, 0.125))
    fallen = "the fall-back picks the rejected token, which is the last rank"
    yield one("correction-without-last", fallen, 80, short, 0.125, ALMOST_ONE)
    padded: Row = ((50, 0.5), (60, 0.25), (-1, 0.0))
    yield one("correction-in-padded-support", "the padding of a short support is drawn", 50, padded, 0.5, ALMOST_ONE)
    skipped: Row = ((30, 0.5), (40, 0.0), (20, 0.5))
    yield one("correction-skips-zero", "a rank of probability 0 is drawn at u = 0", 30, skipped, 0.5, 0.0)
    by_id = "the draw goes by token id and not by the support's order"
    yield one("correction-by-support-order", by_id, 21, ((41, 0.375), (21, 0.3125), (11, 0.3125)), 0.5, 0.5)


@suite("law.one_hot")
def nothing_left(profile: Profile) -> Iterator[Case]:
    """A rejected token that held the whole mass; reachable where rounded probabilities sum to less than 1."""
    clause = "LAW-005" if profile.name == "ninfer" else "LAW-006"
    why = "a draw from no mass yields the padding, NaN or an index of -1"
    alone: Row = ((64, ALMOST_ONE),)
    yield _case("no-mass-left", clause, why, (64,), (alone, alone), (ALMOST_ONE,), 0.5)
    yield _case("no-mass-left-high", clause, why, (64,), (alone, alone), (ALMOST_ONE,), ALMOST_ONE)
    several: tuple[Row, ...] = (A, ((64, ALMOST_ONE), (65, 0.0)), C, D)
    yield _case("no-mass-left-later", clause, why, (30, 64, 12), several, (0.0, ALMOST_ONE, 0.0), 0.25)
    first: Row = ((5, 0.0), (64, ALMOST_ONE), (9, 0.0), (7, 0.0))
    other = "the other profile's rule for an empty remainder"
    yield _case("no-mass-left-not-first", clause, other, (64,), (first, C), (ALMOST_ONE,), 0.5)


@suite("law.one_hot")
def hardly_anything_left(profile: Profile) -> Iterator[Case]:
    """Remainders of 2^-20 to 2^-23, small but not empty: the rejected token still does not come again."""
    why = "a remainder below some epsilon is taken for empty, or loses its bits in a subtraction from 1"
    for exponent in (20, 21, 23):
        mass = 2.0**-exponent
        row: Row = ((64, 1 - mass), (65, mass / 2), (66, mass / 2))
        for slug, u in (("low", 0.25), ("high", 0.75)):
            yield _case(f"mass-of-2-to-minus-{exponent}-{slug}", "LAW-004", why, (64,), (row, C), (ALMOST_ONE,), u)


@suite("law.one_hot")
def bonus(profile: Profile) -> Iterator[Case]:
    """Rounds that accept everything, among them the round without a proposal."""
    subtracted = "a proposal is subtracted from the bonus row"
    yield _case("bonus", "LAW-007", subtracted, (22,), (C, C), (0.25,), 0.25)
    yield _case("bonus-after-two", "LAW-007", subtracted, (12, 30), (C, A, A), (0.25, 0.25), 0.25)
    yield _case("bonus-at-edge", "LAW-007", subtracted, (33,), (D, A), (0.5,), 0.5)
    yield _case("bonus-repeats-proposal", "LAW-007", subtracted, (30, 30), (A, A, A), (0.25, 0.375), 0.375)
    last = "the bonus is drawn from the last proposal's row"
    yield _case("bonus-from-its-own-row", "LAW-007", last, (22, 33), (C, D, B), (0.0, 0.0), 0.9375)
    for slug, u in (("low", 0.0), ("edge", 0.6875), ("high", ALMOST_ONE)):
        why = "an empty proposal yields no token, or skips the draw"
        yield _case(f"no-proposals-{slug}", "LAW-007", why, (), (B,), (), u)


@suite("law.one_hot")
def tail(profile: Profile) -> Iterator[Case]:
    """Slots after the terminal token."""
    why = "rejected proposals stay in the licensed slots"
    yield _case("tail-is-zero", "LAW-008", why, (10, 11, 22), (A, B, C, D), (0.125, 0.5, 0.0), 0.5)
    yield _case("tail-is-zero-at-once", "LAW-008", why, (99, 11, 22), (A, B, C, D), (0.5, 0.0, 0.0), 0.5)
