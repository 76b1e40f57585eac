"""The norm's kernel: odd lengths, weights per head, rows that are views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rms_norm import torch as plainly
from dflash_accelerated.ops.rms_norm import triton as kernel
from dflash_spec.registry import load_profile
from torch import Tensor

EPS = 1e-6


def one_step(dtype: torch.dtype) -> dict[str, Any]:
    """A unit in the last place: the sums of squares differ in their order, which moves a rounding by one at most.

    In FP32 the sum's own error, some units, goes into the quotient.
    """
    return {"rtol": 2.0**-7 if dtype == torch.bfloat16 else 2.0**-20, "atol": 0.0}


def weight(shape: tuple[int, ...], numerics: Numerics) -> Tensor:
    return numerics.weight(1 + 0.2 * torch.randn(shape))


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("n", [1, 37, 300])
def test_rows_of_any_length(numerics: Numerics, rows: int, n: int):
    torch.manual_seed(n)
    x = torch.randn(rows, n).to(numerics.act) * 3
    scale = weight((n,), numerics)
    wanted = plainly.rms_norm(x, scale, EPS, numerics)
    got = kernel.rms_norm(x, scale, EPS, numerics)
    assert got.dtype == numerics.act
    torch.testing.assert_close(got, wanted, **one_step(numerics.act))


def test_an_unrounded_norm_keeps_the_weights_dtype(numerics: Numerics):
    torch.manual_seed(3)
    x, scale = torch.randn(4, 50).to(numerics.act), weight((50,), numerics)
    got = kernel.normed(x, scale, EPS, numerics)
    assert got.dtype == numerics.compute
    torch.testing.assert_close(got, plainly.normed(x, scale, EPS, numerics), **one_step(numerics.compute))


def test_heads_of_a_wider_row_with_a_weight_each(numerics: Numerics):
    torch.manual_seed(4)
    row = torch.randn(7, 5 * 10).to(numerics.act)
    row[:, :20] = row[:, 50:] = torch.nan
    heads, scale = row[:, 20:].unflatten(1, (3, 10)), weight((3, 10), numerics)
    got = kernel.rms_norm(heads, scale, EPS, numerics)
    torch.testing.assert_close(got, plainly.rms_norm(heads, scale, EPS, numerics), **one_step(numerics.act))


@pytest.mark.parametrize("shape", [(1, 10), (2, 1, 1, 10), (3, 10), (5, 3, 10), (2, 5, 3, 10)], ids=str)
def test_weights_that_differ_along_other_axes(numerics: Numerics, shape: tuple[int, ...]):
    torch.manual_seed(5)
    x, scale = torch.randn(2, 5, 3, 10).to(numerics.act), weight(shape, numerics)
    wanted = plainly.rms_norm(x, scale, EPS, numerics)
    torch.testing.assert_close(kernel.rms_norm(x, scale, EPS, numerics), wanted, **one_step(numerics.act))


def test_one_weight_that_has_two_axes_serves_all_heads(numerics: Numerics):
    x, scale = torch.randn(4, 3, 10).to(numerics.act), weight((1, 10), numerics)
    wanted = plainly.rms_norm(x, scale, EPS, numerics)
    torch.testing.assert_close(kernel.rms_norm(x, scale, EPS, numerics), wanted, **one_step(numerics.act))


def test_a_row_of_zeros_and_no_rows(numerics: Numerics):
    scale = weight((6,), numerics)
    assert not kernel.rms_norm(torch.zeros(2, 6, dtype=numerics.act), scale, EPS, numerics).any()
    assert kernel.rms_norm(torch.zeros(0, 6, dtype=numerics.act), scale, EPS, numerics).shape == (0, 6)


def test_the_quotient_is_rounded_before_the_weight_multiplies_it():
    """In BF16, of 1 / sqrt(5) and 3 / sqrt(5), with a weight for which one rounding at the end gives other values."""
    numerics = Numerics.of(load_profile("zlab"), torch.bfloat16)
    x = torch.arange(1, 200, dtype=torch.bfloat16)[:, None] * torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    scale = torch.full((2,), 1.3, dtype=torch.bfloat16)
    ratio = x.to(torch.float32) / x.to(torch.float32).square().mean(-1, keepdim=True).sqrt()
    twice = ratio.to(torch.bfloat16) * scale
    once = (ratio * scale.to(torch.float32)).to(torch.bfloat16)
    assert (twice != once).any()
    assert torch.equal(kernel.rms_norm(x, scale, 1e-30, numerics), twice)
