"""What a replay finds: places where a trace is not what the reference makes of it, as near ties or as bugs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dflash_spec.tensors import Array

from dflash_vectors.trace import Trace
from dflash_vectors.verdict import Divergence

PREFILL_ROUND = -1
"""The number under which the prompt's pass is told."""
BUG, TIE = "bug", "near tie"


class Tie(NamedTuple):
    """Two tokens between which a row decides. `gap` is how far the expected one leads; `doubt` how far it may move.

    Both are differences of logits, or of probabilities where the decision is a draw.
    """

    row: int
    expected: int
    got: int
    gap: float
    doubt: float

    @property
    def near(self) -> bool:
        """Whether a right engine may have decided so."""
        return self.gap <= self.doubt


class Guess(NamedTuple):
    """A mistake that gives what was recorded, and the rules that it breaks."""

    name: str
    story: str
    clauses: tuple[str, ...]


@dataclass(frozen=True)
class Trail:
    """How to look for the mistake: `again` computes the place once more in a given lane; `off` says how far that is
    from what was recorded, in bounds, and infinite where it explains nothing."""

    again: Callable[..., Array]
    off: Callable[[Array], float]


@dataclass(frozen=True)
class Finding:
    """One place. `problem` is set where there are no two tensors to compare, `tie` where a decision was taken."""

    round: int
    place: str
    clause: str
    problem: str = ""
    divergence: Divergence | None = None
    tie: Tie | None = None
    guesses: Sequence[Guess] = ()
    trail: Trail | None = field(default=None, compare=False, repr=False)

    @property
    def verdict(self) -> str:
        """`near tie` or `bug`."""
        return TIE if self.tie is not None and self.tie.near else BUG


@dataclass
class Report:
    """What a replay found.

    `furthest` has, by stage, in how many rounds it was compared and how far it was off at most, in bounds; `accepted`
    the accepted count of each round; `notes` what could not be judged, and why. `complete` is whether the walk came to
    the trace's end.
    """

    trace: Trace
    findings: list[Finding] = field(default_factory=list)
    furthest: dict[str, tuple[int, float]] = field(default_factory=dict)
    accepted: list[int] = field(default_factory=list)
    judged: int = 0
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    complete: bool = False

    @property
    def bug(self) -> Finding | None:
        """The first bug."""
        return next((finding for finding in self.findings if finding.verdict == BUG), None)

    @property
    def ties(self) -> list[Finding]:
        """The near ties before it."""
        return [finding for finding in self.findings if finding.verdict == TIE]

    def seen(self, stage: str, bounds: float) -> None:
        """A stage was compared, and off by so many bounds at its furthest element."""
        count, before = self.furthest.get(stage, (0, 0.0))
        self.furthest[stage] = (count + 1, max(before, bounds))
