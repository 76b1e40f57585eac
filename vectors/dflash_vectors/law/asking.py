"""Questions to a runner that no vector holds, and answers checked against the op's declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dflash_spec.errors import ImplementationError
from dflash_spec.registry import Op, Profile, load_ops
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.cases import Entry, Expected, GoldenCase
from dflash_vectors.runners.protocol import Answer, Runner
from dflash_vectors.style import printable

Arrays = dict[str, Array]


class RefusedError(ImplementationError):
    """The implementation refused inputs that no rule lets it refuse."""


@dataclass
class Question:
    """An op with the inputs that stay the same over many calls."""

    op: Op
    profile: Profile
    clauses: tuple[str, ...]
    inputs: dict[str, Tensor]

    @staticmethod
    def of(op: str, profile: Profile, clauses: tuple[str, ...], **inputs: Any) -> Question:
        """Inputs as tensors of the dtypes that the op declares."""
        return Question(load_ops()[op], profile, clauses, tensors(load_ops()[op], profile, inputs))

    def case(self, **inputs: Any) -> GoldenCase:
        """The question with its last inputs, as a runner takes it: a vector in which nothing is expected yet."""
        entry = Entry(f"law-{self.op.name}", self.op, self.profile, self.clauses, (), Path(), "", 0)
        return GoldenCase(entry, {}, self.inputs | tensors(self.op, self.profile, inputs), ())


def tensors(op: Op, profile: Profile, values: Mapping[str, Any], role: str = "inputs") -> dict[str, Tensor]:
    """Values by name as tensors of the declared dtypes."""
    found = {}
    for name, value in values.items():
        spec = op.find(role, name)
        assert spec is not None
        found[name] = Tensor.of(spec.dtype_for(profile), np.asarray(value), name)
    return found


def ask(runner: Runner, case: GoldenCase) -> Arrays:
    """The outputs of an answer, as arrays.

    Raises ImplementationError where there is none, or one of another dtype or shape than the op declares; RefusedError
    where it is a refusal.
    """
    answer = runner.run(case)
    return read(case, answer)


def read(case: GoldenCase, answer: Answer) -> Arrays:
    """The outputs in `answer`, checked as `ask` says."""
    op, where = case.entry.op, f"answer to {case.entry.op.name}"
    for label, problem in answer.problems.items():
        raise ImplementationError(printable(f"{where}: {label}: {problem}"))
    refused = answer.tensors.get("out.refused")
    if refused is not None and refused.values.any():
        raise RefusedError(f"{where}: refused, and nothing in the inputs is to be refused")
    sizes: dict[str, int] = {}
    for spec in op.inputs:
        sizes.update(zip(spec.shape or (), case.inputs[spec.name].shape, strict=True))
    found = {}
    for spec in op.outputs:
        if spec.name == "refused":
            continue
        tensor = answer.tensors.get(f"out.{spec.name}")
        if tensor is None:
            raise ImplementationError(f"{where}: out.{spec.name} is missing")
        shape = [sizes.get(size, -1) for size in spec.shape or ()]
        if tensor.dtype != spec.dtype_for(case.entry.profile):
            raise ImplementationError(
                f"{where}: out.{spec.name} has dtype {tensor.dtype}, expected {spec.dtype_for(case.entry.profile)}"
            )
        if len(shape) != len(tensor.shape) or any(n not in (-1, m) for n, m in zip(shape, tensor.shape, strict=True)):
            raise ImplementationError(
                f"{where}: out.{spec.name} has shape {list(tensor.shape)}, expected {shape}".replace("-1", "any")
            )
        found[spec.name] = tensor.values
    return found


def expecting(case: GoldenCase, outputs: Mapping[str, Any]) -> GoldenCase:
    """The question with what must come out, as those who name faults take it."""
    made = tensors(case.entry.op, case.entry.profile, outputs, "outputs")
    expected = tuple(Expected("outputs", name, tensor, "bits", None) for name, tensor in made.items())
    return GoldenCase(case.entry, {}, case.inputs, expected)


def answering(case: GoldenCase, outputs: Mapping[str, Any]) -> Answer:
    """Outputs that were read as an answer again."""
    made = tensors(case.entry.op, case.entry.profile, outputs, "outputs")
    return Answer({f"out.{name}": tensor for name, tensor in made.items()})
