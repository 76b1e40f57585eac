"""The committed vectors as a checker sees them: an index, and one tensor file per case.

A vector set is a folder with `index.json` and the files that it names. Everything is checked on the way in, so that
a damaged set is told apart from a wrong implementation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dflash_spec.errors import SpecDataError, TensorFileError
from dflash_spec.files import read_metadata, read_tensors, unique_members
from dflash_spec.registry import Op, Profile, TensorSpec, load_clauses, load_ops, load_profile
from dflash_spec.tensors import Array, Tensor

CASE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TENSOR_NAME = re.compile(r"(?:in|out|stage\.\d{2,}|bound\.out|bound\.stage\.\d{2,})\.[!-~]+", re.ASCII)
ENTRY_KEYS = {"path": str, "sha256": str, "size": int, "op": str, "profile": str, "clauses": list, "tags": list}


@dataclass(frozen=True)
class Entry:
    """One line of the index: what a case is about, and where its file lies."""

    id: str
    op: Op
    profile: Profile
    clauses: tuple[str, ...]
    tags: tuple[str, ...]
    path: Path
    sha256: str
    size: int

    @property
    def chapter(self) -> str:
        return self.op.chapter


@dataclass(frozen=True)
class Expected:
    """One stage or output to compare. `bound` has the tensor's shape, and is None where the match must be exact."""

    role: str
    name: str
    tensor: Tensor
    compare: str
    bound: Array | None

    @property
    def label(self) -> str:
        """The tensor's name in an answer: `out.key`, `stage.raw`."""
        return f"{'stage' if self.role == 'stages' else 'out'}.{self.name}"


@dataclass(frozen=True)
class GoldenCase:
    """A whole vector: inputs, and what must come out, stages first, in the op's order."""

    entry: Entry
    metadata: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    expected: tuple[Expected, ...]

    def blame(self, name: str) -> str:
        """The clause that a first divergence at stage or output `name` breaks."""
        blamed = dict(self.metadata.get("blame", {}))
        return str(blamed.get(name, blamed.get(f"{name.split('.')[0]}.*", self.entry.clauses[0])))


def shown(value: object) -> str:
    """A value that came from outside: it may be huge, or nested deeper than `repr` can follow."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlist, short.maxdict = 2, 80, 80, 8, 8
    return short.repr(value)


def default_folder() -> Path:
    """The vectors that came with this package: in the wheel beside the code, in a checkout beside the package."""
    package = Path(__file__).parent
    shipped = package / "golden"
    return shipped if (shipped / "index.json").is_file() else package.parent / "golden"


def inside(folder: Path, path: Path) -> Path:
    """`path`, if it is still within `folder` once links are followed. Raises TensorFileError."""
    try:
        end, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop is a RuntimeError, a name no system has a ValueError
        raise TensorFileError(f"{path}: cannot be followed: {error}") from error
    if not end.is_relative_to(root):
        raise TensorFileError(f"{path}: leads to {end}, expected a file within {folder}")
    return path


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises TensorFileError if it cannot be read, is not JSON, or repeats a key."""
    try:
        return json.loads(path.read_text("utf-8"), object_pairs_hook=unique_members)
    except OSError as error:
        raise TensorFileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TensorFileError(f"{path}: not JSON: {error}") from error


def read_index(folder: Path) -> tuple[Entry, ...]:
    """Every case of a vector set, in id order. Raises TensorFileError that names the file and the entry."""
    path = folder / "index.json"
    if not os.path.isfile(path):
        raise TensorFileError(
            f"{folder}: no index.json, expected a folder of vectors (tools/gen_vectors.py writes one)"
        )
    data = read_json(path)
    cases = data.get("cases") if isinstance(data, dict) else None
    if not isinstance(cases, dict):
        raise TensorFileError(f'{path}: found no object "cases"')
    if not cases:
        raise TensorFileError(f'{path}: "cases" is empty, expected at least one vector')
    return tuple(_entry(folder, id_, cases[id_], f"{path}: {id_}") for id_ in sorted(cases))


def _entry(folder: Path, id_: str, body: Any, where: str) -> Entry:
    if not CASE_ID.fullmatch(id_):
        raise TensorFileError(f"{where}: an id is letters, digits, '.', '_' and '-'")
    if not isinstance(body, dict) or set(body) != set(ENTRY_KEYS):
        raise TensorFileError(f"{where}: found {shown(body)}, expected the keys {', '.join(ENTRY_KEYS)}")
    for key, kind in ENTRY_KEYS.items():
        if not isinstance(body[key], kind):
            raise TensorFileError(f"{where}: {key} is {shown(body[key])}, expected {kind.__name__}")
    op = load_ops().get(body["op"])
    if op is None:
        raise TensorFileError(f"{where}: op {shown(body['op'])} is not in the spec")
    clauses = tuple(map(str, body["clauses"]))
    if not clauses or any(clause not in load_clauses() for clause in clauses):
        raise TensorFileError(f"{where}: clauses {shown(body['clauses'])}, expected one or more of the spec's")
    try:
        profile = load_profile(body["profile"])
    except SpecDataError as error:
        raise TensorFileError(f"{where}: {error}") from error
    path = inside(folder, folder / body["path"])
    return Entry(id_, op, profile, clauses, tuple(map(str, body["tags"])), path, body["sha256"], body["size"])


def load_case(entry: Entry) -> GoldenCase:
    """The vector of an index entry, checked against the index and the op's declaration. Raises TensorFileError."""
    try:
        content = entry.path.read_bytes()
    except OSError as error:
        raise TensorFileError(f"{entry.path}: cannot be read: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256 or len(content) != entry.size:
        raise TensorFileError(
            f"{entry.path}: {len(content)} bytes with sha256 {found}, "
            f"the index says {entry.size} bytes with {entry.sha256}"
        )
    metadata = read_metadata(entry.path)
    for key, value in (
        ("id", entry.id), ("op", entry.op.name), ("profile", entry.profile.name), ("clauses", [*entry.clauses]),
    ):  # fmt: skip
        if metadata.get(key) != value:
            raise TensorFileError(
                f"{entry.path}: metadata {key} is {shown(metadata.get(key))}, the index says {value!r}"
            )
    _check_blame(entry, metadata.get("blame", {}))
    tensors = read_tensors(entry.path)
    for name in tensors:
        if not TENSOR_NAME.fullmatch(name):
            raise TensorFileError(f"{entry.path}: unexpected tensor {name!r}: not in.*, stage.*, out.* or bound.*")
    sizes: dict[str, int] = {}
    inputs = _read_inputs(entry, tensors, sizes)
    expected = (*_read_stages(entry, tensors, sizes), *_read_outputs(entry, tensors, sizes))
    _no_bound_left_over(entry, tensors)
    return GoldenCase(entry, metadata, inputs, expected)


def _check_blame(entry: Entry, blame: Any) -> None:
    if not isinstance(blame, dict) or not all(isinstance(c, str) and c in load_clauses() for c in blame.values()):
        raise TensorFileError(
            f"{entry.path}: metadata blame is {shown(blame)}, expected clauses of the spec by tensor name"
        )


def _read_inputs(entry: Entry, tensors: Mapping[str, Tensor], sizes: dict[str, int]) -> dict[str, Tensor]:
    inputs = {}
    for full in sorted(tensors):
        if full.startswith("in."):
            name = full[len("in.") :]
            inputs[name] = _declared(entry, "inputs", name, full, tensors, sizes)[0]
    for spec in entry.op.inputs:
        if not spec.name.endswith("*") and spec.name not in inputs:
            raise TensorFileError(f"{entry.path}: tensor 'in.{spec.name}' is missing, op {entry.op.name} takes it")
    return inputs


def _read_stages(entry: Entry, tensors: Mapping[str, Tensor], sizes: dict[str, int]) -> Iterator[Expected]:
    seen: dict[str, str] = {}
    for full in sorted(name for name in tensors if name.startswith("stage.")):
        name = full.split(".", 2)[2]
        if seen.setdefault(name, full) != full:
            raise TensorFileError(f"{entry.path}: two tensors for stage {name}: {seen[name]!r} and {full!r}")
        tensor, spec = _declared(entry, "stages", name, full, tensors, sizes)
        yield _expected(entry, "stages", name, full, tensor, spec, tensors)


def _read_outputs(entry: Entry, tensors: Mapping[str, Tensor], sizes: dict[str, int]) -> Iterator[Expected]:
    given = [name for name in tensors if name.startswith("out.")]
    if not given:
        raise TensorFileError(f"{entry.path}: holds no expected values; check against the set that has them")
    for full in given:
        _declared(entry, "outputs", full[len("out.") :], full, tensors, sizes)
    refused = "out.refused" in tensors and bool(tensors["out.refused"].values)
    for spec in entry.op.outputs:
        full = f"out.{spec.name}"
        if full in tensors:
            yield _expected(entry, "outputs", spec.name, full, tensors[full], spec, tensors)
        elif not refused and spec.name != "refused":  # what is not refused need not say so
            raise TensorFileError(f"{entry.path}: tensor {full!r} is missing, op {entry.op.name} returns it")


def _declared(
    entry: Entry, role: str, name: str, full: str, tensors: Mapping[str, Tensor], sizes: dict[str, int]
) -> tuple[Tensor, TensorSpec]:
    """The tensor `full`, once its declaration agrees. `sizes` collects what each symbol of a shape stands for."""
    spec = entry.op.find(role, name)
    if spec is None:
        raise TensorFileError(f"{entry.path}: unexpected tensor {full!r}: op {entry.op.name} has no such {role[:-1]}")
    tensor, dtype = tensors[full], spec.dtype_for(entry.profile)
    if tensor.dtype != dtype:
        raise TensorFileError(f"{entry.path}: tensor {full!r} is {tensor.dtype}, expected {dtype}")
    if spec.shape is not None:
        wanted = tuple(
            int(s) if s.isdigit() else sizes.setdefault(s, n) for s, n in zip(spec.shape, tensor.shape, strict=False)
        )
        if len(spec.shape) != len(tensor.shape) or wanted != tensor.shape:
            shape = f"[{', '.join(spec.shape)}]"
            known = ", ".join(f"{s}={sizes[s]}" for s in spec.shape if s in sizes)
            raise TensorFileError(
                f"{entry.path}: tensor {full!r} has shape {list(tensor.shape)}, expected {shape}"
                + (f" with {known}" if known else "")
            )
    return tensor, spec


def _expected(
    entry: Entry, role: str, name: str, full: str, tensor: Tensor, spec: TensorSpec, tensors: Mapping[str, Tensor]
) -> Expected:
    bound = tensors.get(f"bound.{full}")
    if bound is None:
        return Expected(role, name, tensor, "value" if spec.compare == "bounded" else spec.compare, None)
    where = f"{entry.path}: tensor 'bound.{full}'"
    if spec.compare != "bounded":
        raise TensorFileError(f"{where}: unexpected, {full} is compared exactly")
    if bound.dtype != "F32" or bound.shape != tensor.shape:
        raise TensorFileError(
            f"{where} is {bound.dtype} {list(bound.shape)}, expected F32 {list(tensor.shape)} as {full} has"
        )
    if not (np.isfinite(bound.values) & (bound.values >= 0)).all():
        raise TensorFileError(f"{where}: holds a negative or non-finite number")
    if np.isnan(tensor.values).any():
        raise TensorFileError(f"{entry.path}: tensor {full!r}: holds NaN, which no distance can be measured to")
    return Expected(role, name, tensor, "bounded", bound.values)


def _no_bound_left_over(entry: Entry, tensors: Mapping[str, Tensor]) -> None:
    for full in tensors:
        if full.startswith("bound.") and full[len("bound.") :] not in tensors:
            raise TensorFileError(f"{entry.path}: unexpected tensor {full!r}: there is nothing that it bounds")


@dataclass(frozen=True)
class Selection:
    """Which cases of a set to take. An empty tuple, or None, takes all."""

    profile: str | None = None
    ops: tuple[str, ...] = ()
    chapters: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def takes(self, entry: Entry) -> bool:
        return (
            self.profile in (None, entry.profile.name)
            and (not self.ops or entry.op.name in self.ops)
            and (not self.chapters or entry.chapter in self.chapters)
            and (not self.ids or entry.id in self.ids)
        )


Loader = Callable[[Entry], GoldenCase]
