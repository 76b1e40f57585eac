"""Rounding against exact rational arithmetic and every code of the short formats; sums against their stated order."""

from fractions import Fraction

import numpy as np
import pytest
from dflash_reference import num
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("ninfer")
ROUNDERS = {"BF16": num.round_bf16, "F16": num.round_fp16, "F32": num.round_fp32}
F32_BITS = st.integers(0, 2**32 - 1).map(lambda bits: float(np.uint32(bits).view(np.float32)))


def every_value(dtype: str) -> np.ndarray:
    """The value of each of the 65,536 codes, in code order."""
    codes = np.arange(65536, dtype=np.uint32)
    if dtype == "BF16":
        with np.errstate(invalid="ignore"):  # the cast of a signalling NaN
            return (codes << np.uint32(16)).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)


def positive_finite(dtype: str) -> np.ndarray:
    """The non-negative finite values in ascending order, which is code order."""
    values = every_value(dtype)[:32768]
    finite: Array = values[np.isfinite(values)]
    return finite


def nearest_by_fractions(value: Fraction, dtype: str) -> float:
    """The nearest value of the format, ties to even, by exact arithmetic; a signed infinity on overflow."""
    precision, least, greatest = num.FORMATS[dtype]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = least
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    last_place = Fraction(2) ** (exponent - precision + 1)
    rounded = round(magnitude / last_place) * last_place
    result = float("inf") if rounded >= Fraction(2) ** (greatest + 1) else float(rounded)
    return result if value > 0 else -result


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_code_of_a_short_format_rounds_to_itself(dtype: str) -> None:
    values = every_value(dtype)
    rounded = num.round_to(values, dtype)
    assert np.array_equal(rounded, values, equal_nan=True)
    assert np.array_equal(np.signbit(rounded), np.signbit(values))


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_midpoint_goes_to_the_even_code_and_its_neighbours_to_the_nearer_one(dtype: str, sign: float) -> None:
    values = positive_finite(dtype)
    midpoints = (values[:-1] + values[1:]) / 2
    even = np.where(np.arange(len(midpoints)) % 2 == 0, values[:-1], values[1:])
    assert np.array_equal(num.round_to(sign * midpoints, dtype), sign * even)
    assert np.array_equal(num.round_to(sign * np.nextafter(midpoints, 0.0), dtype), sign * values[:-1])
    assert np.array_equal(num.round_to(sign * np.nextafter(midpoints, np.inf), dtype), sign * values[1:])


@pytest.mark.parametrize(("dtype", "first"), [("BF16", (2 - 2.0**-8) * 2.0**127), ("F16", 65520.0)])
def test_overflow_begins_at_the_midpoint_above_the_greatest_value(dtype: str, first: float) -> None:
    greatest = positive_finite(dtype)[-1]
    given_values = np.array([np.nextafter(first, 0.0), first, -first, 2.0**1023, np.inf])
    expected = [greatest, np.inf, -np.inf, np.inf, np.inf]
    assert num.round_to(given_values, dtype).tolist() == expected


@pytest.mark.parametrize(("dtype", "smallest"), [("BF16", 2.0**-133), ("F16", 2.0**-24), ("F32", 2.0**-149)])
def test_half_the_smallest_subnormal_goes_to_zero_and_a_little_more_does_not(dtype: str, smallest: float) -> None:
    half = smallest / 2
    given_values = np.array([half, np.nextafter(half, 1.0), -half, 1.5 * smallest, 5e-324, -5e-324])
    rounded = num.round_to(given_values, dtype)
    assert rounded.tolist() == [0.0, smallest, 0.0, 2 * smallest, 0.0, 0.0]
    assert np.signbit(rounded).tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_nan_stays_nan_and_shapes_are_kept(dtype: str) -> None:
    given_values = np.array([[np.nan, -0.0, np.inf]])
    rounded = num.round_to(given_values, dtype)
    assert rounded.shape == (1, 3)
    assert np.isnan(rounded[0, 0])
    assert num.round_to(1.5, dtype).shape == ()


def test_fp32_rounding_is_that_of_the_processor() -> None:
    codes = np.arange(0, 2**31 - 2**23, 65521, dtype=np.uint32)
    below = codes.view(np.float32).astype(np.float64)
    above = (codes + np.uint32(1)).view(np.float32).astype(np.float64)
    finite = np.isfinite(above)
    midpoints = (below[finite] + above[finite]) / 2
    for values in (midpoints, np.nextafter(midpoints, 0), np.nextafter(midpoints, np.inf), -midpoints):
        assert np.array_equal(num.round_to(values, "F32"), values.astype(np.float32).astype(np.float64))


@given(st.sampled_from(["BF16", "F16", "F32"]), st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_agrees_with_exact_arithmetic(dtype: str, value: float) -> None:
    assert float(num.round_to(value, dtype)) == nearest_by_fractions(Fraction(value), dtype)


@given(st.sampled_from(["BF16", "F16", "F32"]), F32_BITS, F32_BITS)
def test_a_sum_of_two_fp32_numbers_is_rounded_once(dtype: str, hi: float, lo: float) -> None:
    rounded = float(ROUNDERS[dtype](np.array([hi]), np.array([lo]), PROFILE).y[0])
    if np.isfinite(hi) and np.isfinite(lo):
        assert rounded == nearest_by_fractions(Fraction(hi) + Fraction(lo), dtype)
    else:
        assert np.array_equal(rounded, hi + lo, equal_nan=True)


@pytest.mark.parametrize(("dtype", "gap"), [("BF16", 2.0**-7), ("F16", 2.0**-10), ("F32", 2.0**-23)])
def test_a_speck_below_float64_precision_still_breaks_a_tie(dtype: str, gap: float) -> None:
    if dtype == "F32":
        hi, tie = np.array([1.0, 1.0, -1.0]), gap / 2
        lo = np.array([tie + tie * 2.0**-23, tie, -tie - tie * 2.0**-23])
        expected = [1 + gap, 1.0, -1 - gap]
    else:
        hi = np.array([1 + gap / 2, 1 + gap / 2, -1 - gap / 2, -1 - 3 * gap / 2])
        lo = np.array([2.0**-120, 0.0, -(2.0**-120), 2.0**-120])
        expected = [1 + gap, 1.0, -1 - gap, -1 - gap]
    assert ROUNDERS[dtype](hi, lo, PROFILE).y.tolist() == expected


def test_a_contraction_adds_its_terms_from_left_to_right() -> None:
    big = 2.0**60
    x = np.array([[big, 1.0, -big, 1.0], [1.0, 1.0, big, -big]])
    assert num.contract(x, np.ones((1, 4))).tolist() == [[1.0], [0.0]]
    assert num.sum_last(x).tolist() == [1.0, 0.0]


def test_a_contraction_keeps_leading_axes_and_rounds_nothing() -> None:
    x = np.arange(2 * 3 * 4, dtype=np.float64).reshape(2, 3, 4) + 2.0**-40
    w = np.arange(5 * 4, dtype=np.float64).reshape(5, 4)
    expected = [
        [[float(sum(Fraction(a) * Fraction(b) for a, b in zip(row, out, strict=True))) for out in w] for row in rows]
        for rows in x
    ]
    assert num.contract(x, w).tolist() == expected
    assert num.contract_rows(x[0], w, PROFILE).y.tolist() == num.round_to(expected[0], "F32").tolist()


def test_mean_square_divides_the_ordered_sum_by_the_length_of_the_last_axis() -> None:
    assert num.mean_square(np.array([[3.0, 4.0, 5.0, 0.0], [1.0, 7.0, 1.0, 1.0]])).tolist() == [12.5, 13.0]


def test_products_of_many_outputs_are_summed_in_the_same_order_as_those_of_one():
    key = np.arange(3 * 7, dtype=np.float64).reshape(3, 7)
    x, w = np.sin(key), np.cos(np.arange((num.OUTPUTS + 3) * 7.0)).reshape(-1, 7)
    together = num.contract(x, w)
    assert together.shape == (3, num.OUTPUTS + 3)
    for output in (0, num.OUTPUTS - 1, num.OUTPUTS, num.OUTPUTS + 2):
        total = np.zeros(3)
        for index in range(7):
            total = total + x[:, index] * w[output, index]
        np.testing.assert_array_equal(together[:, output], total)
    assert num.contract(x, np.zeros((0, 7))).shape == (3, 0)
