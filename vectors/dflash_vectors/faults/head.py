"""Faults of the proposal head."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name
from dflash_vectors.inputs import represent

PROPOSAL = "NInfer docs/maintainer/dflash.md, proposal"
ARGMAX = "Infernix include/infernix/ops/argmax.h"


@fault("dflash_reference.head.logits", clauses=("HEAD-001",), report=PROPOSAL, effect="acceptance")
def hidden_normed_twice(true: Function) -> Function:
    """The final hidden rows, normed already, are normed again before the head."""

    def wrong(hidden: Array, head: Array, profile: Any) -> Any:
        scale = np.sqrt(np.square(hidden).mean(axis=1, keepdims=True))
        return true(hidden / scale, head, profile)

    return wrong


@fault(
    "dflash_reference.head.logits", clauses=("HEAD-001",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/52816",
)  # fmt: skip
def logits_added_in_bf16(true: Function) -> Function:
    """Every partial sum of a logit is rounded to BF16."""

    def wrong(hidden: Array, head: Array, profile: Any) -> Any:
        total = np.zeros((hidden.shape[0], head.shape[0]))
        for channel in range(hidden.shape[1]):
            total = represent(total + hidden[:, channel, np.newaxis] * head[:, channel], "BF16")
        return true(hidden, head, profile)._replace(logits=total)

    return wrong


@fault(
    "dflash_reference.head.logits", clauses=("HEAD-001",), effect="acceptance",
    report="https://github.com/sgl-project/sglang/pull/29907",
)  # fmt: skip
def head_rows_shifted(true: Function) -> Function:
    """The head's rows start one row late, as a shard-local index read as an id gives."""
    return lambda hidden, head, profile: true(hidden, np.roll(head, -1, axis=0), profile)


@fault("dflash_reference.head.public_rows", clauses=("HEAD-002",), report=ARGMAX, effect="output")
def padding_rows_admitted(true: Function) -> Function:
    """The argmax runs over every row of the head."""
    return lambda logits, public: logits


@fault("dflash_reference.head.public_rows", clauses=("HEAD-002",), report=ARGMAX, effect="acceptance")
def last_public_row_left_out(true: Function) -> Function:
    """The highest public id is never proposed."""
    return lambda logits, public: true(logits, max(public - 1, 1))


@fault("dflash_reference.head.first_largest", clauses=("HEAD-003",), report=ARGMAX, effect="acceptance")
def tie_to_the_highest_id(true: Function) -> Function:
    """The last of equal maxima is proposed."""
    return lambda rows: rows.shape[1] - 1 - np.argmax(rows[:, ::-1] == rows.max(axis=1, keepdims=True), axis=1)


@fault("dflash_reference.head.first_largest", clauses=("HEAD-003",), report=ARGMAX, effect="acceptance")
def positive_zero_above_negative(true: Function) -> Function:
    """An integer sort key tells +0 from -0."""
    return lambda rows: np.argmax(rows + np.where(np.signbit(rows) & (rows == 0), -1e-30, 0.0), axis=1)


@fault(
    "dflash_reference.head.first_largest", clauses=("HEAD-003",), effect="output",
    report="https://github.com/pegainfer-project/pegainfer/pull/204",
)  # fmt: skip
def idle_lane_wins(true: Function) -> Function:
    """Lanes start at id 0 with a floor that is not minus infinity, and win over a low finite logit."""
    return lambda rows: np.argmax(np.maximum(rows, -900.0), axis=1)


@fault(
    "dflash_reference.head.first_largest", clauses=("HEAD-003",), effect="crash",
    report="https://github.com/avifenesh/memra/issues/87",
)  # fmt: skip
def sentinel_for_a_row_without_a_number(true: Function) -> Function:
    """A row in which nothing beats the start value yields the start value's id."""
    return lambda rows: np.where(rows.max(axis=1) == -np.inf, 0x7FFFFFFF, true(rows))


@fault(
    "dflash_reference.head.represent_logits", clauses=("HEAD-004",), effect="acceptance", profiles=("ninfer",),
    report="Infernix src/models/qwen3_5/execution/draft.cpp",
)  # fmt: skip
def logits_kept_in_fp32(true: Function) -> Function:
    """The argmax reads logits that were not rounded to BF16."""
    return lambda x, profile: represent(x, "F32")


@fault("dflash_reference.head.first_largest", clauses=("HEAD-002",), report=ARGMAX, effect="acceptance",
    profiles=("zlab",),
)  # fmt: skip
def logits_compared_in_bf16(true: Function) -> Function:
    """FP32 logits are compared as BF16, where close ones tie."""
    return lambda rows: true(represent(rows, "BF16"))


@fault("dflash_reference.head.first_largest", clauses=("HEAD-002",), report=ARGMAX, effect="acceptance",
    profiles=("zlab",),
)  # fmt: skip
def logits_compared_in_fp16(true: Function) -> Function:
    """FP32 logits are compared as FP16, where close ones tie."""

    def wrong(rows: Array) -> Any:
        with np.errstate(over="ignore"):
            return true(represent(rows, "F16"))

    return wrong


@fault("dflash_reference.head.first_largest", clauses=("HEAD-002",), report=ARGMAX, effect="crash")
def ids_of_16_bits(true: Function) -> Function:
    """An id is held in a signed integer of 16 bits."""
    return lambda rows: np.asarray(true(rows)).astype(np.int16).astype(np.int64)


@fault("dflash_reference.head.first_largest", clauses=("HEAD-002",), effect="output",
    report="https://github.com/pegainfer-project/pegainfer/pull/204",
)  # fmt: skip
def maximum_starts_at_minus_a_billion(true: Function) -> Function:
    """The running maximum starts at -1e9 with id 0."""
    return lambda rows: true(np.maximum(rows, -1e9))


@fault("dflash_reference.head.public_rows", clauses=("HEAD-002",), report=ARGMAX, effect="output")
def padding_masked_with_a_number(true: Function) -> Function:
    """Padding rows are given -1e9 instead of being left out."""
    return lambda logits, public: np.where(np.arange(logits.shape[1]) < public, logits, -1e9)


@fault("dflash_reference.draft.propose", clauses=("HEAD-002",), report=PROPOSAL, effect="acceptance")
def proposals_from_the_whole_head(true: Function) -> Function:
    """The proposal step is not told how many ids are public."""

    def wrong(public: int, **named: Any) -> Any:
        return true(public=len(named["head"]), **named)

    return by_name(true, wrong)
