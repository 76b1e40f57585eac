"""The target: chunks, cuts, windows, tied heads and taps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import layer, models, target
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_vectors import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
PROMPT = inputs.tokens("target/prompt", 13, 31)
Build = Callable[..., Any]
EXAMPLES = 25


@st.composite
def chunkings(draw: st.DrawFn, total: int = len(PROMPT)) -> list[int]:
    cuts = sorted(draw(st.sets(st.integers(1, total - 1), max_size=4)))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]


@PROFILES
@settings(max_examples=EXAMPLES)
@given(chunks=chunkings())
def test_any_chunking_gives_the_rows_and_features_of_one_chunk(
    profile: Profile, chunks: list[int], tiny: Build
) -> None:
    model = tiny(profile).target
    whole = target.prefill(model, target.Cache(model.config), PROMPT, [len(PROMPT)], (2, 0), profile)
    parts = target.prefill(model, target.Cache(model.config), PROMPT, chunks, (2, 0), profile)
    assert parts.residuals.tolist() == whole.residuals.tolist()
    assert parts.features.tolist() == whole.features.tolist()
    assert len(parts.features) == len(PROMPT)


@PROFILES
@settings(max_examples=EXAMPLES)
@given(kept=st.integers(1, 12), wrong=st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_rows_that_were_cut_leave_no_trace(profile: Profile, kept: int, wrong: list[int], tiny: Build) -> None:
    model = tiny(profile).target
    straight, cut = target.Cache(model.config), target.Cache(model.config)
    expected = target.extend(model, straight, PROMPT, profile)
    target.extend(model, cut, PROMPT[:kept], profile)
    target.extend(model, cut, np.array(wrong), profile)
    cut.cut(kept)
    again = target.extend(model, cut, PROMPT[kept:], profile)
    assert again.tolist() == expected[:, kept:].tolist()


@PROFILES
def test_a_row_of_a_sliding_layer_is_blind_to_tokens_as_far_back_as_the_window(profile: Profile, tiny: Build) -> None:
    model = tiny(profile, target_windows=(5,), taps=(0,)).target
    other = PROMPT.copy()
    other[0] = (other[0] + 1) % 31
    first, second = (target.extend(model, target.Cache(model.config), ids, profile)[-1] for ids in (PROMPT, other))
    assert (first != second).any(axis=1).tolist() == [row < 5 for row in range(len(PROMPT))]


@PROFILES
def test_no_row_sees_a_token_after_it(profile: Profile, tiny: Build) -> None:
    model = tiny(profile).target
    other = PROMPT.copy()
    other[7] = (other[7] + 1) % 31
    first, second = (target.extend(model, target.Cache(model.config), ids, profile)[-1] for ids in (PROMPT, other))
    assert (first != second).any(axis=1).tolist() == [row >= 7 for row in range(len(PROMPT))]


def test_rows_past_the_length_are_never_read() -> None:
    q, key, value = (inputs.telling(f"target/{name}", (6, 2, 4), "F32") for name in "qkv")
    clean = target.attention(q[:2], key, value, np.array([3, 4]), 5, 0, ZLAB).attended
    key[5:], value[5:] = np.nan, np.nan
    assert target.attention(q[:2], key, value, np.array([3, 4]), 5, 0, ZLAB).attended.tolist() == clean.tolist()
    assert np.isfinite(clean).all()


def test_the_tap_of_the_last_block_is_not_normed(tiny: Build) -> None:
    model = tiny(ZLAB).target
    done = target.prefill(model, target.Cache(model.config), PROMPT, [len(PROMPT)], (2,), ZLAB)
    assert done.features.tolist() == done.residuals[3].tolist()
    normed = layer.rms_norm(done.residuals[3], model.norm, model.config.eps)
    assert not np.allclose(done.features, normed)


def test_a_tied_target_reads_its_embedding_table_as_its_head(tiny: Build) -> None:
    tied, untied = tiny(ZLAB, tied=True).target, tiny(ZLAB).target
    assert target.head(tied) is tied.embedding
    assert target.head(untied) is untied.weights["lm_head.weight"]
    assert "lm_head.weight" not in tied.weights


@pytest.mark.parametrize("chunks", [[5, 7], [13, 0], [14], []])
def test_chunks_that_do_not_make_up_the_prompt_are_refused(chunks: list[int], tiny: Build) -> None:
    model = tiny(ZLAB).target
    with pytest.raises(RequestError, match="expected positive lengths that add up to 13"):
        target.prefill(model, target.Cache(model.config), PROMPT, chunks, (0,), ZLAB)


def test_a_token_without_an_embedding_row_is_refused(tiny: Build) -> None:
    model = tiny(ZLAB).target
    with pytest.raises(RequestError, match="token 1 of the input is 31, expected 0 to 30"):
        target.extend(model, target.Cache(model.config), np.array([3, 31]), ZLAB)


def test_a_row_without_a_key_of_its_own_is_refused() -> None:
    rows = np.zeros((4, 1, 2))
    with pytest.raises(TensorError, match=r"positions \[3\], expected 0 to 2"):
        target.attention(rows[:1], rows, rows, np.array([3]), 3, 0, ZLAB)
    with pytest.raises(TensorError, match="length is 5, expected 1 to 4"):
        target.attention(rows[:1], rows, rows, np.array([3]), 5, 0, ZLAB)


def test_weights_that_are_not_the_configs_are_refused(tiny: Build) -> None:
    pair = tiny(ZLAB)
    name = "layers.1.mlp.up_proj.weight"
    missing = {key: value for key, value in pair.draft.weights.items() if key != name}
    with pytest.raises(TensorError, match=rf"draft: found no tensor {name}, expected one of shape \[28, 20\]"):
        models.Draft(pair.draft.config, missing)
    with pytest.raises(TensorError, match=rf"draft: {name} has shape \[20, 28\], expected \[28, 20\]"):
        models.Draft(pair.draft.config, missing | {name: np.zeros((20, 28))})
    with pytest.raises(TensorError, match=r"target: found tensor extra\.weight, expected none of this name"):
        models.Target(pair.target.config, pair.target.weights | {"extra.weight": np.zeros(1)})
