"""Rows of several requests, one request after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
