"""Rows of several requests, one request after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows [R, ...] of all parts. Parts that lie one after another in memory already are not copied."""
    first, rows = parts[0], sum(len(part) for part in parts)
    if len(parts) == 1:
        return first
    place = first.data_ptr()
    for part in parts:
        if part.data_ptr() != place or not part.is_contiguous() or part.dtype != first.dtype or _other(part, first):
            return torch.cat(list(parts))
        place += part.nbytes
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _other(part: Tensor, first: Tensor) -> bool:
    """Whether the two are not of one allocation, which a view may not reach beyond."""
    return part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
