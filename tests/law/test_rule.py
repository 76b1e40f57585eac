"""The exact rule that outside engines are compared with is the reference's, and its law the closed form."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dflash_reference import operations
from dflash_spec.registry import Profile, load_profile
from dflash_vectors.law import closed, families, rule
from dflash_vectors.law.families import Round
from dflash_vectors.law.pieces import points
from dflash_vectors.law.rule import Weights
from dflash_vectors.law.samplers import sampled_rounds, slot_law
from dflash_vectors.law.verify import Asked, choices

WHOLE = [load_profile(name) for name in ("ninfer", "zlab")]
MATCHING = load_profile("zlab-2026-04")


def everything(profile: Profile) -> list[tuple[str, Round]]:
    if profile.axes["accept_test"] == "match":
        return [("law.match", given) for given in families.matched_rounds(profile)]
    certain = [("law.one_hot", given) for given in families.certain_rounds(profile)]
    return certain + [("law.sparse", given) for given in families.drawn_rounds(profile)]


def reference(asked: Asked, point: tuple[float, ...], profile: Profile) -> tuple[int, tuple[int, ...]]:
    case = asked.case(point)
    given: dict[str, Any] = {
        name: tensor.values.astype(np.float64) if tensor.dtype == "F32" else tensor.values
        for name, tensor in case.inputs.items()
    }
    result = operations.run(asked.op, given, profile)
    accepted = int(result["accepted"])
    return accepted, tuple(result["licensed"][: accepted + 1].tolist())


def closed_form(p: list[Weights], q: list[Weights]) -> closed.RoundLaw:
    return closed.round_law("corrected", len(q), lambda before: p[len(before)], lambda before: q[len(before)])


@pytest.mark.parametrize("profile", [*WHOLE, MATCHING], ids=lambda profile: profile.name)
def test_the_rule_decides_as_the_reference_does_beside_every_breakpoint(profile: Profile) -> None:
    compared = 0
    for op, given in everything(profile):
        for asked in choices(op, given, profile):
            axes = [points(axis, f"{given.name}/{number}") for number, axis in enumerate(asked.hints())]
            for number in range(max(map(len, axes))):
                point = tuple(axis[(number * (2 * place + 1)) % len(axis)] for place, axis in enumerate(axes))
                assert asked.decided(point) == reference(asked, point, profile), (op, given.name, point)
                compared += 1
    assert compared > 300


@pytest.mark.parametrize("profile", [*WHOLE, MATCHING], ids=lambda profile: profile.name)
def test_what_the_rule_decides_is_possible_by_it(profile: Profile) -> None:
    for op, given in everything(profile):
        for asked in choices(op, given, profile):
            axes = [points(axis, f"possible/{number}") for number, axis in enumerate(asked.hints())]
            for number in range(max(map(len, axes))):
                point = tuple(axis[(number * (3 * place + 1)) % len(axis)] for place, axis in enumerate(axes))
                assert asked.decided(point) in asked.possible()


@pytest.mark.parametrize("profile", WHOLE, ids=lambda profile: profile.name)
def test_the_law_of_given_proposals_averages_to_the_closed_form(profile: Profile) -> None:
    for given in [*families.drawn_rounds(profile), *sampled_rounds(profile)[1:]]:
        p: list[Weights] = [row.law for row in given.p]
        q: list[Weights] = [row.law for row in given.q]
        mean: dict[Any, Fraction] = defaultdict(Fraction)
        for proposals, mass in given.choices():
            for outcome, share in rule.verdict_law(proposals, p, q).items():
                mean[outcome] += mass * share
        assert mean == closed_form(p, q)
        assert rule.continued(mean, p) == rule.continued({(0, ()): Fraction(1)}, p)


@pytest.mark.parametrize("profile", WHOLE, ids=lambda profile: profile.name)
def test_certain_proposals_are_the_closed_form_of_a_law_that_is_certain(profile: Profile) -> None:
    for given in families.certain_rounds(profile):
        for proposals, _ in given.choices():
            p: list[Weights] = [row.law for row in given.p]
            one: list[Weights] = [{id_: Fraction(1)} for id_ in proposals]
            assert rule.verdict_law(proposals, p, one) == closed_form(p, one)


@pytest.mark.parametrize("profile", WHOLE, ids=lambda profile: profile.name)
def test_the_law_of_a_slot_has_the_marginals_of_draft_and_target(profile: Profile) -> None:
    for given in families.drawn_rounds(profile):
        for slot, row in enumerate(given.q):
            law = slot_law(given.p[slot].law, row.law)
            tokens: dict[int, Fraction] = defaultdict(Fraction)
            proposals: dict[int, Fraction] = defaultdict(Fraction)
            for (id_, _, token), mass in law.items():
                tokens[token] += mass
                proposals[id_] += mass
            assert tokens == {id_: mass for id_, mass in given.p[slot].law.items() if mass}
            assert proposals == {id_: mass for id_, mass in row.law.items() if mass}


@pytest.mark.parametrize("profile", WHOLE, ids=lambda profile: profile.name)
def test_the_laws_asked_about_are_of_every_kind(profile: Profile) -> None:
    rows = families.rows(profile)
    assert any(weight and Fraction(weight).denominator > 2**20 for weight in rows["thirds"].weights)
    assert all(Fraction(weight).denominator <= 8 for weight in rows["dyadic"].weights)
    assert 0.0 in rows["zeros"].weights
    assert sum(rows["one left over"].raw.values()) < 1
    pairs = {given.name: given for given in families.drawn_rounds(profile)}
    for name in ("equal, thirds", "equal, dyadic"):
        p, q = pairs[name].p[0].law, pairs[name].q[0].law
        assert {k: v for k, v in p.items() if v} == q
    disjoint = pairs["disjoint"]
    assert not any(disjoint.p[0].law.get(id_) for id_ in disjoint.q[0].law)
    short = pairs["one left over"]
    assert not any(rule.left(short.p[0].raw, short.q[0].raw).values())
    assert sum(short.p[0].raw.values()) < sum(short.q[0].raw.values())
