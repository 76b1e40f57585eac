"""The feature ring, against a dictionary of what every slot was last given."""

import numpy as np
import pytest
from dflash_reference import feature_ring, num
from dflash_reference.names import Position
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from hypothesis import given
from hypothesis import strategies as st

LUCE = load_profile("luce")
WIDTH = 3
CAPACITY = st.integers(1, 8)


def append(ring: Array, rows: Array, start: int, capacity: int) -> feature_ring.Appended:
    return feature_ring.append(ring, rows, Position(start), capacity, LUCE)


def live(frontier: int, written: int, capacity: int) -> feature_ring.Live:
    return feature_ring.live(Position(frontier), Position(written), capacity, LUCE)


def window(ring: Array, capacity: int, frontier: int, written: int, size: int) -> feature_ring.Window:
    return feature_ring.window(ring, capacity, Position(frontier), Position(written), size, LUCE)


def sync(
    ring: Array, capacity: int, written: int, mirror: Array, mirror_capacity: int, start: int, count: int
) -> feature_ring.Synchronised:
    places = Position(written), mirror, mirror_capacity, Position(start), count
    return feature_ring.sync(ring, capacity, *places, LUCE)


def feature(position: int, channel: int) -> float:
    """A BF16 number for each position and channel."""
    return float((position % 64 + 64) * 2.0**channel)


def rows_at(first: int, count: int) -> Array:
    return np.array([[feature(p, i) for i in range(WIDTH)] for p in range(first, first + count)]).reshape(-1, WIDTH)


def filled(written: int, capacity: int) -> Array:
    """A flat ring into which every position below `written` went, one element at a time; the rest is NaN."""
    ring = np.full(capacity * WIDTH, np.nan)
    for position in range(written):
        for channel in range(WIDTH):
            ring[position % capacity * WIDTH + channel] = feature(position, channel)
    return ring


@given(st.integers(0, 30), st.integers(0, 25), CAPACITY)
def test_a_capture_of_any_length_is_its_rows_in_turn(start: int, count: int, capacity: int) -> None:
    ring = filled(start, capacity)
    before = ring.copy()
    done = append(ring, rows_at(start, count), start, capacity)
    np.testing.assert_array_equal(done.ring_next, filled(start + count, capacity))
    np.testing.assert_array_equal(ring, before)


@given(st.integers(0, 30), st.integers(0, 25), CAPACITY)
def test_the_runs_of_a_capture_cover_it_and_cross_no_wrap(start: int, count: int, capacity: int) -> None:
    runs = list(feature_ring.runs(Position(start), count, capacity))
    assert [index for first, length in runs for index in range(first, first + length)] == list(range(count))
    for first, length in runs:
        assert length >= 1
        assert (start + first) % capacity + length <= capacity
    assert len(runs) <= -(-count // capacity) + 1


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=WIDTH * 2))
def test_a_feature_is_stored_as_bf16_and_read_back_unchanged(values: list[float]) -> None:
    rows = np.array(values).reshape(1, -1)
    ring = append(np.zeros(rows.size), rows, 0, 1).ring_next
    np.testing.assert_array_equal(ring, num.round_to(np.array(values), "BF16"))
    read = window(ring, 1, 1, 1, 1).features
    np.testing.assert_array_equal(read[0], ring)
    np.testing.assert_array_equal(np.signbit(read[0]), np.signbit(ring))


def test_a_feature_between_two_bf16_numbers_goes_to_the_even_one() -> None:
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, -1 - 3 * 2.0**-8]
    stored = append(np.zeros(4), np.array([ties]), 0, 1).ring_next
    assert stored.tolist() == [1.0, 1 + 2.0**-6, -1.0, -1 - 2.0**-6]


@given(st.integers(0, 40), st.integers(0, 12), CAPACITY)
def test_rejected_rows_leave_live_what_they_did_not_overwrite(frontier: int, rejected: int, capacity: int) -> None:
    first, length, _ = live(frontier, frontier + rejected, capacity)
    held = {position % capacity: position for position in range(frontier + rejected)}
    assert list(range(first, first + length)) == sorted(position for position in held.values() if position < frontier)


@given(st.integers(0, 40), st.integers(0, 12), st.integers(1, 9), CAPACITY)
def test_a_window_is_read_whole_or_refused(frontier: int, rejected: int, size: int, capacity: int) -> None:
    written = frontier + rejected
    wanted = range(frontier - min(frontier, size), frontier)
    held = {position % capacity: position for position in range(written)}
    ring = filled(written, capacity)
    if set(wanted) <= set(held.values()):
        features, first, _ = window(ring, capacity, frontier, written, size)
        np.testing.assert_array_equal(features, rows_at(wanted.start, len(wanted)))
        assert first == wanted.start
    else:
        with pytest.raises(TensorError, match="is overwritten"):
            window(ring, capacity, frontier, written, size)


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 6))
def test_distances_from_block_to_context_are_those_of_absolute_positions(frontier: int, size: int, width: int) -> None:
    context, block, queries = feature_ring.positions(Position(frontier), size, width, LUCE)
    absolute = np.arange(max(0, frontier - size), frontier)
    assert (queries[:, None] - context).tolist() == (frontier + np.arange(width)[:, None] - absolute).tolist()
    assert block.tolist() == queries.tolist()
    assert np.append(context, block).tolist() == list(range(len(absolute) + width))


@given(st.integers(1, 30), CAPACITY, CAPACITY, st.data())
def test_a_mirror_gets_the_positions_asked_for_and_nothing_else(
    written: int, capacity: int, mirror_capacity: int, data: st.DataObject
) -> None:
    oldest = max(0, written - capacity)
    start = data.draw(st.integers(oldest, written))
    count = data.draw(st.integers(0, min(written - start, mirror_capacity)))
    mirror = -1.0 - np.arange(mirror_capacity * WIDTH)
    expected = mirror.copy()
    for position in range(start, start + count):
        slot = position % mirror_capacity * WIDTH
        expected[slot : slot + WIDTH] = rows_at(position, 1)[0]
    ring = filled(written, capacity)
    done = sync(ring, capacity, written, mirror, mirror_capacity, start, count)
    np.testing.assert_array_equal(done.mirror_next, expected)
    assert mirror[0] == -1.0


@pytest.mark.parametrize(
    ("start", "count", "mirror_capacity"), [(4, 3, 7), (11, 2, 7), (6, 5, 4), (12, 1, 7), (6, -1, 7)]
)
def test_a_mirror_is_refused_what_the_ring_does_not_hold(start: int, count: int, mirror_capacity: int) -> None:
    with pytest.raises(TensorError, match=f"{count} positions from {start} on, expected at most {mirror_capacity}"):
        sync(filled(12, 7), 7, 12, np.zeros(mirror_capacity * WIDTH), mirror_capacity, start, count)


def test_the_ring_of_the_harness_loses_its_oldest_rows_to_a_verify_pass() -> None:
    """A window as large as the ring survives a commit, and not a verify pass of which anything is rejected."""
    ring = filled(11, 7)
    assert window(ring, 7, 11, 11, 7).first == 4
    verified = append(ring, rows_at(11, 4), 11, 7).ring_next
    with pytest.raises(TensorError, match="row 5 is overwritten, expected 8 or later"):
        window(verified, 7, 12, 15, 7)
    assert window(verified, 7, 12, 15, 4).first == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: append(np.zeros(7), rows_at(0, 1), 0, 2), "7 elements and start 0, expected 2"),
        (lambda: append(np.zeros(6), rows_at(0, 1), -1, 2), "start -1"),
        (lambda: append(np.zeros(0), rows_at(0, 0), 0, 0), "expected 0 rows"),
        (lambda: live(5, 4, 7), "frontier 5 with rows up to 4"),
        (lambda: live(0, 0, 0), "in 0 slots"),
        (lambda: window(np.zeros(7), 2, 1, 1, 1), "7 elements, expected a multiple of its 2"),
        (lambda: sync(np.zeros(6), 2, 1, np.zeros(7), 2, 0, 1), "6 and 7 elements in 2 and 2 slots"),
    ],
)  # fmt: skip
def test_rings_of_broken_rows_are_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TensorError, match=message):
        call()
