"""The tests of counts: exact where they say so, never too sure elsewhere, and as able to see as they claim."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import comb, exp, factorial, inf, isclose, log, prod

import numpy as np
import pytest
from dflash_spec.errors import UnsupportedError
from dflash_vectors.law import statistics
from dflash_vectors.law.seeds import hashes
from dflash_vectors.law.statistics import Test, compared, likelihood_ratio, rejected, tail

LAWS = [(0.3, 0.7), (0.5, 0.3, 0.2), (0.01, 0.19, 0.8), (0.4, 0.3, 0.2, 0.1)]


def tables(samples: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Every way of sharing `samples` out to `cells`."""
    if cells == 1:
        yield (samples,)
        return
    for first in range(samples + 1):
        yield from ((first, *rest) for rest in tables(samples - first, cells - 1))


def chance(table: Sequence[int], law: Sequence[float]) -> float:
    ways = factorial(sum(table)) // prod(factorial(n) for n in table)
    return ways * prod(p**n for n, p in zip(table, law, strict=True))


@pytest.mark.parametrize("samples", [3, 17, 29])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_bounded_tail_is_never_below_the_real_one(law: tuple[float, ...], samples: int) -> None:
    mass: dict[float, float] = defaultdict(float)
    for table in tables(samples, len(law)):
        mass[round(likelihood_ratio(table, law), 9)] += chance(table, law)
    above = 0.0
    for half in sorted(mass, reverse=True):
        above += mass[half]
        assert above <= tail(half, len(law) - 1) + 1e-12


def test_the_bounded_tail_is_the_formula_worked_by_hand() -> None:
    assert tail(1.5, 2) == tail(2.0, 2) == 1.0
    assert isclose(tail(6.0, 2), exp(-4) * 9)  # e^(2 - 6) · (6 / 2)^2
    assert isclose(tail(9.0, 1), exp(-8) * 9)


@pytest.mark.parametrize("exact", [20_000, 0], ids=["exact", "bounded"])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_p_value_is_at_most_x_with_a_probability_of_at_most_x(
    law: tuple[float, ...], exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "EXACT", exact)
    found = [(compared("t", table, law).p, chance(table, law)) for table in tables(9, len(law))]
    for p, _ in found:
        assert sum(mass for other, mass in found if other <= p * (1 + 1e-9)) <= p + 1e-12


def test_the_exact_multinomial_test_counts_every_table_that_is_as_unlikely() -> None:
    law, seen = (0.5, 0.3, 0.2), (0, 1, 4)
    found = compared("t", seen, law)
    expected = sum(
        chance(table, law)
        for table in tables(5, 3)
        if likelihood_ratio(table, law) > likelihood_ratio(seen, law) - 1e-9
    )
    assert (found.method, found.cells) == (statistics.MULTINOMIAL, 3)
    assert isclose(found.p, expected)


def test_the_exact_binomial_test_doubles_the_smaller_tail() -> None:
    found = compared("t", (9, 1), (0.5, 0.5))
    assert found.method == statistics.BINOMIAL
    assert isclose(found.p, 2 * (comb(10, 0) + comb(10, 1)) / 2**10)


def test_g_is_twice_the_relative_entropy_of_all_samples() -> None:
    assert isclose(likelihood_ratio((30, 10), (0.5, 0.5)), 30 * log(1.5) + 10 * log(0.5))
    assert likelihood_ratio((25, 25), (0.5, 0.5)) == 0.0


def test_one_count_of_an_impossible_outcome_is_a_p_value_of_0() -> None:
    found = compared("t", (10_000, 1, 0), (0.75, 0.0, 0.25))
    assert (found.method, found.p) == (statistics.NEVER, 0.0)
    assert compared("t", (3, 0, 1), (0.75, 0.0, 0.25)).p > 0


def test_many_samples_of_many_outcomes_take_the_bounded_tail() -> None:
    found = compared("t", (250, 260, 240, 250), (0.25,) * 4)
    assert found.method == statistics.BOUNDED
    assert found.p == tail(likelihood_ratio((250, 260, 240, 250), (0.25,) * 4), 3)


def test_no_samples_say_nothing() -> None:
    assert compared("t", (0, 0, 0), (0.5, 0.25, 0.25)).p == 1.0
    assert compared("t", (7,), (1.0,)).p == 1.0


def test_counts_without_a_probability_each_are_refused() -> None:
    with pytest.raises(ValueError, match="3 counts for 2 probabilities"):
        compared("t", (1, 2, 3), (0.5, 0.5))


def test_holm_rejects_in_rising_order_until_one_is_kept() -> None:
    def holm(*ps: float) -> list[bool]:
        return rejected([Test(str(p), "", 1, 2, p) for p in ps], 0.06)

    assert holm(0.5, 0.019, 0.001, 0.9) == [False, True, True, False]  # 0.06 / 4, then 0.06 / 3 = 0.02
    assert holm(0.5, 0.021, 0.001, 0.9) == [False, False, True, False]
    assert holm(0.016, 0.017) == [True, True]
    assert holm(0.016, 0.017, 0.9, 0.9) == [False] * 4
    assert holm() == []


@pytest.mark.parametrize(("low", "real"), [(0.5, 0.62), (0.9, 0.97), (0.2, 0.2)])
def test_the_power_of_the_binomial_test_is_the_mass_of_the_counts_that_fail_it(low: float, real: float) -> None:
    samples, level = 97, 1e-3
    failing = [n for n in range(samples + 1) if compared("t", (n, samples - n), (low, 1 - low)).p <= level]
    mass = sum(chance((n, samples - n), (real, 1 - real)) for n in failing)
    assert 0 < len(failing) < samples
    assert isclose(statistics.binomial_power(samples, low, real, level), mass, rel_tol=1e-9)


def test_the_detectable_step_is_the_smallest_that_is_seen_surely() -> None:
    step = statistics.detectable_step(5_000, 0.6, 1e-8)
    assert statistics.binomial_power(5_000, 0.6, 0.6 + step, 1e-8) >= statistics.POWER
    assert statistics.binomial_power(5_000, 0.6, 0.6 + 0.98 * step, 1e-8) < statistics.POWER
    assert statistics.detectable_step(3, 0.6, 1e-8) == inf


@pytest.mark.parametrize("signs", [(1, 1, -1, -1), (1, -1, 0, 0), (3, -1, -1, -1)], ids=str)
def test_a_variation_of_the_detectable_size_is_seen_in_every_direction(signs: tuple[int, ...]) -> None:
    samples, level, law = 4_000, 1e-8, np.full(4, 0.25)
    size = statistics.detectable_variation(samples, 4, level)
    real = law + np.array(signs) * size / sum(sign for sign in signs if sign > 0)
    seen = 0
    for number in range(200):
        uniforms = (hashes(f"variation/{signs}/{number}", samples) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        counts = np.bincount(np.searchsorted(np.cumsum(real), uniforms, side="right"), minlength=4)
        seen += compared("t", counts.tolist(), law.tolist()).p <= level
    assert 0 < size < 0.1
    assert seen >= 192  # 198 are expected at 0.99 of 200, give or take 1.4


def test_more_samples_see_less() -> None:
    sizes = [statistics.detectable_variation(samples, 6, 1e-8) for samples in (1_000, 10_000, 100_000)]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    assert statistics.detectable_variation(0, 6, 1e-8) == statistics.detectable_variation(1_000, 1, 1e-8) == inf
    assert statistics.detectable_variation(3, 6, 1e-8) == inf


def test_without_scipy_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.delitem(sys.modules, "scipy.stats", raising=False)
    with pytest.raises(UnsupportedError, match=r"scipy.*pip install 'dflash-oracle\[law\]'"):
        statistics.library()
