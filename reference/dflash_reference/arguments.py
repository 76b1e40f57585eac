"""The arguments of a request, which may come from anywhere: each is what it should be, or refused by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
from dflash_spec.errors import RequestError

COUNT_LIMIT = 2**31 - 1
"""The largest count of tokens: positions are I32."""
SEED_LIMIT = 2**64 - 1
LEAST, LARGEST = np.finfo(np.float32).smallest_normal, np.finfo(np.float32).max
"""The temperatures above 0, whose type in the ops is F32. A subnormal one is 0 on hardware that flushes."""


def integer(name: str, value: object, low: int, high: int) -> int:
    """The integer `value`, of Python or NumPy, from low to high. Raises RequestError; a bool is no integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r}, expected an integer")
    found = operator.index(value)
    if found < low or found > high:
        # Python refuses to print very long integers.
        shown = str(found) if abs(found) <= 2 * SEED_LIMIT else f"an integer of {found.bit_length()} bits"
        raise RequestError(f"{name} is {shown}, expected {low} to {high}")
    return found


def integers(name: str, values: object, low: int, high: int) -> tuple[int, ...]:
    """The integers of a sequence or of a one-dimensional integer array, each from low to high. Raises RequestError."""
    if hasattr(values, "__array__"):
        values = _array(name, values)
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise RequestError(f"{name} is {values!r}, expected a sequence of integers")
    return tuple(integer(f"{name}[{slot}]", value, low, high) for slot, value in enumerate(values))


def _array(name: str, values: object) -> list[int]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"{name} is {type(values).__name__}, expected an array on the host: {error}") from error
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise RequestError(f"{name} is {array.dtype} of shape {list(array.shape)}, expected integers [T]")
    return [int(value) for value in array]


def temperature(value: object) -> float:
    """The temperature as F32 holds it. Raises RequestError unless it is 0 or a number that is normal in F32."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"temperature is {value!r}, expected a number")
    try:
        asked = float(value)
    except OverflowError:
        asked = float("inf")
    if not 0 <= asked < float("inf"):
        raise RequestError(f"temperature is {asked}, expected a finite number of at least 0")
    with np.errstate(over="ignore", under="ignore"):
        held = np.float32(asked)
    if asked > 0 and not LEAST <= held <= LARGEST:
        raise RequestError(f"temperature is {asked}, expected 0 or {LEAST} to {LARGEST}, the normal numbers of F32")
    return float(held)
