"""What is kept from one call to the next gives way when a call brings something else, and grows with what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from dflash_accelerated.native import available, empty
from dflash_accelerated.ops import rope
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.ops.decoder import Decoder, Ends, Scored
from dflash_accelerated.ops.rows import RowRange

from tests.accelerated.native.toy import (
    COUNTS,
    CPU,
    HIDDEN,
    LANES,
    SENSES,
    STARTS,
    check_same,
    context,
    drawn,
    ends,
    held,
    spans,
    stores,
    turns,
)

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")

IDS = [3, 12, 0, 5, 9, 22, 1, 7, 4]
WIDTHS = (2 * HIDDEN, HIDDEN - 16)
"""Of features: wider than what is projected from them, and narrower, as with one tap of a smaller target."""


def grown(table: rope.Turns) -> None:
    """Tables of more positions, where those that were held are no numbers any more."""
    before = table.held
    assert table.reach(65)
    for part in before:
        part.fill_(torch.nan)


def guarded(held: list[tuple[int, torch.Tensor]]) -> Callable[..., torch.Tensor]:
    """In place of `empty`: a guard of sevens lies behind each tensor, and all are `held` with their elements."""

    def made(shape: int | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = shape if isinstance(shape, int) else math.prod(shape)
        whole = torch.full((size + 4096,), 7, dtype=dtype)
        held.append((size, whole))
        return whole[:size].view(shape)

    return made


def check_guards(held: list[tuple[int, torch.Tensor]]) -> None:
    assert held
    assert all(bool((whole[size:] == 7).all()) for size, whole in held)


def test_the_rooms_of_a_pass_grow_with_its_rows_and_its_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[tuple[int, torch.Tensor]] = []
    monkeypatch.setattr("dflash_accelerated.ops.decoder.native.empty", guarded(rooms))
    numerics = SENSES["zlab"]
    made, table, alone = held(False, True, numerics), turns(numerics), Spans([0], [2], [1], CPU)
    for own in (ends(numerics, 23, 19), ends(numerics)):
        for ids, these in (([3], alone), (IDS, spans())):
            made.best(ids, own, stores(numerics), table, these, "all")
            made.scored(ids, own, stores(numerics), table, these, (1,), "all")
            check_guards(rooms)


@pytest.mark.parametrize("inputs", WIDTHS)
def test_the_room_of_taken_rows_grows_with_them(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one row at a time, in two ranges that lie apart."""
    rooms: list[tuple[int, torch.Tensor]] = []
    monkeypatch.setattr("dflash_accelerated.ops.materialize.native.empty", guarded(rooms))
    numerics = SENSES["zlab"]
    made, table = context(numerics, inputs=inputs), turns(numerics)
    features = numerics.activation(drawn(5, 19, inputs))
    for rows in range(1, 6):
        own = Spans([2], [23], [rows + 1], CPU)
        made.take([RowRange(features, 9, rows), RowRange(features, 1, 1)], stores(numerics), table, own)
        check_guards(rooms)


@pytest.mark.parametrize("inputs", WIDTHS)
def test_taken_rows_are_held_in_the_bytes_that_are_planned_for_them(
    inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From ranges that lie apart, which are put together, and then from one that is read where it lies."""
    made, numerics = context(SENSES["zlab"], inputs=inputs), SENSES["zlab"]
    planned, held = made.working_bytes(6), []

    def noted(shape: int | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        held.append(empty(shape, dtype))
        return held[-1]

    for module in ("native.kept", "ops.materialize.native"):
        monkeypatch.setattr(f"dflash_accelerated.{module}.empty", noted)
    features, own = numerics.activation(drawn(5, 19, inputs)), Spans([2], [23], [6], CPU)
    for parts in ([RowRange(features, 9, 5), RowRange(features, 1, 1)], [RowRange(features, 3, 6)]):
        made.take(parts, stores(numerics), turns(numerics), own)
        assert sum(each.nbytes for each in held) == planned


def test_a_workspace_has_room_for_the_most_rows_on_the_threads_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows on one thread, few on two, and many on two: as many bytes as if it had begun with these."""
    sizes: list[int] = []

    def noted(shape: int, dtype: torch.dtype) -> torch.Tensor:
        sizes.append(shape)
        return empty(shape, dtype)

    monkeypatch.setattr("dflash_accelerated.native.kept.empty", noted)
    numerics = SENSES["zlab"]
    table, vocabulary = turns(numerics), ends(numerics)

    def run(by: Decoder, counts: list[int], threads: int) -> None:
        torch.set_num_threads(threads)
        own = Spans(LANES[: len(counts)], STARTS[: len(counts)], counts, CPU)
        by.best([3] * sum(counts), vocabulary, stores(numerics), table, own, "all")

    before = torch.get_num_threads()
    try:
        run(held(False, True, numerics), [5, 17, 9], 2)
        needed = sizes.pop()
        made = held(False, True, numerics)
        for counts, threads in (([5, 17, 9], 1), ([1], 2), ([5, 17, 9], 2)):
            run(made, counts, threads)
    finally:
        torch.set_num_threads(before)
    assert sizes[-1] == needed


def test_a_pass_reads_the_vocabulary_tables_and_taps_of_this_call() -> None:
    """Others than those of the call before, which are NaN by now where they were given up."""
    numerics = SENSES["zlab"]
    made, table = held(False, True, numerics), turns(numerics)

    def passed(by: Decoder, own: Ends, at: rope.Turns, taps: tuple[int, ...]) -> tuple[Scored, list[int]]:
        scored = by.scored(IDS, own, stores(numerics), at, spans(), taps, "all", True)
        return scored, by.best(IDS, own, stores(numerics), at, spans(), "all")

    def check(own: Ends, at: rope.Turns, taps: tuple[int, ...]) -> None:
        (found, best), (fresh, chosen) = (passed(by, own, at, taps) for by in (made, held(False, True, numerics)))
        assert found.logits is not None
        assert fresh.logits is not None
        assert bool(found.features.isfinite().all())
        assert torch.equal(found.logits, fresh.logits)
        assert torch.equal(found.features, fresh.features)
        assert best == chosen == found.chosen == fresh.chosen

    first, second = ends(numerics), ends(numerics, 83, 13)
    check(first, table, (1, 0))
    check(second, table, (1, 0))
    check(first, table, (0, 2))
    check(first, table, (2,))
    grown(table)
    check(first, table, (2,))
    check(first, turns(numerics, 300.0), (2,))


def test_a_pass_reads_the_lanes_starts_and_counts_of_this_call() -> None:
    """Each time others in one of them alone, in the same number of requests and rows."""
    numerics = SENSES["zlab"]
    made, own, table = held(False, True, numerics), ends(numerics), turns(numerics)
    lanes, starts, counts = (2, 0), (3, 6), (5, 4)
    every = [(lanes, starts, counts), (lanes, (2, 6), counts), ((2, 1), (2, 6), counts), ((2, 1), (2, 6), (4, 5))]
    for each in every:
        these, used, fresh = Spans(*each, CPU), stores(numerics), stores(numerics)
        for part in (part for store in (*used, *fresh) for part in store[:2]):
            part.nan_to_num_(0.5)  # the slots that no row of `STARTS` sees are seen here
        found = made.scored(IDS, own, used, table, these, (1,), "all")
        alone = held(False, True, numerics).scored(IDS, own, fresh, table, these, (1,), "all")
        assert torch.equal(found.features, alone.features)
        check_same(used, fresh)


def test_context_rows_turn_by_the_tables_of_this_call() -> None:
    numerics = SENSES["zlab"]
    made, table, own = context(numerics), turns(numerics), Spans(LANES, STARTS, COUNTS, CPU)
    features = numerics.activation(drawn(5, sum(COUNTS), 2 * HIDDEN))

    def check(at: rope.Turns) -> None:
        used, fresh = stores(numerics), stores(numerics)
        made.take([RowRange.of(features)], used, at, own)
        context(numerics).take([RowRange.of(features)], fresh, at, own)
        check_same(used, fresh)

    check(table)
    grown(table)
    check(table)
    check(turns(numerics, 300.0))
