"""Faults of transactions: the order of a commit's effects, the hidden row, and each batch row's own features."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import resolve
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

NINFER = ("ninfer",)
TRANSACTION = "Infernix src/models/qwen3_5/program/transactions/commit.cpp"
ENGINE = "Infernix docs/maintainer/engine-architecture.md"
SLICES = "https://github.com/sgl-project/sglang/issues/26163"


@fault("dflash_reference.resolve.state_effects", clauses=("COMMIT-014",), report=TRANSACTION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def effects_row_by_row(true: Function) -> Function:
    """Each row is committed on its own, one after the other."""
    return lambda *given: sorted(true(*given), key=lambda effect: (effect[1], effect[0]))


@fault("dflash_reference.resolve.state_effects", clauses=("COMMIT-014",), report=TRANSACTION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def frontiers_move_first(true: Function) -> Function:
    """The frontiers move before anything is made of the old ones."""
    return lambda *given: sorted(true(*given), key=lambda effect: effect[0] != resolve.MOVE)


@fault("dflash_reference.resolve.state_effects", clauses=("COMMIT-014",), report=TRANSACTION, effect="output",
    profiles=NINFER,
)  # fmt: skip
def hidden_row_not_taken_anew(true: Function) -> Function:
    """A cut round keeps the hidden row of its last licensed token."""
    return lambda *given: [effect for effect in true(*given) if effect[0] != resolve.HIDDEN]


@fault("dflash_reference.resolve.state_effects", clauses=("COMMIT-014",), report=TRANSACTION, effect="output",
    profiles=NINFER,
)  # fmt: skip
def cancelled_rows_fold(true: Function) -> Function:
    """A cancelled row folds its anchor."""
    return lambda counts, kept, ends, own_law: true(counts, np.maximum(kept, 1), ends, own_law)


@fault("dflash_reference.resolve.state_effects", clauses=("COMMIT-014",), report=TRANSACTION, effect="output",
    profiles=NINFER,
)  # fmt: skip
def tokens_counted_for_every_draft(true: Function) -> Function:
    """A commit counts tokens that the accept test has counted."""
    return lambda counts, kept, ends, own_law: true(counts, kept, ends, True)


@fault("dflash_reference.resolve.publish", clauses=("COMMIT-015",), report=ENGINE, effect="output", profiles=NINFER)
def published_before_the_commit(true: Function) -> Function:
    """Tokens go out first, and then the state takes them in."""

    def wrong(done: list[Any], kept: Array, failed: bool) -> list[Any]:
        whole: list[Any] = true(done, kept, failed)
        return whole[len(done) :] + whole[: len(done)]

    return wrong


@fault("dflash_reference.resolve.publish", clauses=("COMMIT-015",), report=ENGINE, effect="output", profiles=NINFER)
def published_though_the_commit_failed(true: Function) -> Function:
    """A failed commit is noticed after its tokens went out."""
    return lambda done, kept, failed: true([] if failed else done, kept, False)


@fault("dflash_reference.resolve.publish", clauses=("COMMIT-015",), report=ENGINE, effect="output", profiles=NINFER)
def events_before_the_session(true: Function) -> Function:
    """Events are sent before the session has taken the tokens in."""

    def wrong(done: list[Any], kept: Array, failed: bool) -> list[Any]:
        return sorted(true(done, kept, failed), key=lambda effect: effect[0] == resolve.SESSION)

    return wrong


@fault("dflash_reference.commit.continuation", clauses=("COMMIT-016",), report=TRANSACTION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def hidden_of_the_last_column(true: Function) -> Function:
    """The hidden row is that of the last column of the block."""
    return lambda columns, kept, previous: true(columns, len(columns) if kept else 0, previous)


@fault("dflash_reference.commit.continuation", clauses=("COMMIT-016",), effect="acceptance", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/36531",
)  # fmt: skip
def hidden_one_column_late(true: Function) -> Function:
    """The hidden row is that of column N."""
    return lambda columns, kept, previous: true(columns, min(kept + 1, len(columns)) if kept else 0, previous)


@fault("dflash_reference.commit.continuation", clauses=("COMMIT-016",), report=TRANSACTION, effect="output",
    profiles=NINFER,
)  # fmt: skip
def cancelled_row_takes_a_column(true: Function) -> Function:
    """A row that keeps nothing goes on from its last column."""
    return lambda columns, kept, previous: columns[kept - 1]


@fault("dflash_reference.commit.hidden", clauses=("COMMIT-016",), report=SLICES, effect="output", profiles=NINFER)
def hidden_of_the_next_row(true: Function) -> Function:
    """Each row gets its neighbour's column."""

    def wrong(hidden: Array, previous: Array, kept: Array, profile: Any) -> Any:
        return true(np.roll(hidden, 1, axis=0), previous, kept, profile)

    return wrong


@fault("dflash_reference.commit.own_rows", clauses=("COMMIT-017",), report=SLICES, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def feature_row_i_of_the_batch(true: Function) -> Function:
    """Batch row b gets the captured rows from b on, instead of those from b * W on."""
    return lambda captured, row, width: captured[row : row + width]


@fault("dflash_reference.commit.features", clauses=("COMMIT-017",), report=SLICES, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def features_packed_by_kept_counts(true: Function) -> Function:
    """Batch row b starts after the rows that the ones before it kept."""

    def wrong(captured: Array, width: int, kept: Array, frontiers: Array, profile: Any) -> Any:
        done = true(captured, width, kept, frontiers, profile)
        return done._replace(features=captured[: len(done.features)])

    return wrong


@fault("dflash_reference.commit.features", clauses=("COMMIT-017",), effect="acceptance", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/45100",
)  # fmt: skip
def features_at_the_next_rows_frontier(true: Function) -> Function:
    """Rows are placed from another row's frontier on."""

    def wrong(captured: Array, width: int, kept: Array, frontiers: Array, profile: Any) -> Any:
        return true(captured, width, kept, np.roll(frontiers, 1), profile)

    return wrong


@fault("dflash_reference.commit.own_rows", clauses=("COMMIT-017",), report=SLICES, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def features_without_the_anchors_row(true: Function) -> Function:
    """The anchor's row is left out, and each proposal's row takes its place."""
    return lambda captured, row, width: np.roll(true(captured, row, width), -1, axis=0)
