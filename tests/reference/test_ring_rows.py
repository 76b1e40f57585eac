"""Rings as such, against a dictionary that remembers every row by its position."""

import numpy as np
import pytest
from dflash_reference import ring_rows
from dflash_reference.names import Position
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

NINFER, LUCE = load_profile("ninfer"), load_profile("luce")
WIDTH = 3
CAPACITY = st.integers(1, 9)
FRONTIER = st.integers(0, 60)


def live(frontier: int, capacity: int) -> ring_rows.Live:
    return ring_rows.live(Position(frontier), capacity, NINFER)


def append(ring: Array, rows: Array, start: int, frontier: int) -> ring_rows.Appended:
    return ring_rows.append(ring, rows, Position(start), Position(frontier), NINFER)


def gather(ring: Array, frontier: int) -> ring_rows.Gathered:
    return ring_rows.gather(ring, Position(frontier), NINFER)


def rounds(ring: Array, rows: Array, counts: Array, frontier: int) -> ring_rows.Rounds:
    return ring_rows.rounds(ring, rows, counts, Position(frontier), NINFER)


def rows_at(first: int, count: int) -> Array:
    """Row t says its position and its channel."""
    return 100.0 * np.arange(first, first + count)[:, None] + np.arange(WIDTH)


def filled(frontier: int, capacity: int) -> Array:
    """A ring into which every position before the frontier was written in turn, and NaN before that."""
    ring = np.full((capacity, WIDTH), np.nan)
    for position in range(frontier):
        ring[position % capacity] = rows_at(position, 1)[0]
    return ring


@given(st.lists(st.integers(0, 2**31 - 1), max_size=8), st.integers(1, 5000))
def test_positions_share_a_slot_only_whole_laps_apart(positions: list[int], capacity: int) -> None:
    slots = ring_rows.slots(np.array(positions, dtype=np.int64), capacity, NINFER).slots.tolist()
    assert all(0 <= slot < capacity for slot in slots)
    for position, slot in zip(positions, slots, strict=True):
        assert (position - slot) % capacity == 0


@given(FRONTIER, CAPACITY)
def test_a_position_is_live_while_nothing_has_been_written_over_it(frontier: int, capacity: int) -> None:
    first, length, _ = live(frontier, capacity)
    last_in_slot = {position % capacity: position for position in range(frontier)}
    assert list(range(first, first + length)) == sorted(last_in_slot.values())


@given(FRONTIER, st.integers(0, 30), CAPACITY)
def test_a_chunk_leaves_what_its_rows_leave_one_by_one(frontier: int, count: int, capacity: int) -> None:
    ring, rows = filled(frontier, capacity), rows_at(frontier, count)
    before = ring.copy()
    done = append(ring, rows, frontier, frontier)
    one_by_one = ring.copy()
    for index, row in enumerate(rows):
        one_by_one = append(one_by_one, row[None], frontier + index, frontier + index).ring_next
    np.testing.assert_array_equal(done.ring_next, one_by_one)
    np.testing.assert_array_equal(done.ring_next, filled(frontier + count, capacity))
    np.testing.assert_array_equal(ring, before)
    assert done.frontier_next == frontier + count


@given(FRONTIER, CAPACITY)
def test_a_ring_is_read_in_the_order_of_positions(frontier: int, capacity: int) -> None:
    rows, positions = gather(filled(frontier, capacity), frontier)
    assert positions.tolist() == list(range(max(0, frontier - capacity), frontier))
    np.testing.assert_array_equal(rows, rows_at(frontier - len(rows), len(rows)))


def test_slots_that_are_not_live_are_not_read() -> None:
    ring = filled(3, 5)
    assert np.isnan(ring[3:]).all()
    assert np.isfinite(gather(ring, 3).rows).all()
    assert gather(np.full((5, WIDTH), np.nan), 0).rows.shape == (0, WIDTH)


@given(st.integers(0, 20), st.lists(st.integers(0, 7), max_size=6), CAPACITY)
def test_every_round_reads_the_window_of_its_own_frontier(frontier: int, counts: list[int], capacity: int) -> None:
    rows = rows_at(frontier, sum(counts))
    counted, windows = rounds(filled(frontier, capacity), rows, np.array(counts, dtype=int), frontier)
    ends = frontier + np.cumsum(counts)
    expected = [rows_at(max(0, end - capacity), min(end, capacity)) for end in ends]
    assert counted.tolist() == [len(window) for window in expected]
    np.testing.assert_array_equal(windows, np.concatenate([*expected, np.zeros((0, WIDTH))]))


@given(st.integers(1, 40), st.integers(1, 20), st.data())
def test_a_ring_that_verify_writes_keeps_the_window_through_any_rejection(
    window: int, width: int, data: st.DataObject
) -> None:
    frontier = data.draw(st.integers(0, 100))
    capacity = ring_rows.capacity(window, width, LUCE).capacity
    held = {position % capacity: position for position in range(frontier + width)}
    assert set(range(max(0, frontier - window), frontier)) <= set(held.values())
    if frontier >= window:
        smaller = {position % (capacity - width): position for position in range(frontier + width)}
        assert not set(range(frontier - window, frontier)) <= set(smaller.values())


def test_a_ring_of_committed_rows_does_not_know_the_block() -> None:
    assert {ring_rows.capacity(2048, width, NINFER).capacity for width in (1, 8, 16)} == {2048}


@pytest.mark.parametrize("start", [0, 7, 9, 13])
def test_a_chunk_that_does_not_follow_on_the_frontier_is_refused(start: int) -> None:
    with pytest.raises(TensorError, match=f"from position {start} on, expected 8, the context frontier"):
        append(filled(8, 5), rows_at(start, 2), start, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ring_rows.slots(np.array([2, -1]), 7, NINFER), "position -1, expected 0 or more"),
        (lambda: ring_rows.slots(np.array([2]), 0, NINFER), "a ring of 0 slots, expected at least 1"),
        (lambda: live(-1, 7), "frontier -1 of a ring of 7 slots"),
        (lambda: live(3, 0), "frontier 3 of a ring of 0 slots"),
        (lambda: gather(np.zeros((0, 2)), 0), "of a ring of 0 slots"),
        (lambda: ring_rows.capacity(0, 4, NINFER), "window 0 and width 4, expected at least 1 of each"),
        (lambda: ring_rows.capacity(5, 0, LUCE), "window 5 and width 0, expected at least 1 of each"),
        (
            lambda: rounds(filled(0, 3), rows_at(0, 4), np.array([2, 1]), 0),
            r"counts \[2, 1\], expected numbers that add up to 4 rows",
        ),
        (
            lambda: rounds(filled(0, 3), rows_at(0, 4), np.array([5, -1]), 0),
            r"counts \[5, -1\], expected numbers that add up to 4 rows",
        ),
    ],
)  # fmt: skip
def test_what_is_no_ring_or_no_row_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TensorError, match=message):
        call()
