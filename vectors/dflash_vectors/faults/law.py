"""Faults of acceptance and correction."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import law, processing
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

VERIFICATION = "NInfer docs/maintainer/dflash.md, verification"
ROUND = "Infernix include/infernix/ops/speculative_round.h"


@fault("dflash_reference.law.matching_prefix", clauses=("LAW-001",), report=VERIFICATION, effect="output")
def matches_after_a_mismatch_counted(true: Function) -> Function:
    """Every match counts, whatever stands before it."""
    return lambda proposals, target: int((proposals == target[: len(proposals)]).sum())


@fault("dflash_reference.law.matching_prefix", clauses=("LAW-001",), report=VERIFICATION, effect="output")
def proposal_compared_with_the_row_after(true: Function) -> Function:
    """Proposal i + 1 is compared with the target's token of row i + 1."""
    return lambda proposals, target: true(proposals, np.append(target[1:], target[:1]))


@fault("dflash_reference.law.matching_prefix", clauses=("LAW-001",), report=VERIFICATION, effect="output")
def mismatch_accepted(true: Function) -> Function:
    """The first proposal that differs is counted as accepted."""
    return lambda proposals, target: min(int(true(proposals, target)) + 1, len(proposals))


@fault("dflash_reference.law.matching_prefix", clauses=("LAW-001",), report=VERIFICATION, effect="acceptance")
def last_proposal_not_tested(true: Function) -> Function:
    """The last proposal is never accepted, so acceptance falls and no token changes."""
    return lambda proposals, target: min(int(true(proposals, target)), max(len(proposals) - 1, 0))


def _with_terminal(verdict: Any, token: int) -> Any:
    licensed = verdict.licensed.copy()
    licensed[verdict.accepted] = token
    return verdict._replace(licensed=licensed)


@fault("dflash_reference.law.greedy", clauses=("LAW-002",), report=VERIFICATION, effect="output")
def correction_from_the_last_row(true: Function) -> Function:
    """The terminal token is the target's token of the block's last row."""

    def wrong(proposals: Array, target: Array, profile: Any) -> Any:
        return _with_terminal(true(proposals, target, profile), int(target[-1]))

    return wrong


@fault("dflash_reference.law.greedy", clauses=("LAW-002",), report=VERIFICATION, effect="output")
def rejected_proposal_emitted(true: Function) -> Function:
    """The terminal token of a rejecting round is the proposal that was rejected."""

    def wrong(proposals: Array, target: Array, profile: Any) -> Any:
        verdict = true(proposals, target, profile)
        rejected = verdict.accepted < len(proposals)
        return _with_terminal(verdict, int(proposals[verdict.accepted])) if rejected else verdict

    return wrong


@fault(
    "dflash_reference.law.accepts", clauses=("LAW-003",), effect="output",
    report="https://github.com/sgl-project/sglang/issues/35771",
)  # fmt: skip
def coin_equal_to_p_accepts(true: Function) -> Function:
    """The test is u <= p, so a coin of exactly 0 accepts a token of probability 0."""

    def wrong(proposal: int, support: Array, p: Array, u: Any) -> bool:
        return bool(u <= sum(weight for token, weight in zip(support, p, strict=True) if token == proposal))

    return wrong


@fault("dflash_reference.law.accepted_one_hot", clauses=("LAW-003",), report=ROUND, effect="output")
def repeated_proposal_reuses_its_coin(true: Function) -> Function:
    """A token that a block proposes twice is tested with the coin of its first slot."""

    def wrong(proposals: Array, support: Array, p: Array, u_accept: Array) -> int:
        first = [list(proposals).index(proposal) for proposal in proposals]
        return int(true(proposals, support, p, u_accept[first] if first else u_accept))

    return wrong


@fault(
    "dflash_reference.law.accepts", clauses=("LAW-003",), effect="output",
    report="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/637",
)  # fmt: skip
def judged_by_the_largest_probability(true: Function) -> Function:
    """The test reads the row's largest probability, not the proposal's."""
    return lambda proposal, support, p, u: bool(u < max(p))


@fault(
    "dflash_reference.law.accepts", clauses=("LAW-003",), effect="output",
    report="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/630",
)  # fmt: skip
def accepted_if_it_is_the_argmax(true: Function) -> Function:
    """A sampled round accepts the target's most likely token and no other."""
    return lambda proposal, support, p, u: bool(proposal == support[int(np.argmax(p))])


@fault(
    "dflash_reference.law.accepts", clauses=("LAW-003",), effect="output",
    report="https://github.com/vllm-project/vllm/issues/9834",
)  # fmt: skip
def token_outside_the_support_accepted(true: Function) -> Function:
    """A proposal that the filters removed is not judged at all."""
    return lambda proposal, support, p, u: bool(proposal not in support) or true(proposal, support, p, u)


@fault(
    "dflash_reference.law.accepted_one_hot", clauses=("LAW-003",), effect="output",
    report="https://github.com/PaddlePaddle/FastDeploy/pull/5568",
)  # fmt: skip
def first_coin_for_all(true: Function) -> Function:
    """Every proposal of the round is tested with the first one's coin."""
    return lambda proposals, support, p, u_accept: true(proposals, support, p, [u_accept[0] for _ in u_accept])


@fault("dflash_reference.law.accepted_one_hot", clauses=("LAW-003",), report=VERIFICATION, effect="output")
def judged_by_the_row_after(true: Function) -> Function:
    """A proposal is tested with the distribution of the token after it."""
    return lambda proposals, support, p, u_accept: true(proposals, support[1:], p[1:], u_accept)


@fault("dflash_reference.law.accepted_one_hot", clauses=("LAW-003",), report=VERIFICATION, effect="output")
def acceptances_after_a_rejection_counted(true: Function) -> Function:
    """The accepted count is the number of passed tests, wherever they are."""

    def wrong(proposals: Array, support: Array, p: Array, u_accept: Array) -> int:
        rows = zip(proposals, support, p, u_accept, strict=False)
        return sum(
            int(true(np.array([proposal]), [ids], [weights], [u])) for proposal, ids, weights, u in rows
        )  # fmt: skip

    return wrong


@fault(
    "dflash_reference.law.correction", clauses=("LAW-004",), effect="output",
    report="https://github.com/NJUNLP/MCSD/issues/5",
)  # fmt: skip
def correction_drawn_from_p(true: Function) -> Function:
    """The rejected token keeps its probability in the correction."""
    return lambda rejected, support, p, u, profile: true(-2, support, p, u, profile)


@fault("dflash_reference.law.correction", clauses=("LAW-004",), report=ROUND, effect="output")
def goal_not_scaled_by_the_mass(true: Function) -> Function:
    """The goal is u itself though the weights sum to less than 1."""

    def wrong(rejected: int, support: Array, p: Array, u: Any, profile: Any) -> int:
        left = [0 if token == rejected else weight for token, weight in zip(support, p, strict=True)]
        return int(support[processing.rank(left, u)]) if sum(left) > 0 else int(true(rejected, support, p, u, profile))

    return wrong


@fault(
    "dflash_reference.law.correction", clauses=("LAW-004",), effect="output",
    report="https://github.com/Luce-Org/lucebox/pull/413",
)  # fmt: skip
def correction_by_argmax(true: Function) -> Function:
    """The correction is the most likely token that is left."""

    def wrong(rejected: int, support: Array, p: Array, u: Any, profile: Any) -> int:
        left = [-1.0 if token == rejected else float(weight) for token, weight in zip(support, p, strict=True)]
        return int(support[int(np.argmax(left))])

    return wrong


@fault("dflash_reference.law.correction", clauses=("LAW-004",), report=ROUND, effect="output")
def correction_by_token_id(true: Function) -> Function:
    """The correction is drawn in ascending order of id."""

    def wrong(rejected: int, support: Array, p: Array, u: Any, profile: Any) -> int:
        order = np.argsort(np.asarray(support), kind="stable")
        return int(true(rejected, np.asarray(support)[order], np.asarray(p)[order], u, profile))

    return wrong


@fault("dflash_reference.law.correction", clauses=("LAW-004",), report=ROUND, effect="output")
def hardly_any_mass_taken_for_none(true: Function) -> Function:
    """A remainder below a millionth counts as empty."""

    def wrong(rejected: int, support: Array, p: Array, u: Any, profile: Any) -> Any:
        left = sum(float(weight) for token, weight in zip(support, p, strict=True) if token != rejected)
        if left < 1e-6:
            return law.zero_residual(support, p.tolist(), u, profile)
        return true(rejected, support, p, u, profile)

    return wrong


@fault(
    "dflash_reference.law.zero_residual", clauses=("LAW-005",), effect="output", profiles=("ninfer",),
    report="dflash 0.1.0 _rejection_sample",
)  # fmt: skip
def nothing_left_draws_from_p(true: Function) -> Function:
    """An empty remainder is drawn from p, as the authors' package does."""
    return lambda support, p, u, profile: int(support[processing.rank(p, u * sum(p))])


@fault(
    "dflash_reference.law.zero_residual", clauses=("LAW-006",), effect="output", profiles=("zlab",),
    report=ROUND,
)  # fmt: skip
def nothing_left_takes_the_first(true: Function) -> Function:
    """An empty remainder yields the support's first token, as NInfer does."""
    return lambda support, p, u, profile: int(support[0])


@fault(
    "dflash_reference.law.zero_residual", clauses=("LAW-005", "LAW-006"), effect="crash",
    report="https://github.com/Infini-AI-Lab/Sequoia",
)  # fmt: skip
def nothing_left_yields_no_token(true: Function) -> Function:
    """An empty remainder divides by 0 and ends in an index of -1."""
    return lambda support, p, u, profile: -1


@fault(
    "dflash_reference.law.one_hot", clauses=("LAW-007",), effect="output",
    report="https://github.com/vllm-project/vllm-ascend/pull/2881",
)  # fmt: skip
def proposal_subtracted_from_the_bonus(true: Function) -> Function:
    """The last proposal's probability is taken out of the bonus row too."""

    def wrong(proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Any, profile: Any) -> Any:
        if len(proposals):
            p = np.array(p)
            p[-1] = np.where(np.asarray(support[-1]) == proposals[-1], 0.0, p[-1])
        return true(proposals, support, p, u_accept, u_terminal, profile)

    return wrong


@fault("dflash_reference.law.one_hot", clauses=("LAW-007",), report=VERIFICATION, effect="output")
def bonus_from_the_last_proposals_row(true: Function) -> Function:
    """The bonus is drawn from row P - 1, which judged the last proposal."""

    def wrong(proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Any, profile: Any) -> Any:
        if len(proposals):
            support, p = np.array(support), np.array(p)
            support[-1], p[-1] = support[-2], p[-2]
        return true(proposals, support, p, u_accept, u_terminal, profile)

    return wrong


@fault(
    "dflash_reference.law.bonus", clauses=("LAW-007",), effect="output",
    report="https://github.com/EricLBuehler/mistral.rs/pull/2424",
)  # fmt: skip
def bonus_by_argmax(true: Function) -> Function:
    """The bonus of a sampled round is the most likely token."""
    return lambda support, p, u: int(support[int(np.argmax(p))])


@fault("dflash_reference.law.licensed_row", clauses=("LAW-008",), report=ROUND, effect="output")
def rejected_proposals_stay_licensed(true: Function) -> Function:
    """Slots after the terminal token keep the rejected proposals."""

    def wrong(proposals: Array, accepted: int, terminal: int) -> Array:
        row = np.append(proposals, 0).astype(np.int64)
        row[accepted] = terminal
        return row

    return wrong
