"""Rounding in Triton: one meaning for the interpreter and the GPU.

Triton's interpreter keeps BF16 as integers: it adds, compares and multiplies their bits, and cuts digits off when it
converts to BF16, all silently. Every kernel therefore widens what it loads, computes in FP32, and narrows here. On a
GPU both are the hardware's conversions, which round to nearest, ties to even.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)
"""Whether kernels run in the interpreter. Triton decides when a kernel is defined, from TRITON_INTERPRET."""


@triton.jit
def widen(x):
    """`x` in BF16, FP16 or FP32 as FP32; exact."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        wide = (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """FP32 `x` rounded to `dtype`, which is BF16, FP16 or FP32: to nearest, ties to even.

    Clauses: NUM-001 to NUM-005. Source: IEEE 754-2019 4.3.1.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        rounded = _bfloat16_bits(x.to(tl.uint32, bitcast=True)).to(tl.bfloat16, bitcast=True)
    elif INTERPRETED and dtype == tl.float16:
        rounded = _float16_bits(x, x.to(tl.uint32, bitcast=True)).to(tl.float16, bitcast=True)
    else:
        rounded = x.to(dtype)
    return rounded


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """FP32 `x` rounded to `dtype` and widened again: what a tensor of `dtype` would have kept of it."""
    return widen(narrow(x, dtype))


@triton.jit
def _bfloat16_bits(bits):
    """The upper half; adding 0x7FFF, or 0x8000 to an odd half, carries into it what rounds up."""
    half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return tl.where(nan, (bits >> 16) | 0x40, half).to(tl.uint16)


@triton.jit
def _float16_bits(x, bits):
    """Five exponent bits with their bias, 112 below FP32's, and ten of the fraction.

    FP16's subnormals are multiples of 2⁻²⁴, and so are FP32 values from 0.5 up to 1: adding 0.5 rounds to them.
    """
    size = bits & 0x7FFFFFFF
    normal = (size + 0xFFF + ((size >> 13) & 1) - (112 << 23)) >> 13
    subnormal = (tl.abs(tl.where(size < 0x38800000, x, 0.0)) + 0.5).to(tl.uint32, bitcast=True) - 0x3F000000
    finite = tl.where(size < 0x38800000, subnormal, normal)
    half = tl.where(size >= 0x477FF000, 0x7C00, finite)
    return (tl.where(size > 0x7F800000, 0x7E00, half) | ((bits >> 31) << 15)).to(tl.uint16)
