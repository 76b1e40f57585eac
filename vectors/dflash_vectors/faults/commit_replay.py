"""Faults of Luce's two forms of a round."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import replay, stop
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

LUCE = ("luce",)
LOOP = "Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_spec_decode.cpp"
HARNESS = "Luce-Org/lucebox-hub@8305b6c server/test/test_dflash.cpp"
BACKEND = "Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_backend.cpp"


@fault("dflash_reference.replay.accepted_rows", clauses=("COMMIT-018",), report=LOOP, effect="output", profiles=LUCE)
def anchor_not_counted(true: Function) -> Function:
    """The count starts at the first proposal."""
    return lambda block, target: max(1, true(block, target) - 1)


@fault("dflash_reference.replay.accepted_rows", clauses=("COMMIT-018",), report=LOOP, effect="output", profiles=LUCE)
def every_match_counted(true: Function) -> Function:
    """Matches after the first wrong proposal count too."""
    return lambda block, target: 1 + int((block[1:] == target[:-1]).sum())


@fault("dflash_reference.replay.accepted_rows", clauses=("COMMIT-018",), report=LOOP, effect="output", profiles=LUCE)
def first_wrong_proposal_counted(true: Function) -> Function:
    """The row at which the draft goes wrong is accepted."""
    return lambda block, target: min(true(block, target) + 1, len(block))


@fault("dflash_reference.replay.accepted_rows", clauses=("COMMIT-018",), report=LOOP, effect="output", profiles=LUCE)
def proposals_compared_with_their_own_row(true: Function) -> Function:
    """A proposal is compared with what the target says after it."""

    def wrong(block: Array, target: Array) -> int:
        return int(true(block, np.append(target[1:], target[-1:])))

    return wrong


@fault("dflash_reference.replay.replaying_form", clauses=("COMMIT-019",), report=LOOP, effect="output", profiles=LUCE)
def correction_is_the_next_anchor_too(true: Function) -> Function:
    """The correction is emitted, and then starts the next block as well."""

    def wrong(block: Array, target: Array, accepted: int, replayed: int) -> Any:
        return true(block, target, accepted, int(target[accepted - 1]))

    return wrong


@fault("dflash_reference.replay.replaying_form", clauses=("COMMIT-019",), report=LOOP, effect="output", profiles=LUCE)
def bonus_emitted_after_a_whole_block(true: Function) -> Function:
    """A block that is accepted whole emits its bonus, which is the next anchor."""

    def wrong(block: Array, target: Array, accepted: int, replayed: int) -> Any:
        done = true(block, target, accepted, replayed)
        return done._replace(tokens=np.append(block, target[-1])) if accepted == len(block) else done

    return wrong


@fault("dflash_reference.replay.replaying_form", clauses=("COMMIT-019",), report=LOOP, effect="output", profiles=LUCE)
def correction_not_emitted(true: Function) -> Function:
    """The correction runs in the replay, and is never emitted."""

    def wrong(block: Array, target: Array, accepted: int, replayed: int) -> Any:
        return true(block, target, accepted, replayed)._replace(tokens=block[:accepted])

    return wrong


@fault("dflash_reference.replay.replaying_form", clauses=("COMMIT-019",), effect="output", profiles=LUCE,
    report="https://github.com/Luce-Org/lucebox-hub/commit/1b3882d",
)  # fmt: skip
def correction_of_the_wrong_row(true: Function) -> Function:
    """The correction is what the target says after the first wrong proposal."""

    def wrong(block: Array, target: Array, accepted: int, replayed: int) -> Any:
        return true(block, np.append(target[1:], target[-1:]), accepted, replayed)

    return wrong


@fault("dflash_reference.replay.fast_form", clauses=("COMMIT-020",), report=HARNESS, effect="output", profiles=LUCE)
def pending_token_emitted_at_once(true: Function) -> Function:
    """The fast form emits the token that waits as the next anchor."""

    def wrong(block: Array, target: Array, accepted: int) -> Any:
        done = true(block, target, accepted)
        return done._replace(tokens=np.append(done.tokens, done.anchor))

    return wrong


@fault("dflash_reference.replay.fast_form", clauses=("COMMIT-020",), report=HARNESS, effect="output", profiles=LUCE)
def anchor_of_the_last_verified_row(true: Function) -> Function:
    """The next anchor is the target's token after the whole block."""
    return lambda block, target, accepted: true(block, target, accepted)._replace(anchor=int(target[-1]))


@fault("dflash_reference.replay.fast_form", clauses=("COMMIT-020",), report=HARNESS, effect="output", profiles=LUCE)
def anchor_is_the_draft_token(true: Function) -> Function:
    """The next anchor is the proposal that was rejected."""

    def wrong(block: Array, target: Array, accepted: int) -> Any:
        done = true(block, target, accepted)
        return done._replace(anchor=int(block[accepted])) if accepted < len(block) else done

    return wrong


@fault("dflash_reference.replay.replay_round", clauses=("COMMIT-020",), report=HARNESS, effect="output",
    profiles=LUCE,
)  # fmt: skip
def fast_rounds_replayed(true: Function) -> Function:
    """Both forms emit as the replaying one does."""
    return by_name(true, lambda fast, **named: true(fast=0, **named))


@fault("dflash_reference.replay.cut", clauses=("COMMIT-021",), report=HARNESS, effect="output", profiles=LUCE)
def anchor_of_the_unclamped_path(true: Function) -> Function:
    """A cut leaves the anchor of the whole round."""

    def wrong(whole: replay.Whole, remaining: int, stop_ids: Array) -> tuple[Array, int]:
        return true(whole, remaining, stop_ids)[0], whole.anchor

    return wrong


@fault("dflash_reference.replay.replay_round", clauses=("COMMIT-021",), report=BACKEND, effect="output",
    profiles=LUCE,
)  # fmt: skip
def state_over_the_whole_block(true: Function) -> Function:
    """The position is set to what was emitted, the state stands behind the whole round."""

    def wrong(remaining: int, stop_ids: Array, **named: Any) -> Any:
        whole = true(remaining=2**31 - 1, stop_ids=stop_ids[:0], **named)
        return true(remaining=remaining, stop_ids=stop_ids, **named)._replace(state_rows=whole.state_rows)

    return by_name(true, wrong)


@fault("dflash_reference.replay.cut", clauses=("COMMIT-021",), report=LOOP, effect="output", profiles=LUCE)
def block_emitted_past_its_end(true: Function) -> Function:
    """The loop stops at an end token, after the rest of its block has been emitted."""
    return lambda whole, remaining, stop_ids: true(whole, remaining, stop_ids[:0])


@fault("dflash_reference.replay.cut", clauses=("COMMIT-021",), report=HARNESS, effect="output", profiles=LUCE)
def budget_does_not_cut(true: Function) -> Function:
    """The last round is emitted whole."""
    return lambda whole, remaining, stop_ids: true(whole, len(whole.tokens), stop_ids)


@fault("dflash_reference.replay.cut", clauses=("COMMIT-021",), report=BACKEND, effect="output", profiles=LUCE)
def stop_token_not_emitted(true: Function) -> Function:
    """The round ends before its stop token, which is then the anchor."""

    def wrong(whole: replay.Whole, remaining: int, stop_ids: Array) -> tuple[Array, int]:
        tokens, anchor = true(whole, remaining, stop_ids)
        if stop.through_first_stop(tokens, stop_ids) == len(tokens) and tokens[-1] in stop_ids:
            return tokens[:-1], int(tokens[-1])
        return tokens, anchor

    return wrong
