"""Masks and penalties in PyTorch, for the rows of several requests at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Mask(NamedTuple):
    """Which ids some of the rows may say: `rows` I64 [M], `allowed` bool [M, public]."""

    rows: Tensor
    allowed: Tensor


class Penalties(NamedTuple):
    """What some of the rows are penalised for: `rows` I64 [M].

    `counts` I32 [M, public] is how often each id was emitted; `overlay` I64 [M, O] holds ids that count besides, -1
    where there is none; `presence` and `frequency` FP32 [M].
    """

    rows: Tensor
    counts: Tensor
    overlay: Tensor
    presence: Tensor
    frequency: Tensor


class Adjusted(NamedTuple):
    """Adjusted logits FP32 [N, public], and which rows no token may come of: bool [N]."""

    scores: Tensor
    refused: Tensor


def adjust(logits: Tensor, public: int, mask: Mask | None = None, penalties: Penalties | None = None) -> Adjusted:
    """The first `public` logits of rows [N, V], without forbidden ids and with penalties subtracted, all in FP32.

    A row is refused where it holds a NaN or a plus infinity, forbidden or not, or where nothing finite is left.

    Clauses: PROC-001, PROC-006 to PROC-008, PROC-022. Source: Infernix include/infernix/ops/sampling.h.
    """
    scores = logits[:, :public].to(torch.float32)
    best = scores.amax(dim=1)
    if mask is None and penalties is None:
        return Adjusted(scores, ~(best.abs() < torch.inf))
    scores = scores.clone()
    if mask is not None:
        scores[mask.rows] = scores[mask.rows].masked_fill(~mask.allowed, -torch.inf)
    if penalties is not None:
        scores[penalties.rows] = _penalised(scores[penalties.rows], penalties)
    return Adjusted(scores, unusable(scores) | torch.isnan(best) | (best == torch.inf))


def unusable(scores: Tensor) -> Tensor:
    """Which rows of [N, V] hold a NaN or a plus infinity, or nothing finite at all: bool [N].

    Clause: PROC-022. Source: Infernix include/infernix/ops/sampling.h.
    """
    return ~torch.isfinite(scores.amax(dim=1))  # the largest of a row with a NaN is NaN


def _penalised(scores: Tensor, penalties: Penalties) -> Tensor:
    """Presence first, then frequency · count: two roundings, and a third in the product. -infinity stays so."""
    overlay = penalties.overlay
    counted = (overlay >= 0) & (overlay < scores.shape[1])
    counts = penalties.counts.clone().scatter_add_(1, overlay.where(counted, 0), counted.to(torch.int32))
    less = scores - penalties.presence[:, None]
    less = less - penalties.frequency[:, None] * counts.to(torch.float32)
    return torch.where((counts > 0) & (scores > -torch.inf), less, scores)


def overlay(proposals: Tensor, owner: Tensor, column: Tensor) -> Tensor:
    """What each row of a verify pass counts besides what was emitted: I64 [N, P], -1 where there is nothing.

    `proposals` I64 [B, P] of B requests, -1 past their own; row n is column `column[n]` of request `owner[n]`, both
    I64 [N], and column i holds d_1 to d_i. The anchor is counted already, since it was emitted.

    Clause: PROC-009. Source: Infernix src/ops/kernel/speculative_round.cuh.
    """
    before = torch.arange(proposals.shape[1], device=proposals.device) < column[:, None]
    return proposals[owner].where(before, -1)
