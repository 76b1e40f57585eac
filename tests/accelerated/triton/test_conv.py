"""The convolution rounds at PyTorch's points, so that both give the same bits."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.ops.conv.torch import convolve as plainly
from dflash_accelerated.ops.conv.triton import convolve


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("added", [False, True])
def test_convolutions_are_the_same_bits(numerics, taps, added):
    generator = torch.Generator().manual_seed(taps)
    rows, groups, width = 7, 3, 3 * 11
    made = [
        torch.randn(shape, generator=generator).to(torch.bfloat16)
        for shape in ((rows, width), (taps, width), (rows, 2, taps, groups), (rows, width))
    ]
    z, base, deltas = (part.to(numerics.compute) for part in made[:3])
    residual = made[3].to(numerics.act) if added else None
    slot = torch.tensor([0, 1, 2, 3, 0, 1, 0])
    z[3], z[5] = torch.nan, torch.inf  # the last rows of two requests: nobody else's
    arguments = (z, base, deltas[:, 1], slot, residual)  # increments lie apart, as those of two sides do
    expected, found = plainly(*arguments, numerics), convolve(*arguments, numerics)
    assert found.dtype == expected.dtype == numerics.act
    assert torch.equal(found.isnan(), expected.isnan())
    assert not expected[4].isnan().any()
    assert not expected[6].isnan().any()
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
