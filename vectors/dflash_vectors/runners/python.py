"""Python mode: an object in this process with `describe()` and `run(op, inputs)`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_spec.errors import DFlashError, ImplementationError, TensorError, UnsupportedError
from dflash_spec.tensors import Tensor

from dflash_vectors.cases import GoldenCase
from dflash_vectors.runners.protocol import Answer, Description, labels_of, read_description


class PythonRunner:
    """`module:factory` is called with the profile's name and returns the implementation."""

    def __init__(self, spec: str, module: str, factory: str) -> None:
        self.spec = spec
        self._module = module
        self._factory = factory
        self._implementation: Any = None

    def start(self, profile: str) -> Description:
        """Import, build and describe.

        Raises UnsupportedError if the factory does, or describes another profile; ImplementationError if a step fails.
        """
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.insert(0, os.getcwd())
        where = f"{self._module}:{self._factory}"
        try:
            factory = getattr(importlib.import_module(self._module), self._factory)
            self._implementation = factory(profile)
            value = self._implementation.describe()
        except (UnsupportedError, KeyboardInterrupt):
            raise
        except BaseException as error:  # an exit, say: it ends this implementation, not the check of the others
            raise ImplementationError(f"{where}: cannot be built: {_last_words(error)}") from error
        description = read_description(value, f"{where}: describe()")
        if description.profile != profile:
            raise UnsupportedError(f"{where} describes profile {description.profile}")
        return description

    def run(self, case: GoldenCase) -> Answer:
        """The answer of `run(op, inputs)`, with inputs copied so that one vector cannot spoil another.

        A named error of this project on an op with an output `refused` is the answer `refused = 1`. Raises
        ImplementationError if the implementation raises, answers with something else than arrays by name, or writes
        into its inputs.
        """
        inputs = {name: tensor.values.copy() for name, tensor in case.inputs.items()}
        try:
            answer = self._implementation.run(case.entry.op.name, dict(inputs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, DFlashError) and case.entry.op.find("outputs", "refused"):
                return _read(case, {"refused": 1})
            raise ImplementationError(f"raised {_last_words(error)}") from error
        for name, tensor in case.inputs.items():
            if inputs[name].tobytes() != tensor.values.tobytes():
                raise ImplementationError(f"wrote into its input {name!r}")
        if not isinstance(answer, Mapping):
            raise ImplementationError(f"run() returned {type(answer).__name__}, expected a dict of arrays by name")
        return _read(case, answer)

    def close(self) -> None:
        """Let the implementation go."""
        self._implementation = None


def _read(case: GoldenCase, arrays: Mapping[Any, Any]) -> Answer:
    """Arrays as tensors of the dtypes that the op declares; undeclared names are kept for the checker to name."""
    answer = Answer()
    given = {str(name) if str(name).startswith("stage.") else f"out.{name}": values for name, values in arrays.items()}
    for name, label in labels_of(given).items():
        values = given[name]
        role, _, short = label.partition(".")
        spec = case.entry.op.find("stages" if role == "stage" else "outputs", short)
        try:
            dtype = spec.dtype_for(case.entry.profile) if spec else "F32"
            answer.tensors[label] = Tensor.of(dtype, values, label)
        except TensorError as error:
            answer.problems[label] = _first_misfit(dtype, values) or str(error).removeprefix(f"{label}: ")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            answer.problems[label] = f"not an array: {_last_words(error)}"
    return answer


def _first_misfit(dtype: str, values: Any) -> str:
    """The first element that `dtype` cannot hold; empty if single elements are not what is wrong."""
    array = np.asarray(values)
    for index in np.ndindex(array.shape) if array.dtype.kind in "fiub" else ():
        try:
            Tensor.of(dtype, array[index])
        except TensorError:
            return f"element {list(index)} is {array[index]!s}, which {dtype} cannot hold"
    return ""


def _last_words(error: BaseException) -> str:
    """The error's type and message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    try:
        return f"{type(error).__name__}: {error}{place}"
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"{type(error).__name__}, which cannot say what it is{place}"
