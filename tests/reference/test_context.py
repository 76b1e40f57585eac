"""Taps, features, and context rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import commit, context, layer, num, tap
from dflash_reference.names import Position
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_vectors import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
EXAMPLES = 25
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])


def test_a_tap_is_a_blocks_output_and_slices_stand_in_recorded_order() -> None:
    residuals = np.array([[[10.0 * boundary + row] for row in range(2)] for boundary in range(5)])
    features = tap.concat(residuals, np.array([3, 0, 2]), NINFER).features
    assert features.tolist() == [[40.0, 10.0, 30.0], [41.0, 11.0, 31.0]]


@pytest.mark.parametrize("id_", [-1, 4])
def test_a_tap_that_the_target_does_not_have_is_refused(id_: int) -> None:
    with pytest.raises(TensorError, match=rf"ids\[1\] is {id_}, expected 0 to 3"):
        tap.concat(np.zeros((5, 2, 3)), np.array([0, id_]), NINFER)


def test_features_are_projected_first_and_normed_by_the_learned_weight_then() -> None:
    fc = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 2.0, 0.0, 2.0]])
    got = context.feature(np.array([[2.0, 1.0, 2.0, 1.0]]), fc, np.array([0.5, 3.0]), 0.0, ZLAB)
    assert got.projected.tolist() == [[4.0, 4.0]]
    assert got.c.tolist() == [[0.5, 3.0]]


def test_a_value_is_rounded_to_bf16_and_then_to_fp16() -> None:
    c, v_proj = np.array([[65519.0, 0.0], [0.0, 1.00390625 + 2**-11]]), np.eye(2)
    got = context.value(c, v_proj, 2, NINFER).value[:, :, 0]
    assert got.tolist() == [[np.inf, 0.0], [0.0, 1.0078125]]
    assert num.round_to(65519.0, "F16").tolist() == 65504.0


def test_values_are_the_projection_head_by_head() -> None:
    v_proj = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 3.0], [1.0, 2.0]])
    got = context.value(np.array([[1.0, 10.0]]), v_proj, 2, ZLAB)
    assert got.value.tolist() == [[[1.0, 10.0, 11.0], [2.0, 30.0, 21.0]]]


@PROFILES
@given(base=st.integers(0, 5000))
def test_a_context_key_is_the_key_that_a_block_row_would_have_there(profile: Profile, base: int) -> None:
    dtype = profile.dtypes["ACT"]
    c, k_proj = inputs.telling("key/c", (3, 8), dtype), inputs.weights("key/w", (12, 8), dtype)
    k_norm, positions = inputs.norm_weights("key/n", (6,), dtype), np.array([base, base + 1, base + 7])
    got = context.key(c, k_proj, k_norm, positions, 100.0, 1e-6, profile)
    raw = num.round_to(num.contract(c, k_proj), dtype).reshape(3, 2, 6)
    normed = num.round_to(layer.head_norm(raw, k_norm, 1e-6), dtype)
    assert got.normed.tolist() == normed.tolist()
    assert got.key.tolist() == num.round_to(layer.rope(normed, positions, 100.0, profile), dtype).tolist()


@PROFILES
@settings(max_examples=EXAMPLES)
@given(cuts=st.lists(st.integers(1, 10), max_size=3))
def test_a_context_built_in_pieces_is_the_context_built_at_once(
    profile: Profile, cuts: list[int], tiny: Callable[..., Any]
) -> None:
    draft = tiny(profile).draft
    features = inputs.telling("context/features", (11, 40), profile.dtypes["ACT"])
    whole, pieces = context.Context(draft.config), context.Context(draft.config)
    context.materialise(draft, whole, features, np.arange(11), profile)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 11], strict=True):
        context.materialise(draft, pieces, features[start:stop], np.arange(start, stop), profile)
    assert pieces.positions.view.tolist() == list(range(11))
    for mine, other in zip(pieces.keys + pieces.values, whole.keys + whole.values, strict=True):
        assert mine.view.tolist() == other.view.tolist()


def test_features_of_another_width_are_refused(tiny: Callable[..., Any]) -> None:
    draft = tiny(ZLAB).draft
    with pytest.raises(TensorError, match="features of 39 columns, expected 40, the columns of fc"):
        context.materialise(draft, context.Context(draft.config), np.zeros((2, 39)), np.arange(2), ZLAB)


@given(width=st.integers(0, 8), frontier=st.integers(0, 99), data=st.data())
def test_only_the_committed_rows_become_context(width: int, frontier: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, width))
    captured = np.where(np.arange(width)[:, np.newaxis] < kept, 1.0, np.nan) * np.arange(3.0)
    features, positions, context_frontier = commit.pending(captured, Position(frontier), kept, NINFER)
    assert features.tolist() == [[0.0, 1.0, 2.0]] * kept
    assert positions.tolist() == list(range(frontier, frontier + kept))
    assert context_frontier == frontier + kept


def test_more_committed_rows_than_captured_ones_are_refused() -> None:
    with pytest.raises(RequestError, match="committed 4, expected 0 to 3"):
        commit.pending(np.zeros((3, 2)), Position(5), 4, NINFER)
