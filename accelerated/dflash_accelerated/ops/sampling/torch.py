"""Inverse-CDF draws in PyTorch, and proposals drawn from a draft's own rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.filters import Distribution, distribution
from dflash_accelerated.ops.penalties import adjust
from dflash_accelerated.settings import SettingRows


class Proposed(NamedTuple):
    """Tokens I64 [N], and the law that each was drawn from: q FP32 [N, public], over every id in ascending order."""

    tokens: Tensor
    q: Tensor


def propose(logits: Tensor, public: int, rows: SettingRows, coins: Tensor, numerics: Numerics) -> Proposed:
    """One draw from each row of a draft's logits [N, V], processed as the target's are, with coins FP32 [N] in [0, 1).

    A row that is refused has a law of NaN, which no verification accepts, and some token.

    Clause: PROC-020. Source: dflash 0.1.0 dflash_generate; huggingface/transformers issue 47932.
    """
    scores, refused = adjust(logits, public)
    q = distribution(scores, rows, numerics).p.masked_fill(refused[:, None], torch.nan)
    return Proposed(draw(Distribution(None, q), coins, numerics).clamp(min=0), q)


@dispatched("native", "triton")
def draw(law: Distribution, goal: Tensor, numerics: Numerics) -> Tensor:
    """The first id whose inclusive cumulative weight is above `goal`, else the last id of weight above 0: I64 [N].

    The weights [N, S] in `law.p` need not sum to 1; `goal` [N]. A row that holds a NaN, or no weight, gives -1.

    Clauses: PROC-005, LAW-013. Source: Infernix src/ops/kernel/sampling_device.cuh; vllm-project/vllm pull 50183.
    """
    weights = law.p
    ranks = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, ranks, -1).amax(dim=1).where(~torch.isnan(weights).any(dim=1), -1)
    rank = drawn_rank(weights, goal, last).where(last >= 0, -1)
    if law.support is None:
        return rank
    return law.support.gather(1, rank.clamp(min=0)[:, None])[:, 0].where(rank >= 0, -1)


def drawn_rank(weights: Tensor, goal: Tensor, otherwise: Tensor) -> Tensor:
    """The first rank I64 [N] whose inclusive cumulative weight [N, S] is above `goal` [N], else `otherwise` [N].

    Clauses: PROC-005, SEL-005. Source: Infernix src/ops/kernel/sampling_device.cuh,
    include/infernix/ops/candidate_selector.h.
    """
    reached = torch.cumsum(weights.to(torch.float64), dim=1) > goal.to(torch.float64)[:, None]
    return torch.where(reached.any(dim=1), reached.to(torch.int8).argmax(dim=1), otherwise)
