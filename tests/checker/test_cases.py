"""A damaged vector set is told, with the file and the thing that is wrong, and never blamed on an implementation."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dflash_spec.errors import TensorFileError
from dflash_spec.files import read_metadata, read_tensors, serialize
from dflash_spec.tensors import Tensor
from dflash_vectors.cases import default_folder, read_index


def rewrite(vectors: Any, id_: str, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a vector and index it again, so that only the content is wrong."""
    path = vectors.path(id_)
    tensors, metadata = read_tensors(path), read_metadata(path)
    change(tensors)
    path.write_bytes(serialize(tensors, metadata))
    vectors.seal(id_)


def test_a_whole_vector_has_inputs_and_expected_tensors_in_the_ops_order(vectors: Any) -> None:
    case = vectors.case(vectors.FEATURE)
    assert sorted(case.inputs) == ["eps", "fc", "features", "hidden_norm"]
    assert [(e.label, e.compare) for e in case.expected] == [("stage.projected", "bounded"), ("out.c", "bounded")]
    assert case.entry.chapter == "CTX"
    assert case.blame("c") == "CTX-002"
    assert case.blame("projected") == "CTX-001"


def test_blame_for_every_layer_may_be_given_at_once(vectors: Any) -> None:
    case = vectors.case(vectors.FEATURE)
    case.metadata["blame"]["layer.*"] = "CTX-002"
    assert case.blame("layer.3") == "CTX-002"


def test_a_bounded_output_without_a_bound_is_compared_exactly(vectors: Any) -> None:
    rewrite(vectors, vectors.FEATURE, lambda tensors: tensors.pop("bound.out.c"))
    assert vectors.case(vectors.FEATURE).expected[1].compare == "value"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t, v: t.pop("in.fc"), "'in.fc' is missing"),
        (lambda t, v: t.pop("out.c"), "holds no expected values"),
        (lambda t, v: t.update({"in.extra": v.f32([1])}), "unexpected tensor 'in.extra'"),
        (lambda t, v: t.update({"out.d": v.f32([[2]])}), "unexpected tensor 'out.d'"),
        (lambda t, v: t.update({"notes": v.f32([1])}), "unexpected tensor 'notes'"),
        (lambda t, v: t.update({"bound.out.d": v.f32([1])}), "unexpected tensor 'bound.out.d'"),
        (lambda t, v: t.update({"in.fc": Tensor.of("BF16", t["in.fc"].values)}), "'in.fc' is BF16, expected F32"),
        (lambda t, v: t.update({"in.fc": v.f32([[1, 2, 3]])}), r"'in.features' has shape \[1, 2\], .*nH=3"),
        (lambda t, v: t.update({"out.c": v.f32([2])}), r"'out.c' has shape \[1\], expected \[T, H\]"),
        (lambda t, v: t.update({"out.c": v.f32([[np.nan]])}), "'out.c': holds NaN"),
        (lambda t, v: t.update({"bound.out.c": v.f32([[-1]])}), "'bound.out.c': holds a negative or non-finite"),
        (lambda t, v: t.update({"bound.out.c": v.f32([[np.nan]])}), "'bound.out.c': holds a negative or non-finite"),
        (lambda t, v: t.update({"bound.out.c": v.f32([1])}), r"'bound.out.c' is F32 \[1\], expected F32 \[1, 1\]"),
    ],
)
def test_a_vector_that_is_not_as_its_op_declares_is_damaged(vectors: Any, spoil: Any, words: str) -> None:
    rewrite(vectors, vectors.FEATURE, lambda tensors: spoil(tensors, vectors))
    with pytest.raises(TensorFileError, match=words) as caught:
        vectors.case(vectors.FEATURE)
    assert f"{vectors.FEATURE}.safetensors" in str(caught.value)


def test_a_missing_output_is_damage_unless_the_vector_is_a_refusal(vectors: Any) -> None:
    assert [e.name for e in vectors.case(vectors.REFUSED).expected] == ["refused"]
    rewrite(vectors, vectors.REFUSED, lambda tensors: tensors.update({"out.refused": vectors.i32(0)}))
    with pytest.raises(TensorFileError, match=r"'out\.ids' is missing"):
        vectors.case(vectors.REFUSED)


def test_a_bound_on_what_is_compared_exactly_is_damage(vectors: Any) -> None:
    rewrite(vectors, vectors.TAP, lambda t: t.update({"bound.out.features": t["out.features"]}))
    with pytest.raises(TensorFileError, match=r"'bound\.out\.features': unexpected, out\.features is compared exactly"):
        vectors.case(vectors.TAP)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_vector_is_told_by_its_hash(vectors: Any, cut: int) -> None:
    path = vectors.path(vectors.TAP)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TensorFileError, match=r"the index says \d+ bytes"):
        vectors.case(vectors.TAP)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_vector_is_told_even_if_the_index_agrees_with_it(vectors: Any, cut: int) -> None:
    path = vectors.path(vectors.TAP)
    path.write_bytes(path.read_bytes()[:cut])
    vectors.seal(vectors.TAP)
    with pytest.raises(TensorFileError, match=r"truncated|header"):
        vectors.case(vectors.TAP)


def test_a_vector_with_one_flipped_bit_is_told_by_its_hash(vectors: Any) -> None:
    path = vectors.path(vectors.TAP)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TensorFileError, match="sha256"):
        vectors.case(vectors.TAP)


def test_a_vector_that_is_gone_is_told(vectors: Any) -> None:
    vectors.path(vectors.TAP).unlink()
    with pytest.raises(TensorFileError, match="cannot be read: No such file"):
        vectors.case(vectors.TAP)


@pytest.mark.parametrize("key", ["id", "op", "profile", "clauses"])
def test_a_vector_whose_metadata_contradicts_the_index_is_damaged(vectors: Any, key: str) -> None:
    path = vectors.path(vectors.TAP)
    path.write_bytes(serialize(read_tensors(path), read_metadata(path) | {key: ["TAP-001"]}))
    vectors.seal(vectors.TAP)
    with pytest.raises(TensorFileError, match=f"metadata {key}"):
        vectors.case(vectors.TAP)


@pytest.mark.parametrize("way", ["../outside.safetensors", "/etc/hostname", "tap/../../outside.safetensors"])
def test_an_index_entry_that_leaves_the_folder_is_refused(vectors: Any, way: str) -> None:
    (vectors.folder.parent / "outside.safetensors").write_bytes(b"")
    vectors.cases[vectors.TAP]["path"] = way
    (vectors.folder / "index.json").write_text(json.dumps({"cases": vectors.cases}))
    with pytest.raises(TensorFileError, match="expected a file within"):
        read_index(vectors.folder)


def test_a_link_that_leaves_the_folder_is_refused(vectors: Any) -> None:
    outside = vectors.folder.parent / "outside.safetensors"
    os.replace(vectors.path(vectors.TAP), outside)
    vectors.path(vectors.TAP).symlink_to(outside)
    with pytest.raises(TensorFileError, match="expected a file within"):
        read_index(vectors.folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "tap.concatenate"}, "op 'tap.concatenate' is not in the spec"),
        ({"profile": "vllm"}, "profile 'vllm', expected one of ninfer, zlab"),
        ({"clauses": []}, "expected one or more of the spec's"),
        ({"clauses": ["TAP-999"]}, "expected one or more of the spec's"),
        ({"size": "12"}, "size is '12', expected int"),
        ({"more": 1}, "expected the keys path, sha256, size, op, profile, clauses, tags"),
    ],
)
def test_an_index_entry_that_breaks_its_form_is_named(vectors: Any, change: dict[str, Any], words: str) -> None:
    vectors.cases[vectors.TAP] |= change
    (vectors.folder / "index.json").write_text(json.dumps({"cases": vectors.cases}))
    with pytest.raises(TensorFileError, match=words) as caught:
        read_index(vectors.folder)
    assert f"index.json: {vectors.TAP}" in str(caught.value)


@pytest.mark.parametrize("id_", ["../x", "a/b", ""])
def test_an_id_that_could_be_a_path_is_refused(vectors: Any, id_: str) -> None:
    vectors.cases[id_] = vectors.cases[vectors.TAP]
    (vectors.folder / "index.json").write_text(json.dumps({"cases": vectors.cases}))
    with pytest.raises(TensorFileError, match="an id is letters, digits"):
        read_index(vectors.folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"cases": []}', "{}", '"\ud800"'])
def test_an_index_that_is_not_an_object_of_cases_is_refused(vectors: Any, text: str) -> None:
    (vectors.folder / "index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TensorFileError, match=r'not JSON|no object "cases"'):
        read_index(vectors.folder)


def test_a_folder_without_an_index_says_what_writes_one(tmp_path: Any) -> None:
    with pytest.raises(TensorFileError, match="gen_vectors"):
        read_index(tmp_path)


def test_the_default_folder_is_called_golden() -> None:
    assert default_folder().name == "golden"
