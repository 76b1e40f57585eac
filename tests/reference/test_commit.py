"""The end of a round: what is kept, and where the state stands after it."""

import numpy as np
import pytest
from dflash_reference import commit, stop
from dflash_reference.names import Position, TokenId
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

PROFILE = load_profile("ninfer")
ANCHOR = TokenId(77)
TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(licensed=TOKENS, stop_ids=st.lists(st.integers(0, 5), max_size=3), remaining=st.integers(1, 10))
def test_tokens_are_kept_one_by_one_until_a_stop_or_the_end_of_the_budget(
    licensed: list[int], stop_ids: list[int], remaining: int
) -> None:
    kept, terminal = 0, False
    while kept < len(licensed) and not terminal:
        kept += 1
        terminal = licensed[kept - 1] in stop_ids or kept == remaining
    got = stop.preview(np.array(licensed), np.array(stop_ids, dtype=np.int64), remaining, PROFILE)
    assert (got.kept, got.terminal) == (kept, int(terminal))


@pytest.mark.parametrize(("licensed", "remaining"), [([], 3), ([1, 2], 0)])
def test_a_round_that_licenses_nothing_or_has_no_budget_is_refused(licensed: list[int], remaining: int) -> None:
    with pytest.raises(RequestError, match=f"{len(licensed)} licensed, {remaining} remaining"):
        stop.preview(np.array(licensed, dtype=np.int64), np.array([9]), remaining, PROFILE)


@given(licensed=TOKENS, frontier=st.integers(0, 99), data=st.data())
def test_the_committed_inputs_are_the_anchor_and_all_kept_tokens_but_the_last(
    licensed: list[int], frontier: int, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(0, len(licensed)))
    spare = data.draw(st.integers(0, 5))
    got = commit.commit(ANCHOR, np.array(licensed), kept, Position(frontier), frontier + kept + spare, PROFILE)
    assert [*got.rows.tolist(), got.next_anchor] == [ANCHOR, *licensed[:kept]]
    assert got.next_frontier == got.target_rows_kept == frontier + kept


def test_a_commit_of_more_than_was_licensed_or_verified_is_refused() -> None:
    with pytest.raises(RequestError, match="kept 3, expected 0 to 2"):
        commit.commit(ANCHOR, np.array([1, 2]), 3, Position(10), 20, PROFILE)
    with pytest.raises(RequestError, match="11 target rows, expected at least 12"):
        commit.commit(ANCHOR, np.array([1, 2]), 2, Position(10), 11, PROFILE)
