"""Acceptance and correction of a chain of proposals, one-hot or drawn from a law of their own, in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.sampling import Distribution, draw


class Verdict(NamedTuple):
    """Licensed tokens I64 [P + 1], 0 after the terminal one, and how many proposals were accepted."""

    licensed: Tensor
    accepted: int


def greedy(proposals: Tensor, target: Tensor) -> Verdict:
    """Proposals I64 [P] against the target's argmaxes I64 [P + 1]: the longest equal prefix, then the target's token.

    Clauses: LAW-001, LAW-002, LAW-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/speculative_round.h.
    """
    accepted = _prefix(proposals == target[:-1])
    return licensed(proposals, accepted, target[accepted])


def accepted_count(proposals: Tensor, law: Distribution, uniforms: Tensor) -> int:
    """How many one-hot proposals I64 [P] pass u < p(d) in a row, with uniforms FP32 [P] in [0, 1).

    Clause: LAW-003. Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0 _rejection_sample.
    """
    rows = len(proposals)
    mass = torch.where(law.support[:rows] == proposals[:, None], law.p[:rows], 0.0).sum(dim=1)
    return _prefix(uniforms < mass)


def terminal(proposals: Tensor, accepted: int, law: Distribution, uniform: float, numerics: Numerics) -> Tensor:
    """The token after `accepted` proposals, from row `accepted` of `law`: I64 scalar.

    A correction leaves the rejected proposal out; profile axis `zero_residual` says what happens where nothing remains.
    After all proposals it is a bonus, with nothing left out.

    Clauses: LAW-004, LAW-005, LAW-006, LAW-007. Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0
    _rejection_sample.
    """
    support, p = law.support[accepted], law.p[accepted]
    if accepted == len(proposals):
        return _drawn(support, p, uniform)
    return _corrected(support, p, torch.where(support == proposals[accepted], 0.0, p), uniform, numerics)


def licensed(proposals: Tensor, accepted: int, last: Tensor) -> Verdict:
    """The accepted proposals, then `last`, then zeros.

    Clauses: LAW-002, LAW-008. Source: Infernix include/infernix/ops/speculative_round.h.
    """
    tokens = torch.zeros(len(proposals) + 1, dtype=torch.int64, device=last.device)
    tokens[:accepted] = proposals[:accepted]
    tokens[accepted] = last
    return Verdict(tokens, accepted)


class SparseLaw(NamedTuple):
    """The law of each proposal: candidate ids I64 [P, C], -1 where there is none, and q FP32 [P, C]."""

    ids: Tensor
    q: Tensor


def sparse_accepted_count(
    proposals: Tensor, drawn_from: SparseLaw, law: Distribution, uniforms: Tensor, numerics: Numerics
) -> int:
    """How many proposals I64 [P] pass the test of u · q(d) against p(d) in a row, with uniforms FP32 [P] in [0, 1).

    The product is an FP32 one. Profile axis `accept_test`: `strict` is u · q < p; `covered_or_strict` also p >= q.

    Clauses: LAW-009, LAW-010. Source: Infernix src/ops/kernel/speculative_round.cuh; dflash 0.1.0 _rejection_sample.
    """
    rows = len(proposals)
    p = torch.where(law.support[:rows] == proposals[:, None], law.p[:rows], 0.0).sum(dim=1)
    q = torch.where(drawn_from.ids == proposals[:, None], drawn_from.q, 0.0).sum(dim=1)
    passed = uniforms * q < p
    if numerics.profile.axes["accept_test"] == "covered_or_strict":
        passed = passed | (p >= q)
    return _prefix(passed)


def sparse_terminal(
    proposals: Tensor, accepted: int, drawn_from: SparseLaw, law: Distribution, uniform: float, numerics: Numerics
) -> Tensor:
    """The token after `accepted` proposals, from row `accepted` of `law`: I64 scalar.

    A correction is drawn from max(p - q, 0), where q is looked up by id; the rest is as in `terminal`.

    Clauses: LAW-005, LAW-006, LAW-007, LAW-011. Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0
    _rejection_sample.
    """
    support, p = law.support[accepted], law.p[accepted]
    if accepted == len(proposals):
        return _drawn(support, p, uniform)
    same = support[:, None] == drawn_from.ids[accepted]
    q = torch.where(same, drawn_from.q[accepted], 0.0).sum(dim=1)
    rest = (p.to(torch.float64) - q.to(torch.float64)).clamp(min=0.0)
    return _corrected(support, p, rest, uniform, numerics)


def _corrected(support: Tensor, p: Tensor, rest: Tensor, uniform: float, numerics: Numerics) -> Tensor:
    """A draw from the weights `rest` [S], or where they are all 0, what profile axis `zero_residual` says."""
    mass = float(rest.to(torch.float64).sum())
    if mass > 0:
        return _drawn(support, rest, uniform * mass)
    if numerics.profile.axes["zero_residual"] == "top_token":
        return support[0]
    return _drawn(support, p, uniform)


def _drawn(support: Tensor, weights: Tensor, goal: float) -> Tensor:
    return draw(support[None], weights[None], torch.tensor([goal], dtype=torch.float64, device=weights.device))[0]


def _prefix(passed: Tensor) -> int:
    return int(passed.to(torch.int64).cumprod(0).sum())
