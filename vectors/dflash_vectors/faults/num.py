"""Faults of rounding and contraction."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import num
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

IEEE = "IEEE 754-2019 4.3.1"
MIXED = "https://github.com/vllm-project/vllm/pull/52816"


def _cut(x: Array, places: int) -> Array:
    """The float64 codes of `x` without their last `places` bits."""
    return (np.ascontiguousarray(x).view(np.int64) >> places << places).view(np.float64)


@fault("dflash_reference.num.round_bf16", clauses=("NUM-001",), report=IEEE, effect="acceptance")
def bf16_by_way_of_fp32(true: Function) -> Function:
    """The value is rounded to FP32 and then to BF16, as most tensor libraries cast from float64."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        return true(num.round_to(num.sum_to_odd(hi, lo), "F32"), np.zeros_like(hi), profile)

    return wrong


@fault("dflash_reference.num.round_bf16", clauses=("NUM-001",), effect="acceptance",
    report="Triton 3.7.0, CPU interpreter: tensor.to(tl.bfloat16)",
)  # fmt: skip
def bf16_by_cutting(true: Function) -> Function:
    """The low bits are cut off."""
    return lambda hi, lo, profile: true(_cut(hi + lo, 45), np.zeros_like(hi), profile)


@fault("dflash_reference.num.round_bf16", clauses=("NUM-001",), report=IEEE, effect="acceptance")
def bf16_ties_away_from_zero(true: Function) -> Function:
    """Half a step is added to the magnitude and the rest cut off."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        code = np.ascontiguousarray(num.sum_to_odd(hi, lo)).view(np.int64) + (1 << 44)
        return true(_cut(code.view(np.float64), 45), np.zeros_like(hi), profile)

    return wrong


@fault("dflash_reference.num.round_bf16", clauses=("NUM-002",), effect="output",
    report="https://github.com/1CatAI/1Cat-vLLM/pull/253",
)  # fmt: skip
def bf16_clipped_to_the_greatest(true: Function) -> Function:
    """Too large magnitudes become the greatest finite value."""
    greatest = 255 * 2.0**120

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        return num.Rounded(np.clip(true(hi, lo, profile).y, -greatest, greatest))

    return wrong


@fault("dflash_reference.num.round_bf16", clauses=("NUM-002",), report=IEEE, effect="acceptance")
def bf16_subnormals_flushed(true: Function) -> Function:
    """Magnitudes below the smallest normal become zero."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        y = true(hi, lo, profile).y
        return num.Rounded(np.where(np.abs(y) < 2.0**-126, np.copysign(0.0, y), y))

    return wrong


@fault("dflash_reference.num.round_bf16", clauses=("NUM-002",), report=IEEE, effect="output")
def bf16_zero_without_a_sign(true: Function) -> Function:
    """Every zero is +0."""
    return lambda hi, lo, profile: num.Rounded(true(hi, lo, profile).y + 0.0)


@fault("dflash_reference.num.round_fp16", clauses=("NUM-003",), report=IEEE, effect="acceptance")
def fp16_by_way_of_fp32(true: Function) -> Function:
    """The value is rounded to FP32 and then to FP16."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        return true(num.round_to(num.sum_to_odd(hi, lo), "F32"), np.zeros_like(hi), profile)

    return wrong


@fault("dflash_reference.num.round_fp16", clauses=("NUM-003",), effect="output",
    report="https://github.com/1CatAI/1Cat-vLLM/pull/253",
)  # fmt: skip
def fp16_clipped_to_the_greatest(true: Function) -> Function:
    """Magnitudes of 65520 and more become 65504."""
    return lambda hi, lo, profile: num.Rounded(np.clip(true(hi, lo, profile).y, -65504.0, 65504.0))


@fault("dflash_reference.num.round_fp16", clauses=("NUM-004",), report=IEEE, effect="acceptance")
def fp16_subnormals_flushed(true: Function) -> Function:
    """Magnitudes below 2^-14 become zero."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        y = true(hi, lo, profile).y
        return num.Rounded(np.where(np.abs(y) < 2.0**-14, np.copysign(0.0, y), y))

    return wrong


@fault("dflash_reference.num.round_fp32", clauses=("NUM-005",), report=IEEE, effect="acceptance")
def fp32_by_cutting(true: Function) -> Function:
    """The bits past the twenty-fourth are cut off."""
    return lambda hi, lo, profile: num.Rounded(_cut(num.sum_to_odd(hi, lo), 29))


@fault("dflash_reference.num.round_fp32", clauses=("NUM-005",), report=IEEE, effect="acceptance")
def fp32_subnormals_flushed(true: Function) -> Function:
    """Magnitudes below 2^-126 become zero."""

    def wrong(hi: Array, lo: Array, profile: Profile) -> Any:
        y = true(hi, lo, profile).y
        return num.Rounded(np.where(np.abs(y) < 2.0**-126, np.copysign(0.0, y), y))

    return wrong


@fault("dflash_reference.num.contract", clauses=("NUM-006",), report=MIXED, effect="acceptance")
def bf16_accumulator(true: Function) -> Function:
    """The running sum is held in BF16."""

    def wrong(x: Array, w: Array) -> Array:
        total = np.zeros((*x.shape[:-1], w.shape[0]))
        for index in range(w.shape[1]):
            total = num.round_to(total + x[..., index, np.newaxis] * w[:, index], "BF16")
        return total

    return wrong


@fault("dflash_reference.num.contract", clauses=("NUM-006",), report=MIXED, effect="acceptance")
def bf16_products(true: Function) -> Function:
    """Each product is rounded to BF16 before it is added."""

    def wrong(x: Array, w: Array) -> Array:
        products = num.round_to(x[..., np.newaxis, :] * w, "BF16")
        return num.sum_last(products)

    return wrong
