"""The file codec: safetensors with one metadata key, written so that equal content gives equal bytes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from dflash_spec.errors import TensorFileError
from dflash_spec.tensors import STORED, Tensor

METADATA_KEY = "dflash"
HEADER_LIMIT = 100_000_000  # bytes; the safetensors format's own limit


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value. NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Entry(NamedTuple):
    """Where a tensor's bytes stand in a file: `start` and `end` count from the first byte of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """The file content: tensors packed without gaps, the widest values first and then by name, and one metadata key.

    That order aligns every tensor to its values. The writer is our own because the common one cannot write BF16 from
    NumPy and orders metadata at random. Raises TensorFileError on a name that the format cannot hold.
    """
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = {METADATA_KEY: canonical_json(metadata)}
    blobs, offset = [], 0
    for name in sorted(tensors, key=lambda name: (-STORED[tensors[name].dtype].itemsize, name)):
        if name == "__metadata__":
            raise TensorFileError(f"tensor {name!r}: the format keeps this name for itself")
        data = tensors[name].encode()
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(data)],
        }
        blobs.append(data)
        offset += len(data)
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TensorFileError(f"a tensor name or metadata is not UTF-8: {error}") from error
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def write_atomic(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> None:
    """Write a tensor file atomically."""
    write_atomic(path, serialize(tensors, metadata))


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's members, for `json.loads`. Raises ValueError on a key that occurs twice."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key occurs twice")
    return mapping


def _whole(values: object) -> list[int]:
    """`values` if it is a list of integers from 0 on. Raises ValueError."""
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError("not a list of integers from 0 on")
    return values


def _entry(name: str, body: object, base: int, where: str) -> Entry:
    """One header entry, checked in itself. Raises TensorFileError."""
    try:
        if not isinstance(body, dict) or body.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError("expected dtype, shape and data_offsets")
        shape = tuple(_whole(body["shape"]))
        start, end = _whole(body["data_offsets"])
    except ValueError as error:
        raise TensorFileError(f"{where}: tensor {name!r}: malformed header entry {body!r}: {error}") from error
    dtype = body["dtype"]
    if not isinstance(dtype, str) or dtype not in STORED:
        raise TensorFileError(f"{where}: tensor {name!r}: dtype {dtype!r}, expected one of {', '.join(STORED)}")
    if end - start != prod(shape) * STORED[dtype].itemsize:
        raise TensorFileError(
            f"{where}: tensor {name!r}: {end - start} bytes, expected {prod(shape)} values of {dtype}"
        )
    return Entry(dtype, shape, base + start, base + end)


def read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """The header's JSON, the offset of the data, and the size of the file in bytes. Raises TensorFileError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise TensorFileError(f"{path}: header of {length} bytes in {size}: truncated or not safetensors")
            header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=unique_members)
    except OSError as error:
        raise TensorFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TensorFileError(f"{path}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TensorFileError(f"{path}: header is not a JSON object")
    return header, 8 + length, size


def read_entries(path: Path) -> dict[str, Entry]:
    """Every tensor's entry, without reading a value. Raises TensorFileError."""
    header, base, size = read_header(path)
    entries = {name: _entry(name, body, base, str(path)) for name, body in header.items() if name != "__metadata__"}
    end = base
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != end:
            raise TensorFileError(f"{path}: tensor {name!r}: starts at byte {entry.start}, expected {end}: "
                                  "a gap or an overlap")  # fmt: skip
        end = entry.end
    if end != size:
        raise TensorFileError(f"{path}: found {size} bytes, expected {end}: truncated, or followed by something else")
    return entries


def read_metadata(path: Path) -> dict[str, Any]:
    """Our metadata object of a file; empty if the file has none. Raises TensorFileError."""
    header, _, _ = read_header(path)
    try:
        data = json.loads(header.get("__metadata__", {}).get(METADATA_KEY, "{}"), object_pairs_hook=unique_members)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise TensorFileError(f"{path}: metadata {METADATA_KEY!r} is not JSON") from error
    if not isinstance(data, dict):
        raise TensorFileError(f"{path}: metadata {METADATA_KEY!r} is not a JSON object")
    return data


def read_tensors(path: Path, names: frozenset[str] | None = None) -> dict[str, Tensor]:
    """Every tensor of a file, or those in `names`. Raises TensorFileError."""
    tensors = {}
    entries = read_entries(path)
    try:
        with path.open("rb") as file:
            for name, entry in entries.items():
                if names is None or name in names:
                    file.seek(entry.start)
                    data = bytearray(entry.end - entry.start)
                    if file.readinto(data) != len(data):
                        raise TensorFileError(f"{path}: tensor {name!r}: the file has shrunk while it was read")
                    tensors[name] = Tensor.decode(entry.dtype, entry.shape, data)
    except OSError as error:
        raise TensorFileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TensorFileError(f"{path}: a shape that NumPy cannot hold: {error}") from error
    return tensors
