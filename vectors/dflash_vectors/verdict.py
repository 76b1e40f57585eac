"""What a check found: divergences, one result per vector, and the verdict over a whole run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dflash_spec.tensors import FLOATS, Tensor

from dflash_vectors.cases import Entry
from dflash_vectors.differences import Difference
from dflash_vectors.runners.protocol import Answer, Description

PASSED, FAILED, UNSUPPORTED, DAMAGED = "passed", "failed", "not supported", "damaged"
EXIT_PASSED, EXIT_FAILED, EXIT_UNUSABLE, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Element:
    """One element that differs. `ulps` counts codes of the dtype; `bounds` is |got - expected| over the bound.

    Either is None where there is no such distance: NaN, integers, an exact match asked for.
    """

    index: tuple[int, ...]
    expected: str
    got: str
    ulps: int | None
    bound: float | None
    bounds: float | None


@dataclass(frozen=True)
class Divergence:
    """One tensor of an answer that is not what the vector holds. `problem` says why it could not be compared."""

    label: str
    problem: str = ""
    first: Element | None = None
    worst: Element | None = None
    differing: int = 0
    total: int = 0


@dataclass(frozen=True)
class Result:
    """The verdict on one vector of one implementation.

    `reason` is set where there was nothing to compare; `answer` is kept where the comparison failed.
    """

    entry: Entry
    status: str
    reason: str = ""
    clause: str = ""
    divergences: tuple[Divergence, ...] = ()
    seconds: float = 0.0
    difference: Difference | None = None
    answer: Answer | None = field(default=None, compare=False, repr=False)

    @property
    def unexplained(self) -> bool:
        return self.status == FAILED and self.difference is None


@dataclass
class Column:
    """One implementation in one profile, with its results in the order in which they came."""

    spec: str
    description: Description
    results: list[Result] = field(default_factory=list)

    @property
    def label(self) -> str:
        name = f"{self.description.name} {self.description.version}".rstrip()
        return f"{name} ({self.description.profile})"

    def of(self, *statuses: str, chapter: str | None = None) -> list[Result]:
        return [r for r in self.results if r.status in statuses and chapter in (None, r.entry.chapter)]


@dataclass
class Run:
    """A whole check: vectors asked for, columns, and what kept a column from existing."""

    folder: str
    entries: tuple[Entry, ...]
    columns: list[Column] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    interrupted: bool = False

    def results(self) -> Iterator[Result]:
        for column in self.columns:
            yield from column.results

    def count(self, *statuses: str) -> int:
        return sum(result.status in statuses for result in self.results())

    @property
    def damaged(self) -> dict[str, str]:
        """Vectors that could not be read: id -> why."""
        return {result.entry.id: result.reason for result in self.results() if result.status == DAMAGED}

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.broken or self.damaged or not self.count(PASSED, FAILED):
            return EXIT_UNUSABLE
        return EXIT_FAILED if any(result.unexplained for result in self.results()) else EXIT_PASSED


def ordered_codes(tensor: Tensor) -> Any:
    """Codes of a float tensor as int64, such that neighbours in the dtype differ by one and both zeros are 0."""
    bits = np.ascontiguousarray(tensor.values, dtype=np.float32).view(np.uint32).astype(np.int64)
    if tensor.dtype == "BF16":
        bits, sign = bits >> 16, 1 << 15
    elif tensor.dtype == "F16":
        with np.errstate(over="ignore"):
            bits, sign = tensor.values.astype(np.float16).view(np.uint16).astype(np.int64), 1 << 15
    else:
        sign = 1 << 31
    return np.where(bits >= sign, sign - bits, bits).reshape(tensor.shape)


def digits(dtype: str, value: Any) -> str:
    """A value in as many digits as tell it from its neighbours in the dtype."""
    if dtype not in FLOATS:
        return str(int(value))
    return str(np.float32(value)) if dtype == "F32" else f"{float(value):.{4 if dtype == 'BF16' else 5}g}"


def show(tensor: Tensor, index: tuple[int, ...]) -> str:
    """One element, with its code in hexadecimal if it is a float."""
    value = tensor.values[index]
    if tensor.dtype not in FLOATS:
        return digits(tensor.dtype, value)
    code = int.from_bytes(Tensor(tensor.dtype, np.asarray(value)).encode(), "little")
    return f"{digits(tensor.dtype, value)} (0x{code:0{8 if tensor.dtype == 'F32' else 4}x})"


def machine_form(run: Run) -> dict[str, Any]:
    """The run as one JSON object. Numbers that JSON has no word for are strings."""
    return {
        "format": 1,
        "vectors": run.folder,
        "implementations": [header_record(column) for column in run.columns],
        "results": [result_record(column, result) for column in run.columns for result in column.results],
        **summary_record(run),
    }


def header_record(column: Column) -> dict[str, Any]:
    return {
        "implementation": column.spec,
        "name": column.description.name,
        "version": column.description.version,
        "profile": column.description.profile,
    }


def result_record(column: Column, result: Result) -> dict[str, Any]:
    entry, difference = result.entry, result.difference
    record: dict[str, Any] = {
        "implementation": column.spec,
        "id": entry.id,
        "op": entry.op.name,
        "chapter": entry.chapter,
        "profile": entry.profile.name,
        "status": result.status,
        "seconds": round(result.seconds, 6),
    }
    if result.reason:
        record["reason"] = result.reason
    if result.clause:
        record["clause"] = result.clause
    if result.divergences:
        record["divergences"] = [divergence_record(divergence) for divergence in result.divergences]
    if difference is not None:
        record["known_difference"] = {"verdict": difference.verdict, "why": difference.why}
    return record


def summary_record(run: Run) -> dict[str, Any]:
    known = sum(r.status == FAILED and not r.unexplained for r in run.results())
    return {
        "passed": run.count(PASSED),
        "failed": run.count(FAILED),
        "known_differences": known,
        "not_supported": run.count(UNSUPPORTED),
        "damaged": run.damaged,
        "could_not_run": run.broken,
        "does_not_speak": run.silent,
        "stale_differences": run.stale,
        "interrupted": run.interrupted,
        "exit_code": run.exit_code,
    }


def divergence_record(divergence: Divergence) -> dict[str, Any]:
    """A divergence as JSON holds it."""
    record: dict[str, Any] = {"tensor": divergence.label}
    if divergence.problem:
        return record | {"problem": divergence.problem}
    record |= {"differing": divergence.differing, "total": divergence.total}
    for key, element in (("first", divergence.first), ("worst", divergence.worst)):
        if element is not None:
            record[key] = {
                "index": list(element.index),
                "expected": element.expected,
                "got": element.got,
                "ulps": element.ulps,
                "bound": element.bound,
                "bounds": _number(element.bounds),
            }
    return record


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def stale_differences(known: Iterable[Difference], columns: Iterable[Column]) -> list[str]:
    """Records that some vector that ran could have proved, and none did: the difference is gone."""
    columns, stale = list(columns), []
    for difference in known:
        subject = {"op": "op", "case": "id", "clause": "clauses"}[difference.subject]
        ran, used = 0, 0
        for column in columns:
            d = column.description
            if (difference.implementation, difference.version or d.version, difference.profile or d.profile) == (
                d.name, d.version, d.profile
            ):  # fmt: skip
                for result in column.of(PASSED, FAILED):
                    entry = result.entry
                    found = {"op": (entry.op.name,), "id": (entry.id,), "clauses": entry.clauses}[subject]
                    ran += difference.value in found
                    used += result.difference == difference
        if ran and not used:
            stale.append(f"{difference.implementation}: {difference.value} no longer differs: {difference.why}")
    return stale
