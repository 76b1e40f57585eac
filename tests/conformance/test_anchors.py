"""Anchors: values derived by hand from the sources, which keep the reference from being its own witness."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dflash_vectors
import numpy as np
import pytest
import yaml
from dflash_spec.registry import TensorSpec, load_clauses, load_ops, load_profile
from dflash_spec.tensors import FLOATS, Array, Tensor
from dflash_vectors import inputs
from dflash_vectors.run import execute
from dflash_vectors.verdict import ordered_codes

FOLDER = Path(dflash_vectors.__file__).parent / "anchors"
KEYS = {"id", "op", "profile", "inputs", "expected", "derivation"}
FEWEST = 3


def anchors() -> Iterator[dict[str, Any]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load(path.read_text("utf-8"))


ANCHORS = list(anchors())


def taken(anchor: dict[str, Any], role: str, name: str, value: Any) -> tuple[TensorSpec, Tensor]:
    """A value of the file in the dtype that the op declares; a decimal among inputs stands for the nearest value."""
    spec = load_ops()[anchor["op"]].find(role, name)
    assert spec is not None, f"{anchor['id']}: {anchor['op']} has no {role} {name}"
    dtype = spec.dtype_for(load_profile(anchor["profile"]))
    if isinstance(value, str):
        return spec, Tensor.of(dtype, inputs.text(value))
    held = np.array(value, dtype=np.float64 if dtype in FLOATS else np.uint64 if dtype == "U64" else np.int64)
    if dtype in FLOATS and (role == "inputs" or anchor.get("tolerance_ulps", 0)):
        held = inputs.represent(held, dtype)
    return spec, Tensor.of(dtype, held, f"{anchor['id']}: {name}")


def plain(tensor: Tensor) -> Any:
    values: Array = tensor.values.astype(np.float64) if tensor.dtype in FLOATS else tensor.values
    return values.item() if values.ndim == 0 else values


def answer(anchor: dict[str, Any]) -> dict[str, Array]:
    op = load_ops()[anchor["op"]]
    given = {name: plain(taken(anchor, "inputs", name, value)[1]) for name, value in anchor["inputs"].items()}
    with np.errstate(invalid="ignore"):
        return execute(op.name, given, load_profile(anchor["profile"]))


@pytest.mark.parametrize("anchor", ANCHORS, ids=[anchor["id"] for anchor in ANCHORS])
def test_the_reference_gives_the_value_that_was_derived_by_hand(anchor: dict[str, Any]) -> None:
    op, got = load_ops()[anchor["op"]], answer(anchor)
    for name, value in anchor["expected"].items():
        role = "stages" if op.find("stages", name) else "outputs"
        _, expected = taken(anchor, role, name, value)
        found = Tensor.of(expected.dtype, got[name], name)
        assert found.shape == expected.shape, name
        if expected.dtype in FLOATS:
            apart = np.abs(ordered_codes(found) - ordered_codes(expected))
            assert apart.max(initial=0) <= anchor.get("tolerance_ulps", 0), f"{name}: {found.values}"
        else:
            assert np.array_equal(found.values, expected.values), f"{name}: {found.values}"


@pytest.mark.parametrize("chapter", sorted({clause.chapter for clause in load_clauses().values()}))
def test_every_chapter_has_three_anchors(chapter: str) -> None:
    own = [anchor["id"] for anchor in ANCHORS if anchor["id"].startswith(f"{chapter.lower()}-")]
    assert len(own) >= FEWEST, f"{chapter} has {own}"


def test_every_anchor_says_how_it_was_derived() -> None:
    for anchor in ANCHORS:
        assert KEYS <= set(anchor) <= KEYS | {"tolerance_ulps"}, anchor["id"]
        assert anchor["derivation"].strip(), anchor["id"]
        assert anchor["expected"], anchor["id"]


def test_no_two_anchors_have_one_id() -> None:
    ids = [anchor["id"] for anchor in ANCHORS]
    assert sorted(set(ids)) == sorted(ids)
