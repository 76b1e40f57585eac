"""Faults of lanes: what a round leaves in them, and what the next request finds there."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import commit, resolve, script, state
from dflash_reference.names import TokenId
from dflash_spec.errors import StateError
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

COMMIT = "NInfer docs/maintainer/dflash.md, commit"
SWAPPED = "https://github.com/vllm-project/vllm/pull/45100"
FRESH = "https://github.com/Luce-Org/lucebox-hub/commit/855c87f"
TRIM = "https://github.com/ml-explore/mlx-swift-lm/pull/584"


def _leaving(part: Any) -> Any:
    """A replacement of Machine.close after which the next request finds `part` of the state that was left."""

    def replacement(true: Function) -> Function:
        def wrong(machine: script.Machine, index: int) -> None:
            left = machine.lanes[index] if 0 <= index < len(machine.lanes) else None
            true(machine, index)
            if left is not None:
                machine.opened = lambda: part(script.Machine.opened(machine), left)  # type: ignore[method-assign]

        return wrong

    return replacement


def _with(**names: str) -> Any:
    """What takes over the named attributes of the state that was left."""

    def part(fresh: state.Held, left: state.Held) -> state.Held:
        for name in names:
            setattr(fresh, name, getattr(left, name))
        return fresh

    return part


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), report=FRESH, effect="output")
def lane_keeps_its_position(true: Function) -> Function:
    """The next request of a lane counts on from where the last one stood."""
    return _leaving(_with(frontier="", target="", draft=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/c470446",
)  # fmt: skip
def lane_keeps_its_draft_context(true: Function) -> Function:
    """The draft's context of the next request starts with that of the last one."""
    return _leaving(_with(draft=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), report=COMMIT, effect="acceptance")
def lane_keeps_its_pending_rows(true: Function) -> Function:
    """Rows that were pending when a request was closed become context of the next one."""
    return _leaving(_with(pending=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), report=FRESH, effect="output")
def lane_keeps_its_hidden_row(true: Function) -> Function:
    """A request without tokens goes on from the hidden row of the last one."""
    return _leaving(_with(tail=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), report=COMMIT, effect="liveness")
def lane_keeps_its_anchor(true: Function) -> Function:
    """The next request has an anchor before it has a prompt."""
    return _leaving(_with(anchor=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.Machine.close", clauses=("STATE-010",), effect="output",
    report="https://github.com/ggml-org/llama.cpp/pull/22105",
)  # fmt: skip
def target_rows_of_the_last_request_stay(true: Function) -> Function:
    """The target's rows of the last request stay before those of the next one."""
    return _leaving(_with(target=""))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.script.lane_of", clauses=("STATE-011",), report=SWAPPED, effect="output")
def row_keeps_its_first_lane(true: Function) -> Function:
    """A row's lane is captured in the first round and used in all."""
    return lambda lanes, index, row: true(lanes, min(index, 0), row)


@fault("dflash_reference.script.lane_of", clauses=("STATE-011",), report=SWAPPED, effect="output")
def row_number_taken_for_the_lane(true: Function) -> Function:
    """Row j serves lane j."""
    return lambda lanes, index, row: row if true(lanes, index, row) >= 0 else -1


@fault("dflash_reference.script.Rounds.outcome", clauses=("STATE-011",), report=SWAPPED, effect="output")
def counts_of_the_neighbouring_row(true: Function) -> Function:
    """A row is committed with the counts that another lane of the batch was given."""

    def wrong(rounds: script.Rounds, index: int, row: int) -> tuple[Array, int, int]:
        rows = [other for other, _ in rounds.rows(index)]
        return tuple(true(rounds, index, rows[rows.index(row) - 1]))

    return wrong


@fault("dflash_reference.script.Rounds.outcome", clauses=("STATE-011",), report=SWAPPED, effect="output")
def counts_of_the_round_before(true: Function) -> Function:
    """Counts are read before those of this round have arrived."""

    def wrong(rounds: script.Rounds, index: int, row: int) -> tuple[Array, int, int]:
        before = max(0, index - 1)
        return tuple(true(rounds, before if rounds.lanes[before, row] >= 0 else index, row))

    return wrong


@fault("dflash_reference.script.settle", clauses=("STATE-013",), report=TRIM, effect="output")
def rejected_rows_stay_visible(true: Function) -> Function:
    """Rows of rejected proposals stay in the target's K/V."""

    def wrong(held: state.Held, block: Array, licensed: Array, kept: int, profile: Any) -> None:
        rows = held.target.rows.copy()
        true(held, block, licensed, kept, profile)
        held.target.rows = rows

    return wrong


@fault("dflash_reference.script.settle", clauses=("STATE-013",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def rejected_rows_pending(true: Function) -> Function:
    """Every verified row becomes context."""

    def wrong(held: state.Held, block: Array, licensed: Array, kept: int, profile: Any) -> None:
        start = held.frontier
        true(held, block, licensed, kept, profile)
        held.pending = commit.pending(block[:, np.newaxis], start, len(block), profile)

    return wrong


@fault("dflash_reference.script.catch_up", clauses=("STATE-013",), effect="acceptance",
    report="https://github.com/ggml-org/llama.cpp/issues/26478",
)  # fmt: skip
def context_caught_up_one_row_short(true: Function) -> Function:
    """The last committed row waits for the next round."""

    def wrong(held: state.Held) -> None:
        later = held.pending._replace(features=held.pending.features[-1:], positions=held.pending.positions[-1:])
        held.pending = held.pending._replace(features=held.pending.features[:-1], positions=held.pending.positions[:-1])
        true(held)
        held.pending = later

    return wrong


@fault("dflash_reference.script.settle", clauses=("STATE-013",), effect="output",
    report="https://github.com/spiritbuun/buun-llama-cpp/issues/116",
)  # fmt: skip
def index_of_the_first_round_reused(true: Function) -> Function:
    """The place to which rows are cut back was captured in the first round."""

    def wrong(held: state.Held, block: Array, licensed: Array, kept: int, profile: Any) -> None:
        first = held.__dict__.setdefault("captured", held.frontier)
        rows = held.target.length
        true(held, block, licensed, kept, profile)
        if rows > first + kept:
            held.target.cut(min(held.target.length, first + kept))

    return wrong


@fault("dflash_reference.script.settle", clauses=("STATE-013",), effect="output",
    report="https://github.com/ikawrakow/ik_llama.cpp/pull/2065",
)  # fmt: skip
def empty_round_keeps_its_anchor(true: Function) -> Function:
    """A round without proposals samples anew from the token before it, whose row it does not take in."""

    def wrong(held: state.Held, block: Array, licensed: Array, kept: int, profile: Any) -> None:
        before = held.anchor, held.frontier
        true(held, block, licensed, kept, profile)
        if len(block) == 1 and kept:
            held.anchor, held.frontier = TokenId(int(before[0])), before[1]

    return wrong


@fault("dflash_reference.script.Machine.finish", clauses=("COMMIT-016", "STATE-003", "COMMIT-011"), report=COMMIT,
    effect="acceptance",
)  # fmt: skip
def ended_request_left_with_pending_rows(true: Function) -> Function:
    """The rows of the last round are never made context."""
    return lambda machine, index, end: true(machine, index, resolve.GOES_ON if end == resolve.ENDS else end)


@fault("dflash_reference.script.Machine.finish", clauses=("STATE-010", "STATE-007"), report=COMMIT, effect="liveness")
def cancelled_lane_not_freed(true: Function) -> Function:
    """A cancelled request keeps its lane."""
    return lambda machine, index, end: None if end == resolve.CANCELLED else true(machine, index, end)


@fault("dflash_reference.script.Machine.commit", clauses=("COMMIT-004",), effect="output", profiles=("ninfer",),
    report="Infernix src/models/qwen3_5/program/prefill.cpp",
)  # fmt: skip
def sound_rows_of_a_bad_batch_committed(true: Function) -> Function:
    """Each row is checked and committed in turn, up to the first bad one."""

    def wrong(machine: script.Machine, index: int, rounds: script.Rounds) -> None:
        try:
            true(machine, index, rounds)
        except StateError:
            raise
        except Exception:
            for row, lane in rounds.rows(index):
                licensed, kept, end = rounds.outcome(index, row)
                resolve.decision(row, len(licensed), kept, end)
                held = machine.lane(lane, settled=False)
                script.settle(held, rounds.block(index, row), licensed, kept, machine.profile)
                del machine.rounds[lane]
            raise

    return wrong
