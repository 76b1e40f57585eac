"""Rows of several requests, one request after another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


class RowRange:
    """Some rows of a tensor, which are taken when somebody asks for them: a slice of it is no op of PyTorch."""

    __slots__ = ("count", "first", "rows")

    def __init__(self, rows: Tensor, first: int, count: int) -> None:
        self.rows, self.first, self.count = rows, first, count

    @staticmethod
    def of(rows: Tensor) -> RowRange:
        """All rows of a tensor."""
        return RowRange(rows, 0, rows.shape[0])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> RowRange:
        start, stop, _ = part.indices(self.count)
        return RowRange(self.rows, self.first + start, stop - start if stop > start else 0)

    @property
    def taken(self) -> Tensor:
        """The rows [N, ...], without a copy."""
        whole = self.count == self.rows.shape[0]
        return self.rows if whole else self.rows[self.first : self.first + self.count]


def gathered(ranges: Sequence[RowRange]) -> Tensor:
    """The rows [R, ...] of all ranges. Those that follow each other in one tensor are not copied."""
    first = ranges[0]
    end = first.first
    for each in ranges:
        if each.rows is not first.rows or each.first != end:
            return joined([each.taken for each in ranges])
        end += each.count
    return RowRange(first.rows, first.first, end - first.first).taken


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows [R, ...] of all parts. Parts that lie one after another in memory already are not copied."""
    first = parts[0]
    if len(parts) == 1:
        return first
    # A view may not reach beyond its allocation.
    place, held = first.data_ptr(), first.untyped_storage().data_ptr()
    for part in parts:
        if part.data_ptr() != place or not part.is_contiguous() or part.dtype != first.dtype:
            return torch.cat(list(parts))
        place += part.nbytes
    if place > held + first.untyped_storage().nbytes():
        return torch.cat(list(parts))
    return first.as_strided((sum(part.shape[0] for part in parts), *first.shape[1:]), first.stride())


def parted(rows: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """The rows [R, ...] of each request, `counts` of each."""
    return (rows,) if len(counts) == 1 else rows.split_with_sizes(list(counts))


@lru_cache(maxsize=256)
def without_columns(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[R, 0]. It holds nothing, so that all may share it."""
    return torch.empty(rows, 0, dtype=dtype, device=device)
