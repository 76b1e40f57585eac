"""Visibility, against a statement of the rules key by key."""

import numpy as np
import pytest
from dflash_reference import mask
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("zlab")


def is_visible(query: int, key: int, window: int, causal: int) -> bool:
    """The rule in words: no key after a causal row, none as far off as the window is wide."""
    if causal and key > query:
        return False
    return window == 0 or query - window < key < query + window


@given(
    stored=st.lists(st.integers(-3, 40), max_size=12),
    first=st.integers(0, 40),
    rows=st.integers(1, 8),
    window=st.integers(0, 12),
    causal=st.integers(0, 1),
    data=st.data(),
)
def test_every_key_is_visible_exactly_where_the_rule_says(
    stored: list[int], first: int, rows: int, window: int, causal: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(stored)))
    positions = list(range(first, first + rows))
    got = mask.draft(np.array(stored, dtype=np.int64), length, np.array(positions), window, causal, PROFILE).visible
    for row, query in enumerate(positions):
        expected = [index < length and is_visible(query, key, window, causal) for index, key in enumerate(stored)]
        expected += [is_visible(query, key, window, causal) for key in positions]
        assert got[row].tolist() == expected


@given(window=st.integers(1, 12), causal=st.integers(0, 1), data=st.data())
def test_row_i_of_a_local_layer_sees_window_less_one_less_i_rows_of_a_long_context(
    window: int, causal: int, data: st.DataObject
) -> None:
    rows, length = data.draw(st.integers(1, window)), data.draw(st.integers(window, 40))
    positions = np.arange(length, length + rows)
    got = mask.draft(np.arange(length), length, positions, window, causal, PROFILE).visible
    assert got[:, :length].sum(axis=1).tolist() == [window - 1 - i for i in range(rows)]


@given(length=st.integers(0, 20), rows=st.integers(1, 8), window=st.integers(0, 9), causal=st.integers(0, 1))
def test_a_row_always_sees_itself(length: int, rows: int, window: int, causal: int) -> None:
    got = mask.draft(np.arange(length), length, np.arange(length, length + rows), window, causal, PROFILE).visible
    assert got[np.arange(rows), length + np.arange(rows)].all()


@pytest.mark.parametrize("length", [-1, 4])
def test_a_context_longer_than_its_rows_is_refused(length: int) -> None:
    with pytest.raises(TensorError, match=rf"context_length is {length}, expected 0 to 3"):
        mask.draft(np.arange(3), length, np.arange(3, 5), 0, 0, PROFILE)


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(TensorError, match="window is -2"):
        mask.draft(np.arange(3), 3, np.arange(3, 5), -2, 0, PROFILE)
