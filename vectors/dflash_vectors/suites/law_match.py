"""Sample-and-match: the target draws for itself in every row, and proposals are accepted while they equal its draws.

Probabilities are multiples of 2^-5, so that every cumulative sum is exact in FP32. The support is every id in ascending
order, as this revision's softmax leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

ALMOST_ONE = 1.0 - 2.0**-24
TICK = 2.0**-24
NAN = float("nan")
IDS = 7

Row = dict[int, float]
"""Probability by id; the other ids have none."""

A: Row = {1: 0.25, 3: 0.5, 6: 0.25}
B: Row = {0: 0.125, 2: 0.375, 4: 0.5}
C: Row = {2: 0.3125, 5: 0.6875}
D: Row = {0: 0.5, 6: 0.5}


def _case(
    slug: str, why: str, proposals: tuple[int, ...], rows: tuple[Row, ...], u: tuple[float, ...],
    clauses: tuple[str, ...] = ("LAW-012",), effect: str = "output",
) -> Case:  # fmt: skip
    p = np.array([[row.get(token, 0.0) for token in range(IDS)] for row in rows])
    given = {
        "proposals": np.array(proposals, dtype=np.int64),
        "support": np.tile(np.arange(IDS), (len(rows), 1)),
        "p": p,
        "u": np.array(u),
    }
    return Case(slug, clauses, given, catches=why, effect=effect, tags=("tie",))


@suite("law.match", profiles=("zlab-2026-04",))
def match(profile: Profile) -> Iterator[Case]:
    """Every accepted count, and draws at the edges of their ranks."""
    rows, u = (A, B, C, D), (0.5, 0.25, 0.75, 0.625)
    drawn = (3, 2, 5)
    yield _case("all-match", "the bonus is not drawn, or is drawn twice", drawn, rows, u)
    for slot, stranger in enumerate((6, 4, 2)):
        changed = tuple(stranger if at == slot else token for at, token in enumerate(drawn))
        yield _case(
            f"mismatch-at-{slot}", "the row that rejects draws once more, or matches after it are counted", changed,
            rows, u,
        )  # fmt: skip
    yield _case("no-proposals", "an empty proposal yields no token", (), (B,), (0.875,))
    yield _case(
        "likeliest-is-not-drawn", "proposals are matched with the argmax, or accepted with their own probability",
        (3, 4, 5), rows, (0.125, 0.5, 0.25, 0.5),
    )  # fmt: skip
    yield _case(
        "what-is-left-is-not-drawn-from", "the row that rejects draws from what is left without the proposal",
        (1,), (A, C), (0.6875, 0.5),
    )  # fmt: skip
    coin = "the uniform is taken for the coin of an accept test"
    yield _case("own-draw-and-not-a-coin", coin, (3,), (A, C), (0.875, 0.0))
    yield _case("coin-below-p-and-another-draw", coin, (6,), (A, C), (0.125, 0.0))
    edge = "a uniform on an edge goes to the id before, or one below it to the id after"
    yield _case("at-an-edge", edge, (3, 2), (A, B, C), (0.25, 0.125, 0.3125))
    yield _case("below-an-edge", edge, (1, 0), (A, B, C), (0.25 - TICK, 0.125 - TICK, 0.3125 - TICK))
    yield _case("lowest-uniforms", "u = 0 draws an id without a chance", (1, 0), (A, B, C), (0.0, 0.0, 0.0))
    yield _case(
        "highest-uniforms", "the last id is out of reach", (6, 4), (A, B, C), (ALMOST_ONE, ALMOST_ONE, ALMOST_ONE)
    )
    shifted = "a proposal is matched with the draw of the row after, or drawn with the uniform after"
    yield _case("row-after-would-match", shifted, (4, 5), (A, B, C), (0.5, 0.75, 0.5))
    yield _case("uniform-after-would-match", shifted, (1, 2, 2), (A, B, C, D), (0.5, 0.125, 0.25, 0.75))
    yield _case("licensed-tail-is-zero", "proposals stay after the terminal token", (6, 4, 5), rows, u,
                ("LAW-012", "LAW-008"))  # fmt: skip


@suite("law.match", profiles=("zlab-2026-04",))
def refuses(profile: Profile) -> Iterator[Case]:
    """A row that cannot be drawn from."""
    broken = {**A, 5: NAN}
    why = "a draw from a row that holds a NaN yields an index"
    yield _case("nan-in-the-first-row", why, (3, 2), (broken, B, C), (0.5, 0.25, 0.5), ("LAW-012", "LAW-013"), "crash")
    yield _case("nan-in-the-row-of-the-bonus", why, (3,), (A, broken), (0.5, 0.5), ("LAW-012", "LAW-013"), "crash")
