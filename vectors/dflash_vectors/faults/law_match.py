"""Faults of sample-and-match."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import law, processing
from dflash_reference.names import TokenId
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

APRIL = "z-lab/dflash@44947fb dflash/model.py"
PACKAGE = "dflash 0.1.0 _rejection_sample"
TARGET, CLAUSES, OLD = "dflash_reference.law.match", ("LAW-012",), ("zlab-2026-04",)


def _draws(support: Array, p: Array, u: Array, profile: Any) -> Array:
    drawn: Array = processing.draw(support, p, u, profile).tokens
    return drawn


@fault(TARGET, clauses=CLAUSES, report=APRIL, effect="output", profiles=OLD)
def rejecting_row_drawn_again(true: Function) -> Function:
    """The row that rejects draws once more, with the uniform after, and may emit the rejected token after all."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        done = true(proposals, support, p, u, profile)
        row = done.accepted
        if row == len(proposals):
            return done
        again = _draws(support[row : row + 1], p[row : row + 1], u[row + 1 : row + 2], profile)
        return law.Verdict(row, law.licensed_row(proposals, row, TokenId(int(again[0]))))

    return wrong


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="output", profiles=OLD)
def draw_without_the_rejected_token(true: Function) -> Function:
    """The row that rejects draws from what is left without the proposal, as after an accept test."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        done = true(proposals, support, p, u, profile)
        row = done.accepted
        if row == len(proposals):
            return done
        token = law.correction(TokenId(int(proposals[row])), support[row], p[row], u[row], profile)
        return law.Verdict(row, law.licensed_row(proposals, row, token))

    return wrong


@fault(TARGET, clauses=CLAUSES, report="https://github.com/1bit-MONSTER/1bit-MONSTER/issues/630", effect="output",
       profiles=OLD)  # fmt: skip
def matched_with_the_argmax(true: Function) -> Function:
    """Proposals are matched with the likeliest tokens, and the last row alone is drawn."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        target = np.take_along_axis(support, p.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        done = law.greedy(proposals, target, profile)
        row = done.accepted
        drawn = _draws(support[row : row + 1], p[row : row + 1], u[row : row + 1], profile)
        return law.Verdict(row, law.licensed_row(proposals, row, TokenId(int(drawn[0]))))

    return wrong


@fault(TARGET, clauses=CLAUSES, report=PACKAGE, effect="output", profiles=OLD)
def accept_tests_instead_of_draws(true: Function) -> Function:
    """The uniforms are coins of accept tests. The law is kept, and a seed gives other tokens; the accepted counts show
    it."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        return law.one_hot(proposals, support, p, u[: len(proposals)], u[-1], profile)

    return wrong


@fault(TARGET, clauses=CLAUSES, report=APRIL, effect="output", profiles=OLD)
def matched_with_the_row_after(true: Function) -> Function:
    """A proposal is matched with the draw of the token after it."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        order = [*range(1, len(p)), 0]
        return true(proposals, support[order], p[order], u[order], profile)

    return wrong


@fault(
    TARGET, clauses=CLAUSES, effect="output", profiles=OLD,
    report="https://github.com/PaddlePaddle/FastDeploy/pull/5568",
)  # fmt: skip
def all_rows_drawn_with_one_seed(true: Function) -> Function:
    """Every row of the round draws with the first one's uniform."""
    return lambda proposals, support, p, u, profile: true(proposals, support, p, np.full_like(u, u[0]), profile)


@fault(TARGET, clauses=CLAUSES, report=APRIL, effect="output", profiles=OLD)
def bonus_of_a_match_by_argmax(true: Function) -> Function:
    """Where everything matched the bonus is the likeliest token."""

    def wrong(proposals: Array, support: Array, p: Array, u: Array, profile: Any) -> Any:
        done = true(proposals, support, p, u, profile)
        if done.accepted < len(proposals):
            return done
        return law.Verdict(done.accepted, law.licensed_row(proposals, done.accepted, support[-1][int(p[-1].argmax())]))

    return wrong
