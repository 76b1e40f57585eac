"""What every way of plugging in has in common: a description, answers, and how tensors of an answer are read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dflash_spec.errors import ImplementationError, TensorFileError
from dflash_spec.files import read_tensors
from dflash_spec.registry import Op, Profile, load_ops
from dflash_spec.tensors import FLOATS, Tensor

from dflash_vectors.cases import GoldenCase, inside
from dflash_vectors.runners.schemas import DESCRIPTION, validate
from dflash_vectors.style import printable


@dataclass(frozen=True)
class Description:
    """What an implementation declares. `ops` and `dtypes` are None where it declares all of them."""

    name: str
    version: str
    profile: str
    ops: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    note: str = ""

    def lacks(self, op: Op, profile: Profile) -> str:
        """Why a vector of `op` is not supported; empty if it is required."""
        if self.ops is not None and op.name not in self.ops:
            return f"op {op.name} is not declared"
        missing = float_dtypes(op, profile) - self.dtypes if self.dtypes is not None else set()
        return f"dtype {', '.join(sorted(missing))} is not declared" if missing else ""


@dataclass
class Answer:
    """Tensors of one answer by label (`out.key`, `stage.raw`), and of those that could not be read, why."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """One implementation, however it is reached. `spec` is how the command line names it."""

    spec: str

    def start(self, profile: str) -> Description:
        """Get ready for vectors of `profile`.

        Raises UnsupportedError if the implementation does not speak it, ImplementationError if it cannot be used.
        """

    def run(self, case: GoldenCase) -> Answer:
        """The implementation's answer to a vector. Raises ImplementationError if there is none."""

    def close(self) -> None:
        """Let go of whatever `start` took."""


def float_dtypes(op: Op, profile: Profile) -> set[str]:
    """The float dtypes an implementation of `op` must have. Scalars do not count: they are configuration."""
    specs = (*op.inputs, *op.stages, *op.outputs)
    return {spec.dtype_for(profile) for spec in specs if spec.shape != ()} & set(FLOATS)


def read_description(value: Any, where: str, schema: dict[str, Any] = DESCRIPTION) -> Description:
    """What an implementation says about itself. Raises ImplementationError that names `where` and the key."""
    validate(value, schema, where)
    for op in value.get("ops", ()):
        if op not in load_ops():
            near = difflib.get_close_matches(op, load_ops(), 1)
            raise ImplementationError(
                f"{where}: op {op!r} is not in the spec" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    return Description(
        printable(value["name"]), printable(value["version"]), value["profile"],
        frozenset(value["ops"]) if "ops" in value else None,
        frozenset(value["dtypes"]) if "dtypes" in value else None,
        printable(value.get("note", "")),
    )  # fmt: skip


def label_of(name: str) -> str:
    """`stage.03.raw` and `stage.raw` are the same stage; the number only keeps a file in order."""
    role, _, rest = name.partition(".")
    number, _, short = rest.partition(".")
    return f"{role}.{short}" if role == "stage" and short and len(number) >= 2 and number.isdigit() else name


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """The label of each name. Raises ImplementationError where two names say the same."""
    labels: dict[str, str] = {}
    for name in names:
        label = label_of(name)
        if label in labels:
            raise ImplementationError(f"two tensors for {label}: {labels[label]!r} and {name!r}")
        labels[label] = name
    return {name: label for label, name in labels.items()}


def read_answer(path: Path, folder: Path) -> Answer:
    """The answer in a tensor file of `folder`. Raises ImplementationError if the file is missing or damaged."""
    if not os.path.lexists(path):
        raise ImplementationError(f"no answer: {path} is missing")
    try:
        inside(folder, path)
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
            raise TensorFileError(f"{path}: cannot be read: not a regular file")
        tensors = read_tensors(path)
    except TensorFileError as error:
        raise ImplementationError(f"damaged answer: {error}") from error
    return Answer({label: tensors[name] for name, label in labels_of(tensors).items()})


def inputs_only(case: GoldenCase) -> Mapping[str, Tensor]:
    """The tensors to show an implementation: inputs, never what is expected."""
    return {f"in.{name}": tensor for name, tensor in case.inputs.items()}
