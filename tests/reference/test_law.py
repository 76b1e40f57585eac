"""Acceptance and draws, run over every outcome of their randomness in rational arithmetic.

A uniform u is continuous: between two neighbouring thresholds every u decides alike, so one inner point stands for
the interval and its length is the probability.
"""

from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import prod

import numpy as np
import pytest
from dflash_reference import law, processing
from dflash_reference.names import TokenId
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

PROFILES = [load_profile("ninfer"), load_profile("zlab")]
IDS = st.permutations([2, 3, 5, 7])


def intervals(thresholds: set[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """Inner point and length of each interval into which the thresholds cut [0, 1)."""
    cuts = sorted({Fraction(0), Fraction(1)} | {cut for cut in thresholds if 0 < cut < 1})
    return [((low + high) / 2, high - low) for low, high in pairwise(cuts)]


def exact(rows: list[list[Fraction]]) -> Array:
    held = np.empty((len(rows), len(rows[0])), dtype=object)
    for index, row in enumerate(rows):
        held[index] = row
    return held


def cumulative(weights: list[Fraction]) -> set[Fraction]:
    mass = sum(weights)
    return {value / mass for value in accumulate(weights)} if mass else set()


@st.composite
def laws(draw: st.DrawFn, size: int = 3) -> list[Fraction]:
    """A distribution over `size` ranks, zeros included."""
    weights = draw(st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any))
    return [Fraction(weight, sum(weights)) for weight in weights]


@given(p=laws(5), ids=st.permutations([1, 4, 6, 8, 9]))
def test_a_draw_has_the_law_that_it_draws_from(p: list[Fraction], ids: list[int]) -> None:
    found = dict.fromkeys(ids, Fraction(0))
    for u, length in intervals(cumulative(p)):
        (token,) = processing.draw(np.array([ids]), exact([p]), np.array([u]), PROFILES[0]).tokens.tolist()
        found[token] += length
    assert found == dict(zip(ids, p, strict=True))


@given(p=laws(4), cut=st.sampled_from(range(4)))
def test_a_uniform_on_a_threshold_belongs_to_the_rank_above(p: list[Fraction], cut: int) -> None:
    u = list(accumulate(p))[cut]
    above = [rank for rank, total in enumerate(accumulate(p)) if total > u]
    last = max(rank for rank, weight in enumerate(p) if weight)
    assert processing.rank(p, u) == (above[0] if above else last)


def test_a_goal_that_rounding_lifts_past_the_mass_takes_the_last_rank_that_has_any() -> None:
    assert processing.rank([0.5, 0.25, 0.0], 0.875) == 1


def test_a_draw_from_nothing_is_refused() -> None:
    with pytest.raises(TensorError, match="2 weights, expected one above 0"):
        processing.rank([0.0, 0.0], 0.0)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
@given(rows=st.lists(laws(), min_size=1, max_size=3), supports=st.data())
def test_one_hot_rounds_keep_the_targets_law_and_accept_each_proposal_as_often_as_it_is_likely(
    profile: Profile, rows: list[list[Fraction]], supports: st.DataObject
) -> None:
    support = np.array([supports.draw(IDS)[:3] for _ in rows])
    proposals = np.array([supports.draw(st.sampled_from([2, 3, 5, 7])) for _ in rows[1:]], dtype=np.int64)
    chance = [dict(zip(ids.tolist(), row, strict=True)) for ids, row in zip(support, rows, strict=True)]
    hits = [chance[slot].get(int(token), Fraction(0)) for slot, token in enumerate(proposals)]
    terminal: set[Fraction] = set()
    for slot, row in enumerate(rows):
        rejected = proposals[slot] if slot < len(proposals) else None
        left = [Fraction(0) if token == rejected else p for token, p in zip(support[slot], row, strict=True)]
        terminal |= cumulative(left) | cumulative(row)
    found: dict[tuple[int, int], Fraction] = {}
    for *accept, (u, length) in product(*[intervals({hit}) for hit in hits], intervals(terminal)):
        coins = np.array([coin for coin, _ in accept], dtype=object)
        verdict = law.one_hot(proposals, support, exact(rows), coins, u, profile)
        assert verdict.licensed[: verdict.accepted].tolist() == proposals[: verdict.accepted].tolist()
        assert not verdict.licensed[verdict.accepted + 1 :].any()
        outcome = verdict.accepted, int(verdict.licensed[verdict.accepted])
        found[outcome] = found.get(outcome, Fraction(0)) + length * prod(weight for _, weight in accept)
    expected = {
        (count, token): prod(hits[:count]) * p
        for count in range(len(rows))
        for token, p in chance[count].items()
        if count == len(proposals) or token != proposals[count]
    }
    assert {key: p for key, p in found.items() if p} == {key: p for key, p in expected.items() if p}


@given(
    proposals=st.lists(st.integers(0, 2), max_size=6),
    target=st.lists(st.integers(0, 2), min_size=7, max_size=7),
)
def test_greedy_keeps_the_common_prefix_and_then_the_targets_token(proposals: list[int], target: list[int]) -> None:
    rows = target[: len(proposals) + 1]
    accepted, licensed = law.greedy(np.array(proposals, dtype=np.int64), np.array(rows), PROFILES[0])
    assert proposals[:accepted] == rows[:accepted]
    assert accepted == len(proposals) or proposals[accepted] != rows[accepted]
    assert licensed.tolist() == rows[: accepted + 1] + [0] * (len(proposals) - accepted)


def test_a_coin_of_zero_does_not_accept_what_the_target_never_says() -> None:
    assert not law.accepts(TokenId(3), np.array([3, 5]), [0.0, 1.0], 0.0)
    assert not law.accepts(TokenId(7), np.array([3, 5]), [0.5, 0.5], 0.0)
    assert law.accepts(TokenId(5), np.array([3, 5]), [0.0, 1.0], 1 - 2**-24)


@pytest.mark.parametrize(("profile", "token"), [(PROFILES[0], 9), (PROFILES[1], 4)], ids=["ninfer", "zlab"])
def test_without_mass_the_correction_is_the_first_of_the_support_or_a_draw_from_p_itself(
    profile: Profile, token: int
) -> None:
    support, p = np.array([[9, 4], [9, 4]]), np.array([[0.0, 0.75], [1.0, 0.0]])
    verdict = law.one_hot(np.array([4]), support, p, np.array([0.875]), 0.5, profile)
    assert (verdict.accepted, int(verdict.licensed[0])) == (0, token)


def test_rows_and_uniforms_that_do_not_fit_the_proposals_are_refused() -> None:
    support, p = np.array([[1, 2]]), np.array([[0.5, 0.5]])
    with pytest.raises(TensorError, match="1 target rows, expected 2"):
        law.one_hot(np.array([1]), support, p, np.array([0.5]), 0.5, PROFILES[0])
    with pytest.raises(TensorError, match="2 target rows, expected 4"):
        law.greedy(np.array([1, 2, 3]), np.array([1, 2]), PROFILES[0])
    with pytest.raises(TensorError, match="0 accept uniforms, expected 1"):
        law.one_hot(np.array([1]), np.repeat(support, 2, 0), np.repeat(p, 2, 0), np.array([]), 0.5, PROFILES[0])
