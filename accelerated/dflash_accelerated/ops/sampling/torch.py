"""Processed distributions and inverse-CDF draws in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.ranking import ranked


class Distribution(NamedTuple):
    """Token ids in draw order, I64 [N, S], and their probabilities, FP32 [N, S]."""

    support: Tensor
    p: Tensor


def distribution(logits: Tensor, temperature: float, public: int, numerics: Numerics) -> Distribution:
    """softmax(logit / T) over the support: logits [N, V], temperature > 0.

    Profile axis `sampling_cap`: with a cap n > 0 the support is the n largest logits, descending, lower id first on
    ties; with 0 it is every public id in ascending order.

    Clauses: PROC-001, PROC-003, PROC-004. Source: Infernix include/infernix/ops/sampling.h; dflash 0.1.0
    _sampling_probs.
    """
    scores = logits[:, :public].to(torch.float32)
    cap = int(numerics.profile.axes["sampling_cap"])
    if cap:
        ids = torch.arange(scores.shape[1], device=scores.device)
        support = ranked(scores, ids, min(cap, scores.shape[1]))
        scores = scores.gather(1, support)
    else:
        support = torch.arange(scores.shape[1], device=scores.device).expand(scores.shape)
    below = scores - scores.amax(dim=1, keepdim=True)  # 0 at the largest, so that a tiny temperature cannot overflow it
    return Distribution(support, torch.softmax(below / temperature, dim=-1))


def draw(support: Tensor, weights: Tensor, goal: Tensor) -> Tensor:
    """The first rank whose inclusive cumulative weight is above `goal`, else the last rank of weight above 0.

    `support` and `weights` [N, S], weights need not sum to 1; `goal` [N]; result I64 [N].

    Clause: PROC-005. Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    ranks = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, ranks, -1).max(dim=1).values
    return support.gather(1, drawn_rank(weights, goal, last)[:, None])[:, 0]


def drawn_rank(weights: Tensor, goal: Tensor, otherwise: Tensor) -> Tensor:
    """The first rank I64 [N] whose inclusive cumulative weight [N, S] is above `goal` [N], else `otherwise` [N].

    Clauses: PROC-005, SEL-005. Source: Infernix src/ops/kernel/sampling_device.cuh,
    include/infernix/ops/candidate_selector.h.
    """
    reached = torch.cumsum(weights.to(torch.float64), dim=1) > goal.to(torch.float64)[:, None]
    return torch.where(reached.any(dim=1), reached.to(torch.int8).argmax(dim=1), otherwise)
