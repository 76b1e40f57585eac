"""Which known fault a wrong output looks like: the faults of the op are tried, one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_clauses
from dflash_spec.tensors import Array, Tensor

from dflash_vectors import faults
from dflash_vectors.cases import Entry, GoldenCase
from dflash_vectors.checker import compare
from dflash_vectors.implementations.reference import plain
from dflash_vectors.run import execute
from dflash_vectors.runners.protocol import Answer

PATIENCE = 10.0  # seconds for one output; composites are slow, and a guess is only a hint


def likely_faults(case: GoldenCase, answer: Answer) -> list[str]:
    """The known faults that give this answer, within the bounds of the vector, where the true rule does not."""
    inputs = {name: plain(tensor.values) for name, tensor in case.inputs.items()}
    found, deadline = [], time.monotonic() + PATIENCE
    for fault in _faults_of(case.entry):
        if time.monotonic() > deadline:
            break
        try:
            with np.errstate(all="ignore"), faults.applied(fault):
                wrong = execute(case.entry.op.name, inputs, case.entry.profile)
        except Exception:
            continue
        as_fault = _with_expected(case, wrong)
        if as_fault is not None and not compare(as_fault, answer) and compare(case, _answer(as_fault)):
            found.append(f"{fault.name}: {fault.story} ({fault.report})")
    return found


def _faults_of(entry: Entry) -> Iterator[faults.Fault]:
    """Faults of the case's own clauses first, then those of the op's other clauses."""
    clauses = load_clauses()
    own = [fault for fault in faults.all_faults() if entry.profile.name in fault.profiles]
    yield from (fault for fault in own if set(fault.clauses) & set(entry.clauses))
    for fault in own:
        near = any(c in clauses and entry.op.name in clauses[c].ops for c in fault.clauses)
        if near and not set(fault.clauses) & set(entry.clauses):
            yield fault


def _with_expected(case: GoldenCase, values: dict[str, Array]) -> GoldenCase | None:
    """The vector as the fault would have written it; None if the fault's outputs are others in name or shape."""
    expected = []
    for item in case.expected:
        if item.name not in values:
            return None
        try:
            tensor = Tensor.of(item.tensor.dtype, values[item.name])
        except TensorError:
            return None
        if tensor.shape != item.tensor.shape:
            return None
        expected.append(replace(item, tensor=tensor))
    return replace(case, expected=tuple(expected))


def _answer(case: GoldenCase) -> Answer:
    return Answer({item.label: item.tensor for item in case.expected})
