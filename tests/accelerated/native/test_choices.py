"""The best candidates and the path through them in C against the torch functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.head import native as head
from dflash_accelerated.ops.head import torch as plain_head
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.selector import native as selector
from dflash_accelerated.ops.selector import torch as plain_selector
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
SENSES = {
    "ninfer": Numerics.of(load_profile("ninfer")),
    "zlab-f32": Numerics.of(load_profile("zlab")),
    "zlab-bf16": Numerics.of(load_profile("zlab"), torch.bfloat16),
}


@pytest.fixture(params=SENSES)
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return SENSES[request.param]


@pytest.fixture
def drawn() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(8)
    return lambda *shape: torch.randn(shape, generator=generator)


@pytest.fixture
def quarters() -> Callable[..., Tensor]:
    """Few values, so that scores tie; small ones, so that sums of their products are exact in any order."""
    generator = torch.Generator().manual_seed(8)
    return lambda *shape: torch.randint(-3, 4, shape, generator=generator) / 4


class Given(Product):
    """A head whose products are given: rows that lie further apart than their ids reach, with poison in between."""

    def __init__(self, scores: Tensor) -> None:
        self._scores = scores

    def __call__(self, x: Tensor) -> Tensor:
        beyond = torch.full((len(self._scores), 5), torch.nan, dtype=self._scores.dtype)
        return torch.cat((self._scores, beyond), 1)


def assert_same_candidates(
    scores: Tensor, ids: Tensor, count: int, numerics: Numerics, multiplier: float = 1.0, softcap: float = 0.0
) -> None:
    arguments = (torch.empty(0), Given(scores), ids, multiplier, softcap, count)
    wanted = plain_head.top(*arguments, replace(numerics, kernels="torch"))
    made = head.top(*arguments, replace(numerics, kernels="native"))
    assert torch.equal(made.ids, wanted.ids)
    bits = [each.unary.view(torch.int32) for each in (made, wanted)]
    assert torch.equal(*bits), "not the same numbers, zeros' signs included"


@pytest.mark.parametrize(("rows", "n", "count"), [(1, 1, 1), (3, 67, 64), (2, 64, 16), (5, 1031, 16), (2, 40_009, 33)])
def test_candidates_are_the_torch_ones(
    rows: int, n: int, count: int, numerics: Numerics, drawn: Callable[..., Tensor]
) -> None:
    ids = torch.randperm(3 * n)[:n]
    assert_same_candidates(drawn(rows, n).to(numerics.compute), ids, count, numerics)


@pytest.mark.parametrize("multiplier", [1.0, 0.3, -1.0, 0.0])
def test_equal_scores_are_ordered_by_id_once_they_are_multiplied(
    multiplier: float, numerics: Numerics, quarters: Callable[..., Tensor]
) -> None:
    scores = quarters(4, 331)
    scores[1] = -0.0
    scores[1, ::3] = 0.0  # equal to the others
    scores[2] = torch.linspace(1, 1 + 2**-20, 331).to(torch.float32)  # neighbours, which a product makes equal
    scores[3, 100:] = -torch.inf
    for ids in (torch.arange(331), torch.arange(331).flip(0), 2 * torch.randperm(331) + 5):
        assert_same_candidates(scores.to(numerics.compute), ids, 17, numerics, multiplier)


def test_a_score_that_is_no_number_ranks_as_its_bits_do(numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    scores = drawn(3, 131)
    scores[0, [7, 70, 130]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    scores[1, [3, 64]] = torch.nan
    scores[2] = -torch.nan
    scores[2, 5:9] = -torch.inf
    assert_same_candidates(scores.to(numerics.compute), torch.arange(131), 20, numerics)


@pytest.mark.parametrize("sign", [1, -1])
def test_hardly_any_score_of_a_long_row_is_a_number(sign: int, numerics: Numerics) -> None:
    """Candidates are -inf and NaN themselves, above all numbers and below all, where no others are left."""
    scores = torch.full((3, 1531), sign * torch.nan)
    scores[0, [3, 64, 700, 1530]] = torch.tensor([1.0, -torch.inf, torch.inf, 2.0])
    scores[1, ::2] = -torch.inf
    scores[2, 1500:] = 0.5
    for count in (3, 20, 64):
        assert_same_candidates(scores.to(numerics.compute), torch.arange(1531).flip(0), count, numerics)


def test_a_limited_score_is_the_torch_one(numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    scores = (9 * drawn(2, 131)).to(numerics.compute)  # many beyond the limit, where they tie
    assert_same_candidates(scores, torch.arange(131).flip(0), 64, numerics, 1.75, 3.0)


@pytest.mark.parametrize("count", [65, 131])
def test_more_candidates_than_the_kernel_has_room_for(
    count: int, numerics: Numerics, drawn: Callable[..., Tensor]
) -> None:
    assert_same_candidates(drawn(2, 131).to(numerics.compute), torch.arange(131), count, numerics)


def test_a_real_head_and_no_rows(numerics: Numerics, quarters: Callable[..., Tensor]) -> None:
    product = Product([quarters(67, 24).to(numerics.compute)], numerics)
    for rows in (0, 3):
        arguments = (quarters(rows, 24).to(numerics.act), product, torch.arange(67), 1.0, 0.0, 4)
        wanted = plain_head.top(*arguments, replace(numerics, kernels="torch"))
        made = plain_head.top(*arguments, replace(numerics, kernels="native"))
        assert torch.equal(made.ids, wanted.ids)
        assert torch.equal(made.unary, wanted.unary)


REQUESTS, STEPS, VOCABULARY = 5, 3, 67


def walked(
    count: int, rank: int, numerics: Numerics, quarters: Callable[..., Tensor]
) -> tuple[plain_head.Candidates, Tensor, plain_selector.Selector, Tensor, Tensor, Tensor]:
    """Cold and hot requests side by side, ties, a NaN and an infinity, and coins past the sum."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:count] for _ in range(REQUESTS * STEPS)])
    candidates = plain_head.Candidates(ids.view(REQUESTS, STEPS, count), quarters(REQUESTS, STEPS, count))
    candidates.unary[3, 2, 0], candidates.unary[4, 1, count // 2] = torch.nan, torch.nan
    candidates.unary[2, 2, count - 1] = torch.inf
    candidates.unary[0, 1, [0, -1]] = torch.inf  # the first of two
    books = [quarters(VOCABULARY, rank + 3).to(numerics.compute)[:, :rank] for _ in range(2)]
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1e-30, -1.0])
    uniforms = torch.rand(REQUESTS, STEPS, generator=generator)
    uniforms[0], uniforms[4], uniforms[2, 1] = torch.nan, torch.nan, 2.0
    g = quarters(REQUESTS, STEPS, rank).to(numerics.act)
    selection = plain_selector.Selector(Product([books[0]], numerics), *books)
    return candidates, g, selection, torch.arange(REQUESTS) + 3, temperatures, uniforms


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (7, 11), (16, 256), (35, 40)])
def test_paths_are_the_torch_ones(count: int, rank: int, numerics: Numerics, quarters: Callable[..., Tensor]) -> None:
    """Scores are exact. Each q is a quotient of exponentials, each within 2 ulp, by their sum of at most 35: of
    positive terms, each of whose roundings is at most 2⁻²⁴ of it. 40 roundings and some are less than 2⁻¹⁸."""
    arguments = walked(count, rank, numerics, quarters)
    wanted = plain_selector.walk(*arguments, replace(numerics, kernels="torch"))
    made = plain_selector.walk(*arguments, replace(numerics, kernels="native"))
    assert torch.equal(made.tokens, wanted.tokens)
    torch.testing.assert_close(made.scores, wanted.scores, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(made.q, wanted.q, rtol=2**-18, atol=0, equal_nan=True)


def test_a_path_is_drawn_from_the_very_law_that_is_returned(numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    """Coins at every boundary of the returned law, and just below: the rank is the next one, and this one."""
    count, rank = 16, 40
    candidates = plain_head.Candidates(torch.arange(count).view(1, 1, count), drawn(1, 1, count))
    book = drawn(count, rank).to(numerics.compute)
    fixed = (candidates, drawn(1, 1, rank).to(numerics.act), plain_selector.Selector(Given(book), book, book))
    anchor, temperature = torch.tensor([2]), torch.tensor([0.8])
    law = selector.walk(*fixed, anchor, temperature, torch.zeros(1, 1), numerics).q[0, 0]
    for goal in torch.cumsum(law.double(), 0)[:-1].float():
        for coin in (goal, torch.nextafter(goal, torch.tensor(0.0))):
            made = selector.walk(*fixed, anchor, temperature, coin.view(1, 1), numerics)
            assert torch.equal(made.q[0, 0], law)
            assert int(made.tokens) == int((torch.cumsum(law.double(), 0) <= coin.double()).sum())


@pytest.mark.parametrize("wrong", [-1, VOCABULARY])
def test_an_id_without_a_row_is_refused(wrong: int, quarters: Callable[..., Tensor]) -> None:
    numerics = SENSES["ninfer"]
    arguments = walked(7, 11, numerics, quarters)
    arguments[0].ids[4, 2, 6] = wrong
    with pytest.raises(IndexError, match="expected ids below 67"):
        selector.walk(*arguments, numerics)
    arguments = walked(7, 11, numerics, quarters)
    arguments[3][1] = wrong
    with pytest.raises(IndexError, match="expected ids below 67"):
        selector.walk(*arguments, numerics)
