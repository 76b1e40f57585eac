"""The draft: its block, what it may read, and what the block's width changes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import context, draft
from dflash_reference import target as target_model
from dflash_reference.names import Position, TokenId
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
HUGE = 3.0e38
Build = Callable[..., Any]


def propose(pair: Any, profile: Profile, drafts: int, extent: int, rows: int = 9) -> draft.Proposal:
    """A proposal after `rows` context rows."""
    width = len(pair.draft.config.taps) * pair.draft.config.hidden_size
    features = inputs.normal_like("draft/features", (rows, width), 1.0, profile.dtypes["ACT"])
    held = context.Context(pair.draft.config)
    context.materialise(pair.draft, held, features, np.arange(rows), profile)
    head = target_model.head(pair.target)
    return draft.propose(
        pair.draft, held, pair.target.embedding, head, TokenId(3), Position(rows), drafts, extent, 30, profile
    )


@pytest.mark.parametrize("windows", [(0, 0), (5, 0), (5, 5)], ids=["full", "mixed", "local"])
@given(width=st.integers(2, 6), less=st.integers(1, 5))
def test_a_shorter_causal_block_is_the_prefix_of_a_longer_one(
    windows: tuple[int, ...], width: int, less: int, tiny: Build
) -> None:
    pair = tiny(ZLAB, draft_windows=windows, causal=True)
    short, long = max(1, width - less), width
    few, many = propose(pair, ZLAB, short, short), propose(pair, ZLAB, long, long)
    assert few.hidden.tolist() == many.hidden[:short].tolist()
    assert few.proposals.tolist() == many.proposals[:short].tolist()


@pytest.mark.parametrize(
    ("windows", "causal"), [((0, 0), False), ((5, 0), False), ((5, 0), None)], ids=["full", "mixed", "one-of-two"]
)
@given(width=st.integers(2, 6), less=st.integers(1, 5))
def test_one_layer_that_looks_ahead_makes_a_shorter_block_another_block(
    windows: tuple[int, ...], causal: bool | None, width: int, less: int, tiny: Build
) -> None:
    pair = tiny(ZLAB, draft_windows=windows, causal=causal)
    short = max(1, width - less)
    few, many = propose(pair, ZLAB, short, short), propose(pair, ZLAB, width, width)
    assert few.hidden.tolist() != many.hidden[:short].tolist()


@PROFILES
def test_a_tail_block_is_the_block_of_its_live_rows(profile: Profile, tiny: Build) -> None:
    pair = tiny(profile)
    tail, narrow = propose(pair, profile, 6, 2), propose(pair, profile, 2, 2)
    assert tail.hidden.tolist() == narrow.hidden.tolist()
    assert tail.hidden.shape == (2, pair.draft.config.hidden_size)


@PROFILES
def test_a_forward_leaves_the_context_as_it_was(profile: Profile, tiny: Build) -> None:
    pair = tiny(profile)
    features = inputs.normal_like("draft/features", (9, 40), 1.0, profile.dtypes["ACT"])
    held = context.Context(pair.draft.config)
    context.materialise(pair.draft, held, features, np.arange(9), profile)
    before = [rows.view.copy() for rows in (*held.keys, *held.values, held.positions)]
    draft.forward(pair.draft, held, pair.target.embedding[[3, 30, 30]], np.arange(9, 12), profile)
    after = [rows.view for rows in (*held.keys, *held.values, held.positions)]
    assert [rows.tolist() for rows in after] == [rows.tolist() for rows in before]


def attention_inputs(dtype: str) -> dict[str, Any]:
    """A block of 4 rows, 3 of them live, after 7 context rows of which 6 exist; window 4."""
    return {
        "q": inputs.telling("draft/q", (4, 4, 6), dtype),
        "context_key": inputs.telling("draft/ck", (7, 2, 6), dtype),
        "context_value": inputs.telling("draft/cv", (7, 2, 6), "F16" if dtype == "BF16" else dtype),
        "block_key": inputs.telling("draft/bk", (4, 2, 6), dtype),
        "block_value": inputs.telling("draft/bv", (4, 2, 6), dtype),
        "context_positions": np.arange(7),
        "context_length": 6,
        "positions": np.array([6, 7, 8, 8]),
        "live": 3,
        "window": 4,
        "causal": 0,
    }


def poisoned(given_: dict[str, Any], rows: dict[str, slice], poison: float) -> dict[str, Any]:
    """A copy in which the rows named are overwritten."""
    dirty = dict(given_)
    for name, where in rows.items():
        dirty[name] = given_[name].copy()
        dirty[name][where] = poison
    return dirty


@PROFILES
@pytest.mark.parametrize("window", [0, 4])
def test_unpopulated_context_and_dead_block_rows_are_never_read(profile: Profile, window: int) -> None:
    clean = attention_inputs(profile.dtypes["ACT"]) | {"window": window}
    dead, unpopulated = slice(3, None), slice(6, None)
    dirty = poisoned(
        clean,
        {"q": dead, "block_key": dead, "block_value": dead, "context_key": unpopulated, "context_value": unpopulated},
        np.nan,
    )
    dirty["context_positions"] = np.array([0, 1, 2, 3, 4, 5, -1])
    dirty["positions"] = np.array([6, 7, 8, -5])
    got: Array = draft.attention(**dirty, profile=profile).attended
    assert got.tolist() == draft.attention(**clean, profile=profile).attended.tolist()
    assert not got[3].any()
    assert np.isfinite(got[:3]).all()


@PROFILES
def test_rows_outside_every_window_have_no_influence(profile: Profile) -> None:
    clean = attention_inputs(profile.dtypes["ACT"])
    hidden = slice(0, 3)
    dirty = poisoned(clean, {"context_key": hidden, "context_value": hidden}, HUGE)
    assert (
        draft.attention(**dirty, profile=profile).attended.tolist()
        == draft.attention(**clean, profile=profile).attended.tolist()
    )


def test_a_row_at_the_windows_edge_counts_for_the_rows_that_still_see_it() -> None:
    clean = attention_inputs("F32")
    dirty = poisoned(clean, {"context_value": slice(3, 4)}, 100.0)
    changed = draft.attention(**dirty, profile=ZLAB).attended != draft.attention(**clean, profile=ZLAB).attended
    assert changed.any(axis=1).tolist() == [True, False, False, False]


@pytest.mark.parametrize("live", [0, 5])
def test_a_live_count_that_the_block_does_not_have_is_refused(live: int) -> None:
    with pytest.raises(TensorError, match=f"live is {live}, expected 1 to 4"):
        draft.attention(**(attention_inputs("F32") | {"live": live}), profile=ZLAB)


def test_an_id_without_an_embedding_row_is_refused() -> None:
    with pytest.raises(TensorError, match=r"ids\[1\] is 5, expected 0 to 4"):
        draft.embed(np.zeros((5, 2)), np.array([4, 5]), ZLAB)


def test_the_anchors_row_gives_no_proposal() -> None:
    x = np.array([[np.nan, np.nan], [3.0, 3.0], [2.0, -2.0]])
    assert draft.final(x, np.array([1.0, 2.0]), 0.0, ZLAB).hidden.tolist() == [[1.0, 2.0], [1.0, -2.0]]
