"""Inputs on the edge of what an op takes: engine and reference refuse the same ones, and agree on the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dflash_accelerated import conformance
from dflash_spec.errors import DFlashError
from dflash_vectors.implementations import reference

NAN, INF = float("nan"), float("inf")
LOGITS = np.array([[0.5, 2.0, -1.0, 1.5], [1.0, -0.5, 0.25, 3.0]], np.float32)
BROKEN = np.array([[0.5, 2.0, -1.0, 1.5], [1.0, NAN, 0.25, 3.0]], np.float32)
ADJUST = {
    "logits": LOGITS, "public": 4, "allowed": np.ones((2, 4), np.uint8), "counts": np.array([0, 2, 1, 0], np.int32),
    "overlay": np.array([[-1], [3]], np.int32), "presence": 0.0, "frequency": 0.0,
}  # fmt: skip
ONE = np.array([[0, 1, 0, 0], [0, 0, 1, 0]], np.uint8)
PROPOSE = {"logits": LOGITS, "temperature": 0.7, "top_k": 0, "top_p": 1.0, "u": np.array([0.0, 0.75], np.float32)}
COUNT = {
    "prompt": np.array([3], np.int32), "emitted": np.array([1, 2], np.int32), "licensed": np.array([4, 1], np.int32),
    "kept": 1, "own_law": 0, "public": 5,
}  # fmt: skip
SPARSE = {
    "proposals": np.array([3], np.int32), "candidates": np.array([[3, 8]], np.int32),
    "q": np.array([[1.0, 0.0]], np.float32), "support": np.array([[5, 6], [7, 9]], np.int32),
    "p": np.array([[0.25, 0.75], [0.5, 0.5]], np.float32), "u_accept": np.array([0.5], np.float32), "u_terminal": 0.5,
}  # fmt: skip
MATCH = {
    "proposals": np.array([3], np.int32), "support": np.array([[5, 6], [7, 9]], np.int32),
    "p": np.array([[0.25, 0.75], [0.5, 0.5]], np.float32), "u": np.array([0.5, 0.0], np.float32),
}  # fmt: skip
EDGE = np.float32(1e-5)
OVERFLOWING = {"presence": 0.0, "frequency": -3e38, "allowed": ONE, "counts": np.array([5, 0, 1, 9], np.int32)}

REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    *(
        (op, profile, base, {"public": public})
        for op, base in (
            ("proc.adjust", ADJUST), ("proc.greedy", {"logits": LOGITS}),
            ("proc.distribution", {"logits": LOGITS, "temperature": 1.0}),
        ) for profile in ("ninfer", "zlab") for public in (-1, 0, 5)
    ),
    *(("proc.greedy", profile, {"public": 4}, {"logits": BROKEN}) for profile in ("ninfer", "zlab")),
    *(
        ("proc.distribution", profile, {"public": 4, "temperature": 1.0}, {"logits": BROKEN})
        for profile in ("ninfer", "zlab")
    ),
    *(
        ("proc.adjust", "ninfer", ADJUST, {name: value})
        for name in ("presence", "frequency") for value in (NAN, INF, -INF)
    ),
    *(("proc.adjust", "zlab", ADJUST, {name: -0.5}) for name in ("presence", "frequency")),
    ("proc.propose", "zlab", PROPOSE, {"temperature": 0.0}),
    ("proc.propose", "zlab", PROPOSE, {"logits": BROKEN}),
    *(("proc.count", "ninfer", COUNT, {"licensed": np.array([token, 1], np.int32)}) for token in (-1, 5)),
    ("proc.count", "ninfer", COUNT, {"emitted": np.array([5], np.int32)}),
    *(("proc.count", "ninfer", COUNT, {"kept": kept}) for kept in (-1, 3)),
    *(
        ("law.sparse", profile, SPARSE, {"q": np.array([[1.0, NAN]], np.float32)}) for profile in ("ninfer", "zlab")
    ),
    ("law.match", "zlab-2026-04", MATCH, {"p": np.array([[0.25, 0.75], [0.0, 0.0]], np.float32)}),
    ("law.match", "zlab-2026-04", MATCH, {"p": np.array([[0.25, 0.75], [0.5, NAN]], np.float32)}),
]  # fmt: skip
TAKEN: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("proc.adjust", "ninfer", ADJUST, OVERFLOWING),
    ("proc.adjust", "ninfer", ADJUST, {"presence": 3e38, "public": 1}),
    ("proc.propose", "zlab", PROPOSE, {"temperature": 2.0**-126}),
    ("proc.count", "ninfer", COUNT, {"kept": 0, "own_law": 1, "licensed": np.array([4], np.int32)}),
    ("law.sparse", "ninfer", SPARSE, {"q": np.array([[0.0, NAN]], np.float32)}),
    ("law.match", "zlab-2026-04", MATCH, {"u": np.array([1 - 2.0**-24, 0.0], np.float32)}),
    *(
        ("proc.choose", "zlab-2026-04", {"adjusted": LOGITS}, {"temperature": float(np.nextafter(EDGE, way))})
        for way in np.array([0, 1], np.float32)
    ),
    ("proc.choose", "zlab-2026-04", {"adjusted": LOGITS}, {"temperature": 1e-5}),
]  # fmt: skip


def answer(maker: Any, op: str, profile: str, given: dict[str, Any]) -> dict[str, Any] | None:
    """What an implementation answers, None where it refuses."""
    typed = {
        name: np.array(value, np.float32 if isinstance(value, float) else np.int32) if np.ndim(value) == 0 else value
        for name, value in given.items()
    }
    try:
        made = maker.create(profile).run(op, typed)
    except DFlashError:
        return None
    return None if int(made.get("refused", 0)) else {name: np.asarray(value).tolist() for name, value in made.items()}


def label(value: Any) -> str:
    return value if isinstance(value, str) else "-".join(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(("op", "profile", "base", "change"), REFUSED, ids=label)
def test_both_refuse_what_no_answer_can_come_of(
    op: str, profile: str, base: dict[str, Any], change: dict[str, Any]
) -> None:
    assert answer(reference, op, profile, base | change) is None
    assert answer(conformance, op, profile, base | change) is None


@pytest.mark.parametrize(("op", "profile", "base", "change"), TAKEN, ids=label)
def test_both_answer_what_lies_just_inside(op: str, profile: str, base: dict[str, Any], change: dict[str, Any]) -> None:
    expected = answer(reference, op, profile, base | change)
    assert expected is not None
    found = answer(conformance, op, profile, base | change)
    assert found is not None
    assert {name: found[name] for name in expected if not name.startswith("stage.")} == {
        name: value for name, value in expected.items() if not name.startswith("stage.")
    }


def test_a_temperature_of_the_threshold_is_not_below_it() -> None:
    at = {"adjusted": LOGITS, "temperature": 1e-5}
    for maker in (reference, conformance):
        assert (answer(maker, "proc.choose", "zlab-2026-04", at) or {})["greedy"] == 0
