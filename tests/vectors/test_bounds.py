"""The error models: their steps checked by hand or by enumeration, and their agreement with the reference."""

from fractions import Fraction

import numpy as np
import pytest
from dflash_reference import num
from dflash_spec.registry import load_ops, load_profile
from dflash_vectors.bounds import MODELS, SAFETY, algebra, bounds_of
from dflash_vectors.bounds.algebra import FUNCTION, TRIGONOMETRY, Ledger, U, Value, exact, gamma, ulp
from dflash_vectors.bounds.layers import softmax_mean
from dflash_vectors.errors import ModelError
from dflash_vectors.inputs import normal_like, telling, uniform
from dflash_vectors.run import execute

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")


def test_every_op_that_declares_a_bounded_tensor_has_a_model_or_is_a_composite():
    bounded = {
        op.name
        for op in load_ops().values()
        if not op.composite and any(spec.compare == "bounded" for spec in (*op.stages, *op.outputs))
    }
    assert bounded == set(MODELS)


def test_ulp_is_the_spacing_of_the_dtype():
    values = np.array([1.0, 1.5, 2.0, -3.0, 2.0**-126, 2.0**-140, 0.0, 65504.0])
    assert ulp(values[:-2], "F32").tolist() == [2**-23, 2**-23, 2**-22, 2**-22, 2**-149, 2**-149]
    assert ulp(values[:4], "BF16").tolist() == [2**-7, 2**-7, 2**-6, 2**-6]
    assert ulp(values[-1:], "F16").tolist() == [32.0]
    assert ulp(np.array([0.0]), "BF16").tolist() == [2.0**-133]


def test_a_contraction_of_n_terms_may_lose_n_plus_one_roundings_of_the_sum_of_magnitudes():
    found = algebra.contract(exact(np.array([[1.0, -2.0, 4.0]])), np.array([[8.0, 0.5, 0.25]]))
    assert found.v.tolist() == [[8.0]]
    # gamma(4) times |8| + |-1| + |1| = 10.
    assert found.e.tolist() == [[pytest.approx(float(10 * Fraction(4, 2**24) / (1 - Fraction(4, 2**24))), rel=1e-15)]]


def test_every_order_of_an_fp32_sum_stays_within_the_allowance_of_a_contraction():
    values = normal_like("orders", (200, 6), 1.0, "F32").astype(np.float32)
    ones = exact(values.astype(np.float64))
    allowed = algebra.contract(ones, np.ones((1, 6)))
    generator = np.random.default_rng(7)
    worst = 0.0
    for _ in range(200):
        order = generator.permutation(6)
        total = np.zeros(200, np.float32)
        for index in order:
            total = total + values[:, index]
        worst = max(worst, float((np.abs(total - allowed.v[:, 0]) / allowed.e[:, 0]).max()))
    assert 0.05 < worst <= 1


def test_errors_of_the_operands_are_carried_through_products_and_sums():
    a, b = Value(np.array([2.0]), np.array([0.5])), Value(np.array([-3.0]), np.array([0.25]))
    product = algebra.multiply(a, b)
    # The largest magnitude is 2.5 * 3.25 = 8.125, which is 2.125 above 6; one rounding of it comes on top.
    assert product.e.tolist() == [2.125 + U * 8.125]
    total = algebra.add(a, b)
    assert total.e.tolist() == [0.75 + U * 1.75]


@pytest.mark.parametrize("moved", [-1, 1])
def test_a_norm_covers_inputs_at_the_ends_of_their_intervals(moved):
    x, weight = normal_like("norm/x", (3, 8), 1.0, "F32"), uniform("norm/w", (8,), 0.5, 1.5, "F32")
    error = np.abs(normal_like("norm/e", (3, 8), 1e-3, "F32"))
    model = algebra.rms_norm(Value(x, error), weight, 1e-6)
    other = x + moved * error
    result = other / np.sqrt((other * other).mean(-1, keepdims=True) + 1e-6) * weight
    assert (np.abs(result - model.v) <= model.e).all()
    assert (model.e < 0.02).all()


def test_silu_has_no_slope_above_the_one_stated():
    x = np.linspace(-30, 30, 60_001)
    y = x / (1 + np.exp(-x))
    steepest = np.abs(np.diff(y) / np.diff(x)).max()
    assert 1.0998 < steepest < algebra.SILU_SLOPE


def test_rope_allows_an_angle_error_only_where_the_table_is_fp32():
    x, position = exact(np.ones((1, 1, 4))), np.array([1000])
    ideal, table = (algebra.rope(x, position, 10000.0, kind).e[0, 0] for kind in ("ideal", "fp32"))
    # Channel 0 turns by 1000 * 1 radians; each of its two products takes the cosine's or sine's error.
    allowed = 2 * (1000 * 3 * 2.0**-23 + TRIGONOMETRY)
    assert allowed <= table[0] <= allowed + 8 * U
    assert 2 * TRIGONOMETRY <= ideal[0] <= 2 * TRIGONOMETRY + 8 * U


def test_a_softmax_mean_covers_scores_at_the_ends_of_their_intervals():
    scores, values = normal_like("s", (4, 9), 2.0, "F32"), normal_like("v", (9, 5), 1.0, "F32")
    model = softmax_mean(Value(scores, np.full((4, 9), 1e-3)), values, "F32")
    for sign in (np.sign(normal_like(f"sign/{k}", (4, 9), 1.0, "F32")) for k in range(50)):
        weights = np.exp(scores + 1e-3 * sign)
        result = weights @ values / weights.sum(-1, keepdims=True)
        assert (np.abs(result - model.v) <= model.e).all()


def test_a_stage_notes_its_error_and_one_flip_and_goes_on_from_the_represented_value():
    reference = num.round_to(np.array([1.0, 1.0 + 2**-8 - 2**-20]), "BF16")
    ledger = Ledger("an op", {"y": reference}, NINFER)
    after = ledger.stage("y", Value(np.array([1.0, 1.0 + 2**-8 - 2**-20]), np.full(2, 2.0**-19)), "BF16")
    assert ledger.worst["y"].tolist() == [2.0**-19 + 2**-7, 2.0**-19 + 2**-7]
    # Only the second value is so near a midpoint that its error can carry it over.
    assert after.v.tolist() == [1.0, 1.0]
    assert after.e.tolist() == [0.0, 2.0**-7]


def test_a_model_that_does_not_describe_the_reference_is_an_error():
    ledger = Ledger("an op", {"y": np.array([1.0, 2.0])}, ZLAB)
    with pytest.raises(ModelError, match=r"an op: y\[1\]: the reference returned .*2\.0.*, the error model allows"):
        ledger.stage("y", exact(np.array([1.0, 2.1])), "F32")
    with pytest.raises(ModelError, match=r"returned \(2,\), the model \(3,\)"):
        ledger.stage("y", exact(np.zeros(3)), "F32")


def attention_inputs(live, length):
    return {
        "q": telling("q", (4, 4, 6), "BF16"), "context_key": telling("ck", (7, 2, 6), "BF16"),
        "context_value": telling("cv", (7, 2, 6), "F16"), "block_key": telling("bk", (4, 2, 6), "BF16"),
        "block_value": telling("bv", (4, 2, 6), "BF16"), "context_positions": np.arange(7), "context_length": length,
        "positions": 7 + np.minimum(np.arange(4), live - 1), "live": live, "window": 0, "causal": 0,
    }  # fmt: skip


def test_dead_rows_of_attention_are_exactly_zero_and_have_no_bound():
    inputs = attention_inputs(live=2, length=5)
    result = execute("draft.attention", inputs, NINFER)
    bound = bounds_of("draft.attention", inputs, result, NINFER)["attended"]
    assert (bound[2:] == 0).all()
    assert (bound[:2] > 0).all()


def test_nothing_that_must_not_be_read_reaches_a_bound():
    inputs = attention_inputs(live=2, length=5)
    result = execute("draft.attention", inputs, NINFER)
    clean = bounds_of("draft.attention", inputs, result, NINFER)["attended"]
    for name, first in (("context_key", 5), ("context_value", 5), ("block_key", 2), ("block_value", 2)):
        inputs[name] = inputs[name].copy()
        inputs[name][first:] = np.nan
    assert np.array_equal(bounds_of("draft.attention", inputs, result, NINFER)["attended"], clean)


def test_a_bound_is_twice_the_worst_case_of_the_model():
    x, w = np.array([[1.0, 1.0]]), np.array([[1.0, 1.0]])
    inputs = {"x": x, "w": w}
    bound = bounds_of("num.contract", inputs, execute("num.contract", inputs, ZLAB), ZLAB)["y"]
    # Two terms, three roundings, magnitudes that sum to 2; then one FP32 ulp of the result.
    worst = gamma(3) * 2 + float(np.spacing(np.float32(2.0)))
    assert SAFETY == 2
    assert bound.tolist() == [[2 * worst]]


def test_probabilities_of_padding_have_no_bound_and_others_have_little():
    inputs = {"logits": np.array([[1.0, 0.5, -2.0]]), "temperature": 0.5, "public": 2}
    result = execute("proc.distribution", inputs, NINFER)
    bound = bounds_of("proc.distribution", inputs, result, NINFER)["p"]
    assert bound.shape == result["p"].shape
    # Arguments up to 2 / 0.5 in magnitude, one exponential, one division, two ulps each, doubled for the safety.
    assert (bound[result["support"] >= 0] < SAFETY * 2 * (12 * FUNCTION * 4)).all()


def adjusted(**changes):
    neutral = {
        "logits": np.array([[4.0, 4.0, 4.0]]), "public": 3, "allowed": np.array([[1, 1, 0]]),
        "counts": np.array([0, 3, 3]), "overlay": np.zeros((1, 0), dtype=int), "presence": 0.0, "frequency": 0.0,
    }  # fmt: skip
    inputs = neutral | changes
    return inputs, bounds_of("proc.adjust", inputs, execute("proc.adjust", inputs, NINFER), NINFER)["adjusted"]


def test_only_penalised_logits_have_a_bound():
    _, bound = adjusted(presence=float(np.float32(0.1)), frequency=float(np.float32(0.3)))
    assert bound[0, 0] == 0
    assert bound[0, 2] == 0
    # 3.9 and 3.0 are rounded, the product 0.9 too; then one ulp of a number above 2.
    assert bound[0, 1] == pytest.approx(SAFETY * (U * (3.9 + 0.9 + 3.0) + 2.0**-22), rel=1e-3)
    assert (adjusted()[1] == 0).all()


def test_a_fused_penalty_and_one_in_two_steps_are_within_half_the_bound():
    inputs, bound = adjusted(
        logits=normal_like("fused", (1, 3), 3.0, "BF16"), counts=np.array([7, 5, 11]),
        presence=float(np.float32(0.7)), frequency=float(np.float32(-0.3)), allowed=np.ones((1, 3), dtype=int),
    )  # fmt: skip
    f = np.float32
    x, once = inputs["logits"].astype(f), inputs["logits"].astype(f) - f(inputs["presence"])
    two_steps = once - f(inputs["frequency"]) * inputs["counts"].astype(f)
    fused = (once.astype(np.float64) - inputs["frequency"] * inputs["counts"]).astype(f)
    assert x.dtype == two_steps.dtype == f
    want = execute("proc.adjust", inputs, NINFER)["adjusted"]
    for got in (two_steps, fused):
        assert (np.abs(got - want) <= bound / 2).all()


def test_what_filters_took_away_has_no_bound_and_what_they_left_has_little():
    inputs = {
        "adjusted": np.array([[2.0, 1.5, 0.5, -np.inf]]), "temperature": 0.5, "top_k": 0, "min_p": 0.0, "top_p": 0.9,
    }  # fmt: skip
    for profile in (NINFER, ZLAB):
        bounds = bounds_of("proc.filter", inputs, execute("proc.filter", inputs, profile), profile)
        assert (bounds["p"] > 0).tolist() == [[True, True, False, False]]
        assert (bounds["weights"] > 0).tolist() == [[True, True, True, False]]
        assert bounds["p"].max() < SAFETY * 2 * (12 * FUNCTION * 8)


def test_the_law_of_a_proposal_has_the_bound_of_a_filtered_row():
    logits = normal_like("law", (2, 9), 2.0, "F32")
    asked = {"temperature": float(np.float32(0.7)), "top_k": 5, "top_p": float(np.float32(0.8))}
    drawn = {"logits": logits, "u": np.array([0.3, 0.6]), **asked}
    given = {"adjusted": logits, "min_p": 0.0, **asked}
    law = bounds_of("proc.propose", drawn, execute("proc.propose", drawn, ZLAB), ZLAB)["q"]
    row = bounds_of("proc.filter", given, execute("proc.filter", given, ZLAB), ZLAB)["p"]
    assert np.array_equal(law, row)
