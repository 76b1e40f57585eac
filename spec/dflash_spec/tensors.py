"""Tensors as the vectors store them: a dtype name and an array that holds exactly such values.

BF16 and F16 values are held widened to float32, which represents both exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash_spec.errors import TensorError

Array = NDArray[Any]

STORED: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "U8": np.dtype("u1"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
"""dtype name in a file -> how NumPy holds its bytes. F64 is missing on purpose: nothing is stored in it."""

FLOATS = ("BF16", "F16", "F32")


def _same_values(kept: Array, given: Array) -> bool:
    """Whether `kept`, converted from `given`, holds the same numbers. NaN equals NaN.

    An integer beyond 2^53 is not taken for a float: comparing it would round it first.
    """
    if given.dtype.kind == "f":
        return bool(np.array_equal(kept.astype(given.dtype), given, equal_nan=True))
    if kept.dtype.kind == "f":
        exact = bool(((given <= 2**53) & (given >= -(2**53))).all())
        return exact and np.array_equal(kept.astype(np.float64), given.astype(np.float64))
    return bool(np.array_equal(kept.astype(given.dtype), given) and np.array_equal(kept < 0, given < 0))


@dataclass(frozen=True)
class Tensor:
    """`values` is float32 for BF16, F16 and F32, else the integer type of that name."""

    dtype: str
    values: Array

    @staticmethod
    def of(dtype: str, values: object, where: str = "tensor") -> Tensor:
        """Take `values` as `dtype` without rounding.

        Raises TensorError if the dtype is unknown or a value is not representable in it.
        """
        if dtype not in STORED:
            raise TensorError(f"{where}: dtype {dtype!r}, expected one of {', '.join(STORED)}")
        given = np.asarray(values)
        held: np.dtype[Any] = np.dtype(np.float32) if dtype in FLOATS else STORED[dtype]
        if given.dtype.kind not in "fiub" or (held.kind != "f" and given.dtype.kind == "f"):
            raise TensorError(f"{where}: values of type {given.dtype}, expected {dtype}")
        with np.errstate(over="ignore", invalid="ignore"):
            tensor = Tensor(dtype, given.astype(held))
            if not _same_values(tensor.values, given) or not tensor._representable():
                raise TensorError(f"{where}: a value is not representable in {dtype}")
        return tensor

    @staticmethod
    def decode(dtype: str, shape: tuple[int, ...], data: bytes | bytearray) -> Tensor:
        """The tensor whose little-endian bytes are `data`."""
        raw = np.frombuffer(data, dtype=STORED[dtype]).reshape(shape)
        if dtype == "BF16":
            widened = np.left_shift(raw, np.uint32(16), out=np.empty(shape, np.uint32), dtype=np.uint32)
            return Tensor(dtype, widened.view(np.float32))
        if dtype == "F16":
            return Tensor(dtype, raw.astype(np.float32))
        return Tensor(dtype, raw)

    def encode(self) -> bytes:
        """Little-endian bytes in the declared dtype."""
        if self.dtype == "BF16":
            bits = np.ascontiguousarray(self.values, dtype=np.float32).view(np.uint32) >> np.uint32(16)
            return bits.astype(STORED["BF16"]).tobytes()
        return self.values.astype(STORED[self.dtype]).tobytes()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def _representable(self) -> bool:
        if self.dtype == "BF16":
            bits = np.ascontiguousarray(self.values, dtype=np.float32).view(np.uint32)
            return bool(((bits & np.uint32(0xFFFF)) == 0).all())
        if self.dtype == "F16":
            with np.errstate(over="ignore"):
                narrow = self.values.astype(np.float16).astype(np.float32)
            return bool(np.array_equal(narrow, self.values, equal_nan=True))
        return True
