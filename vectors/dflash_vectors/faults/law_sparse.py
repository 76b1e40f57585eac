"""Faults of the verification of proposals that were drawn from a law of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import law, processing
from dflash_reference.names import TokenId
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

TEST = ("LAW-009", "LAW-010")
KERNEL = "Infernix src/ops/kernel/speculative_round.cuh"
VERIFICATION = "NInfer docs/maintainer/dflash.md, verification"
ROUND = "Infernix include/infernix/ops/speculative_round.h"
PACKAGE = "dflash 0.1.0 _rejection_sample"


@fault("dflash_reference.law.covered_or_under", clauses=("LAW-009",), report=PACKAGE, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def covered_proposals_tested(true: Function) -> Function:
    """Only u · q < p accepts, as in the authors' package, so that p = q can be refused."""
    return lambda p, q, u: law.under(p, q, u)


@fault("dflash_reference.law.under", clauses=("LAW-010",), report=KERNEL, effect="output", profiles=("zlab",))
def covered_proposals_accepted(true: Function) -> Function:
    """A proposal with p >= q is not tested, as in NInfer, so that a token of probability 0 can be accepted."""
    return lambda p, q, u: bool(p >= q or true(p, q, u))


@fault("dflash_reference.law.fp32_product", clauses=TEST, report=KERNEL, effect="acceptance")
def product_with_the_coin_exact(true: Function) -> Function:
    """The coin's product is compared in double precision."""
    return lambda u, q: u * q


def _accepting(passes: Any) -> Function:
    """An accept loop with another test, which gets the whole row and law of the proposal."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, profile: Any
    ) -> int:
        for slot, token in enumerate(proposals):
            if not passes(token, candidates[slot], q[slot], support[slot], p[slot], u_accept[slot]):
                return slot
        return len(proposals)

    return wrong


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, effect="output",
    report="https://github.com/sgl-project/sglang/issues/35771",
)  # fmt: skip
def coin_equal_to_the_ratio_accepts(true: Function) -> Function:
    """The test is u · q <= p, so that a coin of 0 accepts a token of probability 0."""
    return _accepting(
        lambda token, ids, q, support, p, u: (
            law.fp32_product(u, law.weight_of(token, ids, q)) <= law.weight_of(token, support, p)
        )
    )


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, effect="output",
    report="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/637",
)  # fmt: skip
def ratio_to_the_largest_of_the_law(true: Function) -> Function:
    """p is compared with the largest q of the law instead of the proposal's own."""
    return _accepting(
        lambda token, ids, q, support, p, u: law.fp32_product(u, max(q)) < law.weight_of(token, support, p)
    )


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, report=VERIFICATION, effect="output")
def drawn_proposals_tested_as_certain(true: Function) -> Function:
    """The law is ignored: a proposal is accepted with probability p, as DFlash's are."""
    return _accepting(lambda token, ids, q, support, p, u: u < law.weight_of(token, support, p))


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, effect="output",
    report="https://github.com/EricLBuehler/mistral.rs/pull/2424",
)  # fmt: skip
def drawn_proposals_accepted_by_argmax(true: Function) -> Function:
    """A sampled round accepts the target's likeliest token and no other."""
    return _accepting(lambda token, ids, q, support, p, u: token == support[int(np.argmax(p))])


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, report=ROUND, effect="output")
def laws_compared_rank_by_rank(true: Function) -> Function:
    """q is read at the rank at which the target's support holds the proposal."""

    def passes(token: int, ids: Array, q: Array, support: Array, p: Any, u: float) -> bool:
        ranks = np.flatnonzero(support == token)
        own = q[ranks[0]] if len(ranks) and ranks[0] < len(q) else 0.0
        return bool(law.fp32_product(u, own) < law.weight_of(token, support, p))

    return _accepting(passes)


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, effect="output",
    report="https://github.com/PaddlePaddle/FastDeploy/pull/5568",
)  # fmt: skip
def first_coin_for_all_drawn(true: Function) -> Function:
    """Every proposal of the round is tested with the first one's coin."""
    return lambda proposals, candidates, q, support, p, u, profile: true(
        proposals, candidates, q, support, p, np.full_like(u, u[0]) if len(u) else u, profile
    )


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, report=VERIFICATION, effect="output")
def drawn_proposals_judged_by_the_row_after(true: Function) -> Function:
    """A proposal is tested with the target's row of the token after it."""
    return lambda proposals, candidates, q, support, p, u, profile: true(
        proposals, candidates, q, support[1:], p[1:], u, profile
    )


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, report=VERIFICATION, effect="output")
def law_of_the_slot_after(true: Function) -> Function:
    """A proposal is tested with the law of the next step of the walk."""
    return lambda proposals, candidates, q, support, p, u, profile: true(
        proposals, np.roll(candidates, -1, axis=0), np.roll(q, -1, axis=0), support, p, u, profile
    )


@fault("dflash_reference.law.accepted_sparse", clauses=TEST, report=VERIFICATION, effect="output")
def drawn_acceptances_after_a_rejection_counted(true: Function) -> Function:
    """The accepted count is the number of passed tests, wherever they are."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, profile: Any
    ) -> int:
        return sum(
            int(true(*(x[slot : slot + 1] for x in (proposals, candidates, q, support, p, u_accept)), profile))
            for slot in range(len(proposals))
        )

    return wrong


def _correcting(weigh: Any) -> Function:
    """A correction with other weights, from each token's p and q and the rejected row; the goal is u times the mass."""

    def wrong(candidates: Array, q: Any, support: Array, p: Any, u: Any, profile: Any) -> int:
        drawn = [law.weight_of(token, candidates, q) if token >= 0 else 0.0 for token in support]
        left = [float(weight) for weight in weigh(np.asarray(p, dtype=np.float64), np.array(drawn, dtype=np.float64))]
        mass = sum(left)
        if not mass > 0:
            return int(law.zero_residual(support, p, u, profile))
        return int(support[processing.rank(left, u * mass)])

    return wrong


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), effect="output",
    report="https://github.com/NJUNLP/MCSD/issues/5",
)  # fmt: skip
def drawn_correction_from_p(true: Function) -> Function:
    """The correction is drawn from p itself."""
    return _correcting(lambda p, q: p)


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=VERIFICATION, effect="output")
def residual_not_clamped(true: Function) -> Function:
    """Negative differences stay in the sum."""
    return _correcting(lambda p, q: p - q)


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=VERIFICATION, effect="output")
def residual_by_size(true: Function) -> Function:
    """The weights are |p - q|."""
    return _correcting(lambda p, q: np.abs(p - q))


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), effect="output",
    report="https://github.com/EricLBuehler/mistral.rs/pull/2424",
)  # fmt: skip
def residual_by_argmax(true: Function) -> Function:
    """The correction is the token of which most is left."""

    def weigh(p: Array, q: Array) -> Array:
        left = np.maximum(p - q, 0.0)
        return np.where(np.arange(len(left)) == np.argmax(left), left, 0.0)

    return _correcting(weigh)


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=ROUND, effect="output")
def residual_rank_by_rank(true: Function) -> Function:
    """p and q are subtracted rank by rank, whatever tokens stand there."""

    def wrong(candidates: Array, q: Any, support: Array, p: Any, u: Any, profile: Any) -> int:
        own: Any = np.zeros(len(p))
        own[: min(len(p), len(q))] = q[: len(p)]
        return int(true(support, own, support, p, u, profile))

    return wrong


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=ROUND, effect="output")
def residual_in_the_order_of_ids(true: Function) -> Function:
    """The draw goes through the support by ascending token id."""

    def wrong(candidates: Array, q: Any, support: Array, p: Any, u: Any, profile: Any) -> int:
        order = np.argsort(np.where(support < 0, np.iinfo(np.int64).max, support), kind="stable")
        return int(true(candidates, q, support[order], np.asarray(p)[order], u, profile))

    return wrong


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=ROUND, effect="output")
def residual_goal_not_scaled(true: Function) -> Function:
    """The goal is u itself though the weights sum to less than 1."""

    def wrong(candidates: Array, q: Any, support: Array, p: Any, u: Any, profile: Any) -> int:
        drawn = np.array([law.weight_of(token, candidates, q) if token >= 0 else 0.0 for token in support])
        left = np.maximum(np.asarray(p) - drawn, 0.0)
        if not left.sum() > 0:
            return int(law.zero_residual(support, p, u, profile))
        return int(support[processing.rank(left.tolist(), u)])

    return wrong


@fault("dflash_reference.law.sparse", clauses=("LAW-011",), report=VERIFICATION, effect="output")
def drawn_correction_without_the_proposal_alone(true: Function) -> Function:
    """The correction excludes the rejected token and keeps the rest of p, as for certain proposals."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        done = true(proposals, candidates, q, support, p, u_accept, u_terminal, profile)
        if done.accepted == len(proposals):
            return done
        row = done.accepted
        token = law.correction(TokenId(int(proposals[row])), support[row], p[row], u_terminal, profile)
        return law.Verdict(row, law.licensed_row(proposals, row, token))

    return wrong


@fault("dflash_reference.law.sparse", clauses=("LAW-007",), effect="output",
    report="https://github.com/vllm-project/vllm-ascend/pull/2881",
)  # fmt: skip
def law_subtracted_from_the_bonus(true: Function) -> Function:
    """The last proposal's law is subtracted from the bonus row too."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        done = true(proposals, candidates, q, support, p, u_accept, u_terminal, profile)
        if done.accepted < len(proposals) or not len(proposals):
            return done
        # The last law is padded to the bonus row's tokens, which differ from it, by rank.
        own: Any = np.zeros(len(p[-1]))
        own[: min(len(own), q.shape[1])] = q[-1][: len(own)]
        token = law.sparse_correction(support[-1], own, support[-1], p[-1], u_terminal, profile)
        return law.Verdict(done.accepted, law.licensed_row(proposals, done.accepted, token))

    return wrong
