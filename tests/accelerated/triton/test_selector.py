"""The candidate path, with candidates that tie, coins past the sum, cold and hot requests side by side."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.selector.torch import Selector
from dflash_accelerated.ops.selector.torch import walk as plainly
from dflash_accelerated.ops.selector.triton import walk

REQUESTS, STEPS, RANK, VOCABULARY = 5, 3, 11, 67


def quarters(shape, generator):
    """Small enough for sums of their products to be exact in any order."""
    return torch.randint(-3, 4, shape, generator=generator) / 4


@pytest.mark.parametrize("count", [1, 7, 16])
def test_paths_are_the_same(numerics, count):
    """Scores are exact. Each q is a quotient of exponentials, each right to an ulp, whose sum of at most 16 rounds in
    FP32 in PyTorch: 20 roundings and some."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randperm(VOCABULARY, generator=generator)[:count].expand(REQUESTS, STEPS, count).contiguous()
    candidates = Candidates(ids, quarters((REQUESTS, STEPS, count), generator))
    g = quarters((REQUESTS, STEPS, RANK), generator).to(numerics.act)
    books = [quarters((VOCABULARY, RANK), generator).to(numerics.compute) for _ in range(2)]
    selector = Selector(Product([books[0]], numerics), *books)
    anchors = torch.arange(REQUESTS) + 3
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1e-30, -1.0])
    uniforms = torch.rand(REQUESTS, STEPS, generator=generator)
    uniforms[0], uniforms[4], uniforms[2, 1] = torch.nan, torch.nan, 2.0
    candidates.unary[3, 2, 0] = torch.nan
    arguments = (candidates, g, selector, anchors, temperatures, uniforms)
    expected, found = plainly(*arguments, numerics), walk(*arguments, numerics)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found.q, expected.q, rtol=2**-19, atol=0, equal_nan=True)
