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
from dflash_vectors.report import Guess
from dflash_vectors.run import execute
from dflash_vectors.runners.protocol import Answer

PATIENCE = 30.0  # seconds for all guesses of a run; composites are slow, and a guess is only a hint


class Guesser:
    """Names the known faults that give an answer. What it found once it tries first: one bug fails many vectors."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._left = patience
        self._found: dict[str, faults.Fault] = {}

    def __call__(self, case: GoldenCase, answer: Answer) -> list[Guess]:
        """The faults that give this answer, within the bounds of the vector, where the true rule does not."""
        named = []
        for fault in self._candidates(case.entry):
            if self._left < 0:
                break
            start = time.monotonic()
            if _gives(fault, case, answer):
                self._found[fault.name] = fault
                text = f"{fault.name}: {fault.story} ({fault.report})"
                named.append(Guess(fault.name, text, fault.clauses))
            self._left -= time.monotonic() - start
        return named

    def _candidates(self, entry: Entry) -> Iterator[faults.Fault]:
        """Faults found before, those of the case's clauses, those of the op's clauses; of a composite, all others."""
        clauses = load_clauses()
        own = [fault for fault in faults.all_faults() if entry.profile.name in fault.profiles]
        of_case = [fault for fault in own if set(fault.clauses) & set(entry.clauses)]
        of_op = [f for f in own if any(c in clauses and entry.op.name in clauses[c].ops for c in f.clauses)]
        rest = own if entry.op.composite else []
        found = [fault for fault in self._found.values() if fault in own]
        yield from {fault.name: fault for fault in (*found, *of_case, *of_op, *rest)}.values()


def _gives(fault: faults.Fault, case: GoldenCase, answer: Answer) -> bool:
    inputs = {name: plain(tensor.values) for name, tensor in case.inputs.items()}
    try:
        with np.errstate(all="ignore"), faults.applied(fault):
            wrong = execute(case.entry.op.name, inputs, case.entry.profile)
    except Exception:
        return False
    as_fault = _with_expected(case, wrong)
    if as_fault is None or compare(as_fault, answer):
        return False
    return bool(compare(case, Answer({item.label: item.tensor for item in as_fault.expected})))


def _with_expected(case: GoldenCase, values: dict[str, Array]) -> GoldenCase | None:
    """The vector as the fault would have written it; None if its outputs are others, or no bound fits their shape."""
    expected = []
    for item in case.expected:
        if item.name not in values:
            return None
        try:
            tensor = Tensor.of(item.tensor.dtype, values[item.name])
        except TensorError:
            return None
        if tensor.shape != item.tensor.shape and item.bound is not None:
            return None
        expected.append(replace(item, tensor=tensor))
    return replace(case, expected=tuple(expected))
