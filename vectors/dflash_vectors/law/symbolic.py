"""Code that draws, run over every outcome of its uniforms, in rational arithmetic.

A uniform is continuous here: the code gets it as a number that does not know its value, only the interval that the
comparisons so far have left of it. A comparison that could go either way cuts the interval, and the code runs once
with each part. What comes out is exact for any code that only multiplies a uniform by constants, adds constants, and
compares: no threshold is assumed, so a threshold that is slightly wrong moves the law by exactly that much.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from fractions import Fraction
from math import ceil, isfinite, isnan
from typing import Any, TypeVar

import numpy as np

Result = TypeVar("Result", bound=Hashable)
Interval = tuple[Fraction, Fraction]
Measure = Callable[[Fraction, Fraction], Fraction]
FLOATS = (float, np.floating)
WHOLE = (Fraction(0), Fraction(1))
TICKS = 2**24
"""Keyed uniforms are multiples of 1 / TICKS."""


class NoLawError(TypeError):
    """Code under enumeration did something with a uniform that has no exact law."""


def length(low: Fraction, high: Fraction) -> Fraction:
    """The probability that a continuous uniform lies in [low, high)."""
    return high - low


def ticks(low: Fraction, high: Fraction) -> Fraction:
    """The probability that a keyed uniform, one of the multiples of 2^-24 below 1, lies in [low, high)."""
    return Fraction(ceil(high * TICKS) - ceil(low * TICKS), TICKS)


class Draws:
    """The uniforms of one run, and which part of each interval it takes where a comparison cuts one.

    `plan` says so for the first cuts; after it every cut goes to the lower part, and `forks` collects the plans of the
    runs that go to the upper part instead.
    """

    def __init__(self, plan: tuple[bool, ...] = ()) -> None:
        self.intervals: dict[Hashable, Interval] = {}
        self.forks: list[tuple[bool, ...]] = []
        self._plan = plan
        self._taken: list[bool] = []

    def uniform(self, key: Hashable) -> Uniform:
        """The uniform of a key. Equal keys are one uniform, whatever its interval is by then."""
        return Uniform(self, key, Fraction(1), Fraction(0))

    def below(self, key: Hashable, cut: Fraction) -> bool:
        """Whether the uniform is below `cut`; both answers are tried, in two runs, where both are possible."""
        low, high = self.intervals.get(key, WHOLE)
        if cut >= high or cut <= low:
            return cut >= high
        turn = len(self._taken)
        lower = turn >= len(self._plan) or self._plan[turn]
        if turn >= len(self._plan):
            self.forks.append((*self._taken, False))
        self._taken.append(lower)
        self.intervals[key] = (low, cut) if lower else (cut, high)
        return lower

    def mass(self, measure: Measure = length) -> Fraction:
        """The probability of what the comparisons have found."""
        total = Fraction(1)
        for low, high in self.intervals.values():
            total *= measure(low, high)
        return total


class Uniform(Fraction):
    """slope · u + offset, where u is a uniform of `draws`. A Fraction, so that exact code takes it as a number.

    Raises NoLawError where code wants to know its value, compares it with another uniform, or multiplies two.
    """

    draws: Draws
    key: Hashable
    slope: Fraction
    offset: Fraction

    def __new__(cls, draws: Draws, key: Hashable, slope: Fraction, offset: Fraction) -> Uniform:
        self = super().__new__(cls)
        self.draws, self.key, self.slope, self.offset = draws, key, slope, offset
        return self

    def _below(self, other: Any) -> bool:
        """Whether the number is below `other`. That it is equal has probability 0."""
        if isinstance(other, FLOATS) and not isfinite(other):
            return not isnan(other) and bool(other > 0)
        bound = exact(other) - self.offset
        if not self.slope:
            return bound > 0
        below = self.draws.below(self.key, bound / self.slope)
        return below if self.slope > 0 else not below

    def __lt__(self, other: Any) -> bool:
        return self._below(other)

    __le__ = __lt__

    def __gt__(self, other: Any) -> bool:
        return not self._below(other) and not (isinstance(other, FLOATS) and isnan(other))

    __ge__ = __gt__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __bool__(self) -> bool:
        return bool(self.slope or self.offset)

    def _affine(self, slope: Any, offset: Any) -> Any:
        """slope · self + offset."""
        slope, offset = exact(slope), exact(offset)
        return Uniform(self.draws, self.key, slope * self.slope, slope * self.offset + offset)

    def __mul__(self, other: Any) -> Any:
        return self._affine(other, 0)

    def __truediv__(self, other: Any) -> Any:
        return self._affine(1 / exact(other), 0)

    def __add__(self, other: Any) -> Any:
        return self._affine(1, other)

    def __sub__(self, other: Any) -> Any:
        return self._affine(1, -exact(other))

    def __rsub__(self, other: Any) -> Any:
        return self._affine(-1, other)

    def __neg__(self) -> Any:
        return self._affine(-1, 0)

    __rmul__, __radd__ = __mul__, __add__

    def _refuse(self, *_: Any) -> Any:
        raise NoLawError(f"the value of uniform {self.key} was asked for, expected comparisons with numbers alone")

    __float__ = __int__ = __trunc__ = __round__ = __floor__ = __ceil__ = __abs__ = _refuse  # type: ignore[assignment]
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse

    def __repr__(self) -> str:
        return f"{self.slope}·u[{self.key}] + {self.offset}"

    __str__ = __repr__


def exact(number: Any) -> Fraction:
    """An integer or float of Python or NumPy as the rational that it is. Raises NoLawError for a uniform."""
    if isinstance(number, Uniform):
        raise NoLawError(f"uniform {number.key} meets another one, expected a number")
    if isinstance(number, Fraction):
        return number
    return Fraction(float(number)) if isinstance(number, FLOATS) else Fraction(int(number))


def outcomes(run: Callable[[Draws], Result], measure: Measure = length) -> dict[Result, Fraction]:
    """The probability of each result of `run`, which draws from the uniforms that it is given and from nothing else."""
    found: dict[Result, Fraction] = {}
    for result, draws in paths(run):
        found[result] = found.get(result, Fraction(0)) + draws.mass(measure)
    return found


def paths(run: Callable[[Draws], Result]) -> list[tuple[Result, Draws]]:
    """Every way in which comparisons can go: the result, and the intervals of the uniforms that lead to it."""
    found: list[tuple[Result, Draws]] = []
    plans: list[tuple[bool, ...]] = [()]
    while plans:
        draws = Draws(plans.pop())
        found.append((run(draws), draws))
        plans.extend(draws.forks)
    return found
