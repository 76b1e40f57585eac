"""Rounding in the interpreter against PyTorch's, bit for bit."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from dflash_accelerated.ops.rounding.triton import narrow, widen
from torch import Tensor

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
FRACTIONS = (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FEFFF, 0x7FF000, 0x7FFFFF)
"""Between values of the narrow formats, on them, halfway, and to either side."""


@triton.jit  # type: ignore[untyped-decorator]
def _through(x, short, wide, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = narrow(widen(tl.load(x + at, mask=at < n, other=0)), short.dtype.element_ty)
    tl.store(short + at, held, mask=at < n)
    tl.store(wide + at, widen(held), mask=at < n)


def every_exponent() -> Tensor:
    """FP32 with each exponent and sign, subnormals, infinities and NaNs among them, and as many drawn ones."""
    bits = torch.tensor([(exponent << 23) | low for exponent in range(256) for low in FRACTIONS])
    drawn = torch.randint(1 << 31, bits.shape, generator=torch.Generator().manual_seed(5))
    both = torch.cat((bits, drawn))
    return torch.cat((both, both - (1 << 31))).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
def test_values_round_to_nearest_even(dtype: torch.dtype):
    x = every_exponent()
    short, wide = torch.empty_like(x, dtype=dtype), torch.empty_like(x)
    _through[(1,)](x, short, wide, len(x), BLOCK=triton.next_power_of_2(len(x)))
    wanted, known = x.to(dtype), ~x.isnan()
    assert torch.equal(short.isnan(), wanted.isnan())
    assert torch.equal(short[known].view(BITS[dtype]), wanted[known].view(BITS[dtype]))
    assert torch.equal(wide[known].view(torch.int32), wanted[known].to(torch.float32).view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_narrow_value_comes_back(dtype: torch.dtype):
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    short, wide = torch.empty_like(x), torch.empty_like(x, dtype=torch.float32)
    _through[(1,)](x, short, wide, len(x), BLOCK=1 << 16)
    known = ~x.isnan()
    assert torch.equal(short[known].view(torch.int16), x[known].view(torch.int16))
    assert short[~known].isnan().all()
