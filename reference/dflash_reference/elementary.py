"""exp, log, sin, cos, tanh and powers, from IEEE + − × ÷ and integers only.

A library's own differ between processors, and even between vector widths of one NumPy. These give the same bits
everywhere, within 1 ulp (tanh within 3). Constants are computed here in integer arithmetic, so none is copied.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from dflash_spec.errors import ConfigError, UnsupportedError

from dflash_reference import num
from dflash_reference.num import F64

FIXED = 320
"""Fraction bits of the fixed-point integers from which the constants and RoPE frequencies are rounded."""

ONE = 1 << FIXED
ANGLE_LIMIT = 2.0**21


def _atanh_inverse(n: int) -> int:
    """atanh(1/n) in fixed point, within a few units of the last place."""
    power, total, k = ONE // n, 0, 1
    while power:
        total += power // k
        power //= n * n
        k += 2
    return total


def _atan_inverse(n: int) -> int:
    """atan(1/n) in fixed point, within a few units of the last place."""
    power, total, k, sign = ONE // n, 0, 1, 1
    while power:
        total += sign * (power // k)
        power //= n * n
        k += 2
        sign = -sign
    return total


LN2 = 18 * _atanh_inverse(26) - 2 * _atanh_inverse(4801) + 8 * _atanh_inverse(8749)
PI = 4 * (4 * _atan_inverse(5) - _atan_inverse(239))


def _nearest(fixed: int) -> float:
    """The float64 nearest to fixed / 2^FIXED; integer division of Python rounds once, ties to even."""
    return fixed / ONE


def _leading(fixed: int, bits: int) -> tuple[float, int]:
    """The first `bits` bits of a fixed-point number as a float64, and what is left of it."""
    drop = max(fixed.bit_length() - bits, 0)
    head = (fixed >> drop) << drop
    return _nearest(head), fixed - head


def _split(fixed: int, bits: int, parts: int) -> tuple[float, ...]:
    """A fixed-point number as a sum of `parts` float64 values of `bits` bits each, and a last one of 53."""
    pieces = []
    for _ in range(parts):
        piece, fixed = _leading(fixed, bits)
        pieces.append(piece)
    return (*pieces, _nearest(fixed))


STEPS = 32
"""exp reduces its argument to a multiple of ln 2 / STEPS; log and exp share the table 2^(j/STEPS)."""


def _roots_of_two() -> list[int]:
    """2^(j/32) for j < 32 in fixed point: 2^(1/32) by five square roots, then products."""
    root = 2 * ONE
    for _ in range(5):
        root = math.isqrt(root * ONE)
    powers = [ONE]
    for _ in range(STEPS - 1):
        powers.append(powers[-1] * root >> FIXED)
    return powers


ROOTS = _roots_of_two()
ROOT_HI = np.array([_nearest(root) for root in ROOTS])
ROOT_LO = np.array([_nearest(root - int(_nearest(root) * 2**60) * (ONE >> 60)) for root in ROOTS])
LN2_HI, LN2_LO = _split(LN2, 32, 1)
STEP_HI, STEP_LO = LN2_HI / STEPS, LN2_LO / STEPS
STEPS_PER_UNIT = STEPS / _nearest(LN2)
HALF_PI = _split(PI // 2, 32, 3)
TWO_OVER_PI = 2.0 / _nearest(PI)

EXP_TERMS = tuple(1 / math.factorial(k) for k in range(2, 9))
SIN_TERMS = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 10))
COS_TERMS = tuple((-1) ** k / math.factorial(2 * k) for k in range(2, 11))
TANH_NEAR = 1.0
SINH_TERMS = tuple(1 / math.factorial(2 * k + 1) for k in range(11))
COSH_TERMS = tuple(1 / math.factorial(2 * k) for k in range(11))
ATANH_TERMS = tuple(2 / (2 * k + 1) for k in range(1, 14))


def _polynomial(z: F64, terms: tuple[float, ...]) -> F64:
    """terms[0] + terms[1]·z + …, by Horner's rule."""
    total = np.full_like(z, terms[-1])
    for term in reversed(terms[:-1]):
        total = total * z + term
    return total


def _two_product(a: F64, b: F64) -> tuple[F64, F64]:
    """a·b and the exact error of its rounding, by Dekker's split of each factor into two 26-bit halves."""
    product = a * b
    a_hi = a * 134217729.0 - (a * 134217729.0 - a)
    b_hi = b * 134217729.0 - (b * 134217729.0 - b)
    a_lo, b_lo = a - a_hi, b - b_hi
    return product, ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def exp(x: Any) -> F64:
    """e^x of each float64, within 1 ulp, subnormal results included; too large is infinity, NaN stays NaN."""
    x = np.asarray(x, dtype=np.float64)
    held = np.where(np.isnan(x), 0.0, np.clip(x, -800.0, 800.0))
    count = np.rint(held * STEPS_PER_UNIT)
    r = (held - count * STEP_HI) - count * STEP_LO
    whole = count.astype(np.int64)
    index, power = whole % STEPS, whole // STEPS
    excess = r + r * r * _polynomial(r, EXP_TERMS)
    hi, lo = ROOT_HI.take(index), ROOT_LO.take(index)
    value = hi + (lo + hi * excess)
    half = power // 2
    with np.errstate(over="ignore", under="ignore"):
        scaled = value * num.power_of_two(half) * num.power_of_two(power - half)
    return np.where(np.isnan(x), x, scaled)


def log(x: Any) -> F64:
    """The natural logarithm of each float64, within 1 ulp; 0 gives -infinity, a negative number NaN."""
    x = np.asarray(x, dtype=np.float64)
    usable = np.isfinite(x) & (x > 0)
    held = np.where(usable, x, 1.0)
    small = held < 2.0**-1022
    code = np.ascontiguousarray(held * np.where(small, 2.0**54, 1.0)).view(np.int64).reshape(x.shape)
    # Adding the gap between 1 and sqrt(2)/2 first puts the mantissa into [sqrt(2)/2, sqrt(2)).
    shifted = code + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD)
    power = (shifted >> num.FRACTION_BITS) - num.EXPONENT_BIAS
    mantissa = (code - (power << num.FRACTION_BITS)).view(np.float64)
    count = (power - np.where(small, 54, 0)).astype(np.float64)
    f = mantissa - 1.0
    s, s_lo = _quotient(f, 2.0 + f, f - ((2.0 + f) - 2.0))
    z = s * s
    hi, lo = num.two_sum(count * LN2_HI, 2.0 * s)
    result = hi + (lo + (count * LN2_LO + (2.0 * s_lo + s * z * _polynomial(z, ATANH_TERMS))))
    limits = np.where(x == 0, -np.inf, np.where(x > 0, x, np.nan))
    return np.where(usable, result, limits)


def _quotient(f: F64, d: F64, d_lo: F64) -> tuple[F64, F64]:
    """f / (d + d_lo) as a float64 and what it misses."""
    s = f / d
    product, error = _two_product(s, d)
    return s, ((f - product) - error - s * d_lo) / d


def _reduce(x: F64) -> tuple[F64, F64, np.ndarray[Any, np.dtype[np.int64]]]:
    """x = quadrant·π/2 + hi + lo with |hi| ≤ π/4 and 106 bits of it right; |x| ≤ ANGLE_LIMIT.

    quadrant has 21 bits and the first three parts of π/2 have 32, so their products are exact.
    """
    count = np.rint(x * TWO_OVER_PI)
    first = x - count * HALF_PI[0]
    second, error_2 = num.two_sum(first, -(count * HALF_PI[1]))
    third, error_3 = num.two_sum(second, -(count * HALF_PI[2]))
    hi, lo = num.two_sum(third, error_2 + (error_3 - count * HALF_PI[3]))
    return hi, lo, count.astype(np.int64)


def sin_cos(x: Any) -> tuple[F64, F64]:
    """Sine and cosine of each float64 angle in radians, within 1 ulp; infinity and NaN give NaN.

    Raises UnsupportedError for a finite angle beyond ±2^21, where the exact argument reduction ends.
    """
    x = np.asarray(x, dtype=np.float64)
    finite = np.isfinite(x)
    beyond = finite & (np.abs(x) > ANGLE_LIMIT)
    if beyond.any():
        raise UnsupportedError(f"angle {x[beyond].flat[0]}, expected at most 2^21 in magnitude")
    hi, lo, quadrant = _reduce(np.where(finite, x, 0.0))
    z = hi * hi
    sine = hi + (hi * z * _polynomial(z, SIN_TERMS) + lo * (1.0 - 0.5 * z))
    square, error = _two_product(hi, hi)
    head = 1.0 - 0.5 * square
    tail = ((1.0 - head) - 0.5 * square) - 0.5 * error
    cosine = head + (tail + (z * z * _polynomial(z, COS_TERMS) - hi * lo))
    sine = np.where(x == 0, x, sine)
    swap = quadrant & 1 == 1
    negate_sine, negate_cosine = quadrant & 2 == 2, (quadrant + 1) & 2 == 2
    first, second = np.where(swap, cosine, sine), np.where(swap, sine, cosine)
    sin_x, cos_x = np.where(negate_sine, -first, first), np.where(negate_cosine, -second, second)
    return np.where(finite, sin_x, np.nan), np.where(finite, cos_x, np.nan)


def sin(x: Any) -> F64:
    """The sine of each float64 angle; see `sin_cos`."""
    return sin_cos(x)[0]


def cos(x: Any) -> F64:
    """The cosine of each float64 angle; see `sin_cos`."""
    return sin_cos(x)[1]


def tanh(x: Any) -> F64:
    """The hyperbolic tangent of each float64, within 3 ulp; ±1 far out, NaN stays NaN."""
    x = np.asarray(x, dtype=np.float64)
    size = np.abs(x)
    near = np.minimum(size, TANH_NEAR)
    square = near * near
    small = near * _polynomial(square, SINH_TERMS) / _polynomial(square, COSH_TERMS)
    fall = exp(-2.0 * np.maximum(size, TANH_NEAR))
    value: F64 = np.copysign(np.where(size < TANH_NEAR, small, (1.0 - fall) / (1.0 + fall)), x)
    return value


def _exp_fixed(fixed: int) -> int:
    """e^x in fixed point for x in fixed point, within a few units of the last place of the larger of it and 1."""
    halvings = -(fixed // LN2)
    rest = fixed + halvings * LN2
    term, total, k = ONE, 0, 1
    while term:
        total += term
        term = (term * rest >> FIXED) // k
        k += 1
    return total >> halvings if halvings >= 0 else total << -halvings


def _log_fixed(value: float) -> int:
    """ln(value) in fixed point for a finite value > 0, by the atanh series of (m - 1) / (m + 1), m in [1, 2)."""
    numerator, denominator = value.as_integer_ratio()
    power = numerator.bit_length() - denominator.bit_length()
    scale_up, scale_down = max(-power, 0), max(power, 0)
    numerator, denominator = numerator << scale_up, denominator << scale_down
    s = (numerator - denominator) * ONE // (numerator + denominator)
    square, total, k = s * s >> FIXED, 0, 1
    while s:
        total += s // k if s > 0 else -(-s // k)
        s = s * square >> FIXED if s > 0 else -(-s * square >> FIXED)
        k += 2
    return 2 * total + power * LN2


@cache
def _frequencies(theta: float, dim: int) -> tuple[float, ...]:
    if not (math.isfinite(theta) and theta > 0):
        raise ConfigError(f"rope theta {theta}, expected a finite positive number", key="rope_theta")
    if dim <= 0 or dim % 2:
        raise ConfigError(f"head dim {dim}, expected a positive even number", key="head_dim")
    logarithm = _log_fixed(theta)
    return tuple(_nearest(_exp_fixed(-(2 * j * logarithm // dim))) for j in range(dim // 2))


def rope_frequencies(theta: float, dim: int) -> F64:
    """theta^(-2j/dim) for j from 0 to dim/2 - 1, [dim/2] float64, correctly rounded (300 bits are carried).

    Raises ConfigError unless theta is finite and positive and dim is positive and even.

    Source: NInfer docs/maintainer/dflash.md, draft layers.
    """
    return np.array(_frequencies(float(theta), int(dim)))


def rope_frequencies_fp32(theta: float, dim: int) -> F64:
    """The frequencies of `rope_frequencies`, rounded to F32: the table of systems that keep FP32 angles."""
    return num.round_to(rope_frequencies(theta, dim), "F32")
