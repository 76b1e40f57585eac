"""Extents, ids and positions of a round, against what the rules say in words."""

import numpy as np
import pytest
from dflash_reference import block
from dflash_reference.names import Position, TokenId
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB, APRIL = load_profile("ninfer"), load_profile("zlab"), load_profile("zlab-2026-04")
COUNTS = st.integers(1, 20)
ANCHOR, MASK = TokenId(7), TokenId(9)


@given(drafts=COUNTS, remaining=COUNTS, capacity=st.integers(1, 40), data=st.data())
def test_the_extent_is_the_largest_that_drafts_budget_and_cache_allow(
    drafts: int, remaining: int, capacity: int, data: st.DataObject
) -> None:
    frontier = data.draw(st.integers(0, capacity - 1))
    fits = [
        count
        for count in range(drafts + 1)
        if count == 0 or (count + 1 <= remaining and frontier + count <= capacity - 1)
    ]
    assert block.extent(drafts, remaining, capacity, Position(frontier), NINFER).extent == max(fits)


@given(drafts=COUNTS, remaining=COUNTS)
def test_the_authors_block_is_as_wide_as_the_budget_and_the_anchor(drafts: int, remaining: int) -> None:
    rows = block.extent(drafts, remaining, 1, Position(0), ZLAB).extent + 1
    assert rows == min(drafts + 1, remaining + 1)


@given(drafts=COUNTS, remaining=COUNTS, capacity=COUNTS)
def test_the_april_revision_never_shortens_a_block(drafts: int, remaining: int, capacity: int) -> None:
    assert block.extent(drafts, remaining, capacity, Position(0), APRIL).extent == drafts
    proposals = np.arange(drafts)
    ids, positions = block.verify_inputs(ANCHOR, proposals, Position(30), drafts, APRIL)
    assert ids.tolist() == [ANCHOR, *proposals.tolist()]
    assert positions.tolist() == list(range(30, 31 + drafts))


@given(drafts=COUNTS, frontier=st.integers(0, 2**18), data=st.data())
def test_a_block_is_the_anchor_then_masks_and_its_dead_rows_stay_at_the_last_live_position(
    drafts: int, frontier: int, data: st.DataObject
) -> None:
    extent = data.draw(st.integers(0, drafts))
    ids, live, positions = block.inputs(ANCHOR, MASK, Position(frontier), drafts, extent, NINFER)
    assert ids.tolist() == [ANCHOR] + [MASK] * drafts
    assert live == extent + 1
    assert positions[:live].tolist() == list(range(frontier, frontier + live))
    assert set(positions[live:].tolist()) <= {frontier + extent}


def test_the_verify_pass_of_a_fixed_width_repeats_the_anchor_in_dead_columns() -> None:
    proposals = np.array([11, 12, 13, 14])
    ids, positions = block.verify_inputs(ANCHOR, proposals, Position(30), 2, NINFER)
    assert ids.tolist() == [ANCHOR, 11, 12, ANCHOR, ANCHOR]
    assert positions.tolist() == [30, 31, 32, 32, 32]


def test_the_verify_pass_of_the_authors_has_no_dead_columns() -> None:
    ids, positions = block.verify_inputs(ANCHOR, np.array([11, 12, 13, 14]), Position(30), 2, ZLAB)
    assert ids.tolist() == [ANCHOR, 11, 12]
    assert positions.tolist() == [30, 31, 32]


@pytest.mark.parametrize("extent", [-1, 5])
def test_an_extent_outside_the_drafts_is_refused(extent: int) -> None:
    with pytest.raises(RequestError, match=rf"extent {extent}, expected 0 to 4"):
        block.inputs(ANCHOR, MASK, Position(0), 4, extent, NINFER)
    with pytest.raises(RequestError, match=rf"extent {extent}, expected 0 to 4"):
        block.verify_inputs(ANCHOR, np.array([1, 2, 3, 4]), Position(0), extent, NINFER)


@pytest.mark.parametrize(("drafts", "remaining"), [(0, 3), (3, 0)])
def test_a_round_without_drafts_or_budget_is_refused(drafts: int, remaining: int) -> None:
    with pytest.raises(RequestError, match="expected both to be at least 1"):
        block.extent(drafts, remaining, 10, Position(0), NINFER)


@given(drafts=COUNTS, frontier=st.integers(0, 2**18), data=st.data())
def test_a_dflash2_block_is_computed_whole_or_shrinks_and_the_target_verifies_the_extent(
    drafts: int, frontier: int, data: st.DataObject
) -> None:
    extent = data.draw(st.integers(0, drafts))
    for profile, rows in ((NINFER, drafts + 1), (ZLAB, extent + 1)):
        live, target_live, ids, positions = block.dflash2_inputs(
            ANCHOR, MASK, Position(frontier), drafts, extent, profile
        )
        assert (live, target_live) == (rows, extent + 1)
        assert ids.tolist() == [ANCHOR] + [MASK] * drafts
        assert positions.tolist() == [frontier + min(row, live - 1) for row in range(drafts + 1)]


@pytest.mark.parametrize("extent", [-1, 5])
def test_a_dflash2_extent_that_the_block_does_not_have_is_refused(extent: int) -> None:
    with pytest.raises(RequestError, match=f"block.dflash2_inputs: extent {extent}, expected 0 to 4"):
        block.dflash2_inputs(ANCHOR, MASK, Position(3), 4, extent, NINFER)
