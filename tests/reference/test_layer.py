"""One decoder layer: values that can be said without a calculator, and rows that must have no influence."""

import math

import numpy as np
import pytest
from dflash_reference import elementary, layer
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import inputs
from hypothesis import given
from hypothesis import strategies as st

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
HUGE = 3.0e38


def test_a_norm_divides_by_the_root_mean_square_with_eps_inside_and_multiplies_by_the_plain_weight() -> None:
    x, weight = np.array([[2.0, -2.0, 2.0, 2.0]]), np.array([1.0, 3.0, 0.0, -5.0])
    assert layer.rms_norm(x, weight, 12.0).tolist() == [[0.5, -1.5, 0.0, -2.5]]


def test_a_head_norm_looks_at_one_head_only() -> None:
    x = np.array([[[1.0, -1.0], [64.0, 64.0]]])
    assert layer.head_norm(x, np.array([2.0, 3.0]), 0.0).tolist() == [[[2.0, -3.0], [2.0, 3.0]]]


def test_rope_pairs_a_channel_with_the_one_half_a_head_further() -> None:
    (turned,) = layer.rope(np.array([[[1.0, 0.0, 0.0, 0.0]]]), np.array([3]), 1.0, NINFER)
    assert turned.tolist() == [[float(elementary.cos(3.0)), 0.0, float(elementary.sin(3.0)), 0.0]]


def test_rope_turns_pair_j_by_theta_to_the_minus_two_j_over_d_per_position() -> None:
    (turned,) = layer.rope(np.array([[[0.0, 1.0, 0.0, 0.0]]]), np.array([6]), 4.0, NINFER)
    assert turned.tolist() == [[0.0, float(elementary.cos(3.0)), 0.0, float(elementary.sin(3.0))]]


def test_an_fp32_table_rounds_frequency_angle_and_result() -> None:
    positions = np.array([262143])
    cosine, sine = layer.rope_table(positions, 1e6, 8, ZLAB)
    angle = np.float32(262143) * elementary.rope_frequencies_fp32(1e6, 8).astype(np.float32)
    assert cosine.tolist() == [elementary.cos(angle.astype(np.float64)).astype(np.float32).tolist()]
    assert sine.tolist() == [elementary.sin(angle.astype(np.float64)).astype(np.float32).tolist()]
    assert not np.array_equal(cosine, layer.rope_table(positions, 1e6, 8, NINFER)[0])


@given(shift=st.integers(1, 3000), apart=st.integers(0, 50))
def test_rotated_products_depend_on_the_distance_alone(shift: int, apart: int) -> None:
    q, k = inputs.telling("layer/q", (1, 1, 8), "F32"), inputs.telling("layer/k", (1, 1, 8), "F32")

    def score(base: int) -> float:
        at_query = layer.rope(q, np.array([base + apart]), 50.0, NINFER)
        at_key = layer.rope(k, np.array([base]), 50.0, NINFER)
        return float((at_query * at_key).sum())

    # Each angle has one rounding of its own, at most half an ulp of 3050; each score is 8 products of size 4 at most.
    slack = 8 * 4 * 2 * (np.spacing(3050.0) + 8 * np.finfo(np.float64).eps)
    assert abs(score(shift) - score(0)) <= slack


def test_consecutive_query_heads_read_one_kv_head() -> None:
    assert [layer.kv_head(head, 6, 2) for head in range(6)] == [0, 0, 0, 1, 1, 1]


def test_equal_scores_give_the_mean_of_the_visible_values() -> None:
    q, keys = np.zeros((2, 2, 4)), inputs.telling("layer/keys", (5, 2, 4), "BF16")
    values = np.arange(40.0).reshape(5, 2, 4)
    visible = np.array([[True, False, True, True, True], [False, True, False, False, False]])
    attended = layer.attention(q, keys, values, visible, ZLAB)
    assert attended[0].tolist() == values[[0, 2, 3, 4]].mean(axis=0).reshape(-1).tolist()
    assert attended[1].tolist() == values[1].reshape(-1).tolist()


def test_scores_are_divided_by_the_root_of_the_head_dim() -> None:
    q, keys = np.array([[[2.0 * math.log(3.0), 0.0, 0.0, 0.0]]]), np.zeros((2, 1, 4))
    keys[0, 0, 0] = 1.0
    weights = layer.attention_weights(layer.scores(q, keys), 4, np.ones((1, 2), dtype=bool))
    # exp, log, two roundings of the quotients: a few ulps of 1.
    assert abs(float(weights[0, 0, 0]) - 0.75) <= 4 * np.finfo(np.float64).eps


def example(rows: int, keys: int, profile_dtype: str) -> tuple[Array, Array, Array]:
    return (
        inputs.telling("attention/q", (rows, 4, 6), profile_dtype),
        inputs.telling("attention/k", (keys, 2, 6), profile_dtype),
        inputs.telling("attention/v", (keys, 2, 6), profile_dtype),
    )


@pytest.mark.parametrize("poison", [HUGE, -HUGE, math.inf, math.nan])
@given(data=st.data())
def test_a_hidden_row_has_no_influence_whatever_it_holds(poison: float, data: st.DataObject) -> None:
    q, keys, values = example(3, 7, "BF16")
    visible = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=3, max_size=3)))
    visible[:, data.draw(st.integers(0, 6))] = True
    clean = layer.attention(q, keys, values, visible, NINFER)
    for row in range(3):
        dirty_keys, dirty_values = keys.copy(), values.copy()
        dirty_keys[~visible[row]] = poison
        dirty_values[~visible[row]] = poison
        dirty = layer.attention(q, dirty_keys, dirty_values, visible, NINFER)
        assert dirty[row].tolist() == clean[row].tolist()


@given(start=st.integers(0, 6), stop=st.integers(1, 7))
def test_keys_that_no_row_sees_could_as_well_not_be_there(start: int, stop: int) -> None:
    start, stop = min(start, stop - 1), max(stop, start + 1)
    q, keys, values = example(2, 7, "F32")
    visible = np.zeros((2, 7), dtype=bool)
    visible[:, start:stop] = True
    whole = layer.attention(q, keys, values, visible, ZLAB)
    part = layer.attention(q, keys[start:stop], values[start:stop], visible[:, start:stop], ZLAB)
    assert whole.tolist() == part.tolist()


def test_silu_applies_to_the_gate() -> None:
    y, ones, minus = np.array([[1.0]]), np.array([[1.0]]), np.array([[-1.0]])
    product = layer.mlp(y, np.array([1.0]), ones, 3.0 * minus, ones, 0.0, ZLAB).product
    assert product.tolist() == [[float(np.float32(-3.0 * float(layer.silu(np.array(1.0)))))]]
    assert product[0, 0] != np.float32(float(layer.silu(np.array(-3.0))))


def test_every_stage_of_a_layer_is_represented_in_the_profiles_dtype() -> None:
    x, norm = inputs.telling("layer/x", (3, 8), "BF16"), inputs.norm_weights("layer/n", (8,), "BF16")
    head = inputs.norm_weights("layer/h", (4,), "BF16")
    square, narrow = inputs.weights("layer/w", (8, 8), "BF16"), inputs.weights("layer/kv", (4, 8), "BF16")
    heads = layer.qkv(x, norm, square, narrow, narrow, head, head, np.array([5, 6, 7]), 100.0, 1e-6, NINFER)
    branch = layer.output(heads.q.reshape(3, 8), square, x, NINFER)
    mlp = layer.mlp(branch.y, norm, square, square, square, 1e-6, NINFER)
    for stages in (heads, branch, mlp):
        for name, values in stages._asdict().items():
            assert np.array_equal(values, inputs.represent(values, "BF16")), name


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(TensorError, match="q_proj: 9 columns, expected a multiple of the head dim 4"):
        layer.split_heads(np.zeros((2, 9)), 4, "q_proj")
    with pytest.raises(TensorError, match="3 query heads, expected a multiple of the 2 KV heads"):
        layer.scores(np.zeros((1, 3, 4)), np.zeros((5, 2, 4)))
