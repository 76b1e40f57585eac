"""The kernel of head norm and RoPE."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.norm_rope import torch as plainly
from dflash_accelerated.ops.norm_rope import triton as kernel
from dflash_accelerated.ops.rope import tables

EPS = 1e-6


def near(numerics: Numerics) -> dict[str, Any]:
    """Steps of ACT at the size that heads have here, at most 8: one where only the end is rounded.

    Where every operation rounds, a norm that rounds the other way moves two products and a sum too: three steps.
    """
    return {"rtol": 0.0, "atol": 8 * (2.0**-8 * 3 if numerics.act == torch.bfloat16 else 2.0**-20)}


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "fused"])
@pytest.mark.parametrize(("rows", "heads", "dim"), [(5, 3, 10), (3, 4, 64), (1, 1, 2)])
def test_heads_turn(numerics: Numerics, rows: int, heads: int, dim: int, staged: bool):
    torch.manual_seed(dim)
    wide = torch.randn(rows, heads + 2, dim).to(numerics.compute)
    wide[:, 0] = wide[:, -1] = torch.nan
    raw = wide[:, 1:-1]
    turn = tables(torch.arange(rows) * 97 + 5, 1000.0, dim, numerics)
    for shape in ((dim,), (heads, dim)):
        norm = numerics.weight(1 + 0.2 * torch.randn(shape))
        wanted = plainly.norm_rope(raw, norm, turn, EPS, staged, numerics)
        got = kernel.norm_rope(raw, norm, turn, EPS, staged, numerics)
        assert got.dtype == numerics.act
        torch.testing.assert_close(got, wanted, **near(numerics))


def test_a_rounded_norm_shows_where_stages_are_rounded(numerics: Numerics):
    """A head turned by nothing is the norm itself; turned by 60 degrees it tells one rounding from two."""
    raw = torch.randn(40, 1, 10, generator=torch.Generator().manual_seed(1)).to(numerics.act)
    turn = tables(torch.full((40,), 60 * torch.pi / 180), 1.0, 10, numerics)
    norm = torch.ones(10, dtype=numerics.compute)
    staged, fused = (kernel.norm_rope(raw, norm, turn, EPS, way, numerics) for way in (True, False))
    assert torch.equal(staged, fused) == (numerics.act == numerics.compute)


def test_no_rows(numerics: Numerics):
    none = torch.zeros(0, 2, 4, dtype=numerics.act)
    turn = tables(torch.arange(0), 10.0, 4, numerics)
    assert kernel.norm_rope(none, torch.ones(4, dtype=numerics.compute), turn, EPS, True, numerics).shape == (0, 2, 4)
