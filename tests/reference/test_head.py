"""Logits, argmaxes, candidates and distributions."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dflash_reference import head, processing
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
LOGIT = st.sampled_from([-3.0, -0.0, 0.0, 0.5, 2.0])
ROWS = st.lists(st.lists(LOGIT, min_size=6, max_size=6), min_size=1, max_size=4)


@pytest.mark.parametrize("argmax", [head.argmax, processing.greedy], ids=["proposal", "target"])
@given(rows=ROWS, public=st.integers(1, 6))
def test_an_argmax_is_the_lowest_of_the_best_public_ids(argmax: object, rows: list[list[float]], public: int) -> None:
    (got,) = argmax(np.array(rows), public, NINFER)  # type: ignore[operator]
    for row, token in zip(rows, got.tolist(), strict=True):
        assert all(row[token] > other for other in row[:token])
        assert all(row[token] >= other for other in row[token:public])


def test_logits_are_rounded_before_they_are_compared() -> None:
    weight = np.array([[256.0, 0.0], [256.0, 1.0]])
    hidden = np.array([[1.0, 1.0]])
    assert head.logits(hidden, weight, NINFER).logits.tolist() == [[256.0, 256.0]]
    assert head.logits(hidden, weight, ZLAB).logits.tolist() == [[256.0, 257.0]]


@given(ids=st.permutations(range(6)), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_probabilities_are_powers_of_the_logit_over_the_temperature(ids: list[int], temperature: float) -> None:
    weights = [1, 2, 4, 8, 16, 32]
    logits = np.empty((1, 6))
    logits[0, ids] = [temperature * np.log(weight) for weight in weights]
    support, p = processing.distribution(logits, temperature, 6, NINFER)
    assert support[0].tolist() == ids[::-1]
    exact = [Fraction(weight, 63) for weight in reversed(weights)]
    # The logits themselves are rounded to float64, which F32 hides: at most the last of its 24 bits may differ.
    assert all(abs(got / float(want) - 1) <= 2.0**-23 for got, want in zip(p[0], exact, strict=True))


@given(ranks=st.lists(st.integers(0, 12), min_size=30, max_size=30))
def test_a_capped_support_is_the_twenty_best_in_rank_order(ranks: list[int]) -> None:
    logits = np.array([ranks], dtype=np.float64) / 4
    support, p = processing.distribution(logits, 1.0, 30, NINFER)
    assert support[0].tolist() == sorted(range(30), key=lambda id_: (-ranks[id_], id_))[:20]
    assert (np.diff(p[0]) <= 0).all()


def test_the_authors_support_is_every_public_id_in_ascending_order() -> None:
    support, p = processing.distribution(np.array([[0.0, 5.0, -np.inf, 0.0, 9.0]]), 1.0, 4, ZLAB)
    assert support.tolist() == [[0, 1, 2, 3]]
    assert p[0, 2] == 0.0
    assert p[0, 0] == p[0, 3] < p[0, 1]


def test_ids_of_probability_zero_by_mask_leave_a_capped_support() -> None:
    support, p = processing.distribution(np.array([[-np.inf, 1.0, -np.inf]]), 1.0, 3, NINFER)
    assert support.tolist() == [[1, -1, -1]]
    assert p.tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]], ids=["nan", "inf", "nothing"])
def test_a_row_without_a_finite_largest_logit_is_refused(row: list[float]) -> None:
    with pytest.raises(TensorError, match=r"row 1: the largest is (nan|-?inf), expected"):
        processing.greedy(np.array([[0.0, 0.0], row]), 2, NINFER)


@pytest.mark.parametrize("public", [0, 5])
@pytest.mark.parametrize("argmax", [head.argmax, processing.greedy], ids=["proposal", "target"])
def test_a_public_count_that_the_head_does_not_have_is_refused(argmax: object, public: int) -> None:
    with pytest.raises(TensorError, match=f"public is {public}, expected 1 to 4"):
        argmax(np.zeros((1, 4)), public, NINFER)  # type: ignore[operator]


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-45, 1e300])
def test_a_distribution_needs_a_temperature_that_is_normal_in_f32(temperature: float) -> None:
    with pytest.raises(RequestError, match="the normal numbers of F32"):
        processing.distribution(np.ones((1, 3)), temperature, 3, ZLAB)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_distribution_needs_a_temperature_above_zero(temperature: float) -> None:
    with pytest.raises(RequestError, match="expected a number above 0"):
        processing.distribution(np.zeros((1, 3)), temperature, 3, NINFER)


def test_padding_columns_are_not_read() -> None:
    logits: Array = np.array([[1.0, 2.0, np.nan, np.inf]])
    assert head.argmax(logits, 2, NINFER).proposals.tolist() == [1]
    assert processing.greedy(logits, 2, NINFER).tokens.tolist() == [1]
    assert processing.distribution(logits, 1.0, 2, NINFER).support.tolist() == [[1, 0]]


def top(scores: Array, ids: Array, public: int, count: int, multiplier: float = 1.0, softcap: float = 0.0) -> head.Top:
    """The candidates of rows whose scores [P, V] are given."""
    return head.top(np.eye(len(scores)), scores.T, ids, public, multiplier, softcap, count, NINFER)


@given(rows=ROWS, ids=st.permutations([3, 8, 9, 14, 20, 21]), public=st.integers(1, 6), data=st.data())
def test_candidates_are_the_best_public_rows_and_equals_go_by_the_lower_global_id(
    rows: list[list[float]], ids: list[int], public: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, public))
    got = top(np.array(rows), np.array(ids), public, count)
    for row, candidates, unary in zip(rows, got.candidates.tolist(), got.unary.tolist(), strict=True):
        best = sorted(zip(row[:public], ids[:public], strict=True), key=lambda pair: (-pair[0], pair[1]))[:count]
        assert candidates == [id_ for _, id_ in best]
        assert unary == [score for score, _ in best]


def test_a_zero_row_has_the_lowest_ids_as_candidates() -> None:
    hidden, weights = np.zeros((1, 3)), np.ones((5, 3))
    weights[::2] = -1.0
    got = head.top(hidden, weights, np.array([7, 2, 9, 1, 4]), 5, 1.0, 0.0, 3, NINFER)
    assert got.candidates.tolist() == [[1, 2, 4]]


def test_scores_that_bf16_would_merge_are_ranked_in_fp32_and_those_that_fp32_merges_are_equal() -> None:
    scores = np.array([[256.0, 257.0, 256.5, 1.0, 1.0 + 2.0**-25]])
    got = top(scores, np.arange(5), 5, 5)
    assert got.candidates.tolist() == [[1, 2, 0, 3, 4]]
    assert got.unary.tolist() == [[257.0, 256.5, 256.0, 1.0, 1.0]]


def test_rows_past_the_public_ones_are_no_candidates_and_are_not_read() -> None:
    got = top(np.array([[1.0, 2.0, np.nan, np.inf]]), np.arange(4), 2, 2)
    assert got.candidates.tolist() == [[1, 0]]


@given(multiplier=st.sampled_from([0.25, 1.0, 3.0]), softcap=st.sampled_from([0.0, 0.5, 20.0]))
def test_scores_are_multiplied_and_then_capped(multiplier: float, softcap: float) -> None:
    scores = np.array([[40.0, -3.0, 0.0, 0.125, 2.0]])
    got = top(scores, np.arange(5), 5, 5, multiplier, softcap)
    assert got.candidates.tolist() == [[0, 4, 3, 2, 1]]
    for id_, score in zip(got.candidates[0], got.unary[0].tolist(), strict=True):
        scaled = multiplier * scores[0, id_]
        exact = softcap * mpmath.tanh(scaled / softcap) if softcap else mpmath.mpf(float(scaled))
        # Rounded once to FP32, from float64 steps that lie within 2^-50.
        assert abs(score - exact) <= abs(exact) * (2.0**-24 + 2.0**-50)


def test_an_indexed_argmax_takes_the_lowest_row_among_equals_and_then_its_id() -> None:
    logits = np.array([[1.0, 5.0, 5.0], [0.0, -0.0, -1.0]])
    assert head.indexed_argmax(logits, np.array([30, 20, 10]), NINFER).proposals.tolist() == [20, 30]


@pytest.mark.parametrize("count", [0, 5])
def test_a_candidate_count_that_the_head_does_not_have_is_refused(count: int) -> None:
    with pytest.raises(TensorError, match=f"top is {count}, expected 1 to 4, the rows that take part"):
        top(np.zeros((1, 6)), np.arange(6), 4, count)
