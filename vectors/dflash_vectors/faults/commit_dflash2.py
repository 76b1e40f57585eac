"""Faults of a request with a DFlash2 draft: what passes between walk, law and rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dflash_reference import draft2, selector

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

VERIFICATION = "NInfer docs/maintainer/dflash.md, verification"
NINFER = ("ninfer",)


@fault("dflash_reference.engine.judge", clauses=("LAW-009",), report=VERIFICATION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def drawn_rounds_judged_as_certain(true: Function) -> Function:
    """The law that drew the proposals is forgotten, and they are verified as DFlash's are."""
    return lambda state, proposals, logits, proposal: true(state, proposals, logits, None)


@fault("dflash_reference.engine.judge", clauses=("LAW-009",), effect="output", profiles=NINFER,
    report="https://github.com/huggingface/transformers/issues/47932",
)  # fmt: skip
def unary_law_claimed(true: Function) -> Function:
    """What is claimed to have drawn is the softmax of the unary scores, without the selector."""

    def wrong(state: Any, proposals: Any, logits: Any, proposal: Any) -> Any:
        if not isinstance(proposal, draft2.Proposal) or not state.settings.temperature > 0:
            return true(state, proposals, logits, proposal)
        q = proposal.q.copy()
        for step, unary in enumerate(proposal.unary):
            q[step] = selector.softened(unary, state.settings.temperature)
        return true(state, proposals, logits, proposal._replace(q=q))

    return wrong


@fault("dflash_reference.draft2.propose", clauses=("SEL-004",), effect="acceptance", profiles=NINFER,
    report="https://github.com/z-lab/dflash/issues/74",
)  # fmt: skip
def walk_greedy_in_a_sampled_request(true: Function) -> Function:
    """The temperature does not reach the walk, which is greedy and says so."""
    return by_name(true, lambda temperature, **named: true(temperature=0.0, **named))


@fault("dflash_reference.engine.propose", clauses=("SEL-004",), effect="output", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/54282",
)  # fmt: skip
def walk_draws_from_another_request(true: Function) -> Function:
    """The walk draws with the seed of another request."""

    def wrong(state: Any, *given: Any) -> Any:
        settings = state.settings
        state.settings = replace(settings, seed=settings.seed + 1000)
        try:
            return true(state, *given)
        finally:
            state.settings = settings

    return wrong
