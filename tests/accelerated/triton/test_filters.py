"""Capped distributions: each filter alone and all together, ties at the cap, masked ids, rows of several settings."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.ops.filters.torch import distribution as plainly
from dflash_accelerated.ops.filters.triton import distribution
from dflash_accelerated.settings import Sampling, SettingRows

SETTINGS = {
    "ninfer": [
        Sampling(1.0),
        Sampling(0.7, top_k=5),
        Sampling(1.3, top_p=0.6),
        Sampling(0.9, min_p=0.25),
        Sampling(1.1, top_k=12, top_p=0.8, min_p=0.05),
        Sampling(0.5, top_p=0.0),
        Sampling(1e-30),
        Sampling(),
    ],
    "zlab": [Sampling(1.0), Sampling(0.7, top_k=5), Sampling(1.3, top_p=0.6), Sampling(1.1, top_k=12, top_p=0.8)],
}


@pytest.mark.parametrize("vocabulary", [67, 1031, 3001])
def test_distributions_are_the_same(numerics, vocabulary):
    """Exponentials right to an ulp, their sum of 20 in FP32 in PyTorch, a quotient: under 32 roundings of 2⁻²⁴."""
    profile = numerics.profile
    settings = SETTINGS[profile.name]
    rows = SettingRows.of(settings, [2] * len(settings), profile, torch.device("cpu"))
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randint(-9, 10, (2 * len(settings), vocabulary), generator=generator) / 4  # ties everywhere
    scores[::2] += torch.randn(scores[::2].shape, generator=generator)
    scores[:, 5] = -torch.inf
    scores[1, 4:] = -torch.inf  # fewer ids than the cap
    expected, found = plainly(scores, rows, numerics), distribution(scores, rows, numerics)
    torch.testing.assert_close(found.p, expected.p, rtol=2**-19, atol=0)
    if found.support is None or expected.support is None:
        assert found.support is expected.support is None
        assert not profile.axes["sampling_cap"]
    else:
        assert torch.equal(found.support, expected.support)


def test_only_as_many_are_ordered_as_any_row_may_keep(numerics):
    """And a mass that is reached exactly ends the nucleus: of four equal weights, two are half."""
    if not numerics.profile.axes["sampling_cap"]:
        return
    rows = SettingRows.of([Sampling(1.0, top_k=4, top_p=0.5)], [1], numerics.profile, torch.device("cpu"))
    scores = torch.full((1, 101), -3.0)
    scores[0, [9, 50, 51, 100]] = 2.0
    found = distribution(scores, rows, numerics)
    assert found.support is not None
    assert found.support.tolist() == [[9, 50, -1, -1]]
    assert found.p.tolist() == [[0.5, 0.5, 0.0, 0.0]]
