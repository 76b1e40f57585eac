"""One verify as a question with uniforms: how it is asked, where its answer should change, what was measured of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError
from dflash_spec.registry import Profile

from dflash_vectors.cases import GoldenCase
from dflash_vectors.law import rule
from dflash_vectors.law.asking import Question
from dflash_vectors.law.families import Round
from dflash_vectors.law.pieces import Point
from dflash_vectors.law.rule import NONE, Outcome, Weights


@dataclass(frozen=True)
class Asked:
    """One round with given proposals. `mass` is their probability, which certain ones do not have."""

    op: str
    round: Round
    proposals: tuple[int, ...]
    mass: Fraction
    profile: Profile
    question: Question

    @property
    def p(self) -> list[Weights]:
        return [row.law for row in self.round.p]

    @property
    def q(self) -> list[Weights]:
        return [row.law for row in self.round.q] or [{id_: Fraction(1)} for id_ in self.proposals]

    def case(self, point: Point) -> GoldenCase:
        """The question with the uniforms of a point."""
        if self.op == "law.match":
            return self.question.case(u=np.array(point, np.float32))
        return self.question.case(u_accept=np.array(point[:-1], np.float32), u_terminal=np.float32(point[-1]))

    def decided(self, point: Point) -> Outcome:
        """What the rules say of the uniforms of a point."""
        if self.op == "law.match":
            return rule.matched(self.round, self.proposals, point)
        return rule.decided(self.round, self.proposals, point, self.profile)

    def possible(self) -> set[Outcome]:
        """What some uniforms give, by the rules."""
        return rule.possible(self.round, self.proposals, self.profile)

    def hints(self) -> list[list[Fraction]]:
        """Where the answer should change: along each accept uniform at p / q, along the last where a share ends."""
        if self.op == "law.match":
            return [rule.shares(row.raw.values()) for row in self.round.p]
        hints, terminal = [], rule.shares(self.round.p[-1].raw.values())
        for slot, id_ in enumerate(self.proposals):
            p, q = self.round.p[slot].raw, rule.raw_q(self.round, slot, id_)
            hints.append([p.get(id_, NONE) / q[id_]])
            terminal += rule.shares(rule.left(p, q).values()) or rule.shares(p.values())
        return [*hints, terminal]


@dataclass
class Seen:
    """What was measured of one choice of proposals, beside what should be; `never` are outcomes that no rule has."""

    asked: Asked
    law: dict[Outcome, Fraction]
    expected: dict[Outcome, Fraction]
    off: Fraction
    never: list[Outcome]
    answers: dict[Point, Outcome] = field(default_factory=dict)


def clauses_of(op: str, profile: Profile) -> tuple[str, str, str, str]:
    """The clauses of accept test, correction, bonus, and correction where nothing is left."""
    if op == "law.match":
        return ("LAW-012",) * 4
    nothing = "LAW-005" if profile.axes["zero_residual"] == "top_token" else "LAW-006"
    if op == "law.one_hot":
        return "LAW-003", "LAW-004", "LAW-007", nothing
    covered = profile.axes["accept_test"] == "covered_or_strict"
    return "LAW-009" if covered else "LAW-010", "LAW-011", "LAW-007", nothing


def choices(op: str, given: Round, profile: Profile) -> Iterator[Asked]:
    """The round with every choice of proposals."""
    arrays = {"support": [row.ids for row in given.p], "p": [row.weights for row in given.p]}
    if given.q:
        arrays |= {"candidates": [row.ids for row in given.q], "q": [row.weights for row in given.q]}
    for proposals, mass in given.choices():
        question = Question.of(op, profile, clauses_of(op, profile), proposals=proposals, **arrays)
        yield Asked(op, given, proposals, mass, profile, question)


def read_round(answer: Mapping[str, Any], proposals: Sequence[int]) -> Outcome:
    """(accepted, tokens) of an answer. Raises ImplementationError where they cannot be read as such."""
    accepted = int(answer["accepted"])
    if not 0 <= accepted <= len(proposals):
        raise ImplementationError(f"accepted is {accepted}, expected 0 to {len(proposals)}")
    licensed = [int(token) for token in answer["licensed"]]
    if any(licensed[accepted + 1 :]):
        raise ImplementationError(
            f"licensed is {licensed} with {accepted} accepted, expected 0 after {accepted + 1} tokens"
        )
    return accepted, tuple(licensed[: accepted + 1])


def outputs(outcome: Outcome, slots: int) -> dict[str, Any]:
    """An outcome as the op's outputs."""
    accepted, tokens = outcome
    return {"accepted": accepted, "licensed": [*tokens, *[0] * (slots + 1 - len(tokens))]}


def counts(law: Mapping[Outcome, Fraction]) -> dict[int, Fraction]:
    """The law of the accepted count."""
    found: dict[int, Fraction] = defaultdict(Fraction)
    for (accepted, _), chance in law.items():
        found[accepted] += chance
    return dict(found)


def apart(found: Mapping[Any, Fraction], expected: Mapping[Any, Fraction]) -> Fraction:
    """The largest difference of a probability."""
    return max(abs(found.get(key, NONE) - expected.get(key, NONE)) for key in {*found, *expected})
