"""SwiGLU's kernel."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.mlp import torch as plainly
from dflash_accelerated.ops.mlp import triton as kernel


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 37), (2, 1500)])
def test_gates(numerics: Numerics, rows: int, width: int):
    """Within one step of SiLU's dtype and one of the product's: two exponentials may round SiLU to either side."""
    torch.manual_seed(width)
    wide = (torch.randn(rows, 2 * width + 5) * 4).to(numerics.compute)
    wide[:, 2 * width :] = torch.nan
    gate_up = wide[:, : 2 * width]
    got, wanted = kernel.gated(gate_up, numerics), plainly.gated(gate_up, numerics)
    assert got.dtype == numerics.act
    # A step of BF16 is 2⁻⁷ of a value at most. In FP32 exponentials are off by 2 ulp each (2⁻²² of them), the sum, the
    # quotient and the product by 2⁻²⁴ each, on both sides: below 2⁻²⁰ together.
    allowed = 2 * 2.0**-7 if numerics.act == torch.bfloat16 else 2.0**-20
    assert bool(((got.float() - wanted.float()).abs() <= allowed * wanted.float().abs()).all())


def test_far_ends(numerics: Numerics):
    """SiLU(x) is x for a great x, and nothing for a great -x, although exp(-x) is more than FP32 holds."""
    gate = torch.tensor([[1e30, -1e30, 200.0, -200.0, 0.0]])
    got = kernel.gated(torch.cat((gate, torch.ones(1, 5)), 1).to(numerics.compute), numerics)
    assert torch.equal(got, torch.tensor([[1e30, 0.0, 200.0, 0.0, 0.0]]).to(numerics.compute).to(numerics.act))


def test_nan_shows(numerics: Numerics):
    got = kernel.gated(torch.tensor([[torch.nan, 1.0, 1.0, torch.nan]]).to(numerics.compute), numerics)
    assert got.isnan().all()
