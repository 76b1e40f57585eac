"""Uniforms that do not know their values: what code makes of them is exact, whatever its thresholds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dflash_vectors.law.symbolic import Draws, NoLawError, Uniform, outcomes, paths, ticks
from hypothesis import given
from hypothesis import strategies as st

SEVENTH = Fraction(1, 7)
rationals = st.fractions(min_value=Fraction(-2), max_value=Fraction(2), max_denominator=99)


def below(number: Any) -> dict[bool, Fraction]:
    return outcomes(lambda draws: draws.uniform("u") < number)


@given(rationals)
def test_a_uniform_is_below_a_number_with_the_probability_of_its_length(number: Fraction) -> None:
    inside = min(max(number, Fraction(0)), Fraction(1))
    assert below(number) == {answer: p for answer, p in ((True, inside), (False, 1 - inside)) if p}


@given(rationals.filter(bool), rationals, rationals)
def test_what_is_done_to_a_uniform_moves_its_threshold(slope: Fraction, offset: Fraction, number: Fraction) -> None:
    def run(draws: Draws) -> bool:
        u = draws.uniform("u")
        return bool(slope * u + offset < number) if slope > 0 else bool(offset - u * -slope < number)

    cut = min(max((number - offset) / slope, Fraction(0)), Fraction(1))
    chance = cut if slope > 0 else 1 - cut
    assert outcomes(run).get(True, Fraction(0)) == chance


def test_a_threshold_that_is_wrong_by_a_ten_thousandth_moves_the_law_by_as_much() -> None:
    wrong = outcomes(lambda draws: bool(draws.uniform("u") * 0.9999 < SEVENTH))
    assert wrong[True] == SEVENTH / Fraction(0.9999)


def test_one_key_is_one_uniform_and_two_keys_are_two() -> None:
    def run(draws: Draws, second: str) -> tuple[bool, bool]:
        return bool(draws.uniform("a") < SEVENTH), bool(draws.uniform(second) < SEVENTH)

    assert outcomes(lambda draws: run(draws, "a")) == {(True, True): SEVENTH, (False, False): 1 - SEVENTH}
    assert outcomes(lambda draws: run(draws, "b"))[True, True] == SEVENTH**2


def test_a_comparison_with_a_known_answer_is_not_tried_twice() -> None:
    found = paths(lambda draws: (bool(draws.uniform("u") < SEVENTH), bool(draws.uniform("u") < 2 * SEVENTH)))
    assert sorted(result for result, _ in found) == [(False, False), (False, True), (True, True)]


def test_keyed_uniforms_count_their_steps() -> None:
    third = Fraction(1, 3)
    found = outcomes(lambda draws: bool(draws.uniform("u") < third), ticks)
    assert found[True] == Fraction(5592406, 2**24)  # the multiples of 2^-24 from 0 to 5592405, which is below 2^24 / 3
    assert sum(found.values()) == 1


@pytest.mark.parametrize("number", [float("nan"), float("-inf"), 0, -1.5, np.float32(0.0)])
def test_no_uniform_is_below_nan_or_anything_up_to_0(number: float) -> None:
    assert below(number) == {False: 1}


def test_every_uniform_is_below_infinity_and_above_nothing_that_is_no_number() -> None:
    assert below(float("inf")) == {True: 1}
    assert outcomes(lambda draws: draws.uniform("u") > float("nan")) == {False: 1}


def use_as_float(u: Uniform) -> Any:
    return float(u)


def square(u: Uniform) -> Any:
    return u * u


def divide_by(u: Uniform) -> Any:
    return 1 / u


def compare_with_another(u: Uniform) -> Any:
    return u < u.draws.uniform("other")


@pytest.mark.parametrize("use", [use_as_float, square, divide_by, compare_with_another])
def test_what_has_no_exact_law_is_refused(use: Any) -> None:
    with pytest.raises(NoLawError, match="expected"):
        outcomes(lambda draws: use(draws.uniform("u")))


def test_a_row_of_uniforms_is_a_row_of_numbers_to_numpy() -> None:
    def run(draws: Draws) -> tuple[bool, ...]:
        row = np.array([draws.uniform(slot) for slot in range(2)], dtype=object)
        return tuple(bool(u < SEVENTH) for u in row * 2)

    assert outcomes(run)[True, True] == (SEVENTH / 2) ** 2
