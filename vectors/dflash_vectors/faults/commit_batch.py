"""Faults of transactions: which rows may start a round, what refuses a batch, and what a commit moves."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import resolve
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER = ("ninfer",)
RESOLVE = "Infernix src/models/qwen3_5/program/prefill.cpp"
DECODE = "Infernix src/models/qwen3_5/program/decode.cpp"
TRANSACTION = "Infernix src/models/qwen3_5/program/transactions/commit.cpp"
DRAFT = "Infernix src/models/qwen3_5/execution/draft.cpp"


@fault("dflash_reference.resolve.decision", clauses=("COMMIT-004",), report=RESOLVE, effect="output", profiles=NINFER)
def any_kept_count_is_taken(true: Function) -> Function:
    """A row may keep any part of what it licensed, whether its request ends or not."""

    def wrong(row: int, count: int, kept: int, end: int) -> None:
        true(row, count, kept, resolve.ENDS if 1 <= kept <= count else end)

    return wrong


@fault("dflash_reference.resolve.decision", clauses=("COMMIT-004",), report=RESOLVE, effect="output", profiles=NINFER)
def nothing_kept_without_a_cancel(true: Function) -> Function:
    """Keeping nothing is allowed at every end."""
    return lambda row, count, kept, end: true(row, count, kept, resolve.CANCELLED if kept == 0 else end)


@fault("dflash_reference.resolve.decision", clauses=("COMMIT-004",), report=RESOLVE, effect="crash", profiles=NINFER)
def more_kept_than_licensed(true: Function) -> Function:
    """What a row keeps is not held against what it licensed."""
    return lambda row, count, kept, end: true(row, max(count, kept) if end == resolve.ENDS else count, kept, end)


@fault("dflash_reference.resolve.decision", clauses=("COMMIT-004",), effect="output", profiles=NINFER,
    report="Infernix src/models/qwen3_5/program/prefill.cpp, where one bad row rejects the batch",
)  # fmt: skip
def only_the_first_row_is_checked(true: Function) -> Function:
    """One row of a batch is checked for all."""
    return lambda row, count, kept, end: true(row, count, kept, end) if row == 0 else None


@fault("dflash_reference.resolve.decision", clauses=("COMMIT-004",), report=RESOLVE, effect="output", profiles=NINFER)
def cancelled_row_may_keep_tokens(true: Function) -> Function:
    """A cancelled row is treated as one that ends."""

    def wrong(row: int, count: int, kept: int, end: int) -> None:
        true(row, count, kept, resolve.ENDS if end == resolve.CANCELLED and kept else end)

    return wrong


@fault("dflash_reference.resolve.licenses", clauses=("COMMIT-005",), report=DECODE, effect="output", profiles=NINFER)
def bonus_may_be_missing(true: Function) -> Function:
    """As many tokens as were accepted are enough."""

    def wrong(row: int, count: int, accepted: int, extent: int, width: int) -> None:
        true(row, count, count - 1 if count == accepted else accepted, extent, width)

    return wrong


@fault("dflash_reference.resolve.licenses", clauses=("COMMIT-005",), report=DECODE, effect="output", profiles=NINFER)
def accepted_count_not_looked_at(true: Function) -> Function:
    """The accepted count is held against nothing."""
    return lambda row, count, accepted, extent, width: true(row, count, count - 1, max(extent, count - 1), width)


@fault("dflash_reference.resolve.licenses", clauses=("COMMIT-005",), report=DECODE, effect="output", profiles=NINFER)
def extent_not_looked_at(true: Function) -> Function:
    """Proposals past the extent may be accepted."""
    return lambda row, count, accepted, extent, width: true(row, count, accepted, max(extent, accepted), width)


@fault("dflash_reference.resolve.licenses", clauses=("COMMIT-005",), report=DECODE, effect="crash", profiles=NINFER)
def licensed_tokens_past_the_block(true: Function) -> Function:
    """The width of the block bounds nothing."""
    return lambda row, count, accepted, extent, width: true(row, count, accepted, extent, max(width, count))


@fault("dflash_reference.resolve.licenses", clauses=("COMMIT-005",), report=DECODE, effect="crash", profiles=NINFER)
def whole_block_counts_as_too_wide(true: Function) -> Function:
    """A round that accepts every proposal is refused."""
    return lambda row, count, accepted, extent, width: true(row, count, accepted, extent, width - 1)


@fault("dflash_reference.resolve.within_limits", clauses=("COMMIT-006",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def budget_not_looked_at(true: Function) -> Function:
    """A row may license more tokens than its budget holds."""
    return lambda row, count, frontier, remaining, capacity: true(row, count, frontier, count, capacity)


@fault("dflash_reference.resolve.within_limits", clauses=("COMMIT-006",), effect="crash", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/53812",
)  # fmt: skip
def cache_not_looked_at(true: Function) -> Function:
    """A row may license past its cache."""
    return lambda row, count, frontier, remaining, capacity: true(row, count, 0, remaining, capacity)


@fault("dflash_reference.resolve.within_limits", clauses=("COMMIT-006",), report=DECODE, effect="liveness",
    profiles=NINFER,
)  # fmt: skip
def last_token_of_a_limit_refused(true: Function) -> Function:
    """A row that just fits is refused."""
    return lambda row, count, frontier, remaining, capacity: true(row, count, frontier, remaining - 1, capacity)


@fault("dflash_reference.resolve.within_limits", clauses=("COMMIT-006",), report=DECODE, effect="liveness",
    profiles=NINFER,
)  # fmt: skip
def last_row_of_the_cache_refused(true: Function) -> Function:
    """A row that fills the cache is refused."""
    return lambda row, count, frontier, remaining, capacity: true(row, count, frontier, remaining, capacity - 1)


@fault("dflash_reference.resolve.public_tokens", clauses=("COMMIT-007",), effect="crash", profiles=NINFER,
    report="https://github.com/avifenesh/memra/issues/87",
)  # fmt: skip
def any_token_is_licensed(true: Function) -> Function:
    """A sentinel or a padding row becomes a token."""
    return lambda row, licensed, public: None


@fault("dflash_reference.resolve.public_tokens", clauses=("COMMIT-007",), effect="crash", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/46899",
)  # fmt: skip
def placeholder_is_licensed(true: Function) -> Function:
    """A placeholder -1 passes for a token."""
    return lambda row, licensed, public: true(row, licensed[licensed >= 0], public)


@fault("dflash_reference.resolve.public_tokens", clauses=("COMMIT-007",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def vocabulary_one_id_larger(true: Function) -> Function:
    """The first padding id is public."""
    return lambda row, licensed, public: true(row, licensed, public + 1)


@fault("dflash_reference.resolve.public_tokens", clauses=("COMMIT-007",), report=DECODE, effect="liveness",
    profiles=NINFER,
)  # fmt: skip
def vocabulary_one_id_smaller(true: Function) -> Function:
    """The last public id is refused."""
    return lambda row, licensed, public: true(row, licensed, public - 1)


@fault("dflash_reference.resolve.public_tokens", clauses=("COMMIT-007",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def last_licensed_token_unchecked(true: Function) -> Function:
    """Accepted proposals are checked, the token that ends the round is not."""
    return lambda row, licensed, public: true(row, licensed[:-1], public)


@fault("dflash_reference.resolve.once", clauses=("COMMIT-008",), effect="output",
    report="https://github.com/ikawrakow/ik_llama.cpp/pull/2065",
)  # fmt: skip
def commit_applied_twice(true: Function) -> Function:
    """A round that was resolved is resolved again."""
    return lambda consumed: None


@fault("dflash_reference.resolve.unmoved", clauses=("COMMIT-009",), report=RESOLVE, effect="output", profiles=NINFER)
def late_result_committed(true: Function) -> Function:
    """Nobody looks where the rows stand now."""
    return lambda base, present, widths, width: true(base, base, widths, width)


@fault("dflash_reference.resolve.unmoved", clauses=("COMMIT-009",), effect="acceptance", profiles=NINFER,
    report="https://github.com/ggml-org/llama.cpp/pull/24593",
)  # fmt: skip
def context_may_have_moved(true: Function) -> Function:
    """The context's frontier is not among those compared."""

    def wrong(base: Array, present: Array, widths: Array, width: int) -> None:
        true(base[:, : resolve.CONTEXT], present[:, : resolve.CONTEXT], widths, width)

    return wrong


@fault("dflash_reference.resolve.unmoved", clauses=("COMMIT-009",), report=RESOLVE, effect="output", profiles=NINFER)
def execution_alone_compared(true: Function) -> Function:
    """Ledger and caches are taken to follow the execution frontier."""
    return lambda base, present, widths, width: true(base[:, :1], present[:, :1], widths, width)


@fault("dflash_reference.resolve.unmoved", clauses=("COMMIT-009",), report=RESOLVE, effect="output", profiles=NINFER)
def several_widths_in_a_batch(true: Function) -> Function:
    """Rows of verify passes of different widths form one batch."""
    return lambda base, present, widths, width: true(base, present, widths[:0], width)


@fault("dflash_reference.resolve.moved", clauses=("COMMIT-010",), report=TRANSACTION, effect="output", profiles=NINFER)
def all_rows_move_by_the_first(true: Function) -> Function:
    """The first row's count moves every row."""
    return lambda base, kept, context: true(base, np.full_like(kept, kept[0]), context)


@fault("dflash_reference.resolve.moved", clauses=("COMMIT-010",), report=TRANSACTION, effect="output", profiles=NINFER)
def ledger_stays_behind(true: Function) -> Function:
    """The ledger gets one token less than the caches."""

    def wrong(base: Array, kept: Array, context: Array) -> Array:
        after = np.array(true(base, kept, context))
        after[:, resolve.LEDGER] -= np.minimum(kept, 1)
        return after

    return wrong


@fault("dflash_reference.resolve.resolve", clauses=("COMMIT-010",), effect="output", profiles=NINFER,
    report="https://github.com/ml-explore/mlx-swift-lm/issues/424",
)  # fmt: skip
def target_rows_stay_as_verified(true: Function) -> Function:
    """The target's K/V keeps every verified row."""

    def wrong(extents: Array, base: Array, **named: Any) -> Any:
        done = true(extents=extents, base=base, **named)
        done.frontiers[:, resolve.TARGET] = base[:, resolve.TARGET] + extents + 1
        return done

    return by_name(true, wrong)


@fault("dflash_reference.resolve.context_after", clauses=("COMMIT-011",), report=TRANSACTION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def context_moves_with_every_row(true: Function) -> Function:
    """The context is said to have reached the frontier though its rows are pending."""
    return lambda base, kept, ends: true(base, kept, np.full_like(ends, resolve.ENDS))


@fault("dflash_reference.resolve.context_after", clauses=("COMMIT-011",), report=TRANSACTION, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def context_of_ended_rows_stays_behind(true: Function) -> Function:
    """The rows of a request that ends are left pending, and nobody comes for them."""
    return lambda base, kept, ends: true(base, kept, np.full_like(ends, resolve.GOES_ON))


@fault("dflash_reference.resolve.context_after", clauses=("COMMIT-011",), effect="acceptance", profiles=NINFER,
    report="https://github.com/ggml-org/llama.cpp/issues/26478",
)  # fmt: skip
def context_caught_up_to_the_anchor_too(true: Function) -> Function:
    """The context of an ended row reaches one position past the frontier."""

    def wrong(base: Array, kept: Array, ends: Array) -> tuple[Array, Array]:
        context, pending = true(base, kept, ends)
        return context + (ends == resolve.ENDS), pending

    return wrong


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def every_row_is_ready(true: Function) -> Function:
    """A round starts from any state."""
    return lambda row, active, frontiers, remaining, capacity, widest: None


def _unchecked(**always: Any) -> Any:
    """A replacement of check_ready to which some of what it looks at seems well."""

    def replacement(true: Function) -> Function:
        def wrong(frontiers: Array, **named: Any) -> None:
            seen = frontiers.copy()
            for column in always.get("columns", ()):
                seen[column] = frontiers[resolve.EXECUTION] + (column == resolve.LEDGER)
            true(frontiers=seen, **(named | {name: value for name, value in always.items() if name in named}))

        return by_name(true, wrong)

    return replacement


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="liveness",
    profiles=NINFER,
)  # fmt: skip
def inactive_row_starts_a_round(true: Function) -> Function:
    """A row that was released goes on."""
    return _unchecked(active=True)(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def round_without_a_budget(true: Function) -> Function:
    """A row whose budget is used up goes on."""
    return _unchecked(remaining=1)(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), effect="crash", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/53812",
)  # fmt: skip
def round_in_a_full_cache(true: Function) -> Function:
    """A row starts a round where no position is left."""
    return _unchecked(capacity=2**31 - 1)(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def target_rows_taken_to_be_there(true: Function) -> Function:
    """Nobody counts the target's rows."""
    return _unchecked(columns=(resolve.TARGET,))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="output",
    profiles=NINFER,
)  # fmt: skip
def ledger_taken_to_hold_the_anchor(true: Function) -> Function:
    """Nobody counts the ledger's tokens."""
    return _unchecked(columns=(resolve.LEDGER,))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), effect="acceptance", profiles=NINFER,
    report="https://github.com/ARahim3/mlx-dspark/issues/33",
)  # fmt: skip
def context_taken_to_be_there(true: Function) -> Function:
    """Nobody counts the context's rows."""
    return _unchecked(columns=(resolve.CONTEXT,))(true)  # type: ignore[no-any-return]


@fault("dflash_reference.resolve.check_ready", clauses=("COMMIT-012",), report=DECODE, effect="liveness",
    profiles=NINFER,
)  # fmt: skip
def last_position_refused(true: Function) -> Function:
    """A row with one position left may not start."""
    return by_name(true, lambda capacity, **named: true(capacity=capacity - 1, **named))


@fault("dflash_reference.resolve.append_positions", clauses=("COMMIT-013",), report=DRAFT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def padding_goes_on_counting(true: Function) -> Function:
    """Padding stands at the positions past the frontier."""
    return lambda start, end, widest: start + np.arange(widest)


@fault("dflash_reference.resolve.append_positions", clauses=("COMMIT-013",), report=DRAFT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def padding_at_the_row_before(true: Function) -> Function:
    """Where nothing is pending, padding stands at the last row of the context, which is live."""
    return lambda start, end, widest: true(start, end, widest) if end > start else np.full(widest, end - 1)


@fault("dflash_reference.resolve.append_positions", clauses=("COMMIT-013",), report=DRAFT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def pending_rows_from_the_frontier_on(true: Function) -> Function:
    """Pending rows are placed from the execution frontier on."""
    return lambda start, end, widest: true(end, 2 * end - start, widest)


@fault("dflash_reference.resolve.append_positions", clauses=("COMMIT-013",), report=DRAFT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def padding_at_position_zero(true: Function) -> Function:
    """Padding is zero, and so writes over the first row."""
    return lambda start, end, widest: np.where(np.arange(widest) < end - start, true(start, end, widest), 0)


@fault("dflash_reference.resolve.ready", clauses=("COMMIT-013",), report=DRAFT, effect="acceptance", profiles=NINFER)
def whole_block_always_appended(true: Function) -> Function:
    """As many rows are appended as a block has."""

    def wrong(frontiers: Array, widest: int, **named: Any) -> Any:
        done = true(frontiers=frontiers, widest=widest, **named)
        return done._replace(counts=np.full(len(frontiers), widest))

    return by_name(true, wrong)
