"""Faults of asynchronous steps: counts, requests, corrections, and which sample is the bonus."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import asynchronous
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NEURON = ("vllm-neuron",)
CORRECTION = "vLLM Neuron DFlash guide, asynchronous rejection and position correction"
BLOCK = "vLLM Neuron DFlash guide, draft block construction"
PAGED = "vLLM Neuron DFlash guide, paged KV integration"
PLACEHOLDER = "https://github.com/vllm-project/vllm/pull/46899"
SWAPPED = "https://github.com/vllm-project/vllm/pull/45100"
NEIGHBOUR = "https://github.com/sgl-project/sglang/issues/26163"
VALID = "https://github.com/vllm-project/vllm/pull/41703"


@fault("dflash_reference.asynchronous.is_token", clauses=("ASYNC-001",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def samples_counted_to_the_first_placeholder(true: Function) -> Function:
    """The count ends at the first sample that is no token."""
    return lambda sampled, vocabulary: np.logical_and.accumulate(true(sampled, vocabulary), axis=1)


@fault("dflash_reference.asynchronous.is_token", clauses=("ASYNC-001",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def vocabulary_size_is_a_token(true: Function) -> Function:
    """The id that equals the vocabulary's size is a token."""
    return lambda sampled, vocabulary: true(sampled, vocabulary + 1)


@fault("dflash_reference.asynchronous.is_token", clauses=("ASYNC-001",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def last_token_of_the_vocabulary_is_none(true: Function) -> Function:
    """The vocabulary's last id is no token."""
    return lambda sampled, vocabulary: true(sampled, vocabulary - 1)


@fault("dflash_reference.asynchronous.is_token", clauses=("ASYNC-001",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def every_sample_but_a_placeholder_is_a_token(true: Function) -> Function:
    """Only -1 is no token."""
    return lambda sampled, vocabulary: sampled != asynchronous.NO_SAMPLE


@fault("dflash_reference.asynchronous.is_token", clauses=("ASYNC-001", "ASYNC-009"), report=CORRECTION,
    effect="acceptance", profiles=NEURON,
)  # fmt: skip
def token_zero_is_a_placeholder(true: Function) -> Function:
    """Id 0 stands for no sample."""
    return lambda sampled, vocabulary: true(sampled, vocabulary) & (sampled != 0)


@fault("dflash_reference.asynchronous.row_of", clauses=("ASYNC-002",), report=SWAPPED, effect="output",
    profiles=NEURON,
)  # fmt: skip
def row_of_the_same_number(true: Function) -> Function:
    """The n-th request that is found takes the n-th row of the previous step."""
    seen: list[int] = []

    def wrong(id_: int, previous_ids: Array) -> int:
        if id_ in previous_ids and id_ not in seen:
            seen.append(id_)
        return seen.index(id_) if id_ in previous_ids else int(true(id_, previous_ids))

    return wrong


@fault("dflash_reference.asynchronous.rejected_of", clauses=("ASYNC-003",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def correction_not_counted(true: Function) -> Function:
    """A step with D drafts is taken to have D samples at most."""
    return lambda drafts, valid: true(drafts, valid) - 1


@fault("dflash_reference.asynchronous.remap", clauses=("ASYNC-003",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def previous_step_had_k_drafts_for_all(true: Function) -> Function:
    """Every request of the previous step is taken to have had as many drafts as its row of samples has room for."""

    def wrong(previous_sampled: Array, previous_drafts: Array, **rest: Any) -> Any:
        most = np.full_like(previous_drafts, previous_sampled.shape[1] - 1)
        return true(previous_sampled=previous_sampled, previous_drafts=most, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.remap", clauses=("ASYNC-003",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def valid_samples_taken_for_rejected_ones(true: Function) -> Function:
    """What was kept is subtracted instead of what was lost."""

    def wrong(previous_drafts: Array, ids: Array, previous_ids: Array, **rest: Any) -> Any:
        done = true(previous_drafts=previous_drafts, ids=ids, previous_ids=previous_ids, **rest)
        rows = [asynchronous.row_of(id_, previous_ids) for id_ in ids]
        drafts = np.array([previous_drafts[row] if row >= 0 else 0 for row in rows], dtype=np.int64)
        return asynchronous.Remapped(np.where(np.array(rows) < 0, 0, drafts + 1 - done.rejected))

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.lost_by", clauses=("ASYNC-004",), report=CORRECTION, effect="output",
    profiles=NEURON,
)  # fmt: skip
def joining_request_takes_the_last_row(true: Function) -> Function:
    """Row -1 of the previous step is its last one."""
    return lambda row, lost: int(lost[row]) if len(lost) else 0


@fault("dflash_reference.asynchronous.lost_by", clauses=("ASYNC-004",), report=CORRECTION, effect="output",
    profiles=NEURON,
)  # fmt: skip
def joining_request_lost_one(true: Function) -> Function:
    """The no-op row of a joining request has no valid sample: (1 + 0) - 0."""
    return lambda row, lost: 1 if row < 0 else true(row, lost)


@fault("dflash_reference.asynchronous.rows", clauses=("ASYNC-005",), report=PAGED, effect="output", profiles=NEURON)
def padding_counts_as_the_last_request(true: Function) -> Function:
    """Rows after the last index belong to the last request."""

    def wrong(last_token_indices: Array, **rest: Any) -> Any:
        done = true(last_token_indices=last_token_indices, **rest)
        return done._replace(requests=np.where(done.requests < 0, len(last_token_indices) - 1, done.requests))

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.rows", clauses=("ASYNC-005",), report=PAGED, effect="output", profiles=NEURON)
def last_row_belongs_to_the_next_request(true: Function) -> Function:
    """The last-token indices are taken for the rows' ends, one further."""

    def wrong(last_token_indices: Array, rows: int, **rest: Any) -> Any:
        done = true(last_token_indices=last_token_indices, rows=rows, **rest)
        moved = np.searchsorted(last_token_indices, np.arange(rows), side="right")
        return done._replace(requests=np.where(moved < len(last_token_indices), moved, -1))

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.rows", clauses=("ASYNC-005",), report=NEIGHBOUR, effect="output",
    profiles=NEURON,
)  # fmt: skip
def requests_taken_to_have_as_many_rows(true: Function) -> Function:
    """Rows are dealt out evenly."""

    def wrong(last_token_indices: Array, rows: int, **rest: Any) -> Any:
        done = true(last_token_indices=last_token_indices, rows=rows, **rest)
        share = -(-rows // len(last_token_indices))
        return done._replace(requests=np.arange(rows) // share)

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.corrected", clauses=("ASYNC-006",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def optimistic_positions_kept(true: Function) -> Function:
    """Nothing is corrected."""
    return lambda positions, requests, rejected: positions


@fault("dflash_reference.asynchronous.corrected", clauses=("ASYNC-006",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def first_row_of_each_request_corrected(true: Function) -> Function:
    """Only the bonus row moves; the drafts behind it stay."""

    def wrong(positions: Array, requests: Array, rejected: Array) -> Array:
        first = np.insert(requests[1:] != requests[:-1], 0, True)
        return np.where(first, true(positions, requests, rejected), positions)

    return wrong


@fault("dflash_reference.asynchronous.corrected", clauses=("ASYNC-006",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def positions_corrected_upwards(true: Function) -> Function:
    """What was rejected is added."""
    return lambda positions, requests, rejected: 2 * positions - true(positions, requests, rejected)


@fault("dflash_reference.asynchronous.corrected", clauses=("ASYNC-006",), report=SWAPPED, effect="output",
    profiles=NEURON,
)  # fmt: skip
def all_corrected_by_the_first_request(true: Function) -> Function:
    """Every row moves by what the first request lost."""
    return lambda positions, requests, rejected: true(positions, np.minimum(requests, 0), rejected)


@fault("dflash_reference.asynchronous.lengths", clauses=("ASYNC-007",), report=VALID, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def length_of_all_rows_scheduled(true: Function) -> Function:
    """The block begins behind the last scheduled row, rejected or not."""
    return by_name(true, lambda lengths, **rest: true(lengths=lengths, **rest)._replace(verified=lengths))


@fault("dflash_reference.asynchronous.lengths", clauses=("ASYNC-007",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def length_with_the_bonus(true: Function) -> Function:
    """The bonus counts as processed."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(verified=done.verified + 1)

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.drafts_of_step", clauses=("ASYNC-008",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def k_drafts_for_every_request(true: Function) -> Function:
    """The step's own draft counts are not looked at."""
    return lambda current_drafts, drafts, requests: np.full(requests, drafts)


@fault("dflash_reference.asynchronous.drafts_of_step", clauses=("ASYNC-008",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def no_drafts_where_no_counts_are_given(true: Function) -> Function:
    """Without draft counts every request is taken to have had none."""
    return lambda current_drafts, drafts, requests: true(current_drafts, 0, requests)


@fault("dflash_reference.asynchronous.bonus", clauses=("ASYNC-009",), report=PLACEHOLDER, effect="crash",
    profiles=NEURON,
)  # fmt: skip
def last_column_is_the_bonus(true: Function) -> Function:
    """The last column is taken whatever it holds."""
    return by_name(true, lambda sampled, **rest: asynchronous.Bonus(sampled[:, -1]))


@fault("dflash_reference.asynchronous.bonus", clauses=("ASYNC-009",), effect="crash", profiles=NEURON,
    report="https://github.com/vllm-project/vllm/pull/40768",
)  # fmt: skip
def sample_at_the_count_is_the_bonus(true: Function) -> Function:
    """The count of valid samples is taken for the bonus's column, one too far."""

    def wrong(sampled: Array, vocabulary: int, **rest: Any) -> Any:
        column = np.minimum(asynchronous.is_token(sampled, vocabulary).sum(axis=1), sampled.shape[1] - 1)
        return asynchronous.Bonus(sampled[np.arange(len(sampled)), column])

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.bonus", clauses=("ASYNC-009",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def bonus_at_the_count_less_one(true: Function) -> Function:
    """Valid samples are taken to stand together at the front."""

    def wrong(sampled: Array, vocabulary: int, **rest: Any) -> Any:
        column = asynchronous.is_token(sampled, vocabulary).sum(axis=1) - 1
        return asynchronous.Bonus(sampled[np.arange(len(sampled)), column])

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.bonus", clauses=("ASYNC-009",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def first_sample_is_the_bonus(true: Function) -> Function:
    """The first valid sample is taken."""

    def wrong(sampled: Array, **rest: Any) -> Any:
        return true(sampled=sampled[:, ::-1], **rest)

    return by_name(true, wrong)
