"""Faults of an engine around a sound pipeline: rows, rounds or requests that it does not lead through it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

BYPASSED = "https://github.com/vllm-project/vllm/pull/19482"
RAW_ARGMAX = "https://github.com/Avarok-Cybersecurity/atlas/issues/245"
GREEDY = "Neroued/ninfer as of July 2026, where greedy decoding ignores penalties"
FIRST_ONLY = "https://github.com/mlx-node/mlx-node/pull/11"
BONUS = "https://github.com/vllm-project/vllm/issues/44006"
UNFILTERED = "https://github.com/vllm-project/vllm/issues/9834"
BLOCK = "https://github.com/sgl-project/sglang/pull/28242"
NEVER_FED = "https://github.com/sgl-project/sglang/issues/28180"
COLD = "https://github.com/z-lab/dflash/issues/74"
SEED = "https://github.com/PaddlePaddle/FastDeploy/pull/5568"
KEYED, PUBLISHED = ("ninfer",), ("zlab",)


def _raw(state: Any, logits: Array) -> Array:
    """Logits of public ids, without mask or penalties."""
    rows = np.full(logits.shape, -np.inf)
    rows[:, : state.public] = logits[:, : state.public]
    return rows


@fault("dflash_reference.engine.adjusted", clauses=("PROC-010", "PROC-006"), report=BYPASSED, effect="output",
       profiles=KEYED)  # fmt: skip
def verification_bypasses_the_processors(true: Function) -> Function:
    """Masks and penalties hold for plain steps alone; a verify pass sees raw logits."""
    return lambda state, logits, proposals: _raw(state, logits) if len(proposals) else true(state, logits, proposals)


@fault("dflash_reference.engine.adjusted", clauses=("PROC-010",), report=GREEDY, effect="output", profiles=KEYED)
def greedy_requests_unpenalised(true: Function) -> Function:
    """Greedy requests take the argmax of what the mask leaves, without penalties."""

    def wrong(state: Any, logits: Array, proposals: Array) -> Any:
        asked = state.settings
        if not asked.temperature > 0:
            state.settings = replace(asked, presence=0.0, frequency=0.0)
        rows = true(state, logits, proposals)
        state.settings = asked
        return rows

    return wrong


@fault("dflash_reference.engine.adjusted", clauses=("PROC-010", "PROC-006"), report=RAW_ARGMAX, effect="output",
       profiles=KEYED)  # fmt: skip
def proposals_judged_by_raw_rows(true: Function) -> Function:
    """Proposals are judged by raw rows, and only the row of the bonus is processed."""

    def wrong(state: Any, logits: Array, proposals: Array) -> Any:
        rows = np.array(true(state, logits, proposals))
        rows[:-1] = _raw(state, logits)[:-1]
        return rows

    return wrong


@fault("dflash_reference.engine.adjusted", clauses=("PROC-010", "PROC-006"), report=BONUS, effect="output",
       profiles=KEYED)  # fmt: skip
def bonus_drawn_from_a_raw_row(true: Function) -> Function:
    """The row of the bonus is not processed."""

    def wrong(state: Any, logits: Array, proposals: Array) -> Any:
        rows = np.array(true(state, logits, proposals))
        if len(proposals):
            rows[-1] = _raw(state, logits)[-1]
        return rows

    return wrong


@fault("dflash_reference.engine.adjusted", clauses=("PROC-009",), report=BLOCK, effect="output", profiles=KEYED)
def block_penalised_as_its_first_row(true: Function) -> Function:
    """Every row of a verify pass is processed as a plain step is: what the block proposed before it does not count."""

    def wrong(state: Any, logits: Array, proposals: Array) -> Any:
        return np.concatenate([true(state, row[np.newaxis], proposals[:0]) for row in logits])

    return wrong


@fault("dflash_reference.request.Request.keep", clauses=("PROC-017", "PROC-010"), report=NEVER_FED, effect="output",
       profiles=KEYED)  # fmt: skip
def counts_never_fed(true: Function) -> Function:
    """The counts stay those of the request's start, so that penalties do nothing outside a block."""

    def wrong(state: Any, licensed: Array, own_law: bool) -> Any:
        counts = state.counts
        kept = true(state, licensed, own_law)
        state.counts = counts
        return kept

    return wrong


@fault("dflash_reference.engine.distribution", clauses=("PROC-006", "PROC-014", "PROC-017"), report=UNFILTERED,
       effect="output")  # fmt: skip
def verify_rows_unfiltered(true: Function) -> Function:
    """Top-k, min-p and top-p hold for plain steps alone."""

    def wrong(state: Any, rows: Array) -> Any:
        asked = state.settings
        if len(rows) > 1:
            state.settings = replace(asked, top_k=0, min_p=0.0, top_p=1.0)
        law = true(state, rows)
        state.settings = asked
        return law

    return wrong


@fault("dflash_reference.engine.draw_proposals", clauses=("PROC-020",), report=COLD, effect="acceptance",
       profiles=PUBLISHED)  # fmt: skip
def proposals_stay_argmaxes(true: Function) -> Function:
    """A DFlash draft proposes argmaxes at every temperature, and each counts as certain. The law is kept and acceptance
    lost; the proposals show it."""
    return lambda state, done: done


@fault("dflash_reference.engine.draw_proposals", clauses=("PROC-020",), report=COLD, effect="acceptance",
       profiles=PUBLISHED)  # fmt: skip
def proposals_drawn_without_the_filters(true: Function) -> Function:
    """The draft draws at the request's temperature alone, and says so. The law is kept and acceptance lost; the
    proposals show it."""

    def wrong(state: Any, done: Any) -> Any:
        asked = state.settings
        state.settings = replace(asked, top_k=0, top_p=1.0)
        drawn = true(state, done)
        state.settings = asked
        return drawn

    return wrong


@fault("dflash_reference.engine.proposal_uniforms", clauses=("PROC-020", "PROC-014"), report=SEED, effect="output",
       profiles=PUBLISHED)  # fmt: skip
def proposals_of_a_round_share_a_uniform(true: Function) -> Function:
    """All proposals of a round are drawn with the first one's uniform."""
    return lambda state, count: np.full(count, true(state, count)[0])


@fault("dflash_reference.engine.choose", clauses=("PROC-010", "PROC-006"), report=FIRST_ONLY, effect="output",
       profiles=KEYED)  # fmt: skip
def first_token_unprocessed(true: Function) -> Function:
    """The token after the prompt comes of raw logits: the pipeline starts with the first round."""

    def wrong(state: Any, logits: Array, key: Array) -> Any:
        with_mask = state.allowed
        state.allowed = np.ones_like(with_mask)
        token = true(state, logits, key)
        state.allowed = with_mask
        return token

    return wrong
