"""Acceptance and correction of proposals that were drawn from a law of their own.

Probabilities are multiples of 2^-5, or at the smallest that FP32 holds: the product with a uniform is then exact, or
rounds as the case says. A wrong accepted count is the accept test's fault; a right count with wrong tokens is the
correction's, the bonus's or the tail's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.suite import Case, suite

ALMOST_ONE = 1.0 - 2.0**-24
TICK = 2.0**-24
LEAST = 2.0**-149
"""The smallest FP32 number above 0: three quarters of it round up to itself."""

Row = tuple[tuple[int, float], ...]
"""Ids in order, with their probabilities."""


def _rows(rows: Sequence[Row]) -> tuple[Array, Array]:
    """Ids and weights of rows that end in -1 with weight 0 where they are short."""
    width = max((len(row) for row in rows), default=1)
    padded = [(*row, *(((-1, 0.0),) * (width - len(row)))) for row in rows]
    shape = (len(rows), width)
    ids = np.array([[token for token, _ in row] for row in padded], dtype=np.int64).reshape(shape)
    return ids, np.array([[weight for _, weight in row] for row in padded], dtype=np.float64).reshape(shape)


def _case(
    profile: Profile, slug: str, licensed: str, why: str, proposals: tuple[int, ...], laws: tuple[Row, ...],
    rows: tuple[Row, ...], u_accept: tuple[float, ...], u_terminal: float,
) -> Case:  # fmt: skip
    """`laws` are the proposals' own, `rows` the target's. `licensed` is blamed where only the tokens are wrong."""
    candidates, q = _rows(laws)
    support, p = _rows(rows)
    inputs = {
        "proposals": np.array(proposals, dtype=np.int64),
        "candidates": candidates,
        "q": q,
        "support": support,
        "p": p,
        "u_accept": np.array(u_accept, dtype=np.float64),
        "u_terminal": u_terminal,
    }
    test = "LAW-009" if profile.name == "ninfer" else "LAW-010"
    clauses = (test, licensed) if proposals else (licensed,)
    blame = {"accepted": clauses[0], "licensed": licensed}
    return Case(slug, clauses, inputs, catches=why, effect="output", tags=("tie",), blame=blame)


P0: Row = ((30, 0.5), (10, 0.25), (20, 0.125), (40, 0.125))
Q0: Row = ((10, 0.5), (20, 0.25), (30, 0.25))
P1: Row = ((11, 0.375), (21, 0.3125), (31, 0.1875), (41, 0.125))
Q1: Row = ((41, 0.25), (31, 0.25), (21, 0.25), (11, 0.25))
P2: Row = ((22, 0.5), (12, 0.5))
Q2: Row = ((12, 0.75), (22, 0.25))
END: Row = ((33, 0.75), (13, 0.125), (23, 0.125))


@suite("law.sparse")
def accept(profile: Profile) -> Iterator[Case]:
    """The accept test at its edges, where both profiles answer alike."""

    def one(slug: str, licensed: str, why: str, token: int, coin: float, law: Row = Q0, row: Row = P0) -> Case:
        return _case(profile, slug, licensed, why, (token,), (law,), (row, P2), (coin,), 0.25)

    ratio = "the coin is compared with p, with q, or with the wrong side of p / q"
    yield one("below-the-ratio", "LAW-007", ratio, 10, 0.5 - TICK)
    yield one("at-the-ratio", "LAW-011", ratio, 10, 0.5)
    yield one("above-the-ratio", "LAW-011", ratio, 10, 0.75)
    yield one("p-above-q", "LAW-007", "a token that the target likes better than the draft is tested", 30, ALMOST_ONE)
    zero = "a coin of exactly 0 accepts a token of probability 0"
    yield one("zero-coin", "LAW-007", "a coin of 0 rejects", 20, 0.0)
    yield one("zero-coin-outside-the-support", "LAW-011", zero, 77, 0.0, ((77, 0.5), (30, 0.5)))
    row: Row = ((30, 0.75), (10, 0.25), (20, 0.0))
    yield one("zero-coin-zero-probability", "LAW-011", zero, 20, 0.0, Q0, row)
    yield one("disjoint-supports", "LAW-011", "laws are compared rank by rank, not id by id", 71, 0.25,
              ((71, 0.5), (72, 0.25), (73, 0.25)))  # fmt: skip
    nothing = "a token to which its own law gave nothing divides by 0"
    yield one("q-of-zero", "LAW-007", nothing, 40, ALMOST_ONE, ((10, 0.5), (20, 0.5), (40, 0.0)))
    yield one("certain", "LAW-007", "a certain proposal is tested against p of another token", 10, 0.1875,
              ((10, 1.0), (50, 0.0)))  # fmt: skip
    rounded = "the product with the coin is exact, or is divided instead, where FP32 rounds it to p itself"
    yield one("product-rounds-to-p", "LAW-011", rounded, 5, 0.75 + TICK, *_rounding())


def _rounding() -> tuple[Row, Row]:
    """A q whose product with 3/4 + 2^-24 lies 2.5 FP32 steps and a little above 3/8; p lies 3 steps above."""
    p, q = 0.375 + 3 * 2.0**-25, 0.5 + TICK
    return ((5, q), (6, 1.0 - q)), ((6, 0.5), (5, p))


@suite("law.sparse")
def parted(profile: Profile) -> Iterator[Case]:
    """Where the two profiles part: p and q both 0, and a product that rounds up to q."""
    ends = "LAW-007" if profile.name == "ninfer" else "LAW-011"
    why = "the other profile's accept test"
    least: Row = ((64, LEAST), (65, 0.5), (66, 0.5))
    yield _case(profile, "product-rounds-up-to-q", ends, why, (64,), (least,), (least, P2), (0.75,), 0.25)
    none: Row = ((64, 0.0), (65, 0.5), (66, 0.5))
    for slug, coin in (("both-zero", 0.0), ("both-zero-high-coin", ALMOST_ONE)):
        yield _case(profile, slug, ends, why, (64,), (none,), (none, P2), (coin,), 0.25)


@suite("law.sparse")
def rounds(profile: Profile) -> Iterator[Case]:
    """Several proposals, each with its own law, row and coin."""

    def several(
        slug: str, licensed: str, why: str, tokens: tuple[int, ...], coins: tuple[float, ...], u: float = 0.5
    ) -> Case:
        return _case(profile, slug, licensed, why, tokens, (Q0, Q1, Q2), (P0, P1, P2, END), coins, u)

    later = "acceptances after the first rejection are counted"
    yield several("reject-first", "LAW-011", later, (10, 11, 22), (0.5, 0.0, 0.0))
    yield several("reject-middle", "LAW-011", later, (30, 41, 22), (0.875, 0.5, 0.0))
    yield several("reject-last", "LAW-011", "the rejection of the last proposal ends in a bonus",
                  (30, 21, 12), (0.875, 0.875, 0.75))  # fmt: skip
    yield several("accept-all", "LAW-007", "the last law is subtracted from the bonus row", (30, 11, 22), (0.5,) * 3)
    yield several("own-coin-decides", "LAW-011", "all proposals share one coin", (10, 31, 12), (0.25, 0.5, 0.75))
    crossed = (((30, 0.5), (21, 0.5)), ((21, 1.0), (30, 0.0)))
    rows: tuple[Row, ...] = (((30, 0.25), (21, 0.75)), ((21, 0.625), (30, 0.375)), P2)
    yield _case(profile, "own-row-and-law-decide", "LAW-011", "a proposal is tested with the row or law of another",
                (30, 21), crossed, rows, (0.25, 0.6875), 0.5)  # fmt: skip
    for slug, u in (("low", 0.0), ("edge", 0.6875), ("high", ALMOST_ONE)):
        why = "a round without a proposal yields no token, or skips the draw"
        yield _case(profile, f"no-proposals-{slug}", "LAW-007", why, (), (), (P1,), (), u)


@suite("law.sparse")
def correct(profile: Profile) -> Iterator[Case]:
    """The draw after a rejection: what p has more than q, by id, in the support's order."""
    residual: Row = ((50, 0.0625), (30, 0.4375), (10, 0.25), (40, 0.25))
    law: Row = ((10, 0.5), (40, 0.125), (30, 0.25), (60, 0.125))
    # Left of the residual: 50 has 1/16, 30 has 3/16, 10 nothing, 40 has 2/16; in all 3/8.

    def one(slug: str, why: str, u: float, own: Row = law, row: Row = residual, coin: float = 0.9375) -> Case:
        token = own[0][0]
        return _case(profile, slug, "LAW-011", why, (token,), (own,), (row, P2), (coin,), u)

    clamped = "a negative difference is not clamped, or is taken by its size"
    aligned = "p and q are subtracted rank by rank, not id by id"
    order = "the draw goes by token id, or by the candidates' order"
    scaled = "the goal is u itself, or the difference is not renormalised"
    for slug, u, why in (
        ("residual-low", 0.0, aligned), ("residual-below-first-edge", 0.15625, order),
        ("residual-second", 0.1875, order),
        ("residual-middle", 0.5, scaled), ("residual-above-second-edge", 0.6875, clamped),
        ("residual-high", ALMOST_ONE, clamped),
    ):  # fmt: skip
        yield one(slug, why, u)
    yield one("residual-of-disjoint-laws", "a law that the support does not hold takes mass from it", 0.8125,
              ((71, 0.5), (72, 0.5)))  # fmt: skip
    padded: Row = ((50, 0.5), (10, 0.25), (60, 0.125), (-1, 0.0))
    short: Row = ((10, 0.75), (-1, 0.0))
    yield one("residual-of-padded-rows", "the padding of a short row is drawn or subtracted", ALMOST_ONE, short, padded)
    first: Row = ((10, 0.25), (30, 0.5), (50, 0.25))
    yield one("residual-skips-zero", "a rank that nothing is left of is drawn at u = 0", 0.0, ((10, 0.5), (60, 0.5)),
              first)  # fmt: skip


@suite("law.sparse")
def nothing_left(profile: Profile) -> Iterator[Case]:
    """Rows that nothing is left of, reachable where rounded probabilities sum to less than 1."""
    clause = "LAW-005" if profile.name == "ninfer" else "LAW-006"
    why = "a draw from no mass yields the padding, NaN or an index of -1"
    row: Row = ((5, 0.0), (64, 0.25), (9, 0.0), (65, 0.75 - TICK))
    law: Row = ((65, 0.75 - TICK), (64, 0.25 + TICK))
    for slug, u in (("no-mass-left", 0.125), ("no-mass-left-high", ALMOST_ONE)):
        yield _case(profile, slug, clause, why, (64,), (law,), (row, P2), (ALMOST_ONE,), u)
    yield _case(profile, "no-mass-left-later", clause, why, (30, 64), (Q0, law), (P0, row, P2), (0.5, ALMOST_ONE), 0.5)


IDS = 13


def _every_id(masses: dict[int, float], order: int = 1) -> Row:
    """A row over the whole vocabulary, ascending or descending; what `masses` leaves out has nothing."""
    return tuple((token, masses.get(token, 0.0)) for token in range(IDS)[::order])


@suite("law.sparse", profiles=("zlab",))
def whole_vocabulary(profile: Profile) -> Iterator[Case]:
    """A DFlash draft's law, which holds every id, in another order than the support."""
    p = {1: 0.0625, 4: 0.375, 6: 0.125, 9: 0.25, 12: 0.1875}
    q = {0: 0.125, 4: 0.25, 6: 0.5, 9: 0.125}
    # Left of the residual, in ascending order: 1 has 1/16, 4 has 2/16, 9 has 2/16, 12 has 3/16; in all 1/2.

    def one(slug: str, licensed: str, why: str, token: int, coin: float, u: float, law: dict[int, float] = q) -> Case:
        laws, rows = (_every_id(law, -1),), (_every_id(p), _every_id({3: 0.5, 7: 0.5}))
        return _case(profile, f"every-id-{slug}", licensed, why, (token,), laws, rows, (coin,), u)

    aligned = "p and q are subtracted place by place, not id by id"
    yield one("accepted", "LAW-007", "q is read at the place of p", 6, 0.25 - TICK, 0.25)
    yield one("at-the-ratio", "LAW-011", "q is read at the place of p", 6, 0.25, 0.0)
    for slug, u in (("low", 0.0), ("second", 0.125), ("third", 0.375), ("last", 0.625), ("high", ALMOST_ONE)):
        yield one(f"residual-{slug}", "LAW-011", aligned, 6, 0.75, u)
    yield one("outside-the-target", "LAW-011", "a token that the target never says is accepted by a coin of 0", 0, 0.0,
              0.25)  # fmt: skip
    yield one("own-law-of-nothing", "LAW-007", "a token to which its own law gave nothing divides by 0", 12, ALMOST_ONE,
              0.5)  # fmt: skip
    equal = "equal laws leave a remainder, or refuse what they share"
    yield one("equal-laws", "LAW-007", equal, 4, ALMOST_ONE, 0.5, p)
    rows = (_every_id(p), _every_id({2: 0.5, 5: 0.5}), _every_id({3: 0.5, 7: 0.5}))
    laws = (_every_id(p, -1), _every_id({5: 0.75, 2: 0.25}, -1))
    other = "the law of another slot is subtracted"
    yield _case(profile, "every-id-of-two-slots", "LAW-011", other, (4, 5), laws, rows, (0.875, 0.75), 0.5)


@suite("law.sparse")
def tail(profile: Profile) -> Iterator[Case]:
    """Slots after the terminal token."""
    why = "rejected proposals stay in the licensed slots"
    laws, rows = (Q0, Q1, Q2), (P0, P1, P2, END)
    yield _case(profile, "tail-is-zero", "LAW-008", why, (30, 41, 22), laws, rows, (0.875, 0.625, 0.0), 0.5)
    yield _case(profile, "tail-is-zero-at-once", "LAW-008", why, (10, 11, 22), laws, rows, (0.625, 0.0, 0.0), 0.5)
