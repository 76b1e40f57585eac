"""Which clause a measured law breaks, and the answers that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from dflash_spec.registry import Profile

from dflash_vectors.cases import GoldenCase
from dflash_vectors.law import rule
from dflash_vectors.law.asking import answering, expecting
from dflash_vectors.law.rule import NONE, Outcome
from dflash_vectors.law.verdicts import Example, Told
from dflash_vectors.law.verify import Seen, clauses_of, outputs
from dflash_vectors.runners.protocol import Answer

SHOWN = 4
"""Outcomes of a broken law that are told, those that are off most."""
ANSWERS = 4
"""Wrong answers that are kept: a known fault is named if it gives all of them."""


def blame(op: str, seen: Seen, bound: Fraction, profile: Profile) -> tuple[str, str]:
    """The clause that the measured law breaks first, in the order of a round, and in which way."""
    accept, correct, bonus, nothing = clauses_of(op, profile)
    proposals, given = seen.asked.proposals, seen.asked.round
    for slot, id_ in enumerate(proposals):
        found, expected = _passes(seen.law, slot), _passes(seen.expected, slot)
        if abs(found - expected) > bound:
            return accept, f"proposal {id_} is accepted with probability {float(found):.9g}, not {float(expected):.9g}"
        p = given.p[slot].raw
        if found and not p.get(id_):
            return accept, f"proposal {id_} has probability 0 and is accepted"
        told = _ending(seen, slot, bound)
        if told:
            left = any(rule.left(p, rule.raw_q(given, slot, id_)).values())
            return correct if left else nothing, f"after proposal {id_} is rejected, {told}"
    told = _ending(seen, len(proposals), bound)
    return (bonus, f"after all proposals are accepted, {told}") if told else (accept, "the joint law is another one")


def _passes(law: Mapping[Outcome, Fraction], slot: int) -> Fraction:
    """The probability that a slot is accepted once it is reached; 0 if it never is."""
    reached = sum((mass for (accepted, _), mass in law.items() if accepted >= slot), NONE)
    passed = sum((mass for (accepted, _), mass in law.items() if accepted > slot), NONE)
    return passed / reached if reached else NONE


def _ending(seen: Seen, slot: int, bound: Fraction) -> str:
    """How the tokens of a round that ends in `slot` have another law than they should; empty if they do not."""
    for accepted, tokens in seen.never:
        if accepted == slot:
            return f"the tokens are {list(tokens)}, which no uniforms may give"
    shares = []
    for law in (seen.law, seen.expected):
        here = {tokens[-1]: mass for (accepted, tokens), mass in law.items() if accepted == slot}
        whole = sum(here.values())
        shares.append({token: mass / whole for token, mass in here.items()} if whole > bound else {})
    found, expected = shares
    if not found or not expected:
        return ""
    token = max(sorted({*found, *expected}), key=lambda one: abs(found.get(one, NONE) - expected.get(one, NONE)))
    got, want = found.get(token, NONE), expected.get(token, NONE)
    return f"token {token} has probability {float(got):.9g}, not {float(want):.9g}" if abs(got - want) > bound else ""


def example(seen: Seen) -> Example:
    """The wrong answers, those farthest from where answers change first, and the outcomes that are off most."""
    slots, hints = seen.asked.round.slots, seen.asked.hints()
    wrong: dict[tuple[Outcome, Outcome], tuple[GoldenCase, Answer]] = {}
    for point in sorted(
        (point for point, outcome in seen.answers.items() if outcome != seen.asked.decided(point)),
        key=lambda one: -min(distance(u, axis) for u, axis in zip(one, hints, strict=True)),
    ):
        right, got = seen.asked.decided(point), seen.answers[point]
        if (right, got) not in wrong and len(wrong) < ANSWERS:
            case = seen.asked.case(point)
            wrong[right, got] = expecting(case, outputs(right, slots)), answering(case, outputs(got, slots))
    return Example(tuple(wrong.values()), most_off(seen.law, seen.expected))


def draw_example(
    weights: Mapping[int, Fraction], answers: Mapping[float, int], case_of: Callable[[Sequence[float]], GoldenCase],
    told: tuple[Told, ...],
) -> Example:  # fmt: skip
    """The same of one draw, whose answers are tokens by uniform."""
    cuts = rule.shares(weights.values())
    right = {u: rule.drawn(weights.items(), Fraction(u)) for u in answers}
    wrong: dict[tuple[int, int], tuple[GoldenCase, Answer]] = {}
    for u in sorted((u for u in answers if answers[u] != right[u]), key=lambda one: -distance(one, cuts)):
        if (right[u], answers[u]) not in wrong and len(wrong) < ANSWERS:
            case = case_of([u])
            shown = expecting(case, {"tokens": [right[u]]}), answering(case, {"tokens": [answers[u]]})
            wrong[right[u], answers[u]] = shown
    return Example(tuple(wrong.values()), told)


def distance(uniform: float, hints: Iterable[Fraction]) -> float:
    """From a uniform to the nearest place where the answer should change."""
    return min((abs(uniform - float(hint)) for hint in hints), default=1.0)


def most_off(found: Mapping[Any, Fraction], expected: Mapping[Any, Fraction]) -> tuple[Told, ...]:
    """The outcomes that are off most, as people read them."""
    keys = sorted({*found, *expected}, key=lambda key: (-abs(found.get(key, NONE) - expected.get(key, NONE)), key))
    return tuple(
        Told(name_of(key), float(expected.get(key, NONE)), float(found.get(key, NONE))) for key in keys[:SHOWN]
    )


def name_of(outcome: Any) -> str:
    """An outcome in words."""
    if isinstance(outcome, tuple) and len(outcome) == 2 and isinstance(outcome[1], tuple):
        return f"{outcome[0]} accepted, tokens {' '.join(map(str, outcome[1]))}"
    return f"tokens {' '.join(map(str, outcome))}" if isinstance(outcome, tuple) else f"token {outcome}"
