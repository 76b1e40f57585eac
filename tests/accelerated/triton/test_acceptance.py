"""Acceptance: requests of different extents, one without proposals, all four forms of the two laws, NaN rows."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.ops.acceptance import Chains, SparseLaw
from dflash_accelerated.ops.acceptance import torch as plainly
from dflash_accelerated.ops.acceptance import triton as kernel
from dflash_accelerated.ops.filters import Distribution
from dflash_accelerated.ops.sampling import triton as sampling

VOCABULARY, EXTENTS = 67, (4, 0, 3, 1, 4)


@pytest.fixture(autouse=True)
def tile(monkeypatch):
    """A row over every id has three tiles, over which what is left must be added up; one of candidates has one."""
    monkeypatch.setattr(sampling, "TILE", 32)


def sixteenths(shape, generator):
    """Weights whose sums and differences are exact, some of them 0."""
    return torch.randint(0, 9, shape, generator=generator) / 16


def candidates(rows, count, generator):
    return torch.rand(rows, VOCABULARY, generator=generator).argsort(dim=1)[:, :count]


def rounds(sparse, supported, extents, seed):
    """Chains, the law of the proposals, the target's, and which of its tokens are proposed."""
    generator = torch.Generator().manual_seed(seed)
    tested, rows = sum(extents), sum(extents) + len(extents)
    support = candidates(rows, 20, generator) if supported else None
    p = sixteenths((rows, 20 if supported else VOCABULARY), generator)
    ids = candidates(tested, 16, generator) if sparse else None
    q = sixteenths((tested, 16 if sparse else VOCABULARY), generator)
    if tested and ids is not None and support is not None:
        ids[:, :12] = torch.cat([support[i + b : i + b + 1, :12] for b, i in owners(extents)])  # most of them shared
    flat = torch.randint(0, VOCABULARY, (tested,), generator=generator) if ids is None else ids[:, 2]
    return Chains.of(list(flat.split(list(extents)))), SparseLaw(ids, q), Distribution(support, p), generator


def owners(extents):
    return [(b, sum(extents[:b]) + i) for b, extent in enumerate(extents) for i in range(extent)]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("supported", [False, True])
def test_counts_and_last_tokens_are_the_same(numerics, sparse, supported):
    for seed in (1, 2):
        chains, drawn_from, law, generator = rounds(sparse, supported, EXTENTS, seed)
        coins = sixteenths((len(EXTENTS), 4), generator) * 1.5
        if seed == 2:
            law.p[3, 5], drawn_from.q[0, 15] = torch.nan, torch.nan  # of a candidate that few supports hold
        same = (chains, drawn_from, law, coins, numerics)
        expected = plainly.accepted_count(*same)
        assert torch.equal(kernel.accepted_count(*same), expected)
        for accepted in (expected, torch.zeros_like(expected), chains.counts):
            last = (chains, accepted, drawn_from, law, coins[:, 0].contiguous(), numerics)
            found = kernel.terminal(*last)
            assert torch.equal(found, plainly.terminal(*last))
            assert seed < 2 or accepted[0] > 0 or found[0] == -1


@pytest.mark.parametrize("supported", [False, True])
def test_without_proposals_the_token_is_a_bonus(numerics, supported):
    chains, drawn_from, law, generator = rounds(True, supported, (0, 0, 0), 1)
    coins = torch.rand(3, generator=generator)
    accepted = kernel.accepted_count(chains, drawn_from, law, torch.empty(3, 0), numerics)
    assert accepted.tolist() == [0, 0, 0]
    last = (chains, accepted, drawn_from, law, coins, numerics)
    assert torch.equal(kernel.terminal(*last), plainly.terminal(*last))


@pytest.mark.parametrize("supported", [False, True])
def test_a_residual_of_nothing_ends_as_the_profile_says(numerics, supported):
    chains, drawn_from, law, _ = rounds(False, supported, (2, 1), 3)
    drawn_from.q[:] = 1.0
    last = (chains, torch.zeros(2, dtype=torch.int64), drawn_from, law, torch.tensor([0.9, 0.2]), numerics)
    assert torch.equal(kernel.terminal(*last), plainly.terminal(*last))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_goal_beside_a_sum_of_what_is_left_is_judged_by_the_sum_in_order(numerics, sparse):
    """1/2, 2⁻⁵⁰, nothing, and 1/2 are left: half of it lies 2⁻⁵¹ below the second sum, too near for another order."""
    p, q = torch.zeros(2, VOCABULARY), torch.zeros(1, VOCABULARY)
    p[0, [0, 1, -1]], q[0, [0, -1]] = torch.tensor([1.0, 2.0**-50, 0.625]), torch.tensor([0.5, 0.125])
    ids = torch.tensor([[0, VOCABULARY - 1, -1]]) if sparse else None
    drawn_from = SparseLaw(ids, torch.tensor([[0.5, 0.125, 0.0]]) if sparse else q)
    chains, none = Chains.of([torch.tensor([0])]), torch.zeros(1, dtype=torch.int64)
    for coin, token in ((0.25, 0), (0.5, 1), (0.75, VOCABULARY - 1)):
        last = (chains, none, drawn_from, Distribution(None, p), torch.tensor([coin]), numerics)
        assert plainly.terminal(*last).tolist() == kernel.terminal(*last).tolist() == [token]
