"""Tests of counts against a law, and what they are able to see.

Two outcomes: the exact binomial test. Few samples: the exact multinomial test, ordered by the likelihood ratio G.
Otherwise G, with a bound on its tail that holds for every sample size and every law: the relative entropy of N samples
from k outcomes has a moment generating function below that of a Gamma law of shape k - 1 and rate N (R. Agrawal,
Finite-sample concentration of the multinomial in relative entropy, 2020), so P(G / 2 >= t) <= e^(d - t) (t / d)^d for
t > d = k - 1. No rule of thumb about expected counts stands behind a false alarm of one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb, exp, inf, lgamma, log, sqrt
from typing import Any

from dflash_spec.errors import UnsupportedError

FALSE_ALARM = 1e-6
"""Probability that a run calls a right implementation broken: over all of its tests together, by Holm's method."""
POWER = 0.99
"""How surely a deviation is seen, where the size of one is told that a run is able to see."""
EXACT = 20_000
"""Tables of counts that an exact multinomial test goes through at most."""
BINOMIAL, MULTINOMIAL, BOUNDED, NEVER = "exact binomial", "exact multinomial", "G, bounded tail", "impossible outcome"


@dataclass(frozen=True)
class Test:
    """One test of one table of counts: `p` is its p-value, or a bound from above on it."""

    name: str
    method: str
    samples: int
    cells: int
    p: float
    __test__ = False  # pytest would take the name for its own


def library() -> Any:
    """scipy.stats, loaded when a distribution is first needed. Raises UnsupportedError where it is not installed."""
    try:
        from scipy import stats
    except ImportError as error:
        raise UnsupportedError(
            "sampling wants scipy for its exact tests, which is not installed: pip install 'dflash-oracle[law]'"
        ) from error
    return stats


def compared(name: str, counts: Sequence[int], law: Sequence[float]) -> Test:
    """The counts of each outcome against its probability; the probabilities sum to 1, and some may be 0.

    A count where the probability is 0 is a p-value of 0. Raises ValueError unless both have one length.
    """
    if len(counts) != len(law):
        raise ValueError(f"{len(counts)} counts for {len(law)} probabilities")
    samples = sum(counts)
    if any(count and not chance for count, chance in zip(counts, law, strict=True)):
        return Test(name, NEVER, samples, len(law), 0.0)
    kept = [(count, chance) for count, chance in zip(counts, law, strict=True) if chance]
    cells = len(kept)
    if cells < 2 or not samples:
        return Test(name, BINOMIAL, samples, cells, 1.0)
    if cells == 2:
        return Test(name, BINOMIAL, samples, 2, _binomial(kept[0][0], samples, kept[0][1]))
    if comb(samples + cells - 1, cells - 1) <= EXACT:
        return Test(name, MULTINOMIAL, samples, cells, _multinomial(*zip(*kept, strict=True)))
    return Test(name, BOUNDED, samples, cells, tail(likelihood_ratio(*zip(*kept, strict=True)), cells - 1))


def likelihood_ratio(counts: Sequence[int], law: Sequence[float]) -> float:
    """G / 2: the sum of count · ln(count / expected), which is N times the relative entropy. Never below 0."""
    samples = sum(counts)
    terms = (n * log(n / (samples * chance)) for n, chance in zip(counts, law, strict=True) if n)
    return max(0.0, sum(terms))


def tail(half: float, degrees: int) -> float:
    """A bound on P(G / 2 >= half) for k = degrees + 1 outcomes: 1 where it says nothing."""
    return 1.0 if half <= degrees else exp(degrees - half + degrees * log(half / degrees))


def _binomial(count: int, samples: int, chance: float) -> float:
    """Twice the smaller tail, which is no less than the chance of a count as unlikely as this one."""
    law = library().binom(samples, chance)
    return float(min(1.0, 2 * min(law.cdf(count), law.sf(count - 1))))


def _multinomial(counts: Sequence[int], law: Sequence[float]) -> float:
    """The chance of all tables whose G is at least that of `counts`."""
    samples, seen = sum(counts), likelihood_ratio(counts, law)
    total = 0.0
    for table in _tables(samples, len(law)):
        if likelihood_ratio(table, law) >= seen - 1e-9:  # equal ones must not be lost to rounding
            chances = (n * log(p) - lgamma(n + 1) for n, p in zip(table, law, strict=True))
            total += exp(lgamma(samples + 1) + sum(chances))
    return min(1.0, total)


def _tables(samples: int, cells: int) -> Iterator[tuple[int, ...]]:
    """Every way of sharing `samples` out to `cells`."""
    if cells == 1:
        yield (samples,)
        return
    for first in range(samples + 1):
        yield from ((first, *rest) for rest in _tables(samples - first, cells - 1))


def rejected(tests: Sequence[Test], alarm: float = FALSE_ALARM) -> list[bool]:
    """Which tests are failed, such that any false alarm among them all has at most the probability `alarm` (Holm)."""
    failed = [False] * len(tests)
    for place, index in enumerate(sorted(range(len(tests)), key=lambda i: tests[i].p)):
        if tests[index].p > alarm / (len(tests) - place):
            break
        failed[index] = True
    return failed


def binomial_power(samples: int, chance: float, real: float, level: float) -> float:
    """The probability that the exact binomial test of `chance` fails at `level` where `real` is the probability."""
    law, truth = library().binom(samples, chance), library().binom(samples, real)
    low, high = int(law.ppf(level / 2)), int(law.isf(level / 2))
    low -= 2 * law.cdf(low) > level
    high += 2 * law.sf(high - 1) > level
    return float(truth.cdf(low) + truth.sf(high - 1))


def detectable_step(samples: int, chance: float, level: float) -> float:
    """The smallest rise of a probability `chance` that its binomial test sees with POWER; infinite if there is none."""
    low, high = 0.0, 1.0 - chance
    if binomial_power(samples, chance, 1.0, level) < POWER:
        return inf
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if binomial_power(samples, chance, chance + middle, level) >= POWER else (middle, high)
        )
    return high


def detectable_variation(samples: int, cells: int, level: float) -> float:
    """The total variation from a law of `cells` outcomes that a test sees with POWER, whatever its direction.

    By Pinsker's inequality a variation v is a relative entropy of 2 v² at least, and G is then about a noncentral
    chi-square with noncentrality 4 N v². Infinite where not even a variation of 1 would be seen.
    """
    if cells < 2 or not samples:
        return inf
    if cells == 2:
        return detectable_step(samples, 0.5, level)
    degrees, limit = cells - 1, critical(level, cells - 1)
    law = library().ncx2
    low, high = 0.0, 4.0 * samples
    if law.sf(2 * limit, degrees, high) < POWER:
        return inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if law.sf(2 * limit, degrees, middle) >= POWER else (middle, high)
    return sqrt(high / (4 * samples))


def critical(level: float, degrees: int) -> float:
    """The value of G / 2 whose tail bound is `level`."""
    low = high = float(degrees)
    while tail(high, degrees) > level:
        low, high = high, 2 * high + 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, degrees) > level else (low, middle)
    return high
