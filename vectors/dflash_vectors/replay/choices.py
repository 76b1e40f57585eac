"""Decisions by argmax: what a row chose against the best of it, and how far the two lie apart.

A row that is recorded decides for itself, so its choice must be exact. A row that the reference computed may lie
elsewhere in a right engine. Its doubt is the sum of the two logits' bounds where these are derived, else what bounds of
composites are made of: MULTIPLE times the largest change, in any perturbed run, of the best logit's lead over any
other. A choice whose gap to the best is within the doubt is a near tie; beyond it, it is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from dflash_reference import head
from dflash_spec.tensors import Array

from dflash_vectors import perturb
from dflash_vectors.replay.findings import Finding, Tie, Trail
from dflash_vectors.replay.lanes import MULTIPLE, Lane, Value
from dflash_vectors.replay.stages import Step


@dataclass(frozen=True)
class Rows:
    """Rows of numbers [R, V] of which the first `public` columns decide. `bound` is as in Own.

    `beside` rows are the reference's own where the trace has recorded rows, which decide: where both are within the
    bound of each other and choose differently, that is a near tie, and two numbers may each be off by the bound.
    """

    value: Value
    public: int
    bound: Array | None = None
    again: Step | None = None
    beside: bool = False

    def best(self, row: int) -> int:
        """The lowest id with the largest number."""
        return int(head.first_largest(self.value.true[row : row + 1, : self.public])[0])

    def tie(self, row: int, got: int) -> Tie | None:
        """The choice of `got` in a row, where it is not the best."""
        best = self.best(row)
        if got == best:
            return None
        if got >= self.public:
            return Tie(row, best, got, np.inf, 0.0)
        numbers = self.value.true[row]
        return Tie(row, best, got, float(numbers[best] - numbers[got]), self.doubt(row, best, got))

    def doubt(self, row: int, best: int, got: int) -> float:
        """How far the lead of `best` over `got` may be another in a right engine; below 0 where the lead is recorded,
        since an equal number does not excuse the higher id."""
        if self.value.given:
            return -1.0
        if self.bound is not None:
            return float(self.bound[row, best] + self.bound[row, got])
        return 2 * self.value.spread() if self.beside else self._change_of_lead(row, best)

    def _change_of_lead(self, row: int, best: int) -> float:
        largest = 0.0
        for lane in range(1, perturb.REPETITIONS + 1):
            with np.errstate(invalid="ignore"):
                shifts = (self.value.of(lane)[row] - self.value.true[row])[: self.public]
                changes = np.abs(shifts - shifts[best])
            largest = max(largest, float(changes[np.isfinite(changes)].max(initial=0.0)))
        return MULTIPLE * largest


def chosen(number: int, rows: Rows, tokens: Array) -> Iterator[Finding]:
    """The proposals of a DFlash block [P]: each the argmax of its row."""
    for row, token in enumerate(tokens):
        tie = rows.tie(row, int(token))
        if tie is not None:
            clause = "HEAD-003" if tie.gap == 0 else "HEAD-002"
            yield Finding(number, "decision.proposals", clause, said(tie), tie=tie, trail=_trail(rows, tokens))


def said(tie: Tie, what: str = "logit") -> str:
    """A decision in words."""
    if not np.isfinite(tie.gap):
        return f"row {tie.row}: token {tie.got}, which is none of the public ids, expected {tie.expected}"
    text = f"row {tie.row}: token {tie.got}, expected {tie.expected}; {what} gap {tie.gap:.4g}"
    return f"{text}, by numbers that the trace itself holds" if tie.doubt < 0 else f"{text}, doubt {tie.doubt:.4g}"


def _trail(rows: Rows, tokens: Array) -> Trail:
    def choose(lane: Lane) -> Array:
        numbers = rows.value.true if rows.again is None else rows.again(lane)
        found: Array = head.argmax(numbers, rows.public, lane.pair.profile).proposals
        return found[: len(tokens)]

    return Trail(choose, lambda other: 0.0 if np.array_equal(other, tokens) else np.inf)
