"""Numerics: rounding on the bits of float64, and sums whose order is written down.

Arrays are float64 throughout. A value *represented* in BF16, F16 or F32 is a float64 that `round_to` returned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dflash_spec.registry import Profile
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

FRACTION_BITS = 52
EXPONENT_BIAS = 1023
OUTPUTS = 512
"""How many outputs of a product are summed together, for the cache's sake; no value depends on it."""


class Format(NamedTuple):
    """A binary floating-point format: significant bits, and the exponents of its smallest and largest normal."""

    precision: int
    least: int
    greatest: int


FORMATS = {"BF16": Format(8, -126, 127), "F16": Format(11, -14, 15), "F32": Format(24, -126, 127)}


class Rounded(NamedTuple):
    """y: [N] float64, represented in the format of the op's name."""

    y: F64


class Contracted(NamedTuple):
    """y: [N, M] float64, represented in F32."""

    y: F64


def round_to(x: Any, dtype: str) -> F64:
    """The nearest `dtype` value of each float64 in `x` (any shape), ties to the even code, in one step.

    `dtype` is BF16, F16 or F32. Subnormals are kept, too large magnitudes become infinities, NaN stays NaN and
    a zero keeps its sign. Raises KeyError for another dtype.

    Source: IEEE 754-2019 4.3.1.
    """
    form = FORMATS[dtype]
    values = np.ascontiguousarray(x, dtype=np.float64)
    code = values.view(np.int64)
    biased = (code >> FRACTION_BITS) & 0x7FF
    significand = (code & ((1 << FRACTION_BITS) - 1)) | (np.minimum(biased, 1) << FRACTION_BITS)
    exponent = np.minimum(np.maximum(biased - EXPONENT_BIAS, form.least - form.precision - 1), form.greatest + 1)
    last_place = np.maximum(exponent, form.least) - form.precision + 1
    kept = _shift_to_even(significand, last_place - exponent + FRACTION_BITS)
    with np.errstate(over="ignore"):
        magnitude = kept.astype(np.float64) * power_of_two(last_place)
    magnitude = np.where(magnitude >= 2.0 ** (form.greatest + 1), np.inf, magnitude)
    special = biased == 0x7FF
    return np.where(special, values, np.copysign(magnitude, values)).reshape(np.shape(x))


def _shift_to_even(significand: Int64, places: Int64) -> Int64:
    """`significand` (below 2^53) divided by 2^places (0 to 54 matter), to the nearest integer, ties to even."""
    places = np.minimum(places, FRACTION_BITS + 2)
    half = (np.int64(1) << places) >> 1
    odd = (significand >> places) & 1
    return (significand + np.maximum(half - 1 + odd, 0)) >> places


def power_of_two(exponent: Any) -> F64:
    """2^exponent for integer exponents from -1022 to 1023, made from the bits."""
    return ((np.asarray(exponent, dtype=np.int64) + EXPONENT_BIAS) << FRACTION_BITS).view(np.float64)


def two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """The float64 sum of a and b, and the exact error that it leaves (0 where the sum is not finite)."""
    total = a + b
    second = total - a
    error = (a - (total - second)) + (b - second)
    return total, np.where(np.isfinite(total), error, 0.0)


def sum_to_odd(hi: Any, lo: Any) -> F64:
    """hi + lo rounded to float64 so that a later rounding to 51 or fewer bits is that of the exact sum.

    Where the sum is inexact the result is its float64 neighbour with an odd last bit (Boldo and Melquiond 2008):
    it is never a midpoint of a shorter format, and lies on the exact sum's side of every one.
    """
    with np.errstate(invalid="ignore"):
        total, error = two_sum(np.asarray(hi, dtype=np.float64), np.asarray(lo, dtype=np.float64))
    code = np.ascontiguousarray(total).view(np.int64)
    away_from_zero = (error > 0) == (total > 0)
    step = np.where((error != 0) & (code & 1 == 0), np.where(away_from_zero, 1, -1), 0)
    return (code + step).view(np.float64).reshape(np.shape(total))


def round_bf16(hi: Any, lo: Any, profile: Profile) -> Rounded:
    """The exact sums hi + lo (F32, [N]) rounded to BF16 once.

    Clause: NUM-001
    Clause: NUM-002
    Source: IEEE 754-2019 4.3.1 and 7.4, applied to BF16.
    """
    return Rounded(round_to(sum_to_odd(hi, lo), "BF16"))


def round_fp16(hi: Any, lo: Any, profile: Profile) -> Rounded:
    """The exact sums hi + lo (F32, [N]) rounded to F16 once.

    Clause: NUM-003
    Clause: NUM-004
    Source: IEEE 754-2019 3.4 and 4.3.1, binary16.
    """
    return Rounded(round_to(sum_to_odd(hi, lo), "F16"))


def round_fp32(hi: Any, lo: Any, profile: Profile) -> Rounded:
    """The exact sums hi + lo (F32, [N]) rounded to F32 once.

    Clause: NUM-005
    Source: IEEE 754-2019 4.3.1, binary32.
    """
    return Rounded(round_to(sum_to_odd(hi, lo), "F32"))


def contract(x: F64, w: F64) -> F64:
    """x · wᵀ for x [..., n] and w [m, n] -> [..., m] float64: terms added one by one, from n = 0 upwards.

    Products of represented inputs are exact in float64 (at most 48 bits). No library product is used: its
    order of additions differs between machines.

    Clause: NUM-006
    Source: NInfer docs/maintainer/op-development.md (oracle from the represented inputs).
    """
    blocks = [_columns(x, w[start : start + OUTPUTS]) for start in range(0, max(len(w), 1), OUTPUTS)]
    return np.concatenate(blocks, axis=-1)


def _columns(x: F64, w: F64) -> F64:
    total = np.zeros((*x.shape[:-1], len(w)))
    term = np.empty_like(total)
    for index, weights in enumerate(np.ascontiguousarray(w.T)):
        np.multiply(x[..., index, np.newaxis], weights, out=term)
        total += term
    return total


def contract_rows(x: F64, w: F64, profile: Profile) -> Contracted:
    """The op num.contract: x [N, H] by w [M, H], returned in F32."""
    return Contracted(round_to(contract(x, w), "F32"))


def sum_last(x: F64) -> F64:
    """The sum over the last axis, [..., n] -> [...], added one by one from index 0 upwards."""
    total = np.zeros(x.shape[:-1])
    for index in range(x.shape[-1]):
        total += x[..., index]
    return total


def mean_square(x: F64) -> F64:
    """The mean of the squares over the last axis, [..., n] -> [...]."""
    mean: F64 = sum_last(x * x) / x.shape[-1]
    return mean
