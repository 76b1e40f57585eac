"""Arguments of a call, checked one by one: each function gives the value that counts, or says what it found."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Sequence, Set
from ctypes import c_float
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from dflash_spec.errors import RequestError
from dflash_spec.registry import Profile
from torch import Tensor

from dflash_accelerated.numerics import DTYPES, Numerics

Given = TypeVar("Given")
FP32 = np.finfo(np.float32)
PRINTED_BITS = 128
LONGEST = 200


def shown(value: object) -> str:
    """What was found, for a message: its repr, or its size or type where that is long or cannot be had."""
    if isinstance(value, int) and value.bit_length() > PRINTED_BITS:
        return f"an integer of {value.bit_length()} bits"  # Python prints none of some thousand digits
    try:
        text = repr(value)
    except Exception:  # a repr may do anything
        return f"of type {type(value).__name__}"
    return text if len(text) <= LONGEST else f"of type {type(value).__name__}"


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """`value`, Python's or NumPy's, as an int if it is an integer in [low, high]. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {shown(value)}, expected an integer")
    number = operator.index(value)
    if not low <= number <= high:
        raise RequestError(f"{name} is {shown(number)}, expected {low} to {high}")
    return number


def check_switch(name: str, value: object) -> bool:
    """`value`, Python's or NumPy's, as a bool. Raises RequestError."""
    if not isinstance(value, bool | np.bool_):
        raise RequestError(f"{name} is {shown(value)}, expected True or False")
    return bool(value)


def check_number(name: str, value: object) -> float:
    """`value`, Python's or NumPy's, as a float that need not be finite. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} is {shown(value)}, expected a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def fp32(value: float) -> float:
    """The FP32 value of a number; infinite where FP32 has none."""
    return c_float(value).value


def check_temperature(value: object) -> float:
    """The FP32 value of a temperature: 0, or a number that is normal in FP32. Raises RequestError.

    Logits are divided by it in FP32: one that is 0 there has no distribution, and devices differ on subnormal numbers.
    """
    given = check_number("temperature", value)
    if not math.isfinite(given) or given < 0:
        raise RequestError(f"temperature is {shown(value)}, expected a finite number of at least 0")
    kept = fp32(given)
    if given and not FP32.smallest_normal <= kept <= FP32.max:
        raise RequestError(
            f"temperature is {shown(value)}, expected 0 or {FP32.smallest_normal} to {FP32.max}, normal in FP32"
        )
    return kept


def check_ids(name: str, ids: object, vocabulary: int, what: str = "token ids") -> tuple[int, ...]:
    """`ids` (a sequence of integers, or a one-dimensional integer array or tensor) if all lie in [0, vocabulary).

    Raises RequestError that names the index, or says `what` was expected.
    """
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise RequestError(f"{name} is a tensor of {ids.dtype} {list(ids.shape)}, expected integers [T]")
        ids = ids.tolist()
    elif isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError(f"{name} is an array of {ids.dtype} {list(ids.shape)}, expected integers [T]")
        ids = ids.tolist()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise RequestError(f"{name} is {type(ids).__name__}, expected a sequence of {what}")
    return tuple(check_integer(f"{name}[{at}]", id_, 0, vocabulary - 1) for at, id_ in enumerate(ids))


def check_id_set(name: str, ids: object, vocabulary: int) -> tuple[int, ...]:
    """`check_ids` where their order says nothing, so that a set of them will do."""
    if isinstance(ids, Set):
        return tuple(check_integer(f"an id of {name}", each, 0, vocabulary - 1) for each in ids)
    return check_ids(name, ids, vocabulary)


def check_allowed(ids: object, vocabulary: int) -> tuple[int, ...] | None:
    """The only ids that may be said, None for all. Raises RequestError where there is none."""
    allowed = None if ids is None else check_id_set("allowed_tokens", ids, vocabulary)
    if allowed is not None and not allowed:
        raise RequestError("allowed_tokens has 0 ids, expected at least 1")
    return allowed


def check_callable(name: str, value: Given) -> Given:
    """`value` if it can be called, or is None. Raises RequestError."""
    if value is not None and not callable(value):
        raise RequestError(f"{name} is {type(value).__name__}, expected a callable")
    return value


def check_pieces(given: Any, vocabulary: int) -> Callable[[int], bytes] | None:
    """The bytes of each token as a callable, from one or from a list by id. Raises RequestError."""
    if given is None:
        return None
    if callable(given):
        return partial(_piece, given)
    if not isinstance(given, Sequence) or isinstance(given, str | bytes | bytearray | memoryview):
        raise RequestError(f"pieces is {type(given).__name__}, expected a list of bytes by id, or a callable")
    at = next((at for at, piece in enumerate(given) if not isinstance(piece, bytes)), None)
    if at is not None:
        raise RequestError(f"pieces[{at}] is {shown(given[at])}, expected bytes")
    if len(given) < vocabulary:
        raise RequestError(f"pieces has {len(given)} items, expected the bytes of each of {vocabulary} tokens")
    return given.__getitem__


def _piece(given: Callable[[int], Any], token: int) -> bytes:
    piece = given(token)
    if not isinstance(piece, bytes):
        raise RequestError(f"pieces gave {type(piece).__name__} for token {token}, expected bytes")
    return piece


def check_device(device: object) -> torch.device:
    """The device of that name, if tensors can be had there. Raises RequestError."""
    if not isinstance(device, str | torch.device):
        raise RequestError(f"device is {shown(device)}, expected the name of a device that is there")
    try:
        named = torch.device(device)
        torch.empty(0, device=named)
    except (RuntimeError, AssertionError) as error:
        told = str(error).splitlines()[0].partition(". ")[0]
        raise RequestError(f"device is {shown(device)}, expected the name of a device that is there: {told}") from error
    if named.type == "meta":
        raise RequestError("device is 'meta', expected one that holds numbers")
    return named


def check_dtype(dtype: object, profile: Profile) -> torch.dtype | None:
    """A dtype, by itself or by its name in PyTorch (`bfloat16`) or in files (`BF16`); None as it is.

    Raises RequestError for what names none that `profile` is computed in; `Numerics.of` looks at a torch.dtype.
    """
    allowed = Numerics.dtypes(profile)
    names = {name: kind for name, kind in DTYPES.items() if kind in allowed}
    names |= {str(kind).removeprefix("torch."): kind for kind in allowed}
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if isinstance(dtype, str) and dtype in names:
        return names[dtype]
    raise RequestError(
        f"dtype is {shown(dtype)} in profile {profile.name}, expected None, a torch.dtype or one of {', '.join(names)}"
    )


def check_folder(name: str, path: object) -> Path:
    """A path. Raises RequestError for what is none."""
    if not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path):
        raise RequestError(f"{name} is {shown(path)}, expected a folder with config.json")
    return Path(path)


def check_strings(given: object, readable: bool) -> tuple[bytes, ...]:
    """Stop strings as bytes, in order; they need a text that is `readable`. Raises RequestError."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise RequestError(f"stop_strings is {shown(given)}, expected a sequence of strings")
    if given and not readable:
        raise RequestError("stop_strings without pieces, expected the bytes of each token, to look for them in")
    for at, string in enumerate(given):
        if not isinstance(string, str | bytes) or not string:
            raise RequestError(f"stop_strings[{at}] is {shown(string)}, expected text of at least one byte")
    return tuple(string.encode() if isinstance(string, str) else string for string in given)
