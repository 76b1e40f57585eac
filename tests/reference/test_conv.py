"""DFlash2's convolution, against its rule in words and exact numbers, and between blocks that must not touch."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dflash_reference import conv, layer, num
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile, load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
PROFILES = pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
GEOMETRY = {"blocks": st.integers(1, 3), "width": st.integers(1, 5), "groups": st.integers(1, 3),
            "group": st.sampled_from([1, 2, 4]), "taps": st.integers(1, 3)}  # fmt: skip


def branch(profile: Profile, rows: int, hidden: int, group: int, taps: int, inner: int = 5) -> dict[str, Any]:
    """Weights and rows of one branch."""
    dtype = profile.dtypes["ACT"]
    return {
        "x": inputs.uniform("conv/x", (rows, hidden), -2, 2, dtype),
        "norm": inputs.norm_weights("conv/norm", (hidden,), dtype),
        "base": inputs.uniform("conv/base", (2, taps, hidden), -1, 1, dtype),
        "projection": inputs.weights("conv/projection", (2 * taps * hidden // group, hidden), dtype),
        "branch": inputs.uniform("conv/branch", (rows, inner), -2, 2, dtype),
        "weight": inputs.weights("conv/weight", (hidden, inner), dtype),
    }


def prepare(given_: dict[str, Any], group: int, block_rows: int, profile: Profile) -> conv.Prepared:
    taken = {name: given_[name] for name in ("x", "norm", "base", "projection")}
    return conv.prepare(**taken, group=group, block_rows=block_rows, eps=1e-6, profile=profile)


def finish(given_: dict[str, Any], delta: Array, group: int, block_rows: int, profile: Profile) -> Array:
    taken = {name: given_[name] for name in ("branch", "weight", "base")}
    done = conv.finish(
        **taken, finish_delta=delta, residual=given_["x"], group=group, block_rows=block_rows, profile=profile
    )
    return done.residual_next


@given(**GEOMETRY)
def test_each_row_is_the_sum_over_taps_of_base_plus_increment_times_a_row_of_its_own_block(
    blocks: int, width: int, groups: int, group: int, taps: int
) -> None:
    rows, hidden = blocks * width, groups * group
    z = inputs.lattice("conv/z", (rows, hidden), 0.25, 2.0)
    base = inputs.lattice("conv/b", (taps, hidden), 0.125, 1.0)
    delta = inputs.lattice("conv/d", (rows, taps, groups), 0.125, 1.0)
    got = conv.convolve(z, base, delta, group, width)
    for row in range(rows):
        for channel in range(hidden):
            total = Fraction(0)
            for tap in range(taps):
                if row % width >= tap:
                    coefficient = Fraction(base[tap, channel]) + Fraction(delta[row, tap, channel // group])
                    total += coefficient * Fraction(z[row - tap, channel])
            assert Fraction(got[row, channel]) == total


def test_the_kernel_projections_rows_run_over_sides_then_taps_then_groups() -> None:
    labels = np.array([[100.0 * side + 10 * tap + group for side in (0, 1) for tap in (0, 1) for group in range(3)]])
    increments = conv.increments(labels, 2, 3)
    assert increments[0, 1, 0].tolist() == [100.0, 101.0, 102.0]
    assert increments[0, 0, 1].tolist() == [10.0, 11.0, 12.0]


@PROFILES
@given(**GEOMETRY)
def test_a_batch_of_blocks_in_one_array_is_each_block_alone(
    profile: Profile, blocks: int, width: int, groups: int, group: int, taps: int
) -> None:
    whole = branch(profile, blocks * width, groups * group, group, taps)
    prepared = prepare(whole, group, width, profile)
    finished = finish(whole, prepared.finish_delta, group, width, profile)
    for first in range(0, blocks * width, width):
        of_block = slice(first, first + width)
        alone = whole | {name: whole[name][of_block] for name in ("x", "branch")}
        one = prepare(alone, group, width, profile)
        assert one.prepared.tolist() == prepared.prepared[of_block].tolist()
        assert one.finish_delta.tolist() == prepared.finish_delta[of_block].tolist()
        assert finish(alone, one.finish_delta, group, width, profile).tolist() == finished[of_block].tolist()


@PROFILES
def test_a_row_reads_itself_and_the_row_before_it_in_its_block_and_no_other(profile: Profile) -> None:
    clean = branch(profile, 8, 12, 4, 2)
    delta = prepare(clean, 4, 4, profile).finish_delta
    for row in range(8):
        dirty = clean | {name: clean[name].copy() for name in ("x", "branch")}
        dirty["x"][row] = dirty["branch"][row] = np.nan
        changed = np.isnan(prepare(dirty, 4, 4, profile).prepared).any(axis=1)
        reached = [row] if row % 4 == 3 else [row, row + 1]
        assert np.flatnonzero(changed).tolist() == reached
        mixed = dirty | {"x": clean["x"]}
        assert np.flatnonzero(np.isnan(finish(mixed, delta, 4, 4, profile)).any(axis=1)).tolist() == reached


@PROFILES
def test_a_convolution_of_the_row_itself_changes_nothing(profile: Profile) -> None:
    given_ = branch(profile, 5, 12, 4, 2)
    given_["base"] = np.zeros((2, 2, 12))
    given_["base"][:, 0] = 1.0
    given_["projection"] = np.zeros_like(given_["projection"])
    prepared = prepare(given_, 4, 5, profile)
    normed = layer.represent(layer.rms_norm(given_["x"], given_["norm"], 1e-6), profile)
    assert prepared.prepared.tolist() == normed.tolist()
    assert not prepared.finish_delta.any()
    plain = layer.output(given_["branch"], given_["weight"], given_["x"], profile).y
    assert finish(given_, prepared.finish_delta, 4, 5, profile).tolist() == plain.tolist()


def test_the_norm_and_the_increments_of_the_input_side_are_not_rounded() -> None:
    given_ = branch(NINFER, 6, 12, 4, 2)
    prepared = prepare(given_, 4, 3, NINFER)
    n = layer.unit(given_["x"], 1e-6) * given_["norm"]
    delta = num.contract(n, given_["projection"]).reshape(6, 2, 2, 3)
    exact = conv.convolve(n, given_["base"][0], delta[:, 0], 4, 3)
    assert prepared.prepared.tolist() == num.round_bf16(exact, 0.0, NINFER).y.tolist()
    assert prepared.finish_delta.tolist() == num.round_bf16(delta[:, 1], 0.0, NINFER).y.tolist()
    rounded = conv.convolve(num.round_to(n, "BF16"), given_["base"][0], delta[:, 0], 4, 3)
    assert (num.round_to(rounded, "BF16") != prepared.prepared).any(), "a rounded norm would show"
    rounded = conv.convolve(n, given_["base"][0], num.round_to(delta[:, 0], "BF16"), 4, 3)
    assert (num.round_to(rounded, "BF16") != prepared.prepared).any(), "rounded increments would show"


def test_the_output_side_takes_the_second_base_and_the_increments_given() -> None:
    base = np.stack([np.full((2, 2), 64.0), np.array([[1.0, 2.0], [4.0, 8.0]])])
    delta = np.array([[[0.5], [32.0]], [[0.25], [0.125]]])
    done = conv.finish(
        np.array([[1.0], [2.0]]), np.array([[1.0], [3.0]]), base, delta, np.array([[100.0, 0.0], [0.0, 0.0]]),
        group=2, block_rows=2, profile=ZLAB,
    )  # fmt: skip
    # z = [[1, 3], [2, 6]]; row 0 by tap 0 alone: base + 0.5; row 1 by (base + 0.25) · z1 + (base + 0.125) · z0.
    assert done.residual_next.tolist() == [[101.5, 7.5], [2.5 + 4.125, 13.5 + 24.375]]


@pytest.mark.parametrize(
    ("group", "block_rows", "message"),
    [
        (5, 2, "12 channels, expected a multiple of the group width 5"),
        (0, 2, "12 channels, expected a multiple of the group width 0"),
        (4, 4, "6 rows, expected a multiple of the block's 4"),
        (4, 0, "6 rows, expected a multiple of the block's 0"),
    ],
)
def test_groups_and_blocks_that_do_not_fit_are_refused(group: int, block_rows: int, message: str) -> None:
    given_ = branch(ZLAB, 6, 12, 4, 2)
    with pytest.raises(TensorError, match=f"conv.prepare: {message}"):
        prepare(given_, group, block_rows, ZLAB)
    with pytest.raises(TensorError, match=f"conv.finish: {message}"):
        finish(given_, np.zeros((6, 2, 3)), group, block_rows, ZLAB)
