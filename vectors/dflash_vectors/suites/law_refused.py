"""Probabilities that are no numbers: they accept nothing, and nothing is drawn from their row. Where nobody looks they
have no effect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

NAN = float("nan")
ALMOST_ONE = 1.0 - 2.0**-24

Row = tuple[float, ...]
SUPPORT = ((17, 5, 29), (23, 3, 11), (41, 2, 13))
"""The support of each row: no id stands in two."""
P0: Row = (0.5, 0.25, 0.25)
P1: Row = (0.375, 0.375, 0.25)
P2: Row = (0.25, 0.25, 0.5)
Q0, Q1 = (0.25, 0.5, 0.25), (0.125, 0.125, 0.75)
NO_TOKEN = "a comparison with NaN accepts, or a draw from a row that holds one yields an index"
UNREAD = "a NaN that nobody reads ends the round, or spreads"


def _rows(*rows: Row) -> dict[str, object]:
    return {"support": np.array(SUPPORT[: len(rows)]), "p": np.array(rows)}


@suite("proc.draw")
def draw(profile: Profile) -> Iterator[Case]:
    """Rows that cannot be drawn from, among sound ones."""
    first, last = (NAN, 0.25, 0.25), (0.5, 0.25, NAN)
    for slug, rows, u in (
        ("nan-at-the-first-rank", (P0, first), (0.5, 0.0)),
        ("nan-after-the-drawn-rank", (last, P1), (0.25, 0.5)),
        ("nan-in-every-rank", (P0, P1, (NAN,) * 3), (0.25, 0.5, ALMOST_ONE)),
    ):
        yield Case(
            slug, ("LAW-013",), {**_rows(*rows), "u": np.array(u)}, catches=NO_TOKEN, effect="crash"
        )  # fmt: skip


def _places() -> Iterator[tuple[str, bool, tuple[int, ...], tuple[Row, ...], tuple[float, ...], float]]:
    """Slug, whether it is refused, proposals, rows of p, coins, and the terminal uniform."""
    nan_token, nan_beside = (NAN, 0.25, 0.25), (0.5, NAN, 0.25)
    yield "nan-proposal", True, (17, 23), (nan_token, P1, P2), (0.0, 0.0), 0.5
    yield "nan-proposal-later", True, (17, 23), (P0, nan_token, P2), (0.25, 0.125), 0.5
    yield "nan-beside-a-rejected-proposal", True, (17, 23), (P0, nan_beside, P2), (0.25, ALMOST_ONE), 0.0
    yield "nan-in-the-bonus-row", True, (17, 23), (P0, P1, nan_beside), (0.25, 0.25), 0.0
    yield "nan-beside-an-accepted-proposal", False, (17, 23), (nan_beside, P1, P2), (0.25, 0.25), 0.625
    yield "nan-after-the-rejection", False, (5, 23), (P0, (NAN,) * 3, nan_beside), (0.875, 0.0), 0.625


@suite("law.one_hot")
def one_hot(profile: Profile) -> Iterator[Case]:
    """NaN in every place of a round of certain proposals."""
    for slug, refused, proposals, rows, coins, u in _places():
        given = {
            "proposals": np.array(proposals), **_rows(*rows), "u_accept": np.array(coins), "u_terminal": u,
        }  # fmt: skip
        yield Case(
            slug, ("LAW-013",), given, catches=NO_TOKEN if refused else UNREAD, effect="crash",
            tags=() if refused else ("tie",),
        )  # fmt: skip


@suite("law.sparse")
def sparse(profile: Profile) -> Iterator[Case]:
    """NaN in every place of p and of q, in a round of drawn proposals."""

    def one(
        slug: str, refused: bool, proposals: tuple[int, ...], rows: tuple[Row, ...], coins: tuple[float, ...],
        u: float, laws: tuple[Row, ...] = (Q0, Q1),
    ) -> Case:  # fmt: skip
        given = {
            "proposals": np.array(proposals), "candidates": np.array([row[::-1] for row in SUPPORT[:2]]),
            "q": np.array(laws), **_rows(*rows), "u_accept": np.array(coins), "u_terminal": u,
        }  # fmt: skip
        return Case(
            slug, ("LAW-013",), given, catches=NO_TOKEN if refused else UNREAD, effect="crash",
            tags=() if refused else ("tie",),
        )  # fmt: skip

    for place in _places():
        yield one(*place)
    # Candidates stand in the reverse order of the support: q[0][2] is that of token 17, q[1][2] that of 23.
    sound = (P0, P1, P2)
    yield one("nan-law-of-the-proposal", True, (17, 23), sound, (0.0, 0.0), 0.5, ((0.25, 0.5, NAN), Q1))
    yield one("nan-law-beside-a-rejected-proposal", True, (17, 23), sound, (0.25, ALMOST_ONE), 0.5,
              (Q0, (0.125, NAN, 0.5)))  # fmt: skip
    yield one("nan-law-beside-an-accepted-proposal", False, (17, 23), sound, (0.25, 0.25), 0.625,
              ((NAN, 0.5, 0.25), Q1))  # fmt: skip
    yield one("nan-law-after-the-rejection", False, (5, 23), sound, (0.875, 0.0), 0.625, (Q0, (NAN,) * 3))
