"""The laws that are made of logits: filtered probabilities against exact ones, and proposals against their own q."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, isfinite
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError
from dflash_spec.registry import Profile

from dflash_vectors.law import rule
from dflash_vectors.law.asking import Question, ask
from dflash_vectors.law.blame import most_off
from dflash_vectors.law.families import fp32
from dflash_vectors.law.pieces import Point, measured
from dflash_vectors.law.uniforms import STEP, limit, unanswered
from dflash_vectors.law.verdicts import BREAKPOINTS, BROKEN, VALUES, Example, Finding
from dflash_vectors.law.verify import apart
from dflash_vectors.runners.protocol import Runner

LOGITS = (1.25, -0.75, 2.5, 0.5, 3.0, -2.25, 1.75)
"""No two are equal, so that every order of ranking agrees."""
OTHERS = (0.25, 2.0, -1.5, 1.5, -0.5)


@dataclass(frozen=True)
class Filters:
    """The settings of one request."""

    temperature: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    top_p: float = 1.0

    def inputs(self) -> dict[str, Any]:
        return {
            "temperature": np.float32(self.temperature), "top_k": self.top_k,
            "min_p": np.float32(self.min_p), "top_p": np.float32(self.top_p),
        }  # fmt: skip


def settings(profile: Profile) -> dict[str, Filters]:
    """What to ask, by name: each filter alone, on both sides of a crossing, and together."""
    found = {"temperature 1": Filters(), "cold": Filters(fp32(0.375)), "warm": Filters(1.75)}
    order = profile.axes["sampling_order"]
    if "top_k" in order:
        found["top-k 3"] = Filters(fp32(0.75), top_k=3)
    if "top_p" in order:
        crossing = _sums(Filters(fp32(0.75)), profile)[2]
        found["top-p below a crossing"] = Filters(fp32(0.75), top_p=fp32(crossing - 2.0**-12))
        found["top-p above a crossing"] = Filters(fp32(0.75), top_p=fp32(crossing + 2.0**-12))
        found["top-k 4, top-p"] = Filters(1.5, top_k=4, top_p=fp32(0.7))
        # Between what the two best weights are of the four that top-k leaves, and what they are of all.
        found["top-p of what top-k left"] = Filters(1.5, top_k=4, top_p=fp32(0.66))
    if "min_p" in order:
        found["min-p"] = Filters(1.5, min_p=fp32(0.21))
        found["min-p, top-p of all"] = Filters(1.5, min_p=fp32(0.21), top_p=fp32(0.66))
    return found


def filtered(logits: Sequence[float], asked: Filters, profile: Profile) -> dict[int, float]:
    """The probability of every id that the filters leave, in float64."""
    ranked = sorted(range(len(logits)), key=lambda id_: (-logits[id_], id_))
    cap = int(profile.axes["sampling_cap"]) or len(logits)
    if 1 <= asked.top_k < cap and "top_k" in profile.axes["sampling_order"]:
        cap = asked.top_k
    weights = {id_: exp((logits[id_] - logits[ranked[0]]) / asked.temperature) for id_ in ranked[:cap]}
    total, before, kept = sum(weights.values()), 0.0, dict[int, float]()
    for id_, weight in weights.items():
        if weight < asked.min_p * weights[ranked[0]] or (asked.top_p < 1 and before >= asked.top_p * total):
            break
        kept[id_], before = weight, before + weight
    whole = sum(kept.values())
    return {id_: weight / whole for id_, weight in kept.items()}


def _sums(asked: Filters, profile: Profile) -> list[float]:
    return [float(total) for total in np.cumsum(list(filtered(LOGITS, asked, profile).values()))]


def softmax_limit(logits: Sequence[float], temperature: float) -> Fraction:
    """What FP32 arithmetic may move a probability of a filtered row.

    The exponent is a quotient, rounded once or twice: its error is its own size times a step. The exponential, the sum
    of the weights and the division add one rounding for each entry, and four.
    """
    largest = max(abs(Fraction(value) / Fraction(temperature)) for value in logits)
    return 2 * (2 * largest + len(logits) + 4) * STEP


def judge_filter(runner: Runner, name: str, asked: Filters, profile: Profile) -> Finding:
    """The probabilities that an implementation makes of one row of logits."""
    bound = softmax_limit(LOGITS, asked.temperature)
    late = bool(profile.base)
    clause = "PROC-021" if late else "PROC-016"
    made = Finding("proc.filter", name, VALUES, clause, limit=float(bound), questions=1, size=len(LOGITS))
    question = Question.of("proc.filter", profile, (clause,), adjusted=[LOGITS], **asked.inputs())
    expected = filtered(LOGITS, asked, profile)
    try:
        found = read_row(ask(runner, question.case()), len(LOGITS))
    except ImplementationError as error:
        return unanswered(made, error)
    want = {id_: Fraction(p) for id_, p in expected.items()}
    made.deviation = made.tokens = float(apart(found, want))
    if made.deviation > bound:
        made.status = BROKEN
        kept = sorted(id_ for id_, p in found.items() if p)
        if kept != sorted(expected):
            made.clause = clause if late else _filter_clause(asked, profile)
            made.reason = f"the ids with a probability are {kept}, expected {sorted(expected)}"
        else:
            made.reason = f"a probability is off by {made.deviation:.3g}"
        made.example = Example((), most_off(found, want))
    return made


def read_row(answer: Mapping[str, Any], size: int) -> dict[int, Fraction]:
    """The probability by id of a one-row answer. Raises ImplementationError where it is no distribution."""
    found: dict[int, Fraction] = {}
    for id_, p in zip(answer["support"][0].tolist(), answer["p"][0].tolist(), strict=True):
        if not (isfinite(p) and p >= 0):
            raise ImplementationError(f"p of id {id_} is {p}, expected a number from 0 to 1")
        if id_ == -1 and not p:
            continue
        if not 0 <= id_ < size or id_ in found:
            raise ImplementationError(f"support holds {id_}, expected each id from 0 to {size - 1} once at most")
        found[id_] = Fraction(p)
    return found


def _filter_clause(asked: Filters, profile: Profile) -> str:
    if asked.top_p < 1:
        return "PROC-015" if asked.top_k or asked.min_p else "PROC-014"
    if asked.min_p:
        return "PROC-013"
    return "PROC-011" if profile.axes["sampling_cap"] else "PROC-012"


def judge_propose(runner: Runner, name: str, asked: Filters, profile: Profile) -> Finding:
    """The law of two proposals that are drawn together, against the product of the rows of q that come with them."""
    logits = (LOGITS[: len(OTHERS)], OTHERS)
    bound = limit(len(OTHERS), 1) + softmax_limit(OTHERS, asked.temperature)
    made = Finding("proc.propose", name, BREAKPOINTS, "PROC-020", limit=float(bound), size=2 * len(OTHERS))
    inputs = asked.inputs()
    del inputs["min_p"]
    question = Question.of("proc.propose", profile, ("PROC-020",), logits=logits, **inputs)
    laws: set[tuple[tuple[float, ...], ...]] = set()

    def evaluate(points: list[Point]) -> list[tuple[int, ...]]:
        drawn = []
        for point in points:
            answer = ask(runner, question.case(u=np.array(point, np.float32)))
            laws.add(tuple(tuple(row) for row in answer["q"].tolist()))
            drawn.append(tuple(answer["proposals"].tolist()))
        return drawn

    right = [{id_: Fraction(p) for id_, p in sorted(filtered(row, asked, profile).items())} for row in logits]
    try:
        found = measured(evaluate, [rule.shares(row.values()) for row in right], f"proc.propose/{name}")
    except ImplementationError as error:
        return unanswered(made, error)
    made.questions = found.questions
    q = [dict(enumerate(map(Fraction, row))) for row in next(iter(laws))]
    product = {(a, b): pa * pb for a, pa in q[0].items() for b, pb in q[1].items() if pa and pb}
    made.deviation = made.tokens = float(apart(found.law, product) + found.unsure)
    if len(laws) > 1 or made.deviation > bound or any(apart(*pair) > bound for pair in zip(q, right, strict=True)):
        made.status = BROKEN
        made.reason = f"the proposals and their q are apart by {made.deviation:.3g}"
        if len(laws) > 1:
            made.reason = "q depends on the uniforms"
        elif made.deviation <= bound:
            made.reason = "q is not the law that the settings ask for"
        made.example = Example((), most_off(found.law, product))
    return made
