"""Accepted counts and last tokens in C against the torch functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import acceptance
from dflash_accelerated.ops.acceptance import Chains, SparseLaw, Verdict
from dflash_accelerated.ops.filters import Distribution
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
PUBLIC = 37
COUNTS = (5, 0, 3, 5, 1, 4)
SENSES = {name: Numerics.of(load_profile(name)) for name in ("ninfer", "zlab")}


@pytest.fixture(params=SENSES)
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return SENSES[request.param]


def weights(rows: int, places: int, most: int, generator: torch.Generator) -> Tensor:
    """Multiples of 1/64 up to `most` of them, and some 0: with coins of 1/256 every product, difference and sum is
    exact, so that the two must agree to the bit, whatever order they add in."""
    return torch.randint(-1, most + 1, (rows, places), generator=generator).clamp(min=0) / 64


def ids(rows: int, places: int, generator: torch.Generator) -> Tensor:
    """Some ids a row, each once, and in a few places none."""
    found = torch.stack([torch.randperm(PUBLIC, generator=generator)[:places] for _ in range(rows)])
    return found.where(torch.rand(found.shape, generator=generator) < 0.9, -1)


def rounds(
    seed: int, supported: bool, drawn: str, counts: Sequence[int] = COUNTS
) -> tuple[Chains, SparseLaw, Distribution, Tensor, Tensor]:
    """Chains, what they were drawn from, the target's law, and coins."""
    generator, rows, tests = torch.Generator().manual_seed(seed), sum(counts) + len(counts), sum(counts)
    support = ids(rows, 11, generator) if supported else None
    # Rows of a buffer, whose other columns are not read.
    p = torch.full((rows, PUBLIC + 3), torch.nan)[:, 1 : 1 + (11 if supported else PUBLIC)]
    p.copy_(weights(rows, p.shape[1], 40 if drawn == "certain" else 8, generator))
    if support is not None:
        p[support < 0] = 0
    chains = Chains.of([torch.randint(PUBLIC, (count,), generator=generator) for count in counts])
    if support is not None:  # mostly ids that have a chance
        likely = support[chains.tested, 3].clamp(min=0)
        chains = Chains.of(list(likely.split(list(counts))))
    if drawn == "certain":
        law = acceptance.one_hot(chains.tokens)
    elif drawn == "all":
        law = SparseLaw(None, weights(tests, PUBLIC, 8, generator))
    else:
        chosen = ids(tests, 7, generator)
        chosen[:, 2] = chains.tokens
        law = SparseLaw(chosen, weights(tests, 7, 8, generator).where(chosen >= 0, 0))
    width = max(counts)
    coins = torch.randint(256, (2, len(counts), width + 1), generator=generator) / 256
    return chains, law, Distribution(support, p), coins[0, :, :width], coins[1]


def both(
    chains: Chains, drawn: SparseLaw, law: Distribution, refused: Tensor | None, accept: Tensor, ends: Tensor,
    numerics: Numerics,
) -> Verdict:  # fmt: skip
    """The verdict of C, once PyTorch's is seen to be the same."""
    made, wanted = (
        acceptance.verdict(chains, drawn, law, refused, accept, ends, replace(numerics, kernels=kernels))
        for kernels in ("native", "torch")
    )
    assert torch.equal(made.accepted, wanted.accepted)
    assert torch.equal(made.licensed, wanted.licensed)
    return made


@pytest.mark.parametrize("drawn", ["certain", "all", "candidates"])
@pytest.mark.parametrize("supported", [True, False])
def test_verdicts_are_the_torch_ones(supported: bool, drawn: str, numerics: Numerics) -> None:
    """Over 60 seeds every count of accepted proposals occurs, and refused and unknown numbers stop some requests."""
    seen = set()
    for seed in range(60):
        chains, own, law, accept, ends = rounds(seed, supported, drawn)
        seen |= {
            (at, count)
            for at, count in enumerate(both(chains, own, law, None, accept, ends, numerics).accepted.tolist())
        }
        refused = torch.rand(len(law.p), generator=torch.Generator().manual_seed(seed)) < 0.1
        law.p[seed % len(law.p), 5] = torch.nan
        own.q[seed % len(own.q), 0] = torch.nan
        both(chains, own, law, refused, accept, ends, numerics)
    assert {count for at, count in seen if at == 4} == {0, 1}
    assert len({count for at, count in seen if at == 0}) > 2


@pytest.mark.parametrize("supported", [True, False])
def test_nothing_left_to_correct_follows_the_profile(supported: bool, numerics: Numerics) -> None:
    """Where q is p, and a coin of 1 - 2⁻²⁴ times more than 1 rejects what it proposed."""
    chains = Chains.of([torch.tensor([4, 9])])
    support = torch.tensor([[9, 4], [4, 9], [9, 4]]) if supported else None
    p = torch.tensor([[0.25, 0.5], [0.75, 0.25], [1.0, 0.0]])
    if not supported:
        p = torch.zeros(3, PUBLIC).scatter_(1, torch.tensor([[9, 4], [4, 9], [9, 4]]), p)
    drawn = SparseLaw(None if support is None else support[:2], 2 * p[:2])
    coins = torch.full((2, 1, 3), 0.75)
    made = both(
        chains,
        drawn,
        Distribution(support, p),
        None,
        coins[0, :, :2],
        coins[1],
        replace(numerics, profile=load_profile("zlab")),
    )
    assert made.accepted.tolist() == [0]
    both(chains, drawn, Distribution(support, p), None, coins[0, :, :2], coins[1], numerics)


def test_rounds_without_proposals_are_a_draw_each(numerics: Numerics) -> None:
    chains, drawn, law, accept, ends = rounds(3, True, "certain", (0, 0, 0))
    made = both(chains, drawn, law, None, accept, ends, numerics)
    assert made.licensed.shape == (3, 1)
    assert made.accepted.tolist() == [0, 0, 0]


def test_what_has_no_place_is_rejected_and_a_law_too_short_is_refused(numerics: Numerics) -> None:
    chains, drawn, law, accept, ends = rounds(1, False, "all")
    wild = chains._replace(proposals=chains.proposals.where(chains.proposals < 0, PUBLIC + 10**12))
    native = replace(numerics, kernels="native")
    assert not acceptance.verdict(wild, drawn, law, None, accept, ends, native).accepted.any()
    with pytest.raises(IndexError, match=r"a law of \[17, 37\] for 18 proposals, expected a row for each"):
        acceptance.verdict(chains, SparseLaw(None, drawn.q[1:]), law, None, accept, ends, native)
