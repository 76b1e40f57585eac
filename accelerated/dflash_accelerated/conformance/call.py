"""An op's inputs as the engine's types, and its answers as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dflash_spec.errors import TensorError
from dflash_spec.tensors import Array
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import Product

Answer = dict[str, Any]
"""Outputs and stages by bare name: tensors, arrays, integers or lists of integers."""


class Call:
    """The inputs of one op call, read by name."""

    def __init__(self, inputs: Mapping[str, Array], numerics: Numerics) -> None:
        self.numerics = numerics
        self._inputs = inputs

    def raw(self, name: str) -> Tensor:
        """The values as they came: FP32, or the integer type."""
        return torch.from_numpy(np.array(self._inputs[name]))

    def array(self, name: str) -> Array:
        return self._inputs[name]

    def act(self, name: str) -> Tensor:
        """Activations, context keys or logits."""
        return self.numerics.activation(self.raw(name))

    def weight(self, name: str) -> Tensor:
        return self.numerics.weight(self.raw(name))

    def product(self, *names: str) -> Product:
        """The product of one weight, or of several that read one input."""
        return Product([self.weight(name) for name in names], self.numerics)

    def context_value(self, name: str) -> Tensor:
        return self.raw(name).to(self.numerics.value)

    def ids(self, name: str) -> Tensor:
        """Integers as I64."""
        return self.raw(name).to(torch.int64)

    def integers(self, name: str) -> list[int]:
        return [int(value) for value in self._inputs[name].reshape(-1)]

    def integer(self, name: str) -> int:
        return int(self._inputs[name])

    def public(self, logits: Tensor) -> int:
        """How many of the columns of logits [N, V] take part. Raises TensorError unless that is 1 to V."""
        public = self.integer("public")
        if not 1 <= public <= logits.shape[1]:
            raise TensorError(f"public is {public}, expected 1 to {logits.shape[1]}, the columns of the logits")
        return public

    def number(self, name: str) -> float:
        return float(self._inputs[name])

    def text(self, name: str) -> bytes:
        """UTF-8 bytes that came as a U8 tensor."""
        return self._inputs[name].astype(np.uint8).tobytes()

    def tree(self, prefix: str) -> dict[str, Tensor]:
        """Every tensor whose name starts with `prefix`, without it."""
        return {
            name.removeprefix(prefix): torch.from_numpy(np.array(values))
            for name, values in self._inputs.items()
            if name.startswith(prefix)
        }


def refuse(bad: Tensor | bool, what: str) -> None:
    """Raise TensorError where the engine decides that no token may come of `what`."""
    if bad:
        raise TensorError(f"{what}: no finite distribution, expected one")


def to_arrays(answer: Answer, stages: Sequence[str]) -> dict[str, Array]:
    """Arrays by label; names among `stages` (`layer.*` for all that start so) get the prefix `stage.`."""
    exact = {name for name in stages if not name.endswith("*")}
    prefixes = tuple(name.removesuffix("*") for name in stages if name.endswith("*"))
    return {
        f"stage.{name}" if name in exact or (prefixes and name.startswith(prefixes)) else name: _array(value)
        for name, value in answer.items()
    }


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        return (value.to(torch.float32) if value.is_floating_point() else value).contiguous().numpy()
    return np.asarray(value)
