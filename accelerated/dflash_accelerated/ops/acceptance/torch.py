"""Acceptance and correction of chains of proposals in PyTorch, for several requests at once.

A certain proposal is one drawn from a law with a single candidate: u · 1 < p(d) is u < p(d), and max(p - q, 0) is p
without d.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.acceptance.chains import Chains
from dflash_accelerated.ops.acceptance.laws import SparseLaw
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.filters import Distribution
from dflash_accelerated.ops.sampling import draw


class Verdict(NamedTuple):
    """Licensed tokens I64 [B, P + 1], 0 after the terminal one, and how many proposals were accepted, I64 [B].

    A terminal token of -1 is a draw that was refused.
    """

    licensed: Tensor
    accepted: Tensor


@dispatched("triton")
def accepted_count(
    chains: Chains, drawn_from: SparseLaw, law: Distribution, coins: Tensor, numerics: Numerics
) -> Tensor:
    """How many proposals of each request pass the test of u · q(d) against p(d) in a row: I64 [B].

    `drawn_from` has T rows, `law` R rows, `coins` FP32 [B, P] in [0, 1). The product is an FP32 one. Profile axis
    `accept_test`: `strict` is u · q < p; `covered_or_strict` also p >= q. A NaN passes nothing.

    Clauses: LAW-003, LAW-009, LAW-010, LAW-013. Source: Infernix include/infernix/ops/speculative_round.h,
    src/ops/kernel/speculative_round.cuh; dflash 0.1.0 _rejection_sample.
    """
    tokens, tested = chains.tokens, chains.tested
    p = _of_tokens(law.support, law.p, tested, tokens)
    q = _of_tokens(drawn_from.ids, drawn_from.q, torch.arange(len(tokens), device=tokens.device), tokens)
    passed = coins[chains.owner[tested], chains.column[tested]] * q < p
    if numerics.profile.axes["accept_test"] == "covered_or_strict":
        passed = passed | (p >= q)
    return _prefix(chains, passed)


@dispatched("triton")
def terminal(
    chains: Chains, accepted: Tensor, drawn_from: SparseLaw, law: Distribution, coins: Tensor, numerics: Numerics
) -> Tensor:
    """The token after `accepted` I64 [B] proposals, from that row of `law`, with `coins` FP32 [B]: I64 [B].

    A correction is drawn from max(p - q, 0), where q is looked up by id; where all of that is 0, profile axis
    `zero_residual` says what happens. After all proposals it is a bonus, with nothing subtracted. A draw from a row
    that holds a NaN gives -1, and so does one from a row of which such a q is subtracted.

    Clauses: LAW-004 to LAW-007, LAW-011, LAW-013. Source: Infernix include/infernix/ops/speculative_round.h; dflash
    0.1.0 _rejection_sample; vllm-project/vllm pull 50183.
    """
    rows = chains.first + accepted
    support, p = None if law.support is None else law.support[rows], law.p[rows].to(torch.float64)
    rest, drawn, goal = p, accepted == chains.counts, coins.to(torch.float64)
    if len(drawn_from.q):
        at = (rows - torch.arange(len(rows), device=rows.device)).clamp(max=len(drawn_from.q) - 1)
        q = _over_support(support, p.shape[1], drawn_from, at)
        unknown = torch.isnan(drawn_from.q[at]).any(dim=1, keepdim=True)  # at whichever id, in the support or not
        rest = torch.where(drawn[:, None], p, (p - q).clamp(min=0.0).masked_fill(unknown, torch.nan))
    mass = rest.sum(dim=1)
    nothing = ~drawn & (mass <= 0)
    if numerics.profile.axes["zero_residual"] == "target":
        rest, drawn = torch.where(nothing[:, None], p, rest), drawn | nothing
    token = draw(Distribution(support, rest), torch.where(drawn, goal, goal * mass), numerics)
    if numerics.profile.axes["zero_residual"] == "top_token" and support is not None:
        token = torch.where(nothing, support[:, 0], token)
    return token


@dispatched("native")
def verdict(
    chains: Chains, drawn_from: SparseLaw, law: Distribution, refused: Tensor | None, accept: Tensor, ends: Tensor,
    numerics: Numerics,
) -> Verdict:  # fmt: skip
    """The accept tests in order, then a correction or a bonus. No token comes of `refused` rows of `law`, bool [R].

    Uniforms FP32 in [0, 1): `accept` [B, P], and `ends` [B, P + 1], of which each request's own count takes one.
    """
    if refused is not None:
        law = law._replace(p=law.p.masked_fill(refused[:, None], torch.nan))
    accepted = accepted_count(chains, drawn_from, law, accept, numerics)
    coin = ends.gather(1, accepted[:, None])[:, 0]
    return licensed(chains, accepted, terminal(chains, accepted, drawn_from, law, coin, numerics))


def licensed(chains: Chains, accepted: Tensor, last: Tensor) -> Verdict:
    """The accepted proposals, then `last` I64 [B], then zeros.

    Clauses: LAW-002, LAW-008. Source: Infernix include/infernix/ops/speculative_round.h.
    """
    slots = torch.arange(chains.proposals.shape[1] + 1, device=last.device)
    tokens = torch.nn.functional.pad(chains.proposals, (0, 1)).where(slots < accepted[:, None], 0)
    return Verdict(tokens.scatter(1, accepted[:, None], last[:, None]), accepted)


def _of_tokens(ids: Tensor | None, values: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """The value [T] of `tokens[t]` in row `rows[t]` of values [N, S], 0 where its ids do not hold it."""
    if ids is None:
        return values[rows, tokens]
    return torch.where(ids[rows] == tokens[:, None], values[rows], 0.0).sum(dim=1)


def _over_support(support: Tensor | None, size: int, drawn_from: SparseLaw, at: Tensor) -> Tensor:
    """q of every id of a support [B, S], float64, from row `at[b]` of a law; 0 where it has none."""
    ids, q = None if drawn_from.ids is None else drawn_from.ids[at], drawn_from.q[at].to(torch.float64)
    if ids is None:
        return q if support is None else torch.where(support >= 0, q.gather(1, support.clamp(min=0)), 0.0)
    if support is None:
        found = torch.zeros(len(at), size, dtype=torch.float64, device=q.device)
        return found.scatter_add_(1, ids.clamp(min=0), q.where(ids >= 0, 0.0))
    return torch.where(support[:, :, None] == ids[:, None], q[:, None], 0.0).sum(dim=2)


def _prefix(chains: Chains, passed: Tensor) -> Tensor:
    """How many tests of each request, of all [T], pass before the first that fails: I64 [B]."""
    if not len(chains.tested):
        return torch.zeros_like(chains.counts)
    table = torch.zeros_like(chains.proposals)
    table[chains.owner[chains.tested], chains.column[chains.tested]] = passed.to(torch.int64)
    return table.cumprod(dim=1).sum(dim=1)
