"""What top-k, min-p and top-p leave of a row, against the rules said once more in exact fractions.

Weights are small integers: e^(ln w) is w to a few units of float64's last place, and every limit of these tests is
either far from a weight (a share of a prime that no sum reaches) or met exactly, by equal logits.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from math import log
from typing import Any

import numpy as np
import pytest
from dflash_reference import filters, processing
from dflash_spec.errors import DFlashError, RequestError, TensorError, UnsupportedError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB, APRIL = load_profile("ninfer"), load_profile("zlab"), load_profile("zlab-2026-04")
TICK = 2.0**-24
LAST_PLACE = Fraction(1, 2**23)
"""A probability is rounded to F32 once, by half a unit of its last place; the rest is room for float64's errors."""
SIZES = st.sampled_from([1, 3, 7, 19, 20, 21, 26]).flatmap(
    lambda count: st.lists(st.integers(0, 12), min_size=count, max_size=count).filter(any)
)
"""One row of weights by id. 0 stands for a logit of minus infinity."""
Kept = dict[int, Fraction]


def logits(sizes: list[int]) -> Array:
    return np.array([[log(size) if size else -np.inf for size in sizes]])


def said(sizes: list[int], best: int, min_p: Fraction, top_p: Fraction) -> tuple[list[int], Kept]:
    """The ids that are left, best first, and their probabilities: of the `best` largest, each that is at least min_p
    of the largest and before which top_p of the mass has not been seen; the first in any case."""
    ranked = sorted((id_ for id_, size in enumerate(sizes) if size), key=lambda id_: (-sizes[id_], id_))[:best]
    whole = sum(sizes[id_] for id_ in ranked)
    ids = [
        id_
        for place, id_ in enumerate(ranked)
        if place == 0
        or (
            sizes[id_] >= min_p * sizes[ranked[0]]
            and (top_p == 1 or sum(sizes[before] for before in ranked[:place]) < top_p * whole)
        )
    ]
    return ids, {id_: Fraction(sizes[id_], sum(sizes[kept] for kept in ids)) for id_ in ids}


def close(p: float, exact: Fraction) -> bool:
    return abs(Fraction(p) - exact) <= exact * LAST_PLACE


@given(
    sizes=SIZES, top_k=st.sampled_from([-7, 0, 1, 2, 5, 19, 20, 21, 400]), min_p=st.integers(0, 96),
    top_p=st.integers(0, 1009),
)  # fmt: skip
def test_the_capped_support_is_what_the_rules_leave_in_rank_order(
    sizes: list[int], top_k: int, min_p: int, top_p: int
) -> None:
    got = processing.filtered(logits(sizes), 1.0, top_k, min_p / 97, top_p / 1009, NINFER)
    best = top_k if top_k in range(1, 20) else 20
    ids, chances = said(sizes, best, Fraction(min_p, 97), Fraction(top_p, 1009))
    width = min(best, len(sizes))
    assert got.kept.tolist() == [len(ids)]
    assert got.support.tolist() == [ids + [-1] * (width - len(ids))]
    assert all(close(p, chances[id_]) for id_, p in zip(ids, got.p[0].tolist(), strict=False))
    assert not got.p[0, len(ids) :].any()


@given(sizes=SIZES, top_k=st.integers(0, 30), top_p=st.integers(1, 1009))
def test_the_authors_row_holds_every_id_and_nothing_where_a_filter_took_it(
    sizes: list[int], top_k: int, top_p: int
) -> None:
    got = processing.filtered(logits(sizes), 1.0, top_k, 0.0, top_p / 1009, ZLAB)
    ids, chances = said(sizes, top_k or len(sizes), Fraction(0), Fraction(top_p, 1009))
    assert got.support.tolist() == [list(range(len(sizes)))]
    assert got.kept.tolist() == [len(ids)]
    assert all(close(p, chances.get(id_, Fraction(0))) for id_, p in enumerate(got.p[0].tolist()))
    left = said(sizes, top_k or len(sizes), Fraction(0), Fraction(1))[0]
    assert {id_ for id_, weight in enumerate(got.weights[0].tolist()) if weight} == set(left)


@given(weights=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any), data=st.data())
def test_limits_that_are_met_exactly_keep_their_candidate_in_exact_arithmetic(
    weights: list[int], data: st.DataObject
) -> None:
    ranked = sorted(weights, reverse=True)
    min_p = data.draw(st.sampled_from([Fraction(0), *(Fraction(weight, ranked[0]) for weight in ranked)]))
    top_p = data.draw(st.sampled_from([*(Fraction(seen, sum(ranked)) for seen in accumulate(ranked)), Fraction(1)]))
    exact = np.array([Fraction(weight) for weight in ranked], dtype=object)
    # Where no weight is left to come, said() and kept() may differ in candidates of weight 0.
    ids, _ = said(ranked, len(ranked), min_p, top_p)
    got = filters.kept(exact, min_p, top_p)
    assert got >= len(ids)
    assert not any(ranked[len(ids) : got])
    shares = filters.renormalised(exact[:got])
    assert shares.tolist() == [Fraction(weight, sum(ranked[:got])) for weight in ranked[:got]]


@pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.25 + TICK, 2), (0.5, 2), (0.75, 3), (1 - TICK, 4), (1, 4)])
def test_a_cumulative_sum_that_equals_top_p_is_the_last_and_one_below_it_is_not(
    profile: Profile, top_p: float, kept: int
) -> None:
    got = processing.filtered(np.full((1, 4), 2.5), 0.5, 0, 0.0, top_p, profile)
    assert got.kept.tolist() == [kept]
    assert got.p[0, :kept].tolist() == [float(np.float32(1 / kept))] * kept


def test_a_weight_that_equals_min_p_times_the_best_is_kept_and_one_below_it_is_not() -> None:
    rows = np.array([[1.5, 0.25, 1.5, 1.5, 0.25]])
    assert processing.filtered(rows, 1.0, 0, 1.0, 1.0, NINFER).support.tolist() == [[0, 2, 3, -1, -1]]
    exact = np.array([Fraction(4), Fraction(3), Fraction(1)], dtype=object)
    assert filters.min_p_end(exact, Fraction(3, 4)) == 2
    assert filters.min_p_end(exact, Fraction(3, 4) + Fraction(1, 10**9)) == 1


def test_top_p_takes_its_share_of_what_min_p_takes_away_too() -> None:
    exact = np.array([Fraction(weight) for weight in (4, 3, 1, 1, 1)], dtype=object)
    # Of 10 it takes both; of the 7 that min-p leaves the first would do.
    assert filters.kept(exact, Fraction(1, 2), Fraction(1, 2)) == 2


def test_top_p_takes_its_share_of_what_top_k_leaves() -> None:
    sizes = [8, 1] + [1] * 18
    assert processing.filtered(logits(sizes), 1.0, 2, 0.0, 0.875, ZLAB).kept.tolist() == [1]
    assert processing.filtered(logits(sizes), 1.0, 0, 0.0, 0.875, ZLAB).kept.tolist() == [17]


@pytest.mark.parametrize("columns", [1, 7, 19, 20, 21, 33])
@pytest.mark.parametrize("top_k", [-1, 0, 1, 19, 20, 21, 34])
def test_the_cap_is_nineteen_at_most_by_request_and_twenty_otherwise(top_k: int, columns: int) -> None:
    rows = np.arange(columns, dtype=np.float64)[np.newaxis] / 8
    width = processing.filtered(rows, 1.0, top_k, 0.0, 1.0, NINFER).support.shape[1]
    assert width == min(columns, top_k if 0 < top_k < 20 else 20)


@pytest.mark.parametrize(("top_k", "kept"), [(0, 7), (1, 1), (6, 6), (7, 7), (8, 7)])
def test_the_authors_top_k_of_zero_or_beyond_the_vocabulary_keeps_all(top_k: int, kept: int) -> None:
    rows = np.array([[3.0, 1.0, 6.0, 2.0, 5.0, 4.0, 0.0]])
    got = processing.filtered(rows, 1.0, top_k, 0.0, 1.0, ZLAB)
    assert set(np.flatnonzero(got.p[0]).tolist()) == set([2, 4, 5, 0, 3, 1, 6][:kept])
    wide = np.arange(31.0)[np.newaxis] / 16
    assert np.count_nonzero(processing.filtered(wide, 1.0, top_k, 0.0, 1.0, ZLAB).p) == (top_k or 31)


@pytest.mark.parametrize(("profile", "top_k"), [(NINFER, 5), (ZLAB, 5)], ids=["ninfer", "zlab"])
def test_equal_logits_at_the_cap_keep_the_lower_ids(profile: Profile, top_k: int) -> None:
    rows = np.array([[0.5, 2.0, 0.5, 0.5, 2.0, 0.5, 0.5, -0.0, 0.0]])
    got = processing.filtered(rows, 1.0, top_k, 0.0, 1.0, profile)
    assert [id_ for id_, p in zip(got.support[0], got.p[0], strict=True) if p] == (
        [1, 4, 0, 2, 3] if profile is NINFER else [0, 1, 2, 3, 4]
    )


def test_weights_below_the_range_of_f32_stay_candidates_of_no_probability() -> None:
    got = processing.filtered(np.array([[0.0, 200.0, -np.inf, 0.0]]), 1.0, 0, 0.0, 1.0, NINFER)
    assert got.support.tolist() == [[1, 0, 3, -1]]
    assert got.p.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert got.kept.tolist() == [3]


@pytest.mark.parametrize("temperature", [0.001, 0.3, 100.0])
def test_filters_work_on_weights_at_the_temperature_asked_for(temperature: float) -> None:
    rows = logits([8, 4, 2, 1]) * temperature
    assert processing.filtered(rows, temperature, 0, 0.26, 1.0, NINFER).kept.tolist() == [2]
    assert processing.filtered(rows, temperature, 0, 0.0, 0.81, NINFER).kept.tolist() == [3]


@given(sizes=SIZES, top_k=st.integers(0, 20), profile=st.sampled_from([NINFER, ZLAB]))
def test_the_lowest_and_the_highest_uniform_draw_the_first_and_the_last_that_is_left(
    sizes: list[int], top_k: int, profile: Profile
) -> None:
    got = processing.filtered(logits(sizes), 1.0, top_k, 0.0, 0.75, profile)
    ids, _ = said(sizes, top_k or (20 if profile is NINFER else len(sizes)), Fraction(0), Fraction(3, 4))
    order = ids if profile is NINFER else sorted(ids)
    drawn = [int(processing.draw(got.support, got.p, np.array([u]), profile).tokens[0]) for u in (0.0, 1 - TICK)]
    assert drawn == [order[0], order[-1]]


def test_without_filters_the_distribution_is_the_same() -> None:
    rows = logits([3, 9, 1, 12, 5])
    for profile in (NINFER, ZLAB):
        whole, bare = (
            processing.filtered(rows, 1.0, 0, 0.0, 1.0, profile),
            processing.distribution(rows, 1.0, 5, profile),
        )
        assert (whole.support.tolist(), whole.p.tolist()) == (bare.support.tolist(), bare.p.tolist())


REFUSED: list[tuple[Profile, dict[str, Any], type[DFlashError], str]] = [
    (NINFER, {"top_p": 1.5}, RequestError, "top_p is 1.5, expected 0 to 1"),
    (NINFER, {"top_p": -TICK}, RequestError, "top_p is -5.960464477539063e-08, expected 0 to 1"),
    (NINFER, {"top_p": float("nan")}, RequestError, "top_p is nan, expected 0 to 1"),
    (NINFER, {"min_p": 1.0001}, RequestError, "min_p is 1.0001, expected 0 to 1"),
    (NINFER, {"min_p": -0.5}, RequestError, "min_p is -0.5, expected 0 to 1"),
    (NINFER, {"min_p": float("nan")}, RequestError, "min_p is nan, expected 0 to 1"),
    (NINFER, {"min_p": float("inf")}, RequestError, "min_p is inf, expected 0 to 1"),
    (ZLAB, {"top_p": 0.0}, RequestError, "top_p is 0.0, expected above 0 and at most 1"),
    (ZLAB, {"top_p": 1 + 2**-23}, RequestError, "top_p is 1.0000001192092896, expected above 0 and at most 1"),
    (ZLAB, {"top_k": -1}, RequestError, "top_k is -1, expected 0 to 2147483647"),
    (ZLAB, {"min_p": 0.1}, RequestError, "min_p is 0.1"),
    (APRIL, {"top_k": 3}, RequestError, "top_k is 3, expected 0: profile zlab-2026-04 has no such filter"),
    (APRIL, {"top_p": 0.9}, RequestError, "top_p is 0.9"),
    (APRIL, {"min_p": 0.1}, RequestError, "min_p is 0.1"),
    (APRIL, {"temperature": 9e-6}, RequestError, "temperature 9e-06, expected a number above 0 at which zlab-2026-04"),
    (NINFER, {"temperature": 0.0}, RequestError, "temperature 0.0, expected a number above 0 at which ninfer draws"),
    (ZLAB, {"temperature": -1.0}, RequestError, "temperature -1.0, expected a number above 0"),
    (ZLAB, {"temperature": float("nan")}, RequestError, "temperature nan, expected a number above 0"),
    (ZLAB, {"temperature": 2.0**-127}, RequestError, "the normal numbers of F32"),
    (ZLAB, {"temperature": float("inf")}, RequestError, "temperature is inf, expected a finite number"),
    (NINFER, {"adjusted": np.array([[0.0, 1.0], [np.nan, 1.0]])}, TensorError, "logits row 1: the largest is nan"),
    (ZLAB, {"adjusted": np.array([[np.inf, 1.0]])}, TensorError, "logits row 0: the largest is inf"),
    (ZLAB, {"adjusted": np.array([[-np.inf, -np.inf]])}, TensorError, "logits row 0: the largest is -inf"),
]


@pytest.mark.parametrize(("profile", "wrong", "error", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_what_cannot_be_filtered_is_refused_by_name(
    profile: Profile, wrong: dict[str, Any], error: type[DFlashError], message: str
) -> None:
    given_: dict[str, Any] = {
        "adjusted": np.zeros((1, 2)),
        "temperature": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "top_p": 1.0,
    } | wrong
    with pytest.raises(error, match=re.escape(message)):
        processing.filtered(**given_, profile=profile)


def test_the_april_revision_knows_the_temperature_alone() -> None:
    rows = logits([3, 9, 1, 12, 5])
    got, now = (processing.filtered(rows, 0.7, 0, 0.0, 1.0, profile) for profile in (APRIL, ZLAB))
    assert (got.support.tolist(), got.p.tolist()) == (now.support.tolist(), now.p.tolist())


COUNTED = [
    (NINFER, -1.0, 1), (NINFER, 0.0, 1), (NINFER, 2.0**-126, 0), (ZLAB, 0.0, 1), (ZLAB, 2.0**-126, 0),
    (APRIL, -1.0, 1), (APRIL, 0.0, 1), (APRIL, 9.5e-6, 1), (APRIL, 1e-5, 0), (APRIL, 1.1e-5, 0),
]  # fmt: skip


@pytest.mark.parametrize(("profile", "temperature", "greedy"), COUNTED)
def test_a_request_is_greedy_at_and_below_zero_or_below_the_threshold(
    profile: Profile, temperature: float, greedy: int
) -> None:
    rows = np.array([[0.25, 3.5, 3.5, -1.0], [-0.0, -4.0, 0.0, -np.inf]])
    got = processing.choose(rows, temperature, profile)
    assert (got.greedy, got.tokens.tolist()) == (greedy, [1, 0] if greedy else [-1, -1])


@pytest.mark.parametrize(("profile", "temperature"), [(ZLAB, -0.25), (ZLAB, float("nan")), (NINFER, float("nan"))])
def test_a_temperature_that_the_profile_does_not_have_is_refused(profile: Profile, temperature: float) -> None:
    with pytest.raises(RequestError, match=f"temperature is {temperature}, expected a number of at least 0"):
        processing.choose(np.zeros((1, 3)), temperature, profile)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("row", [[np.nan, 9.0], [np.inf, 0.0], [-np.inf, -np.inf]], ids=["nan", "inf", "nothing"])
def test_no_choice_is_made_of_a_row_that_cannot_be_sampled(row: list[float], temperature: float) -> None:
    for profile in (NINFER, ZLAB):
        with pytest.raises(TensorError, match="logits row 1: the largest is"):
            processing.choose(np.array([[0.0, 1.0], row]), temperature, profile)


@given(
    rows=st.lists(st.lists(st.integers(1, 12), min_size=5, max_size=5), min_size=1, max_size=4),
    top_k=st.integers(0, 6), top_p=st.integers(1, 1009), u=st.lists(st.integers(0, 2**24 - 1), min_size=4, max_size=4),
)  # fmt: skip
def test_proposals_are_drawn_row_by_row_from_the_law_that_is_returned(
    rows: list[list[int]], top_k: int, top_p: int, u: list[int]
) -> None:
    coins = np.array(u[: len(rows)]) * TICK
    proposals, q = processing.propose(
        np.concatenate([logits(row) for row in rows]), 1.0, top_k, top_p / 1009, coins, ZLAB
    )
    for row, law, token, coin in zip(rows, q.tolist(), proposals.tolist(), coins.tolist(), strict=True):
        _, chances = said(row, top_k or 5, Fraction(0), Fraction(top_p, 1009))
        assert all(close(p, chances.get(id_, Fraction(0))) for id_, p in enumerate(law))
        ends = list(accumulate(Fraction(p) for p in law))
        above = [id_ for id_, end in enumerate(ends) if coin < end]
        assert token == (above or [id_ for id_, p in enumerate(law) if p][-1:])[0]


def test_a_profile_whose_proposals_are_certain_draws_none() -> None:
    for profile in (NINFER, APRIL):
        with pytest.raises(UnsupportedError, match=f"profile {profile.name} proposes by 'argmax'"):
            processing.propose(np.zeros((1, 3)), 1.0, 0, 1.0, np.zeros(1), profile)


@pytest.mark.parametrize("place", [0, 2])
def test_a_draw_from_a_row_that_holds_nan_is_refused(place: int) -> None:
    p = np.array([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25]])
    p[1, place] = np.nan
    support = np.array([[7, 5, -1], [3, 8, 1]])
    with pytest.raises(TensorError, match=rf"proc\.draw: row 1: probability {place} is NaN"):
        processing.draw(support, p, np.array([0.0, 0.0]), NINFER)
    assert processing.draw(support[:1], p[:1], np.array([0.0]), NINFER).tokens.tolist() == [7]


Cut = Callable[[Array], Any]


@pytest.mark.parametrize("cut", [filters.mass, filters.total], ids=["mass", "total"])
def test_sums_of_fractions_are_exact(cut: Cut) -> None:
    exact = np.array([Fraction(1, 3), Fraction(1, 7), Fraction(2, 21)], dtype=object)
    assert cut(exact) == Fraction(4, 7)
    assert cut(np.array([0.5, 0.25, 0.125])) == 0.875
