"""What the check of a law found: one finding for each law, and a whole run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dflash_vectors.cases import GoldenCase
from dflash_vectors.differences import Difference
from dflash_vectors.law.statistics import FALSE_ALARM, NEVER, Test, rejected
from dflash_vectors.runners.protocol import Answer, Description
from dflash_vectors.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_UNUSABLE

HOLDS, BROKEN, UNANSWERED = "holds", "broken", "no answer"
BREAKPOINTS, VALUES, SAMPLING = "breakpoints", "values", "sampling"


@dataclass(frozen=True)
class Told:
    """One outcome of a law in words: its probability, and the one measured or the share seen."""

    name: str
    expected: float
    found: float


@dataclass(frozen=True)
class Example:
    """Answers that are wrong by themselves, if some are, the clearest first; and the outcomes that are off most."""

    wrong: tuple[tuple[GoldenCase, Answer], ...]
    outcomes: tuple[Told, ...]


@dataclass
class Finding:
    """The verdict on one law of one op.

    `deviation` is the largest difference of a probability that was measured, `tokens` and `accepted` those of the two
    marginals; `limit` is what FP32 arithmetic may move. `tests` are those of a sampler, `outcomes` what each counted,
    and `chances` the probability that each slot accepts. `size` is that of the question, to find the smallest.
    """

    op: str
    law: str
    method: str
    clause: str
    status: str = HOLDS
    reason: str = ""
    deviation: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    limit: float = 0.0
    questions: int = 0
    samples: int = 0
    size: int = 0
    tests: list[Test] = field(default_factory=list)
    outcomes: dict[str, tuple[Told, ...]] = field(default_factory=dict)
    chances: dict[str, float] = field(default_factory=dict)
    example: Example | None = None
    difference: Difference | None = None

    @property
    def unexplained(self) -> bool:
        return self.status != HOLDS and self.difference is None


@dataclass
class Judged:
    """One implementation in one profile."""

    spec: str
    description: Description
    findings: list[Finding] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.description.name} {self.description.version}".rstrip() + f" ({self.description.profile})"


@dataclass
class LawRun:
    """A whole run, and what kept an implementation from being judged."""

    judged: list[Judged] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    interrupted: bool = False

    def findings(self) -> Iterator[Finding]:
        for judged in self.judged:
            yield from judged.findings

    @property
    def tests(self) -> list[Test]:
        return [test for finding in self.findings() for test in finding.tests]

    def settle(self) -> None:
        """Call broken what a test fails; all tests of the run together have one chance in a million to fail wrongly."""
        failed = iter(rejected(self.tests, FALSE_ALARM))
        for finding in self.findings():
            lost = [test for test in finding.tests if next(failed)]
            if lost and finding.status == HOLDS:
                finding.status = BROKEN
                worst = min(lost, key=lambda test: (test.cells, test.p))
                finding.reason = _lost(worst, finding.outcomes[worst.name])
                finding.example = Example((), finding.outcomes[worst.name])

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.broken or not any(True for _ in self.findings()):
            return EXIT_UNUSABLE
        return EXIT_FAILED if any(finding.unexplained for finding in self.findings()) else EXIT_PASSED


def _lost(test: Test, outcomes: tuple[Told, ...]) -> str:
    """Why a test is failed."""
    if test.method == NEVER:
        return f"{test.name}: {outcomes[0].name} has probability 0, and occurs"
    return f"{test.name}: p = {test.p:.2g} ({test.method}, {test.samples:,} samples)"
