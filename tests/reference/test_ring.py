"""The ring materialiser: which slots it writes, with what, and what it leaves alone."""

from typing import Any

import numpy as np
import pytest
from dflash_reference import layer, num, ring
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

NINFER = load_profile("ninfer")
LAYERS, KV, DIM, HIDDEN, LANES = 2, 2, 4, 6, 4
THETA, EPS = 500.0, inputs.fp32(1e-6)
CANARY = -777.0


def given_rows(counts: list[int], frontiers: list[int], lanes: list[int], capacity: int, width: int) -> dict[str, Any]:
    """Rows whose columns past the count are NaN at position -1, and rings full of canaries."""
    positions = np.full((len(counts), width), -1)
    c = inputs.telling("ring/c", (len(counts), width, HIDDEN), "BF16")
    for b, (count, frontier) in enumerate(zip(counts, frontiers, strict=True)):
        positions[b, :count] = frontier + np.arange(count)
        c[b, count:] = np.nan
    shape = (LAYERS, KV * DIM, HIDDEN)
    return {
        "c": c, "positions": positions, "counts": np.array(counts), "lanes": np.array(lanes),
        "context_k_proj": inputs.weights("ring/k", shape, "BF16"),
        "context_v_proj": inputs.weights("ring/v", shape, "BF16"),
        "query_k_proj": np.full(shape, np.nan), "query_v_proj": np.full(shape, np.nan),
        "k_norm": inputs.norm_weights("ring/norm", (LAYERS, DIM), "BF16"), "theta": THETA, "eps": EPS,
        "ring_key": np.full((LANES, LAYERS, capacity, KV, DIM), CANARY),
        "ring_value": np.full((LANES, LAYERS, capacity, KV, DIM), CANARY),
        "frontiers": np.array(frontiers),
    }  # fmt: skip


def one_row(given_: dict[str, Any], b: int, column: int, index: int) -> tuple[Array, Array]:
    """Key and value of one row in one layer, computed for it alone: one rounding, and two."""
    row = given_["c"][b, column]
    raw = num.contract(row, given_["context_k_proj"][index]).reshape(1, KV, DIM)
    normed = raw / np.sqrt((raw * raw).sum(axis=-1, keepdims=True) / DIM + EPS) * given_["k_norm"][index]
    at = given_["positions"][b, column : column + 1]
    key = num.round_to(layer.rope(normed, at, THETA, NINFER), "BF16")[0]
    value = num.round_to(num.round_to(num.contract(row, given_["context_v_proj"][index]), "BF16"), "F16")
    return key, value.reshape(KV, DIM)


def check(given_: dict[str, Any]) -> None:
    """The rings after `given_`, slot by slot, against the last row of each slot or the canary."""
    got = ring.materialize(**given_, profile=NINFER)
    capacity = given_["ring_key"].shape[2]
    key, value = given_["ring_key"].copy(), given_["ring_value"].copy()
    for b, (count, lane) in enumerate(zip(given_["counts"].tolist(), given_["lanes"].tolist(), strict=True)):
        for column in range(count):
            for index in range(LAYERS):
                slot = int(given_["positions"][b, column]) % capacity
                key[lane, index, slot], value[lane, index, slot] = one_row(given_, b, column, index)
    assert got.key.tolist() == key.tolist()
    assert got.value.tolist() == value.tolist()
    assert got.frontiers_next.tolist() == (given_["frontiers"] + given_["counts"]).tolist()


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 7),
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=LANES),
    lanes=st.permutations(range(LANES)),
    spare=st.integers(1, 2),
)
def test_each_row_goes_to_the_slot_of_its_position_in_its_own_ring_and_no_other_slot_changes(
    capacity: int, rows: list[tuple[int, int]], lanes: list[int], spare: int
) -> None:
    counts, frontiers = [count for count, _ in rows], [frontier for _, frontier in rows]
    check(given_rows(counts, frontiers, lanes[: len(rows)], capacity, max(counts) + spare))


@pytest.mark.parametrize("frontier", [4, 5, 6, 9, 10, 11])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 6, 11])
def test_a_ring_of_five_wraps_before_on_and_after_its_capacity(frontier: int, count: int) -> None:
    check(given_rows([count], [frontier], [2], 5, count))


def test_a_chunk_longer_than_the_ring_leaves_its_last_window_and_moves_the_frontier_by_all_of_it() -> None:
    given_ = given_rows([11], [3], [0], 4, 11)
    given_["c"][0, :7] = np.nan
    got = ring.materialize(**given_, profile=NINFER)
    assert got.frontiers_next.tolist() == [14]
    assert np.isfinite(got.key[0]).all()
    assert [got.key[0, 0, p % 4].tolist() for p in range(10, 14)] == [
        one_row(given_, 0, column, 0)[0].tolist() for column in range(7, 11)
    ]


def test_chunks_in_turn_leave_the_ring_that_one_chunk_leaves() -> None:
    whole = given_rows([9], [2], [1], 4, 9)
    once = ring.materialize(**whole, profile=NINFER)
    state = whole
    for first, last in ((0, 1), (1, 6), (6, 6), (6, 9)):
        count = last - first
        part = state | {"c": whole["c"][:, first:last], "positions": whole["positions"][:, first:last],
                        "counts": np.array([count])}  # fmt: skip
        done = ring.materialize(**part, profile=NINFER)
        state = state | {"ring_key": done.key, "ring_value": done.value, "frontiers": done.frontiers_next}
    assert state["ring_key"].tolist() == once.key.tolist()
    assert state["ring_value"].tolist() == once.value.tolist()
    assert state["frontiers"].tolist() == once.frontiers_next.tolist() == [11]


def test_a_row_without_columns_touches_nothing_and_may_name_any_ring() -> None:
    given_ = given_rows([0, 2], [5, 7], [-1, 1], 4, 3)
    got = ring.materialize(**given_, profile=NINFER)
    assert got.frontiers_next.tolist() == [5, 9]
    assert (got.key[[0, 2, 3]] == CANARY).all()
    assert (got.value[[0, 2, 3]] == CANARY).all()


def test_the_rings_given_are_not_changed_in_place() -> None:
    given_ = given_rows([3], [0], [1], 4, 3)
    ring.materialize(**given_, profile=NINFER)
    assert (given_["ring_key"] == CANARY).all()
    assert (given_["ring_value"] == CANARY).all()
    assert given_["frontiers"].tolist() == [0]


def test_a_raw_key_is_not_rounded_before_its_norm() -> None:
    given_ = given_rows([8], [2**17], [0], 8, 8)
    got = ring.materialize(**given_, profile=NINFER).key[0, 0]
    raw = num.round_to(num.contract(given_["c"][0], given_["context_k_proj"][0]), "BF16").reshape(8, KV, DIM)
    early = layer.rope(layer.head_norm(raw, given_["k_norm"][0], EPS), given_["positions"][0], THETA, NINFER)
    assert (num.round_to(early, "BF16") != got).any()


def test_a_value_goes_through_bf16_to_fp16() -> None:
    given_ = given_rows([1], [0], [0], 1, 1)
    given_["c"][0, 0] = [1.0, 0, 0, 0, 0, 0]
    given_["context_v_proj"][:, :, 0] = 65519.0
    assert (ring.materialize(**given_, profile=NINFER).value[0] == np.inf).all()


@pytest.mark.parametrize("drafts", [1, 7, 15])
def test_the_official_rings_take_forty_mebibytes_whatever_the_width(drafts: int) -> None:
    assert ring.payload(5, 8, 128, 2048, drafts, NINFER).bytes == 40 * 2**20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": np.array([4, 1])}, r"counts\[0\] is 4, expected 0 to 3"),
        ({"counts": np.array([2, -1])}, r"counts\[1\] is -1, expected 0 to 3"),
        ({"lanes": np.array([4, 1])}, r"lanes\[0\] is 4, expected 0 to 3"),
        ({"lanes": np.array([0, -1])}, r"lanes\[1\] is -1, expected 0 to 3"),
        ({"lanes": np.array([2, 2])}, r"lanes \[2, 2\], expected a ring of its own"),
        ({"frontiers": np.array([5, 8])}, r"positions\[1\] \[9\], expected 1 consecutive ones from .* frontier 8 on"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict[str, Array], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        ring.materialize(**(given_rows([2, 1], [5, 9], [0, 1], 4, 3) | change), profile=NINFER)
