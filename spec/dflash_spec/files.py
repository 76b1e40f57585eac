"""The file codec: safetensors with one metadata key, written so that equal content gives equal bytes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from dflash_spec.errors import TensorFileError
from dflash_spec.tensors import STORED, Tensor

METADATA_KEY = "dflash"
HEADER_LIMIT = 100_000_000  # bytes; the safetensors format's own limit


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value. NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """The file content: tensors in name order, packed without gaps, and one metadata key.

    The writer is our own because the common one cannot write BF16 from NumPy and orders metadata at random.
    """
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = {METADATA_KEY: canonical_json(metadata)}
    blobs, offset = [], 0
    for name in sorted(tensors):
        data = tensors[name].encode()
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(data)],
        }
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
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


def _entries(header: Mapping[str, Any], size: int, where: str) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    entries = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
            start, end = (int(n) for n in entry["data_offsets"])
        except (TypeError, KeyError, ValueError) as error:
            raise TensorFileError(f"{where}: tensor {name!r}: malformed header entry {entry!r}") from error
        if dtype not in STORED:
            raise TensorFileError(f"{where}: tensor {name!r}: dtype {dtype!r}, expected one of {', '.join(STORED)}")
        if any(n < 0 for n in shape) or end - start != prod(shape) * STORED[dtype].itemsize:
            raise TensorFileError(
                f"{where}: tensor {name!r}: {end - start} bytes, expected {prod(shape)} values of {dtype}"
            )
        if start < 0 or end > size:
            raise TensorFileError(f"{where}: tensor {name!r}: ends at byte {end} of {size}: the file is truncated")
        entries[name] = (dtype, shape, start, end)
    spans = sorted((start, end) for _, _, start, end in entries.values())
    if any(left[1] > right[0] for left, right in pairwise(spans)):
        raise TensorFileError(f"{where}: two tensors overlap")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key occurs twice")
    return mapping


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header's JSON and the offset of the data. Raises TensorFileError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(HEADER_LIMIT, size - 8):
                raise TensorFileError(f"{path}: header of {length} bytes in {size}: truncated or not safetensors")
            header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise TensorFileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TensorFileError(f"{path}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TensorFileError(f"{path}: header is not a JSON object")
    return header, 8 + length


def read_metadata(path: Path) -> dict[str, Any]:
    """Our metadata object of a file; empty if the file has none. Raises TensorFileError."""
    header, _ = read_header(path)
    try:
        data = json.loads(header.get("__metadata__", {}).get(METADATA_KEY, "{}"))
    except (ValueError, AttributeError, TypeError) as error:
        raise TensorFileError(f"{path}: metadata {METADATA_KEY!r} is not JSON") from error
    if not isinstance(data, dict):
        raise TensorFileError(f"{path}: metadata {METADATA_KEY!r} is not a JSON object")
    return data


def read_tensors(path: Path, names: frozenset[str] | None = None) -> dict[str, Tensor]:
    """Every tensor of a file, or those in `names`. Raises TensorFileError."""
    header, base = read_header(path)
    size = path.stat().st_size - base
    entries = _entries(header, size, str(path))
    tensors = {}
    with path.open("rb") as file:
        for name, (dtype, shape, start, end) in entries.items():
            if names is None or name in names:
                file.seek(base + start)
                tensors[name] = Tensor.decode(dtype, shape, file.read(end - start))
    return tensors
