"""Values with worst-case errors: what FP32 arithmetic in any order may make of an exact expression.

A Value holds the exact result of an expression of represented inputs, and the largest distance from it at which
a correct FP32 computation can end. The functions below state the allowance of each step; a model of an op is the
op's formula written with them. Sums here run in a fixed order, because bounds are bytes of the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from dflash_reference import elementary, num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.errors import ModelError

U = 2.0**-24
"""Unit roundoff of FP32."""
FUNCTION = 4 * U
"""Relative error of one exp, square root, reciprocal root or division: two FP32 ulps."""
TRIGONOMETRY = 2.0**-23
"""Absolute error of a cosine or sine of a given angle: one ulp of 1."""
FLUSH = 2.0**-126
"""An FP32 result below this may be flushed to zero."""
SILU_SLOPE = 1.1
"""Largest slope of SiLU (1.0998, at 2.3994)."""
UNITS = {"BF16": (8, -133), "F16": (11, -24), "F32": (24, -149)}
"""dtype -> significant bits, exponent of the smallest subnormal."""


@dataclass(frozen=True)
class Value:
    """`v` the exact value, `e` the largest error; float64 arrays of one shape."""

    v: Array
    e: Array

    @property
    def reach(self) -> Array:
        """The largest magnitude that a computed value can have."""
        return np.abs(self.v) + self.e


def exact(x: Array) -> Value:
    x = np.asarray(x, dtype=np.float64)
    return Value(x, np.zeros_like(x))


def gamma(count: int) -> float:
    """Relative error that `count` successive FP32 roundings can build up."""
    return count * U / (1 - count * U)


def ulp(x: Array, dtype: str) -> Array:
    """Spacing of `dtype` at magnitude |x|; that of its subnormals at 0."""
    bits, least = UNITS[dtype]
    _, exponent = np.frexp(x)
    spacing: Array = np.ldexp(1.0, np.where(np.asarray(x) == 0, least, np.maximum(exponent - bits, least)))
    return spacing


def add(a: Value, b: Value) -> Value:
    v, e = a.v + b.v, a.e + b.e
    return Value(v, e + U * (np.abs(v) + e))


def multiply(a: Value, b: Value) -> Value:
    v, reach = a.v * b.v, a.reach * b.reach
    return Value(v, reach - np.abs(v) + U * reach)


def contract(x: Value, w: Array) -> Value:
    """[..., n] · [m, n] -> [..., m], products and sums in FP32 in any order, fused or not."""
    weight, roundings = np.abs(w), gamma(x.v.shape[-1] + 1)
    moved = num.contract(x.e, weight) if x.e.any() else 0.0
    return Value(num.contract(x.v, w), moved + roundings * num.contract(x.reach, weight))


def rms_norm(x: Value, weight: Array, eps: float) -> Value:
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""
    count = x.v.shape[-1]
    square = num.sum_last(x.v * x.v) / count + eps
    most = num.sum_last(x.reach * x.reach) / count + eps
    moved = most - square + gamma(count + 3) * most
    root = 1 / np.sqrt(square)
    largest = (1 + FUNCTION) / np.sqrt(np.maximum(square - moved, eps * (1 - gamma(3))))
    scale = Value(root[..., None], (largest - root)[..., None])
    return multiply(multiply(x, scale), exact(weight))


def silu(x: Value) -> Value:
    """x / (1 + exp(-x)): one exponential, one addition, one division."""
    v = x.v / (1 + elementary.exp(-x.v))
    return Value(v, SILU_SLOPE * x.e + (2 * FUNCTION + U) * (np.abs(v) + SILU_SLOPE * x.e) + FLUSH)


def rope(x: Value, positions: Array, theta: float, table: str) -> Value:
    """Split-half rotation of [rows, heads, D] by position · theta^(-2j/D).

    With `table` fp32 the reference's angle is off by |angle| 2^-23 (frequency and product rounded once each),
    a port's by |angle| 2^-22 (its power is one ulp off, its reciprocal and product are rounded).
    """
    half = x.v.shape[-1] // 2
    frequency = elementary.rope_frequencies(theta, 2 * half)
    angle = (np.asarray(positions, dtype=np.float64)[:, None] * frequency)[:, None, :]
    shift = np.abs(angle) * 3 * 2.0**-23 if table == "fp32" else np.zeros_like(angle)
    cosine, sine = (Value(f(angle), np.minimum(shift, 2.0) + TRIGONOMETRY) for f in (elementary.cos, elementary.sin))
    first, second = (Value(x.v[..., part], x.e[..., part]) for part in (slice(half), slice(half, None)))
    negative = Value(-second.v, second.e)
    left = add(multiply(first, cosine), multiply(negative, sine))
    right = add(multiply(second, cosine), multiply(first, sine))
    return Value(np.concatenate([left.v, right.v], -1), np.concatenate([left.e, right.e], -1))


def heads(x: Value, size: int) -> Value:
    """[rows, heads · size] -> [rows, heads, size]."""
    shape = (*x.v.shape[:-1], x.v.shape[-1] // size, size)
    return Value(x.v.reshape(shape), x.e.reshape(shape))


def may_round(x: Value, dtype: str) -> Value:
    """A value that a port may or may not round to `dtype` before it goes on."""
    if dtype == "F32":
        return x
    return Value(x.v, x.e + ulp(x.reach, dtype) / 2)


def mean(weights: Value, values: Array) -> Value:
    """Σ weights·values / Σ weights over the last axis of `weights` [..., n] and the first of `values` [n, D].

    `weights` are positive and unnormalised; numerator and denominator are summed in FP32 and divided once.
    """
    count = weights.v.shape[-1]
    total = num.sum_last(weights.v)
    drift = num.sum_last(weights.e) + gamma(count) * num.sum_last(weights.reach)
    v = num.contract(weights.v, values.T) / total[..., None]
    size = np.abs(values.T)
    moved = num.contract(weights.e, size) + gamma(count + 1) * num.contract(weights.reach, size)
    least = total - drift
    if (least <= 0).any():
        raise ModelError("softmax: the denominator's error is as large as the denominator")
    e = (moved + np.abs(v) * drift[..., None]) / least[..., None]
    return Value(v, e + FUNCTION * (np.abs(v) + e))


@dataclass
class Ledger:
    """The stages of one run of the reference, and the worst cases that a model writes beside them."""

    op: str
    result: Mapping[str, Array]
    profile: Profile
    worst: dict[str, Array] = field(default_factory=dict)

    def stage(self, name: str, value: Value, dtype: str, *, detour: str | None = None) -> Value:
        """Round `value` to `dtype` as stage or output `name`, note its worst case, and go on from there.

        The worst case is the error before the rounding and one flip of it. What goes on is the reference's
        represented value; its error is how far rounding carries the two ends of the interval. With `detour`
        the value is rounded to that dtype first.
        """
        held = np.asarray(self.result[name], dtype=np.float64)
        if held.shape != value.v.shape:
            raise ModelError(f"{self.op}: {name}: the reference returned {held.shape}, the model {value.v.shape}")
        flip = ulp(np.abs(held) + value.e, dtype)
        if detour is not None:
            flip = flip + ulp(np.abs(held) + value.e, detour)
        with np.errstate(invalid="ignore"):
            off = np.where(held == value.v, 0.0, np.abs(held - value.v))
        outside = np.isfinite(held) & ~(off <= value.e + flip)
        if outside.any():
            at = tuple(int(i) for i in np.argwhere(outside)[0])
            raise ModelError(
                f"{self.op}: {name}{list(at)}: the reference returned {held[at]!r}, the error model allows "
                f"{value.v[at]!r} within {value.e[at] + flip[at]!r}"
            )
        self.worst[name] = np.where(np.isfinite(held), value.e + flip, 0.0)

        def rounded(x: Array) -> Array:
            return num.round_to(x if detour is None else num.round_to(x, detour), dtype)

        low, high = rounded(value.v - value.e), rounded(value.v + value.e)
        with np.errstate(invalid="ignore"):
            return Value(held, np.maximum(np.maximum(high - held, held - low), 0.0))

    def zero(self, name: str, where: Array) -> None:
        """Stage `name` is exactly zero at `where`: no error is allowed there."""
        self.worst[name] = np.where(where, 0.0, self.worst[name])
