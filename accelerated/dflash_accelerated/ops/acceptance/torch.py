"""Acceptance and correction of a chain of one-hot proposals in PyTorch."""

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
    goal = torch.tensor(uniform, dtype=torch.float64, device=p.device)
    if accepted < len(proposals):
        rest = torch.where(support == proposals[accepted], 0.0, p)
        mass = rest.to(torch.float64).sum()
        if mass > 0:
            p, goal = rest, goal * mass
        elif numerics.profile.axes["zero_residual"] == "top_token":
            return support[0]
    return draw(support[None], p[None], goal[None])[0]


def licensed(proposals: Tensor, accepted: int, last: Tensor) -> Verdict:
    """The accepted proposals, then `last`, then zeros.

    Clauses: LAW-002, LAW-008. Source: Infernix include/infernix/ops/speculative_round.h.
    """
    tokens = torch.zeros(len(proposals) + 1, dtype=torch.int64, device=last.device)
    tokens[:accepted] = proposals[:accepted]
    tokens[accepted] = last
    return Verdict(tokens, accepted)


def _prefix(passed: Tensor) -> int:
    return int(passed.to(torch.int64).cumprod(0).sum())
