"""Verification against the law that drew the proposals, over every outcome of the draws, the coins and the terminal.

A uniform u is continuous: between two neighbouring thresholds every u decides alike, so one inner point stands for
the interval and its length is the probability.
"""

from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
from dflash_reference import law
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from hypothesis import given, settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
TINY = 2.0**-149
"""The smallest FP32 number: half of it, and anything more, rounds to it."""
Law = dict[int, Fraction]


def intervals(thresholds: set[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """Inner point and length of each interval into which the thresholds cut [0, 1)."""
    cuts = sorted({Fraction(0), Fraction(1)} | {cut for cut in thresholds if 0 < cut < 1})
    return [((low + high) / 2, high - low) for low, high in pairwise(cuts)]


def rows(laws: list[Law], width: int) -> tuple[Array, Array]:
    """Ids and exact weights of each law, padded with -1 and 0 to one width."""
    ids, weights = np.full((len(laws), width), -1), np.full((len(laws), width), Fraction(0), dtype=object)
    for row, one in enumerate(laws):
        ids[row, : len(one)] = list(one)
        weights[row, : len(one)] = list(one.values())
    return ids, weights


def cumulative(weights: list[Fraction]) -> set[Fraction]:
    mass = sum(weights)
    return {total / mass for total in accumulate(weights)} if mass else set()


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """A law over one to three of five tokens, in an order of its own, zeros included."""
    ids = draw(st.permutations([2, 3, 5, 7, 11]))[: draw(st.integers(1, 3))]
    weights = draw(st.lists(st.integers(0, 4), min_size=len(ids), max_size=len(ids)).filter(any))
    return {token: Fraction(weight, sum(weights)) for token, weight in zip(ids, weights, strict=True)}


def outcomes(q: list[Law], p: list[Law], profile: Profile) -> dict[tuple[int, ...], Fraction]:
    """The probability of each licensed row, whose length tells the accepted count."""
    candidates, offered = rows(q, 4)
    support, wanted = rows(p, 4)
    found: dict[tuple[int, ...], Fraction] = {}
    for drawn in product(*[[token for token, weight in row.items() if weight] for row in q]):
        chance = prod((row[token] for row, token in zip(q, drawn, strict=True)), start=Fraction(1))
        tests = [intervals({p[slot].get(token, Fraction(0)) / q[slot][token]}) for slot, token in enumerate(drawn)]
        ends = intervals({
            cut
            for slot, row in enumerate(p)
            for less in ({}, q[slot] if slot < len(q) else {})
            for cut in cumulative([max(weight - less.get(token, 0), Fraction(0)) for token, weight in row.items()])
        })  # fmt: skip
        for *coins, (end, length) in product(*tests, ends):
            verdict = law.sparse(
                np.array(drawn, dtype=np.int64), candidates, offered, support, wanted,
                np.array([coin for coin, _ in coins], dtype=object), end, profile,
            )  # fmt: skip
            kept = tuple(verdict.licensed[: verdict.accepted + 1].tolist())
            assert kept[:-1] == drawn[: verdict.accepted]
            assert not verdict.licensed[verdict.accepted + 1 :].any()
            found[kept] = found.get(kept, Fraction(0)) + chance * length * prod(weight for _, weight in coins)
    return {kept: weight for kept, weight in found.items() if weight}


@PROFILES
@settings(max_examples=60)
@given(q=st.lists(laws(), max_size=2), bonus=laws(), data=st.data())
def test_every_outcome_is_as_likely_as_speculative_sampling_says(
    profile: Profile, q: list[Law], bonus: Law, data: st.DataObject
) -> None:
    p = [data.draw(laws()) for _ in q] + [bonus]
    expected: dict[tuple[int, ...], Fraction] = {}
    for count in range(len(p)):
        for accepted in product(*[row.items() for row in q[:count]]):
            both = prod(min(p[slot].get(token, Fraction(0)), weight) for slot, (token, weight) in enumerate(accepted))
            less = q[count] if count < len(q) else {}
            for token, weight in p[count].items():
                kept = (*(token_ for token_, _ in accepted), token)
                expected[kept] = both * max(weight - less.get(token, Fraction(0)), Fraction(0))
    assert outcomes(q, p, profile) == {kept: weight for kept, weight in expected.items() if weight}


@PROFILES
@given(q=laws(), p=laws(), bonus=laws())
def test_the_emitted_token_has_the_targets_law_and_acceptance_is_the_common_mass(
    profile: Profile, q: Law, p: Law, bonus: Law
) -> None:
    found = outcomes([q], [p, bonus], profile)
    first: Law = {}
    for kept, weight in found.items():
        first[kept[0]] = first.get(kept[0], Fraction(0)) + weight
    assert first == {token: weight for token, weight in p.items() if weight}
    accepted = sum(weight for kept, weight in found.items() if len(kept) == 2)
    assert accepted == sum(min(weight, q.get(token, Fraction(0))) for token, weight in p.items())


def verdict(p: list[float], q: list[float], u: float, end: float, profile: Profile, proposal: int = 4) -> Any:
    """One proposal, drawn from q over tokens 4, 6, 9, where the target's support is 9, 4, 6."""
    return law.sparse(
        np.array([proposal]), np.array([[4, 6, 9]]), np.array([q]), np.array([[9, 4, 6]] * 2), np.array([p, p]),
        np.array([u]), end, profile,
    )  # fmt: skip


@pytest.mark.parametrize(("profile", "accepted"), [(NINFER, 1), (ZLAB, 0)], ids=["ninfer", "zlab"])
def test_a_product_that_rounds_up_to_p_is_refused_by_the_strict_test_alone(profile: Profile, accepted: int) -> None:
    assert verdict([1.0, TINY, 0.0], [TINY, 1.0, 0.0], 0.75, 0.0, profile).accepted == accepted
    assert verdict([1.0, TINY, 0.0], [TINY, 1.0, 0.0], 0.5, 0.0, profile).accepted == 1


@pytest.mark.parametrize(("profile", "accepted"), [(NINFER, 1), (ZLAB, 0)], ids=["ninfer", "zlab"])
def test_what_neither_law_says_is_accepted_by_the_ratio_test_alone(profile: Profile, accepted: int) -> None:
    assert verdict([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 0.0, 0.0, profile).accepted == accepted


@PROFILES
def test_a_coin_of_zero_does_not_accept_what_the_target_never_says(profile: Profile) -> None:
    assert verdict([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], 0.0, 0.0, profile).accepted == 0


@PROFILES
def test_a_product_equal_to_p_is_refused(profile: Profile) -> None:
    assert verdict([0.75, 0.25, 0.0], [0.5, 0.5, 0.0], 0.5, 0.0, profile).accepted == 0
    assert verdict([0.75, 0.25, 0.0], [0.5, 0.5, 0.0], 0.5 - 2**-24, 0.0, profile).accepted == 1


@pytest.mark.parametrize(("profile", "token"), [(NINFER, 9), (ZLAB, 6)], ids=["ninfer", "zlab"])
def test_without_mass_the_correction_is_the_first_of_the_support_or_a_draw_from_p_itself(
    profile: Profile, token: int
) -> None:
    # FP32 laws that add up to 1.5: nothing of p is left where its proposal 4 is refused.
    got = verdict([0.25, 0.25, 0.5], [0.75, 0.5, 0.25], 0.5, 0.75, profile)
    assert got.licensed.tolist() == [token, 0]


@PROFILES
def test_residual_weights_are_looked_up_by_token_and_drawn_in_the_supports_order(profile: Profile) -> None:
    # Of 9, 4, 6 remain 0.25, 0 and 0.125: the goal 0.375 u passes 0.25 at u = 2/3.
    p, q = [0.5, 0.25, 0.25], [0.625, 0.125, 0.25]
    assert verdict(p, q, 0.5, 0.625, profile).licensed.tolist() == [9, 0]
    assert verdict(p, q, 0.5, 0.6875, profile).licensed.tolist() == [6, 0]


def test_rows_and_uniforms_that_do_not_fit_the_proposals_are_refused() -> None:
    one, two = np.ones((1, 1)), np.ones((2, 1))
    ids = np.ones((2, 1), np.int64)
    with pytest.raises(TensorError, match=r"law\.sparse: 1 target rows, expected 2"):
        law.sparse(np.array([1]), ids[:1], one, ids[:1], one, np.array([0.5]), 0.5, NINFER)
    with pytest.raises(TensorError, match=r"law\.sparse: 2 accept uniforms, expected 1"):
        law.sparse(np.array([1]), ids[:1], one, ids, two, np.array([0.5, 0.5]), 0.5, NINFER)
