"""Checkpoint folders: one file, shards, links, and every kind of damage with its own message."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from dflash_spec.checkpoint import INDEX, SINGLE, Checkpoint
from dflash_spec.errors import CheckpointError, TensorFileError
from dflash_spec.files import serialize, write_tensors
from dflash_spec.tensors import Tensor

A, B = Tensor.of("BF16", [[1.0, 2.0], [3.0, -4.0]]), Tensor.of("F32", [0.5])
SHAPES = {"a.weight": (2, 2), "b.weight": (1,)}


def single(folder: Path, **more: Tensor) -> Path:
    write_tensors(folder / SINGLE, {"a.weight": A, "b.weight": B, **more}, None)
    return folder


def sharded(folder: Path, weight_map: Mapping[str, object] | None = None) -> Path:
    write_tensors(folder / "model-00001-of-00002.safetensors", {"a.weight": A})
    write_tensors(folder / "model-00002-of-00002.safetensors", {"b.weight": B})
    mapping = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    (folder / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": mapping if weight_map is None else weight_map})
    )
    return folder


@pytest.mark.parametrize("layout", [single, sharded])
def test_a_sound_folder_is_read_whole(tmp_path: Path, layout: object) -> None:
    assert callable(layout)
    checkpoint = Checkpoint.open(layout(tmp_path))
    checkpoint.check(SHAPES)
    assert checkpoint.names == SHAPES.keys()
    assert checkpoint.read("a.weight").values.tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert (checkpoint.read("b.weight").dtype, checkpoint.read("b.weight").values.tolist()) == ("F32", [0.5])


def test_values_are_read_when_asked_for_and_not_before(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(single(tmp_path))
    (tmp_path / SINGLE).write_bytes(serialize({"a.weight": Tensor.of("BF16", np.zeros((2, 2))), "b.weight": B}))
    assert checkpoint.read("a.weight").values.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_folder_of_links_into_a_download_cache_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    single(tmp_path / "blobs")
    (tmp_path / "snapshot" / SINGLE).symlink_to(tmp_path / "blobs" / SINGLE)
    Checkpoint.open(tmp_path / "snapshot").check(SHAPES)


@pytest.mark.parametrize(
    ("expected", "complaint"),
    [
        (SHAPES | {"c.weight": (3,)}, "tensor 'c.weight': found nothing, expected shape (3,)"),
        ({"a.weight": (2, 2)}, "tensor 'b.weight': found shape (1,), expected no such tensor"),
        (SHAPES | {"a.weight": (2, 3)}, "tensor 'a.weight': found shape (2, 2), expected (2, 3)"),
        (SHAPES | {"a.weight": (4,)}, "tensor 'a.weight': found shape (2, 2), expected (4,)"),
    ],
)
def test_a_missing_an_unexpected_and_a_misshapen_tensor_are_told(
    tmp_path: Path, expected: dict[str, tuple[int, ...]], complaint: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(complaint)) as caught:
        Checkpoint.open(single(tmp_path)).check(expected)
    assert str(tmp_path) in str(caught.value)


def test_a_tensor_of_another_dtype_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: tensor 'b.weight': found dtype F32, expected one of BF16"
    ):
        Checkpoint.open(single(tmp_path)).check(SHAPES, dtypes=("BF16",))
    write_tensors(tmp_path / SINGLE, {"a.weight": A, "b.weight": Tensor.of("I32", [1])})
    with pytest.raises(CheckpointError, match="found dtype I32, expected one of BF16, F16, F32"):
        Checkpoint.open(tmp_path).check(SHAPES)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_told_with_its_place(tmp_path: Path, bad: float) -> None:
    write_tensors(tmp_path / SINGLE, {"a.weight": Tensor.of("BF16", [[1.0, 2.0], [bad, 3.0]]), "b.weight": B})
    checkpoint = Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match=rf"tensor 'a.weight': found {bad} at \[1, 0\], expected a finite value"):
        checkpoint.check(SHAPES)
    checkpoint.check(SHAPES, finite=False)


def test_a_name_that_the_folder_lacks_is_told_on_reading(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'c': found nothing"):
        Checkpoint.open(single(tmp_path)).read("c")


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match=rf"{folder}/model.safetensors: cannot be read: No such file"):
            Checkpoint.open(folder)


@pytest.mark.parametrize("layout", [single, sharded])
def test_a_truncated_file_is_told_on_opening(tmp_path: Path, layout: object) -> None:
    assert callable(layout)
    layout(tmp_path)
    victim = max(path for path in tmp_path.iterdir() if path.suffix == ".safetensors")
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{victim}: found \d+ bytes, expected \d+: truncated"):
        Checkpoint.open(tmp_path)


def test_a_file_that_shrinks_after_opening_is_told_on_reading(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(single(tmp_path))
    path = tmp_path / SINGLE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        checkpoint.read("a.weight")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "x/../../m.safetensors", "/etc/passwd", "C:\\x", "\\\\host\\x", "..", "", 7, None]
)
def test_an_index_that_leaves_the_folder_is_refused(tmp_path: Path, name: object) -> None:
    (tmp_path / "inner").mkdir()
    write_tensors(tmp_path / "model.safetensors", {"a.weight": A})
    folder = sharded(tmp_path / "inner", {"a.weight": name})
    with pytest.raises(CheckpointError, match=re.escape(f"{INDEX}: found {name!r}, expected a file")):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("model\0.safetensors", "without NUL"),
        ("\0", "without NUL"),
        ("model\ud800.safetensors", "without lone surrogates"),
        ("\udc80", "without lone surrogates"),
    ],
)
def test_a_shard_name_that_no_file_can_have_is_told_as_such(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(sharded(tmp_path, {"a.weight": name}))
    assert str(caught.value) == f"{tmp_path / INDEX}: found {name!r}, expected a file name {complaint}"


def test_shards_that_belie_the_index_are_told(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    with pytest.raises(CheckpointError, match=rf"{second}: tensor 'a.weight': found nothing, expected what"):
        Checkpoint.open(sharded(tmp_path, {"a.weight": second, "b.weight": second}))
    with pytest.raises(CheckpointError, match=rf"{second}: tensor 'c.weight': found nothing"):
        Checkpoint.open(sharded(tmp_path, {"a.weight": first, "b.weight": second, "c.weight": second}))
    write_tensors(tmp_path / first, {"a.weight": A, "stray": B})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a.weight": first, "b.weight": second}}))
    with pytest.raises(CheckpointError, match=rf"{first}: tensor 'stray': found a tensor that {INDEX} does not place"):
        Checkpoint.open(tmp_path)


def test_a_shard_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model-3.safetensors: cannot be read"):
        Checkpoint.open(sharded(tmp_path, {"a.weight": "model-3.safetensors"}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"{", "not JSON"), (b"\xff", "not JSON"), (b"[" * 99999, "not JSON"), (b"[]", "weight_map: found NoneType"),
        (b'{"weight_map": []}', "weight_map: found list"), (b'{"weight_map": {}}', "weight_map: found dict"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "not JSON: a key occurs twice"),
    ],
)  # fmt: skip
def test_a_damaged_index_is_told(tmp_path: Path, text: bytes, complaint: str) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).write_bytes(text)
    with pytest.raises(CheckpointError, match=f"{INDEX}: {complaint}"):
        Checkpoint.open(tmp_path)


def test_a_checkpoint_error_is_a_tensor_file_error() -> None:
    assert issubclass(CheckpointError, TensorFileError)
