"""Streaming candidates and the best logit. Lattice inputs have sums that are exact in any order: equal means equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dflash_accelerated.ops.head import torch as plainly
from dflash_accelerated.ops.head import triton as kernel
from dflash_accelerated.ops.linear import Product


def lattice(shape, seed, span=4):
    """Quarters from -span / 4 to span / 4: few values, so that scores tie."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-span, span + 1, shape, generator=generator) / 4


@pytest.mark.parametrize(("rows", "vocabulary", "count"), [(1, 67, 16), (3, 101, 20), (17, 131, 5), (2, 1031, 16)])
def test_candidates_are_the_same(numerics, rows, vocabulary, count):
    hidden, weight = lattice((rows, 37), 1).to(numerics.act), lattice((vocabulary + 3, 37), 2)
    weight[1:vocabulary:2] = weight[: vocabulary - 1 : 2]  # each score comes twice
    weight[vocabulary:] = torch.nan  # past the public ids
    ids = torch.arange(3, 3 + 2 * vocabulary, 2).flip(0)  # the lower id lies in the higher row
    held = replace(numerics, kernels="triton")
    head = Product([weight.to(numerics.compute)], held)
    expected = plainly.top(hidden, head, ids, 1.0, 0.0, count, numerics)
    found = kernel.top(hidden, head, ids, 1.0, 0.0, count, held)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.unary, expected.unary)
    assert (expected.unary.diff(dim=1) == 0).any(), "no scores tie"


def test_a_score_is_multiplied_and_limited(numerics):
    """Both limits follow from tanh of the same FP32 number, right to one ulp in PyTorch and to half of one here; the
    product by the limit rounds once more."""
    hidden, weight = lattice((2, 20), 1).to(numerics.act), lattice((101, 20), 2)
    head, ids = Product([weight.to(numerics.compute)], replace(numerics, kernels="triton")), torch.arange(101)
    expected = plainly.top(hidden, head, ids, 1.75, 3.0, 101, numerics)
    found = kernel.top(hidden, head, ids, 1.75, 3.0, 101, numerics)
    torch.testing.assert_close(found.unary, expected.unary, rtol=4 * 2**-24, atol=0)
    assert torch.equal(found.ids, expected.ids)


def test_no_rows_have_no_candidates(numerics):
    head = Product([lattice((67, 8), 1).to(numerics.compute)], replace(numerics, kernels="triton"))
    found = kernel.top(torch.empty(0, 8, dtype=numerics.act), head, torch.arange(67), 1.0, 0.0, 4, numerics)
    assert found.ids.shape == found.unary.shape == (0, 4)


@pytest.mark.parametrize("vocabulary", [67, 101, 4099])
def test_the_best_logit_is_the_first_of_the_largest_or_the_first_nan(numerics, vocabulary):
    scores = lattice((6, vocabulary + 5), 3).to(numerics.act)
    scores[:, vocabulary:] = 99.0  # past the public ids
    scores[1, [5, 40]] = torch.nan
    scores[2, [7, 60]] = torch.inf
    scores[3] = -torch.inf
    scores[4, :vocabulary] = -0.0
    scores[4, 9] = 0.0  # equal to the ones before it
    scores[5, vocabulary - 1] = 55.0
    expected, found = plainly.best(scores, vocabulary, numerics), kernel.best(scores, vocabulary, numerics)
    assert torch.equal(found.id, expected.id)
    assert found.id[1] == 5
    torch.testing.assert_close(found.score, expected.score, rtol=0, atol=0, equal_nan=True)
