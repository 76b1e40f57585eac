"""Where the rows of several requests lie, one request after another, and whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dflash_accelerated.transfers import sent


class Chains(NamedTuple):
    """The proposals of B requests. Request b has `counts[b]` proposals, and one row of the target more.

    `proposals` I64 [B, P] are -1 past a request's own, `counts` I64 [B]. Of all R target rows, `owner` and `column`
    I64 [R] say whose they are, and which of its own. `first` I64 [B] is the row of column 0. `tested` I64 [T] are the
    rows that have a proposal to test, which is every row but a request's last.
    """

    proposals: Tensor
    counts: Tensor
    owner: Tensor
    column: Tensor
    first: Tensor
    tested: Tensor

    @staticmethod
    def of(proposals: Sequence[Tensor]) -> Chains:
        """From each request's own proposals I64 [P]."""
        counts = tuple(own.shape[0] for own in proposals)
        if len(set(counts)) == 1:
            padded = torch.stack(list(proposals))
        else:
            padded = torch.nn.utils.rnn.pad_sequence(list(proposals), batch_first=True, padding_value=-1)
        return Chains(padded, *_layout(counts, padded.device))

    @property
    def tokens(self) -> Tensor:
        """The proposals of all requests, one request after another: I64 [T]."""
        return self.proposals[self.owner[self.tested], self.column[self.tested]]


@lru_cache(maxsize=256)
def _layout(counts: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """What follows from the counts alone, which come again and again; nobody writes into these tensors."""
    held = np.array(counts)
    owner = np.repeat(np.arange(len(held)), held + 1)
    first = np.cumsum(held + 1) - held - 1
    column = np.arange(len(owner)) - first[owner]
    (tested,) = np.nonzero(column < held[owner])
    return tuple(sent(torch.from_numpy(part), device) for part in (held, owner, column, first, tested))
