"""Where a sequence's keys and values live: buffers reserved once, and a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from dflash_spec.errors import RequestError
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Rows


class Context(NamedTuple):
    """Rows that a layer may read, and the absolute positions I64 [C] of each."""

    rows: Rows
    positions: Tensor


class KvCache:
    """Keys and values of one sequence, per layer [KV, capacity, D]; row = absolute position.

    Rows past `length` are never read, so a rollback only moves the length.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, numerics: Numerics, device: torch.device
    ) -> None:
        """Reserve `capacity` rows: K in `numerics.act`, V in `numerics.value`."""
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys = torch.empty(shape, dtype=numerics.act, device=device)
        self.values = torch.empty(shape, dtype=numerics.value, device=device)
        self.capacity = capacity
        self.length = 0

    def write(self, layer: int, start: int, key: Tensor, value: Tensor) -> None:
        """Put rows [R, KV, D] at positions start to start + R - 1, before `advance` counts them.

        Raises RequestError where they do not fit.
        """
        end = start + key.shape[0]
        if end > self.capacity:
            raise RequestError(f"rows {start} to {end - 1} of a sequence, expected at most {self.capacity} rows")
        self.keys[layer, :, start:end] = key.transpose(0, 1)
        self.values[layer, :, start:end] = value.transpose(0, 1)

    def read(self, layer: int, begin: int, end: int) -> Rows:
        """Views of rows [begin, end) of one layer."""
        return Rows(self.keys[layer, :, begin:end], self.values[layer, :, begin:end])

    def context(self, layer: int, window: int) -> Context:
        """What the rows after the last one may see of one layer; a `window` of 0 is a full layer."""
        begin = max(0, self.length - window + 1) if window else 0
        return Context(self.read(layer, begin, self.length), torch.arange(begin, self.length, device=self.keys.device))

    def advance(self, rows: int) -> None:
        """Count `rows` rows that every layer has written."""
        self.length += rows

    def rollback(self, length: int) -> None:
        """Forget every row from position `length` on. Raises RequestError if that would lengthen the sequence.

        Clauses: COMMIT-002, DRAFT-014. Source: NInfer docs/maintainer/dflash.md.
        """
        if not 0 <= length <= self.length:
            raise RequestError(f"rollback to {length} rows, expected 0 to {self.length}")
        self.length = length

    def close(self) -> None:
        """Give the buffers back."""
        self.keys, self.values = self.keys.new_empty(0), self.values.new_empty(0)
        self.capacity = self.length = 0


def positions_of(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Absolute positions I64 of rows that lie in `spans` (first, count), one span after another."""
    return torch.cat([torch.arange(first, first + count, device=device) for first, count in spans])
