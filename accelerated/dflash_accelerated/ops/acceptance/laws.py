"""What proposals were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.ops.rows import joined as adjacent


class SparseLaw(NamedTuple):
    """The law of each proposal: candidate ids I64 [T, C], -1 where there is none, and q FP32 [T, C].

    `ids` None stands for every id in ascending order.
    """

    ids: Tensor | None
    q: Tensor

    def first(self, count: int) -> SparseLaw:
        """That of the first `count` proposals."""
        return SparseLaw(None if self.ids is None else self.ids[:count], self.q[:count])


def one_hot(tokens: Tensor) -> SparseLaw:
    """The law of proposals I64 [T] that were certain: one candidate each."""
    return SparseLaw(tokens[:, None], torch.ones(len(tokens), 1, dtype=torch.float32, device=tokens.device))


def joined(laws: Sequence[SparseLaw], public: int) -> SparseLaw:
    """The laws of several requests, one after another, in the narrowest form that holds them all."""
    if all(law.ids is None for law in laws):
        return SparseLaw(None, adjacent([law.q for law in laws]))
    if any(law.ids is None for law in laws):
        return SparseLaw(None, torch.cat([_over_all_ids(law, public) for law in laws]))
    width = max(law.q.shape[1] for law in laws)
    ids = [_widened(law.ids, width, -1) for law in laws if law.ids is not None]
    return SparseLaw(adjacent(ids), adjacent([_widened(law.q, width, 0) for law in laws]))


def _over_all_ids(law: SparseLaw, public: int) -> Tensor:
    if law.ids is None:
        return law.q
    everywhere = torch.zeros(len(law.q), public, dtype=torch.float32, device=law.q.device)
    return everywhere.scatter_add_(1, law.ids.clamp(min=0), law.q.where(law.ids >= 0, 0.0))


def _widened(values: Tensor, width: int, filler: int) -> Tensor:
    more = width - values.shape[1]
    return torch.nn.functional.pad(values, (0, more), value=filler) if more else values
