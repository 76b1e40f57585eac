"""What counts as different, by how much, and which clause is blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dflash_spec.tensors import Tensor
from dflash_vectors.cases import Expected
from dflash_vectors.checker import blamed_clause, compare, compare_tensor
from dflash_vectors.runners.protocol import Answer

NAN, INF, HUGE = float("nan"), float("inf"), 2.0**127


def diverges(want: float, got: float, compare: str = "value", dtype: str = "F32", bound: float | None = None) -> Any:
    """The divergence of one element, or None."""
    limit = None if bound is None else np.array([bound], np.float32)
    expected = Expected("outputs", "y", Tensor.of(dtype, np.array([want])), compare, limit)
    return compare_tensor(expected, Tensor.of(dtype, np.array([got])))


@pytest.mark.parametrize(
    ("want", "got", "compare", "same"),
    [
        (0.0, -0.0, "value", True),
        (0.0, -0.0, "bits", False),
        (NAN, NAN, "value", True),
        (NAN, NAN, "bits", True),
        (INF, INF, "value", True),
        (INF, -INF, "value", False),
        (INF, 2.0, "bits", False),
        (1.0, NAN, "value", False),
        (NAN, 1.0, "value", False),
        (NAN, 1.0, "bits", False),
        (1.0, 1.0 + 2.0**-23, "value", False),
    ],
)
def test_floats_without_a_bound_are_equal_or_wrong(want: float, got: float, compare: str, same: bool) -> None:
    assert (diverges(want, got, compare) is None) is same


@pytest.mark.parametrize(
    ("want", "got", "bound", "same"),
    [
        (1.0, 1.25, 0.25, True),
        (1.0, 0.75, 0.25, True),
        (1.0, 1.25, float(np.nextafter(np.float32(0.25), np.float32(0))), False),
        (1.0, 1.0, 0.0, True),
        (0.0, -0.0, 0.0, True),
        (1.0, NAN, HUGE, False),
        (1.0, INF, HUGE, False),
        (INF, INF, 0.0, True),
        (INF, HUGE, HUGE, False),
        (INF, -INF, HUGE, False),
        (HUGE, -HUGE, HUGE, False),
    ],
)
def test_a_bound_admits_its_own_distance_and_nothing_that_is_not_finite(
    want: float, got: float, bound: float, same: bool
) -> None:
    assert (diverges(want, got, "bounded", bound=bound) is None) is same


def test_integers_are_compared_exactly_up_to_64_bits() -> None:
    expected = Expected("outputs", "key", Tensor.of("U64", np.array([2**64 - 1], np.uint64)), "bits", None)
    found = compare_tensor(expected, Tensor.of("U64", np.array([2**64 - 2], np.uint64)))
    assert found is not None
    assert found.first is not None
    assert (found.first.expected, found.first.got) == ("18446744073709551615", "18446744073709551614")


@pytest.mark.parametrize(
    ("dtype", "want", "got", "ulps"),
    [
        ("BF16", 1.0, 1.0 + 2.0**-7, 1),
        ("F16", 1.0, 1.0 + 2.0**-10, 1),
        ("F32", 1.0, 1.0 + 2.0**-23, 1),
        ("BF16", -(2.0**-133), 2.0**-133, 2),
        ("F16", -0.0, 2.0**-24, 1),
        ("F32", 2.0, 1.0, 2**23),
        ("BF16", float(np.float32(3.3895314e38)), INF, 1),
    ],
)
def test_distance_counts_the_codes_of_the_dtype(dtype: str, want: float, got: float, ulps: int) -> None:
    assert diverges(want, got, dtype=dtype).first.ulps == ulps


def test_distance_to_nan_is_not_a_number_of_ulps() -> None:
    assert diverges(1.0, NAN).first.ulps is None


def test_distance_in_bounds_is_the_gap_over_the_bound() -> None:
    assert diverges(1.0, 2.0, "bounded", bound=0.25).first.bounds == 4.0
    assert diverges(1.0, 2.0, "bounded", bound=0.0).first.bounds == INF


def test_first_is_first_in_row_major_order_and_worst_is_farthest_in_bounds() -> None:
    bound = np.array([[1, 1, 8], [1, 1, 1]], np.float32)
    expected = Expected("outputs", "y", Tensor.of("F32", np.zeros((2, 3))), "bounded", bound)
    found = compare_tensor(expected, Tensor.of("F32", np.array([[0.0, 2.0, 9.0], [3.0, 0.0, 0.0]])))
    assert found is not None
    assert found.first is not None
    assert found.worst is not None
    assert (found.first.index, found.worst.index) == ((0, 1), (1, 0))
    assert (found.differing, found.total) == (3, 6)


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        (Tensor.of("BF16", np.zeros((2, 3))), "dtype BF16, expected F32"),
        (Tensor.of("F32", np.zeros((3, 2))), "shape [3, 2], expected [2, 3]"),
        (Tensor.of("F32", np.zeros(6)), "shape [6], expected [2, 3]"),
    ],
)
def test_dtype_and_shape_are_strict(got: Tensor, problem: str) -> None:
    expected = Expected("outputs", "y", Tensor.of("F32", np.zeros((2, 3))), "value", None)
    found = compare_tensor(expected, got)
    assert found is not None
    assert found.problem == problem


def test_an_empty_tensor_and_a_scalar_can_be_right() -> None:
    for shape in ((0, 3), ()):
        expected = Expected("outputs", "y", Tensor.of("F32", np.zeros(shape)), "value", None)
        assert compare_tensor(expected, Tensor.of("F32", np.zeros(shape))) is None


def test_a_wrong_scalar_is_told_at_the_empty_index() -> None:
    expected = Expected("outputs", "accepted", Tensor.of("I32", np.array(1)), "bits", None)
    found = compare_tensor(expected, Tensor.of("I32", np.array(2)))
    assert found is not None
    assert found.first is not None
    assert found.first.index == ()


def answer_to(vectors: Any, id_: str) -> Answer:
    tensors = vectors.expected(id_)
    return Answer({name.replace("stage.00.", "stage."): tensor for name, tensor in tensors.items()})


def test_the_right_answer_has_no_divergence(vectors: Any) -> None:
    for id_ in vectors.cases:
        assert compare(vectors.case(id_), answer_to(vectors, id_)) == ()


def test_stages_are_optional(vectors: Any) -> None:
    answer = answer_to(vectors, vectors.FEATURE)
    del answer.tensors["stage.projected"]
    assert compare(vectors.case(vectors.FEATURE), answer) == ()


def test_a_wrong_stage_fails_a_vector_whose_output_is_right(vectors: Any) -> None:
    answer = answer_to(vectors, vectors.FEATURE)
    answer.tensors["stage.projected"] = vectors.f32([[12]])
    assert [d.label for d in compare(vectors.case(vectors.FEATURE), answer)] == ["stage.projected"]


def test_the_earliest_divergence_is_blamed(vectors: Any) -> None:
    case, answer = vectors.case(vectors.FEATURE), answer_to(vectors, vectors.FEATURE)
    answer.tensors["out.c"] = vectors.f32([[3]])
    assert blamed_clause(case, compare(case, answer)) == "CTX-002"
    answer.tensors["stage.projected"] = vectors.f32([[12]])
    assert [d.label for d in compare(case, answer)] == ["stage.projected", "out.c"]
    assert blamed_clause(case, compare(case, answer)) == "CTX-001"


def test_a_missing_output_is_named(vectors: Any) -> None:
    answer = answer_to(vectors, vectors.GREEDY)
    del answer.tensors["out.accepted"]
    found = compare(vectors.case(vectors.GREEDY), answer)
    assert [(d.label, d.problem) for d in found] == [("out.accepted", "missing from the answer")]


@pytest.mark.parametrize("label", ["out.bonus", "stage.logits", "junk"])
def test_what_the_op_does_not_have_is_named(vectors: Any, label: str) -> None:
    answer = answer_to(vectors, vectors.GREEDY)
    answer.tensors[label] = vectors.i32(1)
    found = compare(vectors.case(vectors.GREEDY), answer)
    assert [d.label for d in found] == [label]
    assert "unexpected" in found[0].problem


def test_values_beside_a_refusal_are_unexpected(vectors: Any) -> None:
    answer = answer_to(vectors, vectors.REFUSED)
    answer.tensors["out.ids"] = vectors.i32([1, 2])
    assert [d.label for d in compare(vectors.case(vectors.REFUSED), answer)] == ["out.ids"]


def test_acceptance_of_what_must_be_refused_is_told_before_the_values_that_come_with_it(vectors: Any) -> None:
    case = vectors.case(vectors.REFUSED)
    answer = Answer({"out.refused": vectors.i32(0), "out.ids": vectors.i32([1])})
    assert [d.label for d in compare(case, answer)] == ["out.refused", "out.ids"]


def test_whoever_says_of_an_accepted_input_that_it_is_not_refused_says_nothing_wrong(vectors: Any) -> None:
    answer = answer_to(vectors, vectors.FEATURE)
    answer.tensors["out.refused"] = vectors.i32(0)
    assert compare(vectors.case(vectors.FEATURE), answer) == ()
    answer.tensors["out.refused"] = vectors.i32(1)
    assert [d.label for d in compare(vectors.case(vectors.FEATURE), answer)] == ["out.refused"]


def test_an_accepted_input_need_not_be_called_not_refused(vectors: Any) -> None:
    case, refused = vectors.case(vectors.REFUSED), vectors.case(vectors.REFUSED).expected[0]
    accepted = replace(case, expected=(replace(refused, tensor=vectors.i32(0)),))
    assert compare(accepted, Answer({})) == ()
    assert [d.label for d in compare(case, Answer({}))] == ["out.refused"]


def test_a_stage_that_the_vector_left_out_is_not_held_against_an_answer(vectors: Any) -> None:
    case = vectors.case(vectors.FEATURE)
    case = replace(case, expected=case.expected[1:])
    assert compare(case, answer_to(vectors, vectors.FEATURE)) == ()
