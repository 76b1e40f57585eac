"""Draws: the same rank as one sum after another gives, also where another order of adding would give another."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.ops.filters import Distribution
from dflash_accelerated.ops.sampling import triton as kernel
from dflash_accelerated.ops.sampling.torch import draw as plainly
from dflash_accelerated.ops.sampling.triton import draw


@pytest.fixture(autouse=True)
def tile(monkeypatch):
    """Rows of one tile, and rows of several, in some of which nothing is."""
    monkeypatch.setattr(kernel, "TILE", 32)


@pytest.mark.parametrize("size", [1, 20, 67, 200])
@pytest.mark.parametrize("supported", [False, True])
def test_draws_are_the_same(numerics, size, supported):
    generator = torch.Generator().manual_seed(size)
    p = torch.rand(7, size, generator=generator) ** 4
    p /= p.sum(dim=1, keepdim=True)
    p[1, size // 2] = torch.nan
    p[2] = 0.0
    p[3, -1] = 0.0
    p[4, : size // 3] = 0.0
    support = torch.randperm(3 * size, generator=generator)[:size].expand(7, size) if supported else None
    goal = torch.tensor([0.3, 0.3, 0.3, 2.0, 0.0, 0.999, 0.5])  # one past the sum
    expected = plainly(Distribution(support, p), goal, numerics)
    assert torch.equal(draw(Distribution(support, p), goal, numerics), expected)
    assert expected[1] == expected[2] == -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_goal_on_a_sum_is_judged_by_the_sum_in_order(numerics, dtype):
    """1 and then 2⁻⁵⁴ again and again stays 1 in order; summed apart first, the small ones would raise it."""
    weights = torch.full((1, 40), 2.0**-54, dtype=dtype)
    weights[0, 0], weights[0, -1] = 1.0, 0.25
    goal = torch.ones(1, dtype=torch.float64)
    assert plainly(Distribution(None, weights), goal, numerics).item() == 39
    assert draw(Distribution(None, weights), goal, numerics).item() == 39
    backwards = weights.flip(1).contiguous()
    for goals in torch.cumsum(backwards.to(torch.float64), 1)[0, [0, 20, 38, 39]]:
        one = goals[None]
        law = Distribution(None, backwards)
        assert torch.equal(draw(law, one, numerics), plainly(law, one, numerics))
