"""Rows that are appended and cut back, without copying the ones that stay."""

from __future__ import annotations

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.tensors import Array


class Rows:
    """A growing array [length, ...]; `view` is what is there, and no copy."""

    def __init__(self, *shape: int, dtype: type = np.float64) -> None:
        self._buffer: Array = np.empty((0, *shape), dtype=dtype)
        self.length = 0

    @property
    def view(self) -> Array:
        return self._buffer[: self.length]

    def append(self, rows: Array) -> None:
        """Add rows [n, ...] at the end. Raises TensorError if their shape is another."""
        if rows.shape[1:] != self._buffer.shape[1:]:
            raise TensorError(f"rows of shape {rows.shape[1:]}, expected {self._buffer.shape[1:]} like those before")
        needed = self.length + len(rows)
        if needed > len(self._buffer):
            grown = np.empty((2 * needed, *self._buffer.shape[1:]), dtype=self._buffer.dtype)
            grown[: self.length] = self.view
            self._buffer = grown
        self._buffer[self.length : needed] = rows
        self.length = needed

    def copy(self) -> Rows:
        """Rows of the same content, which share nothing with these."""
        other = Rows(*self._buffer.shape[1:], dtype=self._buffer.dtype.type)
        other.append(self.view)
        return other

    def cut(self, length: int) -> None:
        """Keep the first `length` rows. Raises TensorError if there are fewer."""
        if not 0 <= length <= self.length:
            raise TensorError(f"cut to {length} rows, expected 0 to {self.length}, the rows held")
        self.length = length
