"""Every op can be run by name, and answers in the order of its declaration."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_reference import layer, operations
from dflash_spec.errors import TensorError, UnsupportedError
from dflash_spec.registry import load_ops, load_profile
from dflash_vectors import inputs

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
EXTENT = {"drafts": 3, "remaining": 5, "capacity": 50, "frontier": 9}
Build = Callable[..., Any]


def texts(pair: Any) -> dict[str, Any]:
    tensors = {f"target.{name}": values for name, values in pair.target.weights.items()}
    return tensors | {
        "target_config": np.frombuffer(pair.target_text, np.uint8),
        "draft_config": np.frombuffer(pair.draft_text, np.uint8),
    }


def generate_inputs(pair: Any) -> dict[str, Any]:
    return texts(pair) | {f"draft.{name}": values for name, values in pair.draft.weights.items()} | {
        "prompt": np.array([3, 5, 8]), "drafts": 3, "max_new": 6, "stop_ids": np.array([], np.int32), "public": 30,
        "temperature": np.float32(0), "seed": np.uint64(2**64 - 1),
    }  # fmt: skip


SAMPLED = {name for name, op in load_ops().items() if any(spec.compare == "law" for spec in op.outputs)}
"""Ops by which an implementation shows its own randomness: the reference has none."""


def test_the_reference_knows_every_op_with_a_right_answer_and_no_other() -> None:
    assert set(operations.OPERATIONS) == set(load_ops()) - SAMPLED


@pytest.mark.parametrize("profile", [NINFER, ZLAB], ids=["ninfer", "zlab"])
def test_a_composite_names_its_stages_and_outputs_in_the_declared_order(profile: Any, tiny: Build) -> None:
    pair = tiny(profile)
    generated = operations.run("engine.generate", generate_inputs(pair), profile)
    assert list(generated) == ["proposals", "tokens", "accepted"]
    assert generated["proposals"].shape == (len(generated["accepted"]), 3)
    assert (generated["proposals"][-1] == -1).any(), "the tail of the budget proposes less"
    given = {name: values for name, values in texts(pair).items() if name.startswith("target.")}
    forward = operations.run(
        "target.forward",
        given | {"config": texts(pair)["target_config"], "ids": np.array([3, 5, 8]), "chunks": np.array([1, 2]),
                 "taps": np.array([2, 0]), "public": 30},
        profile,
    )  # fmt: skip
    assert list(forward) == ["layer.0", "layer.1", "layer.2", "logits", "features", "tokens"]
    block = operations.run(
        "draft.block",
        {f"draft.{name}": values for name, values in pair.draft.weights.items()}
        | {"config": texts(pair)["draft_config"], "target_config": texts(pair)["target_config"],
           "embedding": pair.target.embedding, "head": pair.target.weights["lm_head.weight"],
           "features": forward["features"], "anchor": 4, "drafts": 5, "extent": 2, "public": 30},
        profile,
    )  # fmt: skip
    assert list(block) == ["c", "layer.0", "layer.1", "hidden", "proposals"]
    assert block["hidden"].shape[0] == block["proposals"].shape[0] == 2


def test_a_head_of_another_target_is_refused(tiny: Build) -> None:
    pair = tiny(ZLAB)
    given = {f"draft.{name}": values for name, values in pair.draft.weights.items()} | {
        "config": texts(pair)["draft_config"], "target_config": texts(pair)["target_config"],
        "embedding": np.zeros((30, 20)), "head": np.zeros((30, 20)), "features": np.zeros((2, 40)),
        "anchor": 4, "drafts": 2, "extent": 2, "public": 30,
    }  # fmt: skip
    with pytest.raises(TensorError, match=r"draft.block: embedding has shape \[30, 20\], expected \[31, 20\]"):
        operations.run("draft.block", given, ZLAB)


def test_an_op_is_looked_up_when_it_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"attended": np.ones((1, 2)), "o_proj": np.ones((3, 2)), "x": np.zeros((1, 3))}
    monkeypatch.setattr(layer, "output", lambda **_: layer.Output(np.array([7.0])))
    assert operations.run("draft.output", given, ZLAB) == {"y": np.array([7.0])}


@pytest.mark.parametrize("op", sorted(load_ops()))
def test_stages_and_outputs_stand_in_the_declared_order(op: str) -> None:
    if op.startswith("config.") or op in (
        "engine.generate",
        "engine.sample",
        "target.forward",
        "draft.block",
        "draft2.block",
    ):
        return
    if op in SAMPLED:
        return
    # What is not refused need not say so: a named error stands for `refused`.
    declared = [spec.name for spec in (*load_ops()[op].stages, *load_ops()[op].outputs) if spec.name != "refused"]
    module, name = operations.PLACES[op]
    returned = getattr(module, str(getattr(module, name).__annotations__["return"]))
    assert [field for field in returned._fields if field != "refused"] == declared


def test_an_unknown_op_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"op 'draft\.nothing', expected one of"):
        operations.run("draft.nothing", {}, ZLAB)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frontier": None}, "block.extent: no input 'frontier', expected one of I32"),
        ({"budget": 4}, "block.extent: input 'budget', expected only drafts, remaining, capacity, frontier"),
        ({"drafts": np.array([3])}, r"block.extent: drafts: shape \[1\], expected \[\]"),
        ({"drafts": 3.0}, "block.extent: drafts: values of type float64, expected I32"),
    ],
    ids=["missing", "unknown", "shape", "type"],
)
def test_inputs_that_are_not_the_ops_are_refused(change: dict[str, Any], message: str) -> None:
    given = {name: value for name, value in (EXTENT | change).items() if value is not None}
    with pytest.raises(TensorError, match=message):
        operations.run("block.extent", given, NINFER)


def test_sizes_that_do_not_agree_are_refused_with_both_places() -> None:
    given = {"attended": np.ones((2, 4)), "o_proj": np.ones((3, 4)), "x": np.zeros((3, 3))}
    with pytest.raises(
        TensorError, match=r"draft\.output: x: 3 on axis 0, expected R = 2 as in draft\.output: attended"
    ):
        operations.run("draft.output", given, ZLAB)


def test_arrays_arrive_as_float64_and_scalars_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def look(**arguments: Any) -> Any:
        seen.update(arguments)
        return layer.Output(np.zeros(1))

    monkeypatch.setattr(layer, "mlp", look)
    eps = np.float32(1e-6)
    names = ("gate_proj", "up_proj")
    given = {name: inputs.weights(name, (3, 2), "BF16").astype(np.float32) for name in names}
    rest = {"y": np.zeros((1, 2)), "post_norm": np.ones(2), "down_proj": np.ones((2, 3)), "eps": eps}
    operations.run("draft.mlp", given | rest, ZLAB)
    assert seen["gate_proj"].dtype == np.float64
    assert type(seen["eps"]) is float
    assert seen["eps"] == float(eps)
