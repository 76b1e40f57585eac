"""All layers in one call beside the same layers op by op: the same kernels, so the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from dflash_accelerated.layers import Rounded
from dflash_accelerated.native import available
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import rope
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.decoder import Decoder, Wanted
from dflash_accelerated.ops.materialize import Materializer

from tests.accelerated.native.toy import (
    COUNTS,
    CPU,
    DIM,
    HIDDEN,
    LANES,
    SENSES,
    STARTS,
    check_same,
    context,
    drawn,
    held,
    stores,
)

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("taps", "wanted"), [((), "proposing"), ((1,), "last"), ((2, 0, 1), "all"), ((0,), "none")])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_one_call_gives_the_bits_of_the_ops_one_by_one(
    numerics: Numerics, convolved: bool, keep: bool, taps: tuple[int, ...], wanted: Wanted
) -> None:
    made = held(convolved, keep, numerics)
    turns, spans = rope.Turns(10000.0, DIM, numerics, CPU), Spans(LANES, STARTS, COUNTS, CPU)
    turns.reserve(64)
    x = numerics.activation(drawn(3, sum(COUNTS), HIDDEN))
    whole, parted = stores(numerics), stores(numerics)
    together = made(x, whole, turns, spans, taps, wanted)
    apart = Decoder.__call__(made, x, parted, turns, spans, taps, wanted)
    assert len(together.hidden) == {"proposing": 6, "last": 3, "all": 9, "none": 0}[wanted]
    assert bool(torch.isfinite(together.hidden).all())
    assert torch.equal(together.hidden, apart.hidden)
    assert torch.equal(together.features, apart.features)
    assert together.features.shape == (len(x), len(taps) * HIDDEN)
    check_same(whole, parted)


@pytest.mark.parametrize("counts", [(5, 3, 1), (150, 120, 37)], ids=["few", "many"])
@pytest.mark.parametrize("convolved", [True, False])
@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
@pytest.mark.usefixtures("two_threads")
def test_stages_in_the_tasks_of_products_have_the_bits_of_stages_after_them(
    numerics: Numerics, convolved: bool, counts: tuple[int, ...]
) -> None:
    """Heads of three blocks of outputs, and more rows than one task has: a convolution reads the row before."""
    dim, positions = 48, 200
    made = held(convolved, True, numerics, dim)
    turns, spans = rope.Turns(10000.0, dim, numerics, CPU), Spans(LANES, STARTS, counts, CPU)
    turns.reserve(positions)
    x = numerics.activation(drawn(3, sum(counts), HIDDEN))
    whole, parted = stores(numerics, dim, positions), stores(numerics, dim, positions)
    together = made(x, whole, turns, spans, (1,), "all")
    apart = Decoder.__call__(made, x, parted, turns, spans, (1,), "all")
    assert bool(torch.isfinite(together.hidden).all())
    assert torch.equal(together.hidden, apart.hidden)
    assert torch.equal(together.features, apart.features)
    check_same(whole, parted)


@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_a_task_that_ends_amid_a_block_convolves_its_own_channels(numerics: Numerics) -> None:
    """The last of two tasks has 20 channels in 2 blocks of 16: what lies behind them are the next row's first ones."""
    hidden = 276
    made = held(True, True, numerics, hidden=hidden)
    turns, spans = rope.Turns(10000.0, DIM, numerics, CPU), Spans(LANES, STARTS, COUNTS, CPU)
    turns.reserve(64)
    x = numerics.activation(drawn(3, sum(COUNTS), hidden))
    together = made(x, stores(numerics), turns, spans, (0, 1), "all")
    apart = Decoder.__call__(made, x, stores(numerics), turns, spans, (0, 1), "all")
    assert torch.equal(together.features, apart.features)
    assert torch.equal(together.hidden, apart.hidden)


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_a_context_in_one_call_has_the_bits_of_the_ops_one_by_one(numerics: Numerics, staged: bool) -> None:
    made = context(numerics, staged)
    turns, spans = rope.Turns(10000.0, DIM, numerics, CPU), Spans(LANES, STARTS, [5, 13, 1], CPU)
    turns.reserve(64)
    features = numerics.activation(drawn(5, 19, 2 * HIDDEN))
    whole, parted = stores(numerics), stores(numerics)
    together, apart = made(features, whole, turns, spans), Materializer.__call__(made, features, parted, turns, spans)
    assert torch.equal(together, apart)
    check_same(whole, parted)


def test_stores_that_moved_are_read_where_they_are() -> None:
    numerics = SENSES["zlab-bf16"]
    made, turns = held(False, True, numerics), rope.Turns(10000.0, DIM, numerics, CPU)
    turns.reserve(64)
    spans, x = Spans(LANES, STARTS, COUNTS, CPU), numerics.activation(drawn(3, sum(COUNTS), HIDDEN))
    first = made(x, stores(numerics), turns, spans, (), "all")
    assert torch.equal(made(x, stores(numerics), turns, spans, (), "all").hidden, first.hidden)


@pytest.mark.parametrize("numerics", SENSES.values(), ids=SENSES)
def test_a_row_has_the_same_bits_alone_and_beside_others(numerics: Numerics) -> None:
    """Rows of a verify pass, and the same rows as plain steps: greedy tokens are those of plain decoding."""
    made, turns = held(False, True, numerics), rope.Turns(10000.0, DIM, numerics, CPU)
    turns.reserve(64)
    x = numerics.activation(drawn(3, sum(COUNTS), HIDDEN))
    together = made(x, stores(numerics), turns, Spans(LANES, STARTS, COUNTS, CPU), (0, 1), "none").features[:5]
    kept = stores(numerics)
    steps = [made(x[row : row + 1], kept, turns, Spans([2], [23 + row], [1], CPU), (0, 1), "none") for row in range(5)]
    assert torch.equal(together, torch.cat([step.features for step in steps]))


def test_weights_are_where_kernels_read_them_however_they_came() -> None:
    """Kernels in C know addresses, not strides."""
    given = {"turned": drawn(1, 6, 5).t(), "every other": drawn(2, 18)[::2], "one for all": drawn(3, 1).expand(7)}
    weights = Rounded(given, SENSES["zlab"], CPU)
    for name, tensor in given.items():
        assert weights[name].is_contiguous()
        assert torch.equal(weights[name], tensor)
