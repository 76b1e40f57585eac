"""Arguments of this package's public functions: of the right type, or refused by name before any rule is asked."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from dflash_spec.errors import ConfigError

LIMIT = 2**63
"""Integers below it in magnitude are taken. Python refuses to print much longer ones."""


def integer(name: str, value: object) -> int:
    """`value`, of Python or NumPy, as an int. Raises ConfigError; a bool is no integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name}: found {value!r}, expected an integer", key=name)
    number = operator.index(value)
    if abs(number) >= LIMIT:
        raise ConfigError(f"{name}: found an integer of {number.bit_length()} bits, expected at most 63", key=name)
    return number


def optional(name: str, value: object) -> int | None:
    """`value` as an int, or None. Raises ConfigError."""
    return None if value is None else integer(name, value)


def integers(name: str, values: object) -> list[int]:
    """The integers of a sequence or of a one-dimensional integer array. Raises ConfigError."""
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ConfigError(f"{name}: found {values.dtype} {list(values.shape)}, expected integers [N]", key=name)
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ConfigError(f"{name}: found {values!r}, expected a sequence of integers", key=name)
    return [integer(f"{name}[{place}]", value) for place, value in enumerate(values)]


def check_instance(name: str, value: object, kinds: type[Any] | tuple[type[Any], ...]) -> None:
    """Raise ConfigError unless `value` is an instance of one of `kinds`."""
    if not isinstance(value, kinds):
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        raise ConfigError(f"{name}: found {type(value).__name__}, expected {' or '.join(names)}", key=name)
