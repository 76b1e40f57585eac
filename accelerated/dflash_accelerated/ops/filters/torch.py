"""Temperature, top-k, min-p and top-p in PyTorch, for rows that each have settings of their own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.ranking import ranked
from dflash_accelerated.settings import SettingRows

FEW = 1024
"""How many ids of a large vocabulary are ordered before all of them are: mostly their mass is more than top-p asks for,
and to order all takes ten times as long."""


class Distribution(NamedTuple):
    """Token ids in draw order, I64 [N, S], -1 where there is none, and their probabilities, FP32 [N, S].

    `support` None stands for every id in ascending order.
    """

    support: Tensor | None
    p: Tensor


class Filtered(NamedTuple):
    """A distribution, the weights [N, S] that it comes from, and how many entries I64 [N] the filters leave.

    Weights are relative to the largest, over what top-k leaves.
    """

    law: Distribution
    weights: Tensor
    kept: Tensor


@dispatched("native", "triton")
def distribution(scores: Tensor, rows: SettingRows, numerics: Numerics) -> Distribution:
    """softmax(score / T) of what a row's filters leave: scores FP32 [N, V].

    Profile axis `sampling_cap`: with a cap n > 0 the support is the n largest scores, descending, lower id first on
    ties; with 0 it is every id in ascending order. A refused row's probabilities mean nothing.

    Clauses: PROC-003, PROC-004, PROC-011 to PROC-016. Source: Infernix include/infernix/ops/sampling.h,
    src/ops/kernel/sampling_device.cuh; dflash 0.1.0 _sampling_probs.
    """
    cap = int(numerics.profile.axes["sampling_cap"])
    if cap:
        return _capped(_left(scores, rows, cap, _width(scores, rows)))
    if not rows.some_filtered:
        return Distribution(None, torch.softmax(_heated(scores, scores.amax(dim=1, keepdim=True), rows), dim=-1))
    if _width(scores, rows) > FEW:
        few = _left(scores, rows, 0, FEW)
        if few.complete.all():
            return _over_all_ids(scores, few, rows)
    return _over_all_ids(scores, _left(scores, rows, 0, _width(scores, rows)), rows)


def filtered(scores: Tensor, rows: SettingRows, numerics: Numerics) -> Filtered:
    """The distribution of filtered rows, with what it rests on."""
    cap = int(numerics.profile.axes["sampling_cap"])
    left = _left(scores, rows, cap, _width(scores, rows))
    law, kept = distribution(scores, rows, numerics), left.keep.sum(dim=1)
    if cap:
        return Filtered(law, left.weights, kept)
    return Filtered(law, torch.zeros_like(scores).scatter_(1, left.order, left.weights), kept)


class _Left(NamedTuple):
    """Each row's best ids in order, I64 [N, W], and of these: what all filters leave, score / T less the largest one's,
    and the exponential of that where top-k leaves it. `complete` bool [N]: no other id of the row is left."""

    order: Tensor
    keep: Tensor
    heated: Tensor
    weights: Tensor
    complete: Tensor


def _width(scores: Tensor, rows: SettingRows) -> int:
    return min(rows.width or scores.shape[1], scores.shape[1])


def _left(scores: Tensor, rows: SettingRows, cap: int, width: int) -> _Left:
    """What the filters leave of each row's `width` best ids, where top-k leaves at most `cap`, or all for 0."""
    vocabulary, most = scores.shape[1], cap or scores.shape[1]
    order = ranked(scores, torch.arange(vocabulary, device=scores.device), width)
    limit = torch.where((rows.top_k >= 1) & (rows.top_k < most), rows.top_k, most)
    best = scores.gather(1, order)
    within = (torch.arange(width, device=scores.device) < limit[:, None]) & (best > -torch.inf)
    heated = _heated(best, best[:, :1], rows)
    weights = torch.exp(heated.masked_fill(~within, -torch.inf))
    sums = torch.cumsum(weights.to(torch.float64), dim=1)  # one after another, whatever the other rows are
    total = sums[:, -1:]
    if width < vocabulary and not cap:
        everything = torch.exp(_heated(scores, best[:, :1], rows)).sum(dim=1, keepdim=True, dtype=torch.float64)
        total = torch.where((rows.top_k == 0)[:, None], everything, total)
    share = rows.top_p[:, None].to(torch.float64) * total
    before = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    passing = (weights >= rows.min_p[:, None] * weights[:, :1]) & ((before < share) | (rows.top_p >= 1)[:, None])
    passing[:, 0] = True
    ended = (rows.top_k == 0) & (rows.top_p < 1) & (sums[:, -1:] >= share)[:, 0]
    complete = (limit <= width) | ended | _unfiltered(rows) | rows.greedy
    return _Left(order, within & passing, heated, weights, complete)


def _unfiltered(rows: SettingRows) -> Tensor:
    return (rows.top_k == 0) & (rows.top_p >= 1)


def _capped(left: _Left) -> Distribution:
    p = torch.softmax(left.heated.masked_fill(~left.keep, -torch.inf), dim=-1)
    return Distribution(left.order.where(left.keep, -1), p)


def _over_all_ids(scores: Tensor, left: _Left, rows: SettingRows) -> Distribution:
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, left.order, left.keep)
    kept |= _unfiltered(rows)[:, None]
    heated = _heated(scores, scores.gather(1, left.order[:, :1]), rows)
    return Distribution(None, torch.softmax(heated.masked_fill(~kept, -torch.inf), dim=-1))


def _heated(scores: Tensor, best: Tensor, rows: SettingRows) -> Tensor:
    """(score - best [N, 1]) / T: 0 at the largest, so that a tiny temperature cannot overflow it."""
    return (scores - best) / rows.temperature[:, None]
