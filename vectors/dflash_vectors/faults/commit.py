"""Faults of commits."""

from __future__ import annotations

from typing import Any

from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault, patched

COMMIT = "NInfer docs/maintainer/dflash.md, commit"


@fault("dflash_reference.commit.commit", clauses=("COMMIT-001",), effect="output",
    report="https://github.com/ikawrakow/ik_llama.cpp/pull/2065",
)  # fmt: skip
def anchor_not_committed(true: Function) -> Function:
    """The committed rows are the kept tokens; the anchor's row is never counted."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        return true(anchor, licensed, kept, frontier, target_rows, profile)._replace(rows=licensed[:kept])

    return wrong


@fault("dflash_reference.commit.commit", clauses=("COMMIT-001",), effect="output",
    report="Luce-Org/lucebox-hub@8305b6c, where a budget cut leaves the uncut round's last token",
)  # fmt: skip
def anchor_from_the_uncut_round(true: Function) -> Function:
    """The next anchor is the round's terminal token, though fewer tokens were kept."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        committed = true(anchor, licensed, kept, frontier, target_rows, profile)
        return committed._replace(next_anchor=int(licensed[-1]))

    return wrong


@fault("dflash_reference.commit.commit", clauses=("COMMIT-001",), report=COMMIT, effect="output")
def anchor_processed_twice(true: Function) -> Function:
    """The frontier moves by one less than was kept, so the last committed row is read again."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        committed = true(anchor, licensed, kept, frontier, target_rows, profile)
        return committed._replace(next_frontier=committed.next_frontier - 1)

    return wrong


@fault("dflash_reference.commit.commit", clauses=("COMMIT-001",), effect="output",
    report="Luce-Org/lucebox-hub@8305b6c, where a stop inside a round advances over the whole round",
)  # fmt: skip
def frontier_over_dropped_tokens(true: Function) -> Function:
    """The frontier moves over every licensed token, though a stop dropped some."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        committed = true(anchor, licensed, kept, frontier, target_rows, profile)
        return committed._replace(next_frontier=frontier + len(licensed))

    return wrong


@fault("dflash_reference.commit.commit", clauses=("COMMIT-003",), report=COMMIT, effect="output")
def cancelled_round_commits_its_anchor(true: Function) -> Function:
    """Every round moves on by one token at least."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        return true(anchor, licensed, max(kept, 1), frontier, target_rows, profile)

    return wrong


@fault("dflash_reference.commit.commit", clauses=("COMMIT-003",), report=COMMIT, effect="output")
def cancelled_round_keeps_its_rows(true: Function) -> Function:
    """A cancelled round returns before it cuts the target's K/V back."""

    def wrong(anchor: int, licensed: Array, kept: int, frontier: int, target_rows: int, profile: Any) -> Any:
        done = true(anchor, licensed, kept, frontier, target_rows, profile)
        return done if kept else done._replace(target_rows_kept=target_rows)

    return wrong


@fault("dflash_reference.commit.kept_rows", clauses=("COMMIT-002", "COMMIT-001"), effect="output",
    report="https://github.com/ml-explore/mlx-swift-lm/issues/424",
)  # fmt: skip
def target_rows_not_cut_back(true: Function) -> Function:
    """Rows of rejected proposals stay in the target's K/V."""
    return lambda frontier, kept, target_rows: target_rows


@fault("dflash_reference.commit.kept_rows", clauses=("COMMIT-002", "COMMIT-001"), report=COMMIT, effect="output")
def target_rows_cut_to_the_old_frontier(true: Function) -> Function:
    """The target's K/V is cut back to where the round began."""
    return lambda frontier, kept, target_rows: frontier


@fault("dflash_reference.target.Cache.cut", clauses=("COMMIT-002",), effect="output",
    report="https://github.com/ml-explore/mlx-swift-lm/issues/424",
)  # fmt: skip
def cut_does_nothing(true: Function) -> Function:
    """The cache reports that it was cut back, and keeps every row."""
    return lambda cache, length: None


@fault("dflash_reference.engine.catch_up", clauses=("CTX-010",), report="NInfer docs/maintainer/dflash.md, proposal",
    effect="acceptance",
)  # fmt: skip
def context_one_round_late(true: Function) -> Function:
    """The rows of a commit become context only after the next proposal."""

    def wrong(model: Any, rows: Any, pending: Any, profile: Any) -> Any:
        late = getattr(rows, "late", None)
        if rows.length:
            rows.late = pending
            pending = late or pending._replace(features=pending.features[:0], positions=pending.positions[:0])
        return true(model, rows, pending, profile)

    return wrong


@fault("dflash_reference.draft.forward", clauses=("DRAFT-014",), report="dflash 0.1.0 dflash_generate",
    effect="acceptance",
)  # fmt: skip
def block_rows_kept_in_the_context(true: Function) -> Function:
    """The draft's cache is not cropped after a forward, and keeps the block's keys and values."""

    def wrong(draft: Any, context: Any, x: Array, positions: Array, profile: Any) -> Any:
        kept = []

        def keeping(real: Function) -> Function:
            def qkv(*inputs: Any, **named: Any) -> Any:
                kept.append(real(*inputs, **named))
                return kept[-1]

            return qkv

        with patched("dflash_reference.layer.qkv", keeping):
            done = true(draft, context, x, positions, profile)
        for keys, values, heads in zip(context.keys, context.values, kept, strict=True):
            keys.append(heads.k)
            values.append(heads.v)
        context.positions.append(positions)
        return done

    return wrong
