"""A decision that takes uniforms is measured from outside as it is, whatever its thresholds are."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dflash_vectors.law import pieces
from dflash_vectors.law.pieces import LAST, Measured, Point, RestlessError, down, measured, up

STEP = Fraction(1, 2**24)


def scan(decide: Callable[..., Any], *hints: list[Fraction]) -> Measured:
    return measured(lambda points: [decide(*point) for point in points], hints, "test")


@pytest.mark.parametrize("threshold", [0.3, 2.0**-20, 1.0 - 2.0**-23, 0.5])
@pytest.mark.parametrize("hinted", [True, False])
def test_a_threshold_is_found_to_the_bit_whether_it_was_expected_or_not(threshold: float, hinted: bool) -> None:
    exact = float(np.float32(threshold))
    found = scan(lambda u: u < exact, [Fraction(exact)] if hinted else [])
    near = 0 if hinted or exact > 2**-7 else Fraction(1, 2**30)  # numbers below 2^-7 lie closer than bisection goes
    assert abs(found.law[True] - Fraction(exact)) <= near
    assert found.law[False] == 1 - found.law[True]
    assert found.unsure == 0


def test_an_inflated_threshold_is_measured_as_it_is_and_not_as_it_should_be() -> None:
    for more in (1e-4, 1e-5, 1e-6):
        real = float(np.float32(0.3 + more))
        assert scan(lambda u, real=real: u < real, [Fraction(float(np.float32(0.3)))]).law[True] == Fraction(real)


def test_a_threshold_below_the_first_numbers_is_found_to_a_thousand_millionth() -> None:
    found = scan(lambda u: u < 1e-12, [])
    assert 0 < found.law[True] <= Fraction(1, 2**30)


def test_a_coin_of_0_that_decides_alone_is_seen() -> None:
    assert scan(lambda u: u <= 0.0, [Fraction(0)]).law[True] > 0


def test_both_sides_of_every_hint_and_both_ends_are_asked() -> None:
    asked: list[Point] = []

    def evaluate(points: list[Point]) -> list[int]:
        asked.extend(points)
        return [0] * len(points)

    measured(evaluate, [[Fraction(1, 3)]], "test")
    above = up(Fraction(1, 3))
    assert Fraction(down(above)) < Fraction(1, 3) < Fraction(above)
    assert {(0.0,), (LAST,), (above,), (down(above),)} <= set(asked)


def test_no_point_is_asked_twice() -> None:
    asked: list[Point] = []

    def evaluate(points: list[Point]) -> list[Any]:
        asked.extend(points)
        return [(u < 0.25, v < 0.7) for u, v in points]

    found = measured(evaluate, [[Fraction(1, 4)], [Fraction(7, 10)]], "test")
    assert len(asked) == len(set(asked)) == found.questions


def test_the_law_over_several_uniforms_is_the_product_of_their_pieces() -> None:
    def decide(a: float, b: float, c: float) -> tuple[str, ...]:
        if a >= 0.5:
            return ("rejected", "xyz"[min(2, int(c * 4))])
        return ("both",) if b < 0.125 else ("one",)

    found = scan(decide, [Fraction(1, 2)], [Fraction(1, 8)], [])
    assert found.law == {
        ("both",): Fraction(1, 16), ("one",): Fraction(7, 16), ("rejected", "x"): Fraction(1, 8),
        ("rejected", "y"): Fraction(1, 8), ("rejected", "z"): Fraction(1, 4),
    }  # fmt: skip


def test_a_last_draw_that_reuses_the_first_uniform_is_found_in_it() -> None:
    found = scan(lambda a, b: "yes" if a < 0.5 else "x" if a < 0.75 else "y", [Fraction(1, 2)], [Fraction(1, 2)])
    assert found.law == {"yes": Fraction(1, 2), "x": Fraction(1, 4), "y": Fraction(1, 4)}


def test_uniforms_that_are_added_keep_their_law_however_the_pieces_move() -> None:
    found = scan(lambda a, b: (a + b) % 1 < 0.5, [], [])  # no piece is shorter than the stretch between two points
    assert abs(found.law[True] - Fraction(1, 2)) <= found.unsure + 8 * STEP


def test_what_moves_within_a_piece_is_told_as_unsure() -> None:
    found = scan(lambda a, b: b < a, [], [])
    assert found.unsure > 0
    assert abs(found.law[True] - Fraction(1, 2)) <= found.unsure


def test_a_decision_that_hashes_its_uniform_is_refused_rather_than_followed() -> None:
    with pytest.raises(RestlessError, match="more than 128 times"):
        scan(lambda u: int(u * 2**22) % 2, [])


def test_the_same_key_asks_the_same_points() -> None:
    assert pieces.points([Fraction(1, 3)], "a") == pieces.points([Fraction(1, 3)], "a")
    assert pieces.points([Fraction(1, 3)], "a") != pieces.points([Fraction(1, 3)], "b")
