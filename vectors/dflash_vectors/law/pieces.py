"""Measures a decision that takes uniforms, from outside: where it changes, and so the probability of each outcome.

Floating-point code is piecewise constant in its uniforms. Along one of them the decision is asked at points close to
where it should change (the FP32 numbers on both sides), at both ends and at points between; wherever two neighbours
answer unlike, bisection finds the pair of adjacent FP32 numbers between which it changes. Over several uniforms the
pieces of the first are found for several settings of the others, and the law within each piece at both of its ends.

What is not seen is a piece that lies wholly between two neighbouring points which answer alike. A comparison of a
uniform with a threshold, or with cumulative sums, has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError

from dflash_vectors.law.seeds import hashes

Point = tuple[float, ...]
Evaluate = Callable[[list[Point]], list[Any]]
LAST = 1.0 - 2.0**-24
"""The largest uniform."""
FINEST = 2.0**-30
"""Two uniforms as close as this count as adjacent: near 0 the FP32 numbers lie closer than any probability matters."""
BETWEEN = 5
"""One point in each stretch of 1 / BETWEEN, wherever the thresholds are expected."""
MOST = 128
"""Changes along one uniform, above which a decision is taken to hash it rather than to compare it."""
DEEPEST = 6
"""How often a piece whose ends have two laws is halved, before its law is taken to be the mean of theirs."""


@dataclass
class Measured:
    """The probability of each outcome; how much of it is a guess; and how many questions it took."""

    law: dict[Any, Fraction] = field(default_factory=dict)
    unsure: Fraction = Fraction(0)
    questions: int = 0


class RestlessError(ImplementationError):
    """A decision changes so often along a uniform that its law cannot be measured."""


def up(value: Fraction | float) -> float:
    """The smallest FP32 number that is not below `value`."""
    near = np.float32(float(value))
    return float(near if Fraction(float(near)) >= value else np.nextafter(near, np.float32(2)))


def down(value: float) -> float:
    """The FP32 number before `value`."""
    return float(np.nextafter(np.float32(value), np.float32(-1)))


def points(hints: Iterable[Fraction], key: str) -> list[float]:
    """Where to ask along one uniform: at both ends, on both sides of each hint, and once in each stretch between."""
    found = {0.0, LAST}
    for hint in hints:
        at = up(hint)
        found |= {down(at), at, up(Fraction(at) + Fraction(1, 2**26))}
    spread = hashes(key, BETWEEN) >> np.uint64(40)
    found |= {float(np.float32((place + int(value) / 2**24) / BETWEEN)) for place, value in enumerate(spread)}
    return sorted(value for value in found if 0.0 <= value <= LAST)


def pieces(ask: Callable[[list[float]], list[Hashable]], at: Sequence[float]) -> list[tuple[float, Hashable]]:
    """Where each piece begins and what it answers, from 0 on; `at` are the points to ask first.

    Each piece that was found is asked about once more within, and cut again where that answer is another one. Raises
    RestlessError where there are more than MOST.
    """
    known, within = dict(zip(at, ask(list(at)), strict=True)), set[tuple[float, float]]()
    while True:
        ordered = sorted(known)
        changes = [(low, high) for low, high in pairwise(ordered) if known[low] != known[high]]
        if len(changes) > MOST:
            raise RestlessError(f"the answer changes more than {MOST} times along one uniform")
        wanted = [middle for low, high in changes if low < (middle := _middle(low, high)) < high]
        if not wanted:
            starts = [ordered[0], *(high for _, high in changes)]
            ends = [*(low for low, _ in changes), ordered[-1]]
            fresh = [piece for piece in zip(starts, ends, strict=True) if piece not in within]
            within |= set(fresh)
            wanted = [inner for low, high in fresh if low < (inner := _inner(low, high)) < high]
            if not wanted:
                return [(start, known[start]) for start in starts]
        known |= zip(wanted, ask(wanted), strict=True)


def _inner(low: float, high: float) -> float:
    """An FP32 number within a piece, at no round share of it."""
    return float(np.float32(low + (high - low) * 0.6180339887))


def _middle(low: float, high: float) -> float:
    """An FP32 number between two, or the lower one where they count as adjacent."""
    return low if high - low <= FINEST else float(np.float32((low + high) / 2))


def measured(evaluate: Evaluate, hints: Sequence[Iterable[Fraction]], key: str) -> Measured:
    """The law of `evaluate` over uniforms in [0, 1), one for each entry of `hints`: where it should change along it.

    `evaluate` answers a list of points with a list of outcomes. Asks no point twice.
    """
    made = _Scan(evaluate, [points(list(axis), f"{key}/{number}") for number, axis in enumerate(hints)], key)
    law = made.law(())
    return Measured(law, made.unsure, len(made.known))


class _Scan:
    def __init__(self, evaluate: Evaluate, at: list[list[float]], key: str) -> None:
        self.known: dict[Point, Any] = {}
        self.unsure = Fraction(0)
        self._evaluate, self._at, self._key = evaluate, at, key

    def ask(self, wanted: list[Point]) -> list[Any]:
        new = list(dict.fromkeys(point for point in wanted if point not in self.known))
        if new:
            self.known |= zip(new, self._evaluate(new), strict=True)
        return [self.known[point] for point in wanted]

    def law(self, before: Point) -> dict[Any, Fraction]:
        """The law over the uniforms after `before`."""
        axis = len(before)
        if axis == len(self._at) - 1:
            found = pieces(lambda us: self.ask([(*before, u) for u in us]), self._at[axis])
            return _mixed((width, {answer: Fraction(1)}) for width, answer in _widths(found))
        settings = _settings(len(self._at) - axis - 1, f"{self._key}/{axis}")

        def profile(us: list[float]) -> list[Hashable]:
            answers = self.ask([(*before, u, *rest) for u in us for rest in settings])
            return [tuple(answers[n : n + len(settings)]) for n in range(0, len(answers), len(settings))]

        found = pieces(profile, self._at[axis])
        ends = [down(start) for start, _ in found[1:]] + [LAST]
        return _mixed(
            (share, law)
            for (start, _), end, (width, _) in zip(found, ends, _widths(found), strict=True)
            for share, law in self._within(before, start, end, width, DEEPEST)
        )

    def _within(
        self, before: Point, start: float, end: float, width: Fraction, depth: int
    ) -> list[tuple[Fraction, dict[Any, Fraction]]]:
        """The laws in a piece, each with its share: one, unless its ends have two."""
        first, last = self.law((*before, start)), self.law((*before, end))
        none = Fraction(0)
        apart = max(abs(first.get(key, none) - last.get(key, none)) for key in {*first, *last})
        if apart <= Fraction(1, 2**20):
            return [(width, first)]
        middle = _middle(start, end)
        if depth and start < middle < end:
            part = width * (Fraction(middle) - Fraction(start)) / (Fraction(end) - Fraction(start))
            return [
                *self._within(before, start, down(middle), part, depth - 1),
                *self._within(before, middle, end, width - part, depth - 1),
            ]
        self.unsure += width * apart / 2
        return [(width / 2, first), (width / 2, last)]


def _widths(found: Sequence[tuple[float, Any]]) -> list[tuple[Fraction, Any]]:
    cuts = [Fraction(start) for start, _ in found] + [Fraction(1)]
    return [(high - low, answer) for (low, high), (_, answer) in zip(pairwise(cuts), found, strict=True)]


def _mixed(parts: Iterable[tuple[Fraction, dict[Any, Fraction]]]) -> dict[Any, Fraction]:
    total: dict[Any, Fraction] = defaultdict(Fraction)
    for share, law in parts:
        for outcome, chance in law.items():
            total[outcome] += share * chance
    return dict(total)


def _settings(count: int, key: str) -> list[Point]:
    """Settings of the other uniforms: all at one end, all at the other, and two between."""
    spread = (hashes(key, 2 * count) >> np.uint64(40)).astype(np.float64) * 2.0**-24
    between = [tuple(float(u) for u in spread[n * count : (n + 1) * count]) for n in range(2)]
    return [(0.0,) * count, (LAST,) * count, *between]
