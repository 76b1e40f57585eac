"""The laws of ops that take uniforms, measured breakpoint by breakpoint on whoever answers them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from dflash_spec.errors import ImplementationError
from dflash_spec.registry import Profile

from dflash_vectors.cases import GoldenCase
from dflash_vectors.law import rule
from dflash_vectors.law.asking import Question, RefusedError, ask
from dflash_vectors.law.blame import blame, draw_example, example, most_off
from dflash_vectors.law.families import Round, Row
from dflash_vectors.law.pieces import Point, measured
from dflash_vectors.law.rule import NONE, Outcome
from dflash_vectors.law.verdicts import BREAKPOINTS, BROKEN, UNANSWERED, Finding
from dflash_vectors.law.verify import Asked, Seen, apart, choices, clauses_of, counts, read_round
from dflash_vectors.runners.protocol import Runner
from dflash_vectors.style import printable

STEP = Fraction(1, 2**24)
"""The largest distance of two FP32 numbers below 1."""


def limit(width: int, slots: int) -> Fraction:
    """What FP32 arithmetic may move a probability of a round with rows of `width` and `slots` proposals.

    A threshold is a quotient or a product, rounded once. A cumulative weight is a sum of `width` terms, rounded at
    each, over a mass that is rounded too, against a goal that is rounded: width + 3 roundings of numbers that are at
    most 1, each by half a step. A probability is the difference of two such places, and a whole round the product of
    slots + 1. The weights sum to 1 within as much again, which the law in closed form divides out.
    """
    return 2 * (width + 3) * (slots + 1) * STEP


def judge_round(runner: Runner, op: str, given: Round, profile: Profile) -> Finding:
    """The law of accepted count and tokens of a verify, for every choice of proposals.

    What an implementation does wrong is in the finding; nothing is raised for it.
    """
    bound = limit(len(given.p[0].ids), given.slots)
    made = Finding(op, given.name, BREAKPOINTS, clauses_of(op, profile)[0], limit=float(bound))
    made.size = sum(len(row.ids) for row in (*given.p, *given.q))
    seen: list[Seen] = []
    try:
        for asked in choices(op, given, profile):
            seen.append(_measure(runner, asked, made))
    except ImplementationError as error:
        return unanswered(made, error)
    made.deviation = float(max(one.off for one in seen))
    for group in [seen] if given.q else [[one] for one in seen]:  # certain proposals have no law: each stands alone
        _marginals(made, group)
    worst = max(seen, key=lambda one: (bool(one.never), one.off))
    if worst.never or worst.off > bound:
        made.status = BROKEN
        made.clause, made.reason = blame(op, worst, bound, profile)
        made.example = example(worst)
    return made


def _measure(runner: Runner, asked: Asked, made: Finding) -> Seen:
    answers: dict[Point, Outcome] = {}

    def evaluate(points: list[Point]) -> list[Outcome]:
        for point in points:
            answers[point] = read_round(ask(runner, asked.case(point)), asked.proposals)
        return [answers[point] for point in points]

    found = measured(evaluate, asked.hints(), f"{asked.op}/{asked.round.name}/{asked.proposals}")
    made.questions += found.questions
    expected = rule.verdict_law(asked.proposals, asked.p, asked.q)
    possible = asked.possible()
    never = sorted({outcome for outcome in answers.values() if outcome not in possible})
    return Seen(asked, found.law, expected, apart(found.law, expected) + found.unsure, never, answers)


def _marginals(made: Finding, group: Sequence[Seen]) -> None:
    """The largest differences of the law of the tokens from plain decoding's, and of the accepted count from its own.

    `group` holds every choice of proposals that one law of the draft has.
    """
    whole = sum(one.asked.mass for one in group)
    laws: tuple[dict[Outcome, Fraction], dict[Outcome, Fraction]] = (defaultdict(Fraction), defaultdict(Fraction))
    for one in group:
        for total, part in zip(laws, (one.law, one.expected), strict=True):
            for outcome, chance in part.items():
                total[outcome] += one.asked.mass / whole * chance
    p = group[0].asked.p
    made.tokens = max(made.tokens, float(apart(*(rule.continued(law, p) for law in laws))))
    made.accepted = max(made.accepted, float(apart(*map(counts, laws))))


def unanswered(made: Finding, error: ImplementationError) -> Finding:
    """The finding where an answer is no answer. The other laws of its op are then not asked."""
    made.status = BROKEN if isinstance(error, RefusedError) else UNANSWERED
    made.reason = printable(error)
    return made


def judge_draw(runner: Runner, name: str, row: Row, profile: Profile) -> Finding:
    """The law of one draw from a row, many uniforms in a call."""
    bound = limit(len(row.ids), 0)
    made = Finding("proc.draw", name, BREAKPOINTS, "PROC-005", limit=float(bound), size=len(row.ids))
    question = Question.of("proc.draw", profile, ("PROC-005",))
    answers: dict[float, int] = {}

    def case_of(points: Sequence[float]) -> GoldenCase:
        count = len(points)
        return question.case(support=[row.ids] * count, p=[row.weights] * count, u=np.array(points, np.float32))

    def evaluate(points: list[Point]) -> list[int]:
        us = [point[0] for point in points]
        tokens = [int(token) for token in ask(runner, case_of(us))["tokens"]]
        answers.update(zip(us, tokens, strict=True))
        return tokens

    try:
        found = measured(evaluate, [rule.shares(row.raw.values())], f"proc.draw/{name}")
    except ImplementationError as error:
        return unanswered(made, error)
    made.questions = found.questions
    made.deviation = made.tokens = float(apart(found.law, row.law))
    never = sorted(token for token in set(answers.values()) if not row.raw.get(token))
    amiss = amiss_at(row, answers)
    if never or amiss or made.deviation > bound:
        made.status = BROKEN
        token = max(sorted({*found.law, *row.law}), key=lambda t: abs(found.law.get(t, NONE) - row.law.get(t, NONE)))
        got, want = float(found.law.get(token, NONE)), float(row.law.get(token, NONE))
        made.reason = f"token {token} has probability {got:.9g}, not {want:.9g}"
        if never:
            made.reason = f"token {never[0]} is drawn, which has no probability in the row"
        elif made.deviation <= bound:
            u, got_, want_ = amiss[0]
            made.reason = f"token {got_} is drawn at u = {u:.9g}, not {want_}: the cumulative weights are exact there"
        made.example = draw_example(row.raw, answers, case_of, most_off(found.law, row.law))
    return made


def amiss_at(row: Row, answers: Mapping[float, int]) -> list[tuple[float, int, int]]:
    """(uniform, token, right token) of every wrong answer where no rounding excuses one: an edge is the next token's.

    Its width is a single uniform, far below any bound of a probability.
    """
    right = {u: rule.drawn(row.raw.items(), Fraction(u)) for u in answers} if row.is_exact else {}
    return [(u, answers[u], token) for u, token in sorted(right.items()) if answers[u] != token]
