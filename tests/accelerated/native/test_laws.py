"""Processed distributions and draws in C against the torch functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.filters import torch as filters
from dflash_accelerated.ops.filters.torch import Distribution
from dflash_accelerated.ops.sampling import torch as sampling
from dflash_accelerated.settings import Sampling, SettingRows
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
SENSES = {name: Numerics.of(load_profile(name)) for name in ("ninfer", "zlab")}
SETTINGS = {
    "ninfer": [
        Sampling(1.0),
        Sampling(0.7, top_k=5),
        Sampling(1.3, top_p=0.6),
        Sampling(0.9, min_p=0.25),
        Sampling(1.1, top_k=12, top_p=0.8, min_p=0.05),
        Sampling(0.5, top_p=0.0),
        Sampling(1e-30),
        Sampling(1.0, top_k=-3, min_p=1.0),
    ],
    "zlab": [
        Sampling(1.0),
        Sampling(0.7, top_k=5),
        Sampling(1.3, top_p=0.6),
        Sampling(1.1, top_k=12, top_p=0.8),
        Sampling(9.0, top_k=300, top_p=0.9),
        Sampling(9.0, top_p=0.97),
        Sampling(1e-30, top_p=0.5),
        Sampling(2.0, top_k=100_000, top_p=0.3),
        Sampling(1.0, top_k=100_000),
    ],
}


@pytest.fixture(params=SENSES)
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return SENSES[request.param]


def compared(scores: Tensor, settings: Sequence[Sampling], numerics: Numerics) -> Distribution:
    """The law that C makes, each setting's of as many rows. It has PyTorch's support, and p of its own scores.

    Each p is an exponential of a number that FP32 arithmetic gives to the bit, within 2 ulp, by a sum of such: in
    float64, or of 20 terms in five rounds. 2⁻²² from both, 5 · 2⁻²⁴ from these, and a quotient's: less than 2⁻²⁰.
    """
    own = [len(scores) // len(settings)] * len(settings)
    rows = SettingRows.of(settings, own, numerics.profile, torch.device("cpu"))
    made, wanted = (
        filters.distribution(scores, rows, replace(numerics, kernels=kernels)) for kernels in ("native", "torch")
    )
    used = ~wanted.p.isnan().any(1) & ~rows.greedy
    assert torch.equal((made.p == 0)[used], (wanted.p == 0)[used]), "another support"
    held = scores if wanted.support is None else scores.gather(1, wanted.support.clamp(min=0))
    heated = (held - scores.amax(1, keepdim=True)) / rows.temperature[:, None]
    exact = torch.softmax(heated.double().masked_fill(wanted.p == 0, -torch.inf), 1)
    torch.testing.assert_close(made.p.double()[used], exact[used], rtol=2**-20, atol=0)
    assert made.p.dtype == torch.float32
    if made.support is None or wanted.support is None:
        assert made.support is wanted.support is None
    else:
        assert torch.equal(made.support[used], wanted.support[used])
    return made


@pytest.mark.parametrize("vocabulary", [1, 3, 67, 1031, 40_009])
def test_laws_are_the_torch_ones(vocabulary: int, numerics: Numerics) -> None:
    settings = SETTINGS[numerics.profile.name]
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randint(-9, 10, (2 * len(settings), vocabulary + 5), generator=generator) / 4  # ties everywhere
    scores[::2] += torch.randn(scores[::2].shape, generator=generator)
    scores[:, 2:vocabulary:7] = -torch.inf
    scores[1, 4:] = -torch.inf  # fewer ids than a cap
    scores[3::2] -= 30  # all below the 0 that fills a vector up
    scores[:, vocabulary:] = 99.0  # past the public ids
    compared(scores[:, :vocabulary], settings, numerics)
    compared(scores[:2, :vocabulary].contiguous(), settings[:1], numerics)


def test_a_mass_that_is_reached_exactly_ends_the_nucleus(numerics: Numerics) -> None:
    """Of four equal weights, two are half; of 600 equal ones, more than the kernel orders at first, 300 are."""
    scores = torch.full((1, 1031), -torch.inf)
    scores[0, [9, 50, 51, 100]] = 2.0
    made = compared(scores, [Sampling(1.0, top_k=4, top_p=0.5)], numerics)
    assert made.p[made.p > 0].tolist() == [0.5, 0.5]
    if not numerics.profile.axes["sampling_cap"]:
        scores[0, 31:631] = 3.0
        scores[0, [9, 700]] = -99.0
        for settings in (Sampling(1.0, top_k=600, top_p=0.5), Sampling(1.0, top_k=700, top_p=0.5)):
            made = compared(scores, [settings], numerics)
            assert made.p[0].nonzero()[:, 0].tolist() == list(range(31, 331))


def test_equal_scores_are_kept_by_id(numerics: Numerics) -> None:
    scores = torch.zeros(2, 331)
    scores[0, 1::2] = -0.0
    settings = [Sampling(1.0, top_k=7), Sampling(1.0, top_k=19)]
    compared(scores, settings, numerics)
    if not numerics.profile.axes["sampling_cap"]:
        compared(scores, [Sampling(1.0, top_k=97), Sampling(1.0, top_p=0.5)], numerics)


def test_greedy_and_refused_rows_leave_the_others_alone(numerics: Numerics) -> None:
    settings = [Sampling(0.0, top_p=0.5), Sampling(0.8, top_k=9), Sampling(0.8), Sampling(0.8, top_p=0.9)]
    scores = torch.randn(8, 331, generator=torch.Generator().manual_seed(1))
    scores[6, 7], scores[4] = torch.nan, -torch.inf
    made = compared(scores, settings, numerics)
    assert bool(made.p[4].isnan().all())
    assert not bool(made.p[[2, 3, 5, 7]].isnan().any())


def test_no_rows_have_no_law(numerics: Numerics) -> None:
    rows = SettingRows.of([Sampling(1.0)], [0], numerics.profile, torch.device("cpu"))
    made = filters.distribution(torch.empty(0, 67), rows, replace(numerics, kernels="native"))
    assert len(made.p) == 0


def assert_same_tokens(law: Distribution, goal: Tensor) -> Tensor:
    numerics = SENSES["zlab"]
    made = sampling.draw(law, goal, replace(numerics, kernels="native"))
    assert torch.equal(made, sampling.draw(law, goal, numerics))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "places"), [(1, 1), (7, 20), (5, 1031), (3, 20_001)])
def test_draws_are_the_torch_ones(rows: int, places: int, dtype: torch.dtype) -> None:
    """Between goals at the sums themselves, where the next place is drawn."""
    generator = torch.Generator().manual_seed(places)
    p = torch.rand(rows, places + 3, generator=generator, dtype=dtype)[:, :places]
    p[:, ::3] = 0
    support = torch.stack([torch.randperm(places, generator=generator) for _ in range(rows)]) + 5
    sums = torch.cumsum(p.double(), 1)
    for goal in (sums[:, places // 2], sums[:, 0], sums[:, -1], torch.zeros(rows), torch.full((rows,), torch.nan)):
        assert_same_tokens(Distribution(None, p), goal)
        assert_same_tokens(Distribution(support, p), goal)
    assert_same_tokens(Distribution(support, p), torch.rand(rows, generator=generator))


def test_a_row_without_weight_or_with_a_nan_gives_nothing() -> None:
    p = torch.rand(4, 67)
    p[0, 66], p[1, 3] = torch.nan, torch.nan  # after the place that is drawn, and before it
    p[2] = 0
    support = torch.arange(67).expand(4, 67)
    for law in (Distribution(None, p), Distribution(support, p)):
        assert assert_same_tokens(law, torch.full((4,), 4.0))[:3].tolist() == [-1, -1, -1]
