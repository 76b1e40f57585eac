"""The builder stores what the reference computes, and refuses cases that break a rule, by name."""

from dataclasses import replace

import numpy as np
import pytest
from dflash_spec.files import read_metadata, read_tensors
from dflash_vectors import build as builder
from dflash_vectors.build import bound_tensor, build
from dflash_vectors.errors import BuildError
from dflash_vectors.suite import Case

HEAD = Case(
    "small", ("HEAD-001",), {"hidden": np.array([[1.0, 2.0]]), "head": np.array([[0.5, 1.0], [3.0, -1.0]])},
    catches="a wrong head", effect="acceptance", op="head.logits", profile="ninfer",
)  # fmt: skip


def changed(case=HEAD, **inputs):
    return replace(case, inputs={**case.inputs, **inputs})


def stored(case, folder):
    path = folder / "case.safetensors"
    path.write_bytes(build(case).content)
    return read_tensors(path), read_metadata(path)


def test_a_vector_holds_inputs_outputs_bounds_and_what_it_is_about(tmp_path):
    tensors, metadata = stored(HEAD, tmp_path)
    assert set(tensors) == {"in.hidden", "in.head", "out.logits", "bound.out.logits"}
    # By hand: 1 * 0.5 + 2 * 1 = 2.5 and 1 * 3 - 2 * 1 = 1, both BF16 values.
    assert tensors["out.logits"].values.tolist() == [[2.5, 1.0]]
    assert (tensors["out.logits"].dtype, tensors["bound.out.logits"].dtype) == ("BF16", "F32")
    assert metadata["id"] == "ninfer-head-logits-small"
    assert metadata["clauses"] == ["HEAD-001"]
    assert {"op", "profile", "geometry", "seed", "spec", "generator", "margins", "tags", "catches", "effect"} <= set(
        metadata
    )


def test_stages_are_numbered_in_the_order_of_the_spec(tmp_path):
    case = Case(
        "stages", ("CTX-001",),
        {
            "features": np.array([[1.0, -2.0, 0.5, 4.0]]), "fc": np.array([[1.0, 0, 0, 0], [0, 1.0, 1.0, 0]]),
            "hidden_norm": np.array([1.0, 2.0]), "eps": float(np.float32(1e-6)),
        },
        catches="norm before projection", effect="acceptance", op="context.feature", profile="ninfer",
    )  # fmt: skip
    tensors, _ = stored(case, tmp_path)
    assert {name for name in tensors if not name.startswith("in.")} == {
        "stage.00.projected", "bound.stage.00.projected", "out.c", "bound.out.c",
    }  # fmt: skip
    assert tensors["stage.00.projected"].values.tolist() == [[1.0, -1.5]]


def test_equal_cases_give_equal_bytes_and_the_index_entry_is_of_these_bytes():
    first, second = build(HEAD), build(HEAD)
    assert first.content == second.content
    assert first.entry == second.entry
    assert first.entry["size"] == len(first.content)
    assert first.path == "head/ninfer-head-logits-small.safetensors"


def test_a_blind_vector_holds_inputs_alone(tmp_path):
    path = tmp_path / "blind.safetensors"
    path.write_bytes(build(HEAD, expected=False).content)
    assert set(read_tensors(path)) == {"in.hidden", "in.head"}
    assert read_metadata(path)["margins"] == {}


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (changed(hidden=np.array([[1.0, 1 + 2**-9]])), "hidden: a value is not representable in BF16"),
        (changed(head=np.array([[0.5, 1.0, 2.0]])), r"head: shape \[1, 3\], expected \[V, H\] with H=2"),
        (changed(hidden=np.array([1.0, 2.0])), r"hidden: shape \[2\]"),
        (changed(surplus=np.array(1)), "surplus: op head.logits has no such input"),
        (replace(HEAD, inputs={"hidden": HEAD.inputs["hidden"]}), "head: missing"),
        (replace(HEAD, exact=("logit",)), "exact names 'logit'"),
    ],
)
def test_inputs_that_break_the_declaration_are_refused_by_name(case, found):
    with pytest.raises(BuildError, match=found) as error:
        build(case)
    assert case.id in str(error.value)


def test_a_decision_without_margin_is_refused_unless_the_case_is_about_ties():
    case = Case(
        "even", ("HEAD-003",), {"logits": np.array([[0.0, 3.0, 3.0]]), "public": 3},
        catches="tie to the highest id", effect="output", op="head.argmax", profile="ninfer",
    )  # fmt: skip
    with pytest.raises(BuildError, match=r"ninfer-head-argmax-even: proposals, decision 0: margin 0"):
        build(case)
    assert build(replace(case, tags=("tie",)))
    assert build(changed(case, logits=np.array([[0.0, 3.0, 3.5]])))


def test_margins_are_recorded_and_a_decision_without_alternative_has_none(tmp_path):
    case = Case(
        "margins", ("HEAD-002",), {"logits": np.array([[0.0, 3.0, 1.5], [2.0, -np.inf, 7.0]]), "public": 2},
        catches="padding wins", effect="output", op="head.argmax", profile="ninfer",
    )  # fmt: skip
    _, metadata = stored(case, tmp_path)
    assert metadata["margins"] == {"proposals": [3.0, None]}


def test_exactness_is_proved_and_not_believed():
    exact = replace(HEAD, exact=("logits",))
    assert b"bound." not in build(exact).content
    # 2^24 + 1 + 1 is 2^24 + 2 in exact arithmetic, but an FP32 sum from left to right stays at 2^24.
    lossy = replace(
        exact, profile="zlab",
        inputs={"hidden": np.ones((1, 3)), "head": np.array([[2.0**24, 1.0, 1.0]])},
    )  # fmt: skip
    with pytest.raises(BuildError, match=r"logits\[0, 0\] is promised exact, but .* under the innocent variant"):
        build(lossy)


def test_a_case_above_its_limit_is_refused(monkeypatch):
    monkeypatch.setattr(builder, "CASE_LIMIT", 600)
    with pytest.raises(BuildError, match="expected at most 600"):
        build(HEAD)


def test_a_bound_in_fp32_is_never_below_the_bound_it_stands_for():
    wide = np.array([0.0, 1 / 3, 2 / 3, 1e-50, 0.1])
    narrow = bound_tensor(wide, "here").values.astype(np.float64)
    assert (narrow >= wide).all()
    assert narrow[0] == 0
    with pytest.raises(BuildError, match="here: a bound is not finite"):
        bound_tensor(np.array([np.inf]), "here")


def test_a_config_that_must_be_refused_has_that_output_alone(tmp_path):
    case = Case(
        "no-such-config", ("CFG-001",), {"target": np.frombuffer(b"{}", dtype=np.uint8)},
        catches="a config without sizes is guessed", effect="crash", op="config.read_target", profile="zlab",
    )  # fmt: skip
    tensors, _ = stored(case, tmp_path)
    assert set(tensors) == {"in.target", "out.refused"}
    assert tensors["out.refused"].values == 1
