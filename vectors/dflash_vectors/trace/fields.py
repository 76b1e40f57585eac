"""The fields of a trace's files, taken out one by one: each is what the format says, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.errors import TraceError
from dflash_spec.tensors import FLOATS, Array, Tensor

from dflash_vectors.trace.format import FRONTIERS

INTEGERS = ("I32", "I64", "U32", "U64")
CANDIDATES = "candidates"
LARGEST = 2**31 - 1
"""The largest position and count: positions are I32."""


class Fields:
    """The tensors and the metadata of one file. What is not taken is left, and is then one too many."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
        self.where = where
        self._tensors = dict(tensors)
        self._metadata = dict(metadata)

    def wrong(self, what: str) -> TraceError:
        """The error that says where."""
        return TraceError(f"{self.where}: {what}")

    def members(self) -> list[str]:
        """The keys of the metadata."""
        return sorted(self._metadata)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._tensors

    def member(self, key: str, kind: type, default: Any = None) -> Any:
        """A member of the metadata, of one type; `default` where it is absent. Raises TraceError."""
        if key not in self._metadata and default is not None:
            return default
        value = self._metadata.get(key)
        right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not right or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise self.wrong(f"metadata {key!r} is {_short(value)}, expected {kind.__name__}")
        return value

    def optional(self, key: str, low: int, high: int) -> int | None:
        """An integer of the metadata, or None where it is null or absent. Raises TraceError."""
        return None if self._metadata.get(key) is None else self.count(key, low, high)

    def count(self, key: str, low: int, high: int) -> int:
        """An integer of the metadata, from low to high. Raises TraceError."""
        return self.inside(f"metadata {key!r}", int(self.member(key, int)), low, high)

    def inside(self, what: str, value: int, low: int, high: int) -> int:
        """`value`, if it lies from low to high. Raises TraceError."""
        if not low <= value <= high:
            raise self.wrong(f"{what} is {value}, expected {low} to {high}")
        return value

    def take(self, name: str) -> Tensor:
        """A tensor. Raises TraceError where it is missing."""
        if name not in self._tensors:
            raise self.wrong(f"tensor {name!r} is missing")
        return self._tensors.pop(name)

    def text(self, name: str) -> bytes:
        """The bytes of a U8 tensor of one dimension. Raises TraceError."""
        tensor = self.take(name)
        if tensor.dtype != "U8" or len(tensor.shape) != 1:
            raise self.wrong(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected U8 [bytes]")
        return tensor.values.tobytes()

    def ids(self, name: str, length: int | None, high: int) -> Array:
        """A list of token ids from 0 to high, of a given length or any: int64 [N]. Raises TraceError."""
        tensor = self.take(name)
        wanted = "[N]" if length is None else f"[{length}]"
        if tensor.dtype not in INTEGERS or len(tensor.shape) != 1 or length not in (None, len(tensor.values)):
            raise self.wrong(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected I64 {wanted}")
        for slot, token in enumerate(tensor.values):
            self.inside(f"{name}[{slot}]", int(token), 0, high)
        return tensor.values.astype(np.int64)

    def number(self, name: str, low: int, high: int = LARGEST) -> int:
        """An integer of shape []. Raises TraceError."""
        tensor = self.take(name)
        if tensor.dtype not in INTEGERS or tensor.shape != ():
            raise self.wrong(f"{name} is {tensor.dtype} {list(tensor.shape)}, expected I64 []")
        return self.inside(name, int(tensor.values), low, high)

    def frontiers(self) -> dict[str, int]:
        """Those of `frontier.*` that are there. Raises TraceError."""
        return {name: self.number(f"frontier.{name}", 0) for name in FRONTIERS if self.has(f"frontier.{name}")}

    def stages(self, known: tuple[str, ...], rows: int) -> dict[str, Tensor]:
        """Those of `stage.*` that are there, in the order of `known`: tables of floats, or for candidates of ids below
        `rows`. Raises TraceError."""
        found = {name: self.take(f"stage.{name}") for name in known if self.has(f"stage.{name}")}
        for name, tensor in found.items():
            right = INTEGERS if name == CANDIDATES else FLOATS
            if tensor.dtype not in right or len(tensor.shape) != 2:
                raise self.wrong(
                    f"stage.{name} is {tensor.dtype} {list(tensor.shape)}, expected rows of {', '.join(right)}"
                )
            if name == CANDIDATES and tensor.values.size:
                self.inside(f"the least of stage.{name}", int(tensor.values.min()), 0, rows - 1)
                self.inside(f"the largest of stage.{name}", int(tensor.values.max()), 0, rows - 1)
        return found

    def prefixed(self, prefix: str) -> dict[str, Tensor]:
        """Every tensor whose name starts so, by the rest of its name."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensors.pop(name) for name in names}

    def hashes(self) -> dict[str, bytes]:
        """The digests of `hash.*`. Raises TraceError."""
        names = [name for name in self._tensors if name.startswith("hash.")]
        return {name.removeprefix("hash."): self.text(name) for name in names}

    def nothing_left(self, known: tuple[str, ...]) -> None:
        """Raise TraceError for a tensor that was not taken; `known` are the stages that there may be."""
        for name in sorted(self._tensors):
            stages = ", ".join(f"stage.{stage}" for stage in known)
            raise self.wrong(f"unexpected tensor {name!r}; stages of this draft are {stages}; your own go as extra.*")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


class Numbered(NamedTuple):
    """A file of a folder, with the number that its name has."""

    number: int
    name: str


def consecutive(found: list[Numbered], wrong: Callable[[str], TraceError]) -> Iterator[str]:
    """The names in order. Raises TraceError at a gap, and for two names of one number."""
    for expected, (number, name) in enumerate(sorted(found)):
        if number > expected:
            raise wrong(f"round {expected} is missing, though there is {name}")
        if number < expected:
            raise wrong(f"{name}: a second file of round {number}")
        yield name
