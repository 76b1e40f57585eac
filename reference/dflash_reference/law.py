"""Acceptance and correction: which tokens a verified round licenses."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import num, processing
from dflash_reference.names import TokenId


class Verdict(NamedTuple):
    """accepted: A. licensed: [P + 1] int64, of which accepted + 1 are tokens and the rest 0."""

    accepted: int
    licensed: Array


def greedy(proposals: Array, target: Array, profile: Profile) -> Verdict:
    """The verdict on proposals [P], given the target's argmax of each of its P + 1 rows.

    Raises TensorError unless there is one row more than proposals.

    Clause: LAW-002
    Source: NInfer docs/maintainer/dflash.md, verification.
    """
    _check_rows("law.greedy", proposals, target)
    accepted = matching_prefix(proposals, target)
    return Verdict(accepted, licensed_row(proposals, accepted, TokenId(int(target[accepted]))))


def matching_prefix(proposals: Array, target: Array) -> int:
    """How many proposals [P] equal the target's token of their row [P + 1] before the first that does not.

    Clause: LAW-001
    Source: NInfer docs/maintainer/dflash.md, verification.
    """
    for slot, proposal in enumerate(proposals):
        if proposal != target[slot]:
            return slot
    return len(proposals)


def licensed_row(proposals: Array, accepted: int, terminal: TokenId) -> Array:
    """The accepted proposals, the terminal token, and 0 in every slot after it: [P + 1].

    Clause: LAW-008
    Source: Infernix include/infernix/ops/speculative_round.h.
    """
    row = np.zeros(len(proposals) + 1, dtype=np.int64)
    row[:accepted] = proposals[:accepted]
    row[accepted] = terminal
    return row


def one_hot(proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Any, profile: Profile) -> Verdict:
    """The verdict on proposals [P] that are certain, given support and p [P + 1, S] and the uniforms of the round.

    p and the uniforms may be float64 or Fraction. Raises TensorError unless there is one row more than proposals
    and one accept uniform for each, and for a NaN in the row that the terminal token is drawn from.
    """
    _check_rows("law.one_hot", proposals, p)
    accepted = accepted_one_hot(proposals, support, p, u_accept)
    processing.drawable(f"law.one_hot: p[{accepted}]", p[accepted])
    if accepted == len(proposals):
        terminal = bonus(support[accepted], p[accepted], u_terminal)
    else:
        rejected = TokenId(int(proposals[accepted]))
        terminal = correction(rejected, support[accepted], p[accepted], u_terminal, profile)
    return Verdict(accepted, licensed_row(proposals, accepted, terminal))


def sparse(
    proposals: Array, candidates: Array, q: Array, support: Array, p: Array, u_accept: Array, u_terminal: Any,
    profile: Profile,
) -> Verdict:  # fmt: skip
    """The verdict on proposals [P] that were drawn from q over candidates, both [P, C]; the rest as in one_hot.

    Raises TensorError as one_hot does, and for a NaN in the q that is subtracted.
    """
    _check_rows("law.sparse", proposals, p)
    accepted = accepted_sparse(proposals, candidates, q, support, p, u_accept, profile)
    processing.drawable(f"law.sparse: p[{accepted}]", p[accepted])
    if accepted == len(proposals):
        terminal = bonus(support[accepted], p[accepted], u_terminal)
    else:
        processing.drawable(f"law.sparse: q[{accepted}]", q[accepted])
        drawn = candidates[accepted], q[accepted]
        terminal = sparse_correction(*drawn, support[accepted], p[accepted], u_terminal, profile)
    return Verdict(accepted, licensed_row(proposals, accepted, terminal))


def match(proposals: Array, support: Array, p: Array, u: Array, profile: Profile) -> Verdict:
    """The verdict on proposals [P], however they came about, by a draw of the target from each of its P + 1 rows.

    support and p are [P + 1, S], u [P + 1]. Raises TensorError unless there is one row and one uniform more than
    proposals, and for a NaN in a row that is drawn from.

    Clause: LAW-012
    Source: z-lab/dflash@44947fb dflash/model.py.
    """
    _check_rows("law.match", proposals, p)
    if len(u) != len(p):
        raise TensorError(f"law.match: {len(u)} uniforms, expected {len(p)}, one per row")
    return greedy(proposals, processing.draw(support, p, u, profile).tokens, profile)


def accepted_one_hot(proposals: Array, support: Array, p: Array, u_accept: Array) -> int:
    """How many of proposals [P] pass their accept test before the first that fails.

    Raises TensorError unless there is one uniform for each proposal.
    """
    if len(u_accept) != len(proposals):
        raise TensorError(f"law.one_hot: {len(u_accept)} accept uniforms, expected {len(proposals)}, one per proposal")
    for slot, proposal in enumerate(proposals):
        if not accepts(TokenId(int(proposal)), support[slot], p[slot], u_accept[slot]):
            return slot
    return len(proposals)


def accepted_sparse(
    proposals: Array, candidates: Array, q: Array, support: Array, p: Array, u_accept: Array, profile: Profile
) -> int:
    """How many of proposals [P] pass their accept test before the first that fails.

    Raises TensorError unless there is one uniform for each proposal.
    """
    if len(u_accept) != len(proposals):
        raise TensorError(f"law.sparse: {len(u_accept)} accept uniforms, expected {len(proposals)}, one per proposal")
    passes = covered_or_under if profile.axes["accept_test"] == "covered_or_strict" else under
    for slot, token in enumerate(proposals):
        wanted, offered = weight_of(token, support[slot], p[slot]), weight_of(token, candidates[slot], q[slot])
        if not passes(wanted, offered, u_accept[slot]):
            return slot
    return len(proposals)


def covered_or_under(p: Any, q: Any, u: Any) -> bool:
    """Whether p covers q, or u · q in FP32 is under p.

    Clause: LAW-009
    Source: Infernix src/ops/kernel/speculative_round.cuh.
    """
    return bool(p >= q or fp32_product(u, q) < p)


def under(p: Any, q: Any, u: Any) -> bool:
    """Whether u · q in FP32 is under p, and nothing else.

    Clause: LAW-010
    Source: dflash 0.1.0 _rejection_sample.
    """
    return bool(fp32_product(u, q) < p)


def fp32_product(u: Any, q: Any) -> Any:
    """u · q in FP32. A Fraction stands for an exact number, and its product stays exact."""
    product = u * q
    return product if isinstance(product, Fraction) else num.round_to(product, "F32")


def weight_of(token: int, ids: Array, weights: Sequence[Any]) -> Any:
    """The weight [S] of a token in ids [S]; 0 where it is not among them."""
    return next((weight for id_, weight in zip(ids, weights, strict=True) if id_ == token), 0)


def sparse_correction(
    candidates: Array, q: Sequence[Any], support: Array, p: Sequence[Any], u: Any, profile: Profile
) -> TokenId:
    """The token drawn from what p [S] has more than q [C] of each token of the support: the goal is u times the mass.

    Clause: LAW-011
    Source: NInfer docs/maintainer/dflash.md, verification; Infernix include/infernix/ops/speculative_round.h.
    """
    left = [
        max(weight - weight_of(token, candidates, q), 0) if token >= 0 else 0
        for token, weight in zip(support, p, strict=True)
    ]
    mass = sum(left)
    if not mass > 0:
        return zero_residual(support, p, u, profile)
    return TokenId(int(support[processing.rank(left, u * mass)]))


def accepts(proposal: TokenId, support: Array, p: Sequence[Any], u: Any) -> bool:
    """Whether u < p(proposal); a token outside support [S] has probability 0.

    Clause: LAW-003
    Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0 _rejection_sample.
    """
    return bool(u < weight_of(proposal, support, p))


def correction(rejected: TokenId, support: Array, p: Sequence[Any], u: Any, profile: Profile) -> TokenId:
    """The token drawn from p [S] without the rejected one: the goal is u times what is left of the mass.

    Clause: LAW-004
    Source: Infernix include/infernix/ops/speculative_round.h.
    """
    left = [0 if token == rejected else weight for token, weight in zip(support, p, strict=True)]
    mass = sum(left)
    if not mass > 0:
        return zero_residual(support, p, u, profile)
    return TokenId(int(support[processing.rank(left, u * mass)]))


def zero_residual(support: Array, p: Sequence[Any], u: Any, profile: Profile) -> TokenId:
    """The correction where the rejected token held all the mass: the first of the support, or a draw from p itself.

    Clause: LAW-005
    Clause: LAW-006
    Source: Infernix include/infernix/ops/speculative_round.h; dflash 0.1.0 _rejection_sample.
    """
    if profile.axes["zero_residual"] == "top_token":
        return TokenId(int(support[0]))
    return TokenId(int(support[processing.rank(p, u * sum(p))]))


def bonus(support: Array, p: Sequence[Any], u: Any) -> TokenId:
    """The token after a fully accepted round, an empty one included: drawn from the last row's p [S] as it is.

    Clause: LAW-007
    Source: NInfer docs/maintainer/dflash.md, verification.
    """
    return TokenId(int(support[processing.rank(p, u)]))


def _check_rows(where: str, proposals: Array, rows: Array) -> None:
    if len(rows) != len(proposals) + 1:
        raise TensorError(f"{where}: {len(rows)} target rows, expected {len(proposals) + 1}, one more than proposals")
