"""The arguments of a request, which may come from anywhere: each is what it should be, or refused by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from numpy.typing import NDArray

COUNT_LIMIT = 2**31 - 1
"""The largest count of tokens: positions are I32."""
SEED_LIMIT = 2**64 - 1
TOP_K_LEAST = -(2**31)
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


def number(name: str, value: object) -> float:
    """The real number `value`, of Python or NumPy, infinite where it is too large. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")  # type: ignore[operator]  # Real has no typed order


def temperature(value: object) -> float:
    """The temperature as F32 holds it. Raises RequestError unless it is 0 or a number that is normal in F32."""
    asked = number("temperature", value)
    if not 0 <= asked < float("inf"):
        raise RequestError(f"temperature is {asked}, expected a finite number of at least 0")
    with np.errstate(over="ignore", under="ignore"):
        held = np.float32(asked)
    if asked > 0 and not LEAST <= held <= LARGEST:
        raise RequestError(f"temperature is {asked}, expected 0 or {LEAST} to {LARGEST}, the normal numbers of F32")
    return float(held)


def known_temperature(value: float, profile: Profile) -> None:
    """Raise RequestError for NaN, and for a temperature below 0 where neither a cap nor a threshold says greedy."""
    axes = profile.axes
    if value != value or (value < 0 and not axes["sampling_cap"] and not axes["greedy_below"]):
        raise RequestError(f"temperature is {value}, expected a number of at least 0")


def share(name: str, value: object, *, above_zero: bool = False) -> float:
    """The number `value` as F32 holds it. Raises RequestError unless it is from 0 to 1, and above 0 where asked."""
    held = float(np.float32(min(max(number(name, value), -2.0), 2.0)))
    if not 0 <= held <= 1 or (above_zero and not held > 0):
        raise RequestError(f"{name} is {value}, expected {'above 0 and at most 1' if above_zero else '0 to 1'}")
    return held


def filters(top_k: object, min_p: object, top_p: object, profile: Profile) -> tuple[int, float, float]:
    """The filters as they are held. Raises RequestError for one out of its range, or that the profile does not have.

    With a cap every top_k says something; without one it is 0 for none, and top_p is above 0.
    """
    capped, order = bool(profile.axes["sampling_cap"]), profile.axes["sampling_order"]
    held = (
        integer("top_k", top_k, TOP_K_LEAST if capped else 0, COUNT_LIMIT),
        share("min_p", min_p),
        share("top_p", top_p, above_zero=not capped),
    )
    given, off = (top_k, min_p, top_p), (0, 0.0, 1.0)
    for name, found, value, none in zip(("top_k", "min_p", "top_p"), given, held, off, strict=True):
        if name not in order and value != none:
            raise RequestError(f"{name} is {found}, expected {none}: profile {profile.name} has no such filter")
    return held


def penalty(name: str, value: object, profile: Profile) -> float:
    """The penalty as F32 holds it. Raises RequestError unless it is finite there, and 0 where there are none."""
    asked = number(name, value)
    with np.errstate(over="ignore"):
        held = float(np.float32(asked))
    if not abs(held) < float("inf"):
        raise RequestError(f"{name} is {value}, expected a finite number of F32")
    if held and profile.axes["penalties"] == "none":
        raise RequestError(f"{name} is {value}, expected 0: profile {profile.name} has no penalties")
    return held


def mask(name: str, value: object, public: int) -> NDArray[np.bool_]:
    """The mask [public], all true for None. Raises RequestError unless it is an array of as many booleans, 0s and 1s.

    Tuples and lists count as arrays.
    """
    if value is None:
        return np.ones(public, dtype=np.bool_)
    try:
        held = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(f"{name} is {type(value).__name__}, expected an array on the host: {error}") from error
    if held.shape != (public,) or held.dtype.kind not in "biu" or not np.isin(held, (0, 1)).all():
        found = f"{held.dtype} of shape {list(held.shape)}"
        raise RequestError(f"{name} is {found}, expected 0 or 1 for each of the {public} public ids")
    return held.astype(np.bool_)
