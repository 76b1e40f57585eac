"""Faults of the blocks after an asynchronous step: their rows, what is read of them, and where they are placed."""

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
NEIGHBOUR = "https://github.com/sgl-project/sglang/issues/26163"
VALID = "https://github.com/vllm-project/vllm/pull/41703"


@fault("dflash_reference.asynchronous.block_ids", clauses=("ASYNC-010",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def blocks_of_masks_alone(true: Function) -> Function:
    """A mask stands where the bonus should."""
    return lambda bonus, drafts, mask_id: true(np.full_like(bonus, mask_id), drafts, mask_id)


@fault("dflash_reference.asynchronous.block_ids", clauses=("ASYNC-010",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def blocks_interleaved(true: Function) -> Function:
    """All bonus tokens come first, then all masks."""

    def wrong(bonus: Array, drafts: int, mask_id: int) -> Array:
        return np.asarray(true(bonus, drafts, mask_id)).reshape(len(bonus), -1).T.reshape(-1)

    return wrong


@fault("dflash_reference.asynchronous.block_positions", clauses=("ASYNC-011",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def block_one_position_behind_its_length(true: Function) -> Function:
    """The block begins at length + 1."""
    return lambda lengths, drafts: true(lengths, drafts) + 1


@fault("dflash_reference.asynchronous.block_positions", clauses=("ASYNC-011",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def block_on_the_last_context_row(true: Function) -> Function:
    """The block begins at the last position that the target has processed."""
    return lambda lengths, drafts: true(lengths, drafts) - 1


@fault("dflash_reference.asynchronous.block_positions", clauses=("ASYNC-011",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def blocks_run_on_from_request_to_request(true: Function) -> Function:
    """Positions run on over all blocks from the first request's length."""
    return lambda lengths, drafts: lengths[0] + np.arange(len(lengths) * (drafts + 1))


@fault("dflash_reference.asynchronous.draft_rows", clauses=("ASYNC-012",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def first_k_rows_kept(true: Function) -> Function:
    """The bonus row is kept and the last mask dropped."""
    return lambda requests, drafts: true(requests, drafts) - 1


@fault("dflash_reference.asynchronous.draft_rows", clauses=("ASYNC-012",), report=NEIGHBOUR, effect="output",
    profiles=NEURON,
)  # fmt: skip
def blocks_taken_to_have_k_rows(true: Function) -> Function:
    """The kept rows of request r begin at r * K + 1."""
    return lambda requests, drafts: np.arange(1, requests * drafts + 1)


@fault("dflash_reference.asynchronous.outputs", clauses=("ASYNC-013",), report=NEIGHBOUR, effect="output",
    profiles=NEURON,
)  # fmt: skip
def proposals_dealt_out_in_turn(true: Function) -> Function:
    """Request r gets proposals r, r + R, r + 2 R."""

    def wrong(bonus: Array, proposals: Array, **rest: Any) -> Any:
        return true(bonus=bonus, proposals=proposals.reshape(-1, len(bonus)).T.reshape(-1), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.outputs", clauses=("ASYNC-013",), report=BLOCK, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def bonus_behind_its_drafts(true: Function) -> Function:
    """The bonus stands last."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(prefixed=np.roll(done.prefixed, -1, axis=1))

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.prepare", clauses=("ASYNC-014",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def lengths_from_optimistic_positions(true: Function) -> Function:
    """The length after the verify is counted from positions that are not corrected yet, and slots follow it."""

    def wrong(previous_drafts: Array, previous_sampled: Array, **rest: Any) -> Any:
        named = {"previous_drafts": previous_drafts, "previous_sampled": previous_sampled}
        done = true(**named, **rest)
        none = true(**named | {"previous_sampled": _all_valid(previous_sampled, previous_drafts)}, **rest)
        late = ("verified", "block_positions", "slots")
        return done._replace(**{name: getattr(none, name) for name in late})

    return by_name(true, wrong)


def _all_valid(sampled: Array, drafts: Array) -> Array:
    """Samples by which the previous step lost nothing."""
    return np.where(np.arange(sampled.shape[1]) <= drafts[:, np.newaxis], 0, asynchronous.NO_SAMPLE)


@fault("dflash_reference.asynchronous.prepare", clauses=("ASYNC-014",), report=CORRECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def context_slots_of_optimistic_positions(true: Function) -> Function:
    """Context rows are placed before their positions are corrected."""

    def wrong(previous_drafts: Array, previous_sampled: Array, **rest: Any) -> Any:
        named = {"previous_drafts": previous_drafts, "previous_sampled": previous_sampled}
        none = true(**named | {"previous_sampled": _all_valid(previous_sampled, previous_drafts)}, **rest)
        return true(**named, **rest)._replace(context_slots=none.context_slots)

    return by_name(true, wrong)


@fault("dflash_reference.asynchronous.prepare", clauses=("ASYNC-014",), report=VALID, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def block_slots_behind_all_scheduled_rows(true: Function) -> Function:
    """The block's slots are computed before this step's rejections are known."""

    def wrong(sampled: Array, drafts: int, current_drafts: Array, **rest: Any) -> Any:
        done = true(sampled=sampled, drafts=drafts, current_drafts=current_drafts, **rest)
        of_step = current_drafts if len(current_drafts) else np.full(len(sampled), drafts)
        late = true(sampled=_all_valid(sampled, of_step), drafts=drafts, current_drafts=current_drafts, **rest)
        return done._replace(slots=late.slots)

    return by_name(true, wrong)
