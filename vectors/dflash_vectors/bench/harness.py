"""Measuring in turns: each party's calls are timed in short turns that alternate, and compared turn by turn.

A machine that is busy with something else slows a whole stretch of time. Parties that take turns of a second or less
are slowed alike, so the ratio of two turns that follow each other says more than two medians taken apart.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Call = Callable[[], object]


def nothing() -> None:
    """What a host's clock waits for: there is nothing queued."""


@dataclass(frozen=True)
class Clock:
    """Seconds now, once everything that was asked of the device is done."""

    read: Callable[[], float] = time.perf_counter
    settle: Callable[[], object] = nothing

    def now(self) -> float:
        self.settle()
        return self.read()


@dataclass(frozen=True)
class Plan:
    """How often to measure: `turns` of each party, each of `calls` timed calls after one that warms the caches."""

    turns: int
    calls: int


@dataclass(frozen=True)
class Spread:
    """The median of `count` turns, and the quartiles around it."""

    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Raises ValueError where there are none."""
        if not values:
            raise ValueError("no turns, expected at least 1")
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], 1)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high, len(values))

    def scaled(self, factor: float) -> Spread:
        """The same in another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.count)

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"median": self.median, "low": self.low, "high": self.high, "turns": self.count}


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours over theirs, of turns that followed each other. Raises ValueError unless both had as many turns."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} turns beside {len(theirs)}, expected as many")
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage is collected while something is timed; what there is, is collected before."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def turn(call: Call, calls: int, clock: Clock) -> float:
    """The median seconds of `calls` calls, after one that is not counted: it finds its caches cold."""
    call()
    spent = []
    for _ in range(calls):
        before = clock.now()
        call()
        spent.append(clock.now() - before)
    return statistics.median(spent)


class Turns:
    """Each party's turns so far, by name."""

    def __init__(self, parties: Mapping[str, Call], plan: Plan, clock: Clock) -> None:
        self._parties, self._plan, self._clock = parties, plan, clock
        self.seconds: dict[str, list[float]] = {name: [] for name in parties}

    def once(self) -> None:
        """One turn of every party."""
        for name, call in self._parties.items():
            self.seconds[name].append(turn(call, self._plan.calls, self._clock))

    def all(self) -> dict[str, list[float]]:
        """Every turn of every party."""
        with quiet():
            for _ in range(self._plan.turns):
                self.once()
        return self.seconds
