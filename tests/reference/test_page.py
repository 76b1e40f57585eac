"""Pages: every position has one slot of its own, and what may not be written is written nowhere."""

import numpy as np
import pytest
from dflash_reference import page
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

NINFER, NEURON = load_profile("ninfer"), load_profile("vllm-neuron")
TABLES = st.permutations(range(1, 13)).map(lambda pages: np.array(pages).reshape(3, 4))


@given(st.permutations(range(6)), st.data())
def test_two_tokens_of_a_request_never_share_a_slot(table: list[int], data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, 6 * 64 - 1), unique=True, max_size=12)), dtype=int)
    slots = page.slots(np.array(table), positions, positions[::-1], NINFER).slots
    assert len(set(slots.tolist())) == len(positions)
    for position, slot in zip(positions.tolist(), slots.tolist(), strict=True):
        assert divmod(slot, 64) == (table[position // 64], position % 64)


def test_neighbours_lie_in_neighbouring_slots_but_over_the_end_of_a_page() -> None:
    slots = page.slots(np.array([5, 2]), np.arange(128), np.zeros(128, int), NINFER).slots
    assert np.flatnonzero(np.diff(slots) != 1).tolist() == [63]


@pytest.mark.parametrize(
    ("table", "positions"), [([5, 2], [128]), ([5, 2], [-1]), ([5, -1], [63, 64]), ([], [0])]
)  # fmt: skip
def test_a_token_without_a_page_is_refused(table: list[int], positions: list[int]) -> None:
    given_ = np.array(table, dtype=int), np.array(positions), np.array(positions)
    with pytest.raises(TensorError, match=r"page\.slots: row .* needs page"):
        page.slots(*given_, NINFER)


@given(st.lists(st.sampled_from([0, 7, 2048]), min_size=1, max_size=6), st.integers(0, 2**20))
def test_the_full_pool_has_the_full_layers_and_no_others(windows: list[int], pages: int) -> None:
    exists, layers, size = page.pools(np.array(windows), pages, 8, 128, NINFER)
    assert layers.tolist() == [index for index, window in enumerate(windows) if window == 0]
    assert exists == int(0 in windows)
    assert size == windows.count(0) * pages * 64 * 4 * 8 * 128


def test_a_pool_may_be_larger_than_32_bits_count() -> None:
    assert page.pools(np.array([0, 7]), 2**20, 8, 128, NINFER).bytes == 2**38


@given(TABLES, st.integers(1, 6), st.data())
def test_inside_the_table_requests_share_no_slot(table: object, block_size: int, data: st.DataObject) -> None:
    assert isinstance(table, np.ndarray)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4 * block_size - 1)), unique=True))
    requests, positions = (np.array([pair[part] for pair in pairs], dtype=int) for part in (0, 1))
    slots = page.slots_clamped(table, requests, positions, block_size, NEURON).slots
    assert len(set(slots.tolist())) == len(pairs)


@given(TABLES, st.integers(1, 6), st.integers(0, 2), st.integers(0, 100))
def test_past_the_table_a_position_stays_on_its_requests_last_page(
    table: object, block_size: int, request_: int, beyond: int
) -> None:
    assert isinstance(table, np.ndarray)
    position = np.array([4 * block_size + beyond])
    (slot,) = page.slots_clamped(table, np.array([request_]), position, block_size, NEURON).slots.tolist()
    assert divmod(slot, block_size) == (table[request_, -1], position[0] % block_size)


@given(TABLES, st.integers(1, 5), st.integers(1, 30), st.lists(st.integers(0, 30), min_size=3, max_size=3), st.data())
def test_a_row_is_written_exactly_where_nothing_forbids_it(
    table: object, block_size: int, max_length: int, limits: list[int], data: st.DataObject
) -> None:
    assert isinstance(table, np.ndarray)
    table = np.where(table % 5 == 0, page.NULL_PAGE, table)
    rows = data.draw(st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 30)), max_size=10))
    expected = []
    for request_, position in rows:
        column = position // block_size
        allowed = request_ >= 0 and position < limits[request_] and position < max_length and column < 4
        found = int(table[request_, column]) if allowed else 0
        expected.append(found * block_size + position % block_size if found else -1)
    requests, positions = (np.array([row[part] for row in rows], dtype=int) for part in (0, 1))
    written = page.writes(table, requests, positions, np.array(limits), block_size, max_length, NEURON)
    assert written.slots.tolist() == expected


def test_what_stands_in_a_row_of_padding_does_not_matter() -> None:
    table, limits = np.array([[3, 4]]), np.array([8])
    for garbage in (-1, 0, 2**30):
        slots = page.writes(table, np.array([0, -1]), np.array([5, garbage]), limits, 4, 8, NEURON).slots
        assert slots.tolist() == [17, -1]


@given(st.lists(st.integers(-1, 7), max_size=6, unique_by=lambda slot: slot if slot >= 0 else object()), st.data())
def test_a_scatter_writes_the_named_slots_and_no_others(slots: list[int], data: st.DataObject) -> None:
    width, pitch = 2, data.draw(st.integers(2, 5))
    column = data.draw(st.integers(0, pitch - width))
    packed = np.arange(float(len(slots) * pitch)).reshape(-1, pitch)
    pool = -1.0 - np.arange(16.0).reshape(8, 2)
    expected = pool.copy()
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[slot] = packed[row, column : column + width]
    for profile in (NINFER, NEURON):
        done = page.scatter(pool, packed, column, np.array(slots, dtype=int), profile)
        assert done.pool_next.tolist() == expected.tolist()
    assert pool[0, 0] == -1.0


@given(st.integers(1, 300), st.integers(1, 15), st.integers(1, 64), st.integers(0, 20), st.data())
def test_a_step_owns_the_page_of_its_last_mask_and_not_the_next(
    length: int, drafts: int, block_size: int, held: int, data: st.DataObject
) -> None:
    computed = data.draw(st.sampled_from([0, length - 1, length]))
    given_ = np.array([length]), np.array([computed]), np.array([held])
    pages, added = page.lookahead(*given_, drafts, block_size, NEURON)
    last_slot = length + drafts
    assert pages[0] - 1 == last_slot // block_size
    assert added[0] == max(0, pages[0] - held)


def test_two_requests_that_share_a_prefix_page_write_their_blocks_to_pages_of_their_own() -> None:
    """A prompt of one whole page: without the page ahead the block's slots would lie on the shared one."""
    pages = page.lookahead(np.array([4, 4]), np.array([0, 0]), np.array([1, 1]), 3, 4, NEURON)
    assert pages.added.tolist() == [1, 1]
    table = np.array([[6, 2], [6, 5]])
    requests, positions = np.repeat([0, 1], 4), np.tile(np.arange(4, 8), 2)
    slots = page.writes(table, requests, positions, np.array([8, 8]), 4, 100, NEURON).slots
    assert set(slots.tolist()) == {8, 9, 10, 11, 20, 21, 22, 23}
    assert not set(slots.tolist()) & set(range(24, 28))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: page.scatter(np.zeros((3, 2)), np.zeros((1, 2)), 0, np.array([3]), NEURON), r"slots \[3\]"),
        (lambda: page.scatter(np.zeros((3, 2)), np.zeros((1, 2)), 0, np.array([-2]), NEURON), r"slots \[-2\]"),
        (lambda: page.scatter(np.zeros((3, 2)), np.zeros((2, 2)), 0, np.array([1, 1]), NEURON), r"slots \[1, 1\]"),
        (lambda: page.scatter(np.zeros((3, 2)), np.zeros((1, 4)), 3, np.array([0]), NEURON), "column 3, expected 0"),
        (
            lambda: page.slots_clamped(np.array([[1]]), np.array([1]), np.array([0]), 4, NEURON),
            r"requests \[1\] at \[0\] in pages of 4, expected requests below 1",
        ),
        (
            lambda: page.slots_clamped(np.array([[1]]), np.array([0]), np.array([-1]), 4, NEURON),
            r"at \[-1\]",
        ),
        (
            lambda: page.lookahead(np.array([3]), np.array([4]), np.array([0]), 3, 4, NEURON),
            r"\[4\] computed of \[3\] tokens",
        ),
        (lambda: page.lookahead(np.array([3]), np.array([3]), np.array([0]), 0, 4, NEURON), "0 drafts"),
    ],
)  # fmt: skip
def test_what_would_write_wild_slots_is_refused(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(TensorError, match=message):
        call()
