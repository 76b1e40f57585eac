"""Faults of whole rounds: uniforms that are used twice, remainders of the wrong mass, laws that are ignored.

Some keep the law of the output, and only lose acceptance: their story says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dflash_reference import law, processing, rng
from dflash_reference.names import TokenId
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

COIN = "https://github.com/sgl-project/sglang/pull/7231"
NOISE = "https://github.com/vllm-project/vllm/pull/54282"
EQUALITY = "https://github.com/NVIDIA/TensorRT-LLM/pull/15775"
ZEROED = "https://github.com/vllm-project/vllm-ascend/pull/2881"
ARGMAX = "https://github.com/1bit-MONSTER/1bit-MONSTER/issues/630"
MCSD = "https://github.com/NJUNLP/MCSD/issues/5"
TEST = ("LAW-009", "LAW-010")
VERIFICATION = "NInfer docs/maintainer/dflash.md, verification"
INFLATED = 1e-4


@fault("dflash_reference.law.one_hot", clauses=("LAW-004",), report=COIN, effect="output")
def coin_of_the_rejection_draws_the_correction(true: Function) -> Function:
    """The correction is drawn with the coin that rejected, which is never below p."""

    def wrong(proposals: Array, support: Array, p: Array, u_accept: Array, u_terminal: Any, profile: Any) -> Any:
        accepted = law.accepted_one_hot(proposals, support, p, u_accept)
        coin = u_accept[accepted] if accepted < len(proposals) else u_terminal
        return true(proposals, support, p, u_accept, coin, profile)

    return wrong


@fault("dflash_reference.law.sparse", clauses=("LAW-011",), report=COIN, effect="output")
def coin_of_the_rejection_draws_the_residual(true: Function) -> Function:
    """The residual is drawn from with the coin that rejected."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        accepted = law.accepted_sparse(proposals, candidates, q, support, p, u_accept, profile)
        coin = u_accept[accepted] if accepted < len(proposals) else u_terminal
        return true(proposals, candidates, q, support, p, u_accept, coin, profile)

    return wrong


@fault("dflash_reference.rng.terminal_key", clauses=("RNG-005",), report=NOISE, effect="output", profiles=("ninfer",))
def noise_of_the_proposal_draws_the_residual(true: Function) -> Function:
    """A correction draws with the key of the proposal that it replaces."""

    def wrong(frontier: int, extent: int, accepted: int) -> Array:
        key: Array = true(frontier, extent, accepted)
        if accepted < extent:
            key[:2] = frontier + accepted, rng.PROPOSAL
        return key

    return wrong


@fault("dflash_reference.law.sparse", clauses=TEST, effect="acceptance", report=VERIFICATION)
def drawn_proposals_taken_for_certain(true: Function) -> Function:
    """Drawn proposals are tested and corrected as certain ones. The law is kept and acceptance lost: a round accepts
    with the mass of p * q instead of min(p, q), and tokens below their ratio are rejected."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        return law.one_hot(proposals, support, p, u_accept, u_terminal, profile)

    return wrong


@fault("dflash_reference.law.sparse", clauses=TEST, report=EQUALITY, effect="acceptance")
def drawn_proposals_accepted_by_equality(true: Function) -> Function:
    """The target draws for itself with the coin and accepts what equals its draw. The law is kept and acceptance lost;
    proposals below their ratio are rejected."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        uniforms = np.append(np.asarray(u_accept), u_terminal)
        drawn = processing.draw(support, np.asarray(p), uniforms, profile).tokens
        return law.greedy(proposals, drawn, profile)

    return wrong


@fault("dflash_reference.law.sparse", clauses=(*TEST, "LAW-011"), report=ARGMAX, effect="output")
def covered_or_the_argmax(true: Function) -> Function:
    """A proposal is accepted if and only if p >= q, without a coin, and corrected by the target's likeliest token."""

    def wrong(
        proposals: Array, candidates: Array, q: Any, support: Array, p: Any, u_accept: Array, u_terminal: Any,
        profile: Any,
    ) -> Any:  # fmt: skip
        for slot, token in enumerate(proposals):
            if law.weight_of(token, support[slot], p[slot]) < law.weight_of(token, candidates[slot], q[slot]):
                best = TokenId(int(support[slot][int(np.argmax(p[slot]))]))
                return law.Verdict(slot, law.licensed_row(proposals, slot, best))
        return true(proposals, candidates, q, support, p, np.zeros_like(u_accept), u_terminal, profile)

    return wrong


def _residual(support: Array, candidates: Array, q: Any, p: Any) -> Array:
    """p - q by id over the support, not clamped."""
    drawn = [law.weight_of(token, candidates, q) if token >= 0 else 0.0 for token in support]
    left: Array = np.asarray(p, dtype=np.float64) - np.array(drawn)
    return left


def _goal(true: Function, mass: Callable[..., Any]) -> Function:
    """Changes the mass that the goal of a correction is a share of."""

    def wrong(candidates: Array, q: Any, support: Array, p: Any, u: Any, profile: Any) -> Any:
        left = np.maximum(_residual(support, candidates, q, p), 0.0)
        if not left.sum() > 0:
            return true(candidates, q, support, p, u, profile)
        return TokenId(int(support[processing.rank(left.tolist(), u * mass(left, candidates, q, support, p))]))

    return wrong


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=VERIFICATION, effect="output")
def residual_normalised_over_the_candidates(true: Function) -> Function:
    """The mass is that of the draft's candidates alone; what p has elsewhere is drawn too seldom."""
    return _goal(true, lambda left, candidates, q, support, p: left[np.isin(support, candidates)].sum())


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=VERIFICATION, effect="output")
def residual_normalised_before_clamping(true: Function) -> Function:
    """The mass is that of p minus q before negative differences are clamped."""
    return _goal(
        true, lambda left, candidates, q, support, p: max(float(_residual(support, candidates, q, p).sum()), 0.0)
    )


@fault("dflash_reference.law.sparse_correction", clauses=("LAW-011",), report=MCSD, effect="output")
def residual_drawn_from_p(true: Function) -> Function:
    """The correction is drawn from p, and q is not subtracted."""
    return lambda candidates, q, support, p, u, profile: true(candidates, np.zeros(len(q)), support, p, u, profile)


@fault("dflash_reference.law.accepts", clauses=("LAW-003",), report=VERIFICATION, effect="output")
def acceptance_inflated(true: Function) -> Function:
    """A ten-thousandth is added to every probability of acceptance, below what a histogram of tokens shows."""

    def wrong(proposal: int, support: Array, p: Any, u: Any) -> bool:
        return bool(u < law.weight_of(proposal, support, p) + INFLATED)

    return wrong


@fault("dflash_reference.law.fp32_product", clauses=TEST, report=VERIFICATION, effect="output")
def drawn_acceptance_inflated(true: Function) -> Function:
    """Coins are a ten-thousandth smaller than they should be, below what a histogram of tokens shows."""
    return lambda u, q: true(u * (1 - INFLATED), q)


def _zeroed(given: dict[str, Any]) -> Array:
    """p without the proposals of the rows before."""
    held, support = np.array(given["p"]), np.asarray(given["support"])
    for slot, token in enumerate(given["proposals"]):
        held[slot + 1 :][support[slot + 1 :] == token] = 0
    return held


@fault("dflash_reference.law.one_hot", clauses=("LAW-003", "LAW-004", "LAW-007"), report=ZEROED, effect="output")
def proposal_zeroed_and_never_restored(true: Function) -> Function:
    """A tested proposal's probability is set to 0 in place, in a buffer that all rows share, and never restored."""
    return by_name(true, lambda **given: true(**given | {"p": _zeroed(given)}))


@fault("dflash_reference.law.sparse", clauses=(*TEST, "LAW-007", "LAW-011"), report=ZEROED, effect="output")
def drawn_proposal_zeroed_and_never_restored(true: Function) -> Function:
    """The target's probability of a proposal is set to 0 in place, in a buffer that all rows share, and never
    restored."""
    return by_name(true, lambda **given: true(**given | {"p": _zeroed(given)}))
