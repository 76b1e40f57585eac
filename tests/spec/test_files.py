"""The file codec: round trips, other libraries, and every kind of damage."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from dflash_spec import files
from dflash_spec.errors import DFlashError, TensorFileError
from dflash_spec.tensors import STORED, Tensor
from hypothesis import example, given
from hypothesis import strategies as st

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
SAMPLE = {
    "w": Tensor.of("BF16", [[1.0, -2.0, 0.5]]),
    "n": Tensor.of("U8", [7, 8, 9]),
    "x": Tensor.of("F32", 0.25),
    "e": Tensor.of("I64", np.zeros((0, 3), np.int64)),
}


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits of any dtype, in up to three axes, some of them empty."""
    dtype = draw(st.sampled_from(list(STORED)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = int(np.prod(shape, dtype=np.int64)) * STORED[dtype].itemsize
    return Tensor.decode(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


CONTENTS = st.dictionaries(NAMES, tensors(), max_size=4)


def reading(content: bytes) -> dict[str, Tensor]:
    """What the reader makes of a file with this content, its metadata read too."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content)
        files.read_metadata(path)
        return files.read_tensors(path)


def packed(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**entry: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | entry}


@given(CONTENTS)
def test_what_is_written_is_read_back_bit_for_bit(content: dict[str, Tensor]) -> None:
    found = reading(files.serialize(content, {"id": "x"}))
    assert {k: (t.dtype, t.shape, t.encode()) for k, t in found.items()} == {
        k: (t.dtype, t.shape, t.encode()) for k, t in content.items()
    }


@given(CONTENTS)
def test_the_common_library_reads_what_is_written(content: dict[str, Tensor]) -> None:
    read = dict(safetensors.deserialize(files.serialize(content, {"id": "x"})))
    assert read.keys() == content.keys()
    for name, tensor in content.items():
        assert (read[name]["dtype"], tuple(read[name]["shape"])) == (tensor.dtype, tensor.shape)
        assert bytes(read[name]["data"]) == tensor.encode()


@given(CONTENTS)
def test_every_tensor_is_aligned_to_its_values(content: dict[str, Tensor]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        files.write_tensors(path, content, {"odd": "header"})
        for entry in files.read_entries(path).values():
            assert entry.start % STORED[entry.dtype].itemsize == 0


@given(CONTENTS)
def test_equal_content_in_another_order_gives_equal_bytes(content: dict[str, Tensor]) -> None:
    turned = dict(reversed(content.items()))
    assert files.serialize(turned, {"b": 1, "a": 2}) == files.serialize(content, {"a": 2, "b": 1})


def test_torch_loads_bf16_with_the_same_values(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "x.safetensors", SAMPLE)
    loaded = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert loaded["w"].dtype == torch.bfloat16
    assert loaded["w"].float().tolist() == [[1.0, -2.0, 0.5]]
    assert loaded["n"].tolist() == [7, 8, 9]


def test_what_torch_writes_is_read_and_may_be_written_to(tmp_path: Path) -> None:
    written = {"a": torch.tensor([1.5, -3.0], dtype=torch.bfloat16), "b": torch.tensor([[2.5]], dtype=torch.float32)}
    safetensors.torch.save_file(written, tmp_path / "x.safetensors", {"format": "pt"})
    found = files.read_tensors(tmp_path / "x.safetensors")
    assert (found["a"].dtype, found["a"].values.tolist()) == ("BF16", [1.5, -3.0])
    assert found["b"].values.tolist() == [[2.5]]
    assert all(tensor.values.flags.writeable for tensor in found.values())
    assert files.read_metadata(tmp_path / "x.safetensors") == {}


def test_only_the_names_asked_for_are_read(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "x.safetensors", SAMPLE)
    assert files.read_tensors(tmp_path / "x.safetensors", frozenset({"n", "absent"})).keys() == {"n"}


@given(st.integers(0, len(files.serialize(SAMPLE, {"id": "x"})) - 1))
def test_a_file_cut_anywhere_is_refused(length: int) -> None:
    with pytest.raises(TensorFileError):
        reading(files.serialize(SAMPLE, {"id": "x"})[:length])


@given(CONTENTS, st.data())
def test_a_changed_header_byte_gives_a_named_error_or_a_file(content: dict[str, Tensor], data: st.DataObject) -> None:
    whole = bytearray(files.serialize(content, {"id": "x"}))
    place = data.draw(st.integers(0, 7 + int.from_bytes(whole[:8], "little")))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        found = reading(bytes(whole))
    except TensorFileError:
        return
    assert sum(len(tensor.encode()) for tensor in found.values()) == sum(len(t.encode()) for t in content.values())


@given(st.binary(max_size=64))
def test_any_bytes_at_all_give_a_named_error_or_a_file(content: bytes) -> None:
    try:
        reading(content)
    except TensorFileError:
        return
    assert content[8:9] in (b"{", b" ", b"\n", b"\t", b"\r")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(list(STORED)) | JSON, "shape": st.lists(st.integers() | JSON, max_size=3) | JSON},
    optional={"data_offsets": st.lists(st.integers(-2, 9), max_size=3) | JSON, "x": JSON},
)


@given(st.dictionaries(st.sampled_from(["w", "v", "__metadata__"]), ENTRIES | JSON, max_size=3), st.binary(max_size=8))
@example({"w": {"dtype": "F32", "shape": [0, 10**30, 10**30], "data_offsets": [0, 0]}}, b"")
@example({"w": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}, b"1234")
@example({"w": {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]}}, b"1234")
def test_any_header_gives_a_named_error_or_a_file(header: dict[str, object], data: bytes) -> None:
    try:
        found = reading(packed(header, data))
    except TensorFileError:
        return
    assert sum(len(tensor.encode()) for tensor in found.values()) == len(data)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "truncated or not safetensors"),
        ((2**60).to_bytes(8, "little") + b"{}", "truncated or not safetensors"),
        (packed([]), "header is not a JSON object"),
        (len(b"{,}").to_bytes(8, "little") + b"{,}", "header is not JSON"),
        (len(b'{"a":{},"a":{}}').to_bytes(8, "little") + b'{"a":{},"a":{}}', "a key occurs twice"),
        (len(b"[" * 99999).to_bytes(8, "little") + b"[" * 99999, "header is not JSON"),
        (packed(one(dtype="F64"), b"1234"), "tensor 'w': dtype 'F64', expected one of BF16"),
        (packed(one(dtype=["F32"]), b"1234"), r"tensor 'w': dtype \['F32'\]"),
        (packed(one(shape=[2]), b"1234"), "tensor 'w': 4 bytes, expected 2 values of F32"),
        (packed(one(shape=[True]), b"1234"), "not a list of integers"),
        (packed(one(shape=[-1, -1]), b"1234"), "not a list of integers"),
        (packed(one(shape=[1.0]), b"1234"), "not a list of integers"),
        (packed(one(data_offsets=[0, 4, 8]), b"1234"), "malformed header entry"),
        (packed(one(more=1), b"1234"), "expected dtype, shape and data_offsets"),
        (packed(one(data_offsets=[4, 8]), b"12345678"), "starts at byte 73, expected 69: a gap or an overlap"),
        (packed(one() | {"v": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}, b"123456"), "an overlap"),
        (packed(one(), b"12345"), "found 74 bytes, expected 73: truncated, or followed by something else"),
        (packed(one(), b"123"), "found 72 bytes, expected 73: truncated"),
        (packed({"__metadata__": {"dflash": "{"}}), "metadata 'dflash' is not JSON"),
        (packed({"__metadata__": {"dflash": "[]"}}), "metadata 'dflash' is not a JSON object"),
        (packed({"__metadata__": ["dflash"]}), "metadata 'dflash' is not JSON"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_told(content: bytes, complaint: str) -> None:
    with pytest.raises(TensorFileError, match=complaint):
        reading(content)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(TensorFileError, match=f"{path}: cannot be read"):
            files.read_tensors(path)


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_a_name_that_the_format_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(TensorFileError):
        files.serialize({name: SAMPLE["n"]})


def test_metadata_comes_back_as_it_was(tmp_path: Path) -> None:
    metadata = {"id": "ä", "clauses": ["TAP-001"], "seed": 2**64 - 1, "margin": 0.1}
    files.write_tensors(tmp_path / "x", SAMPLE, metadata)
    assert files.read_metadata(tmp_path / "x") == metadata


def test_metadata_with_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        files.serialize({}, {"margin": float("nan")})


@pytest.mark.parametrize("write", [files.write_atomic, lambda path, _: files.write_tensors(path, SAMPLE)])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
    assert path.read_bytes() == b"old"


def test_every_file_error_is_one_of_ours() -> None:
    assert issubclass(TensorFileError, DFlashError)
