"""Faults of masks, penalties and counts: all of them change what is emitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import num, penalties
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

SAMPLING = "Infernix include/infernix/ops/sampling.h"
ROUND = "Infernix src/ops/kernel/speculative_round.cuh"
PENALTY_ROWS = "https://github.com/sgl-project/sglang/pull/28242"
IGNORED = "https://github.com/sgl-project/sglang/issues/28180"
DROPPED = "https://github.com/youssofal/MTPLX/pull/120"
TWICE = "https://github.com/vllm-project/vllm/pull/33251"
DRIFT = "https://github.com/osaurus-ai/vmlx-swift/pull/357"
BONUS = "https://github.com/vllm-project/vllm/issues/44006"
BYPASSED = "https://github.com/vllm-project/vllm/issues/26317"
KEYED = ("ninfer",)


def _masked(change: Any) -> Function:
    """The mask [N, V] as `change` leaves it."""
    return lambda rows, allowed: np.where(change(np.asarray(allowed)) != 0, rows, -np.inf)


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=BYPASSED, effect="output", profiles=KEYED)
def masks_ignored(true: Function) -> Function:
    """The rejection sampler bypasses the processors, so that nothing is forbidden."""
    return lambda rows, allowed: rows


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=BONUS, effect="output", profiles=KEYED)
def bonus_row_unmasked(true: Function) -> Function:
    """The last row of a verify pass, which draws the bonus, is not masked."""
    return lambda rows, allowed: np.where(
        np.arange(len(rows))[:, np.newaxis] == len(rows) - 1, rows, true(rows, allowed)
    )


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=BONUS, effect="output", profiles=KEYED)
def mask_rows_shifted(true: Function) -> Function:
    """A placeholder of -1 takes the first mask row, and every other row gets its neighbour's."""
    return _masked(lambda allowed: np.concatenate([np.ones_like(allowed[:1]), allowed[:-1]]))


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=SAMPLING, effect="output", profiles=KEYED)
def first_mask_row_for_all(true: Function) -> Function:
    """The mask of the first row serves the whole block."""
    return _masked(lambda allowed: np.repeat(allowed[:1], len(allowed), axis=0))


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=SAMPLING, effect="output", profiles=KEYED)
def set_bit_forbids(true: Function) -> Function:
    """The mask is read as a list of what is forbidden."""
    return _masked(lambda allowed: 1 - allowed)


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=SAMPLING, effect="output", profiles=KEYED)
def forbidden_lowered_by_a_number(true: Function) -> Function:
    """A forbidden logit is lowered by 1e9, which leaves it above those that are lower still."""
    return lambda rows, allowed: np.where(np.asarray(allowed) != 0, rows, rows - 1e9)


@fault("dflash_reference.penalties.masked", clauses=("PROC-006",), report=SAMPLING, effect="output", profiles=KEYED)
def last_word_of_the_mask_lost(true: Function) -> Function:
    """The mask is read in whole words of 32 bits, and the ids of the last one, which is not full, are forbidden."""
    return _masked(lambda allowed: np.where(np.arange(allowed.shape[1]) < allowed.shape[1] // 32 * 32, allowed, 0))


def _penalised(change: Any) -> Function:
    """Penalties of x, occurrences, presence and frequency by another formula."""

    def wrong(rows: Array, occurred: Array, presence: float, frequency: float) -> Array:
        with np.errstate(invalid="ignore"):
            changed: Array = np.where(occurred > 0, change(rows, occurred, presence, frequency), rows)
        return changed

    return wrong


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=DROPPED, effect="output", profiles=KEYED)
def penalties_never_read(true: Function) -> Function:
    """Presence and frequency are accepted in the request, and dropped."""
    return lambda rows, occurred, presence, frequency: rows


@fault(
    "dflash_reference.penalties.penalised", clauses=("PROC-007",), effect="output", profiles=KEYED,
    report="https://github.com/mlx-node/mlx-node/pull/11",
)  # fmt: skip
def verify_rows_unpenalised(true: Function) -> Function:
    """Only the first row of a verify pass is penalised."""

    def wrong(rows: Array, occurred: Array, presence: float, frequency: float) -> Array:
        done = np.array(rows)
        done[:1] = true(rows[:1], occurred[:1], presence, frequency)
        return done

    return wrong


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def presence_multiplied_by_the_count(true: Function) -> Function:
    """Presence is subtracted once for each occurrence."""
    return _penalised(lambda x, c, presence, frequency: x - presence * c - frequency * c)


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def frequency_subtracted_once(true: Function) -> Function:
    """Frequency is subtracted once, whatever the count."""
    return _penalised(lambda x, c, presence, frequency: x - presence - frequency)


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def unseen_tokens_penalised(true: Function) -> Function:
    """Presence is subtracted from every id, counted or not."""
    return lambda rows, occurred, presence, frequency: true(rows - presence, occurred, 0.0, frequency)


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def negative_penalties_taken_for_none(true: Function) -> Function:
    """A penalty below 0 is clamped to 0."""
    return lambda rows, occurred, presence, frequency: true(rows, occurred, max(presence, 0.0), max(frequency, 0.0))


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def frequency_before_presence(true: Function) -> Function:
    """Frequency is subtracted first, which FP32 rounds otherwise."""
    return _penalised(
        lambda x, c, presence, frequency: penalties.less(
            penalties.less(x, num.round_to(frequency * c, "F32")), np.full(x.shape, presence)
        )
    )


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def penalties_added_up_first(true: Function) -> Function:
    """The sum of both penalties is formed in FP32 and subtracted at once."""
    return _penalised(
        lambda x, c, presence, frequency: penalties.less(x, num.round_to(presence + frequency * c, "F32"))
    )


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def penalised_logits_in_bf16(true: Function) -> Function:
    """Penalised logits are stored as BF16, as they came."""
    return lambda rows, occurred, presence, frequency: np.where(
        np.isfinite(rows), num.round_to(true(rows, occurred, presence, frequency), "BF16"), rows
    )


@fault("dflash_reference.penalties.penalised", clauses=("PROC-007",), report=SAMPLING, effect="output", profiles=KEYED)
def repetition_penalty_instead(true: Function) -> Function:
    """The penalty divides positive logits and multiplies negative ones, as a repetition penalty does."""
    return _penalised(lambda x, c, presence, frequency: np.where(x > 0, x / (1 + presence), x * (1 + presence)))


@fault("dflash_reference.penalties.occurrences", clauses=("PROC-008",), report=ROUND, effect="output", profiles=KEYED)
def repeated_proposal_counted_once(true: Function) -> Function:
    """The overlay is a set of ids."""

    def wrong(counts: Array, overlay: Array) -> Array:
        held = [np.unique(row) for row in overlay]
        width = overlay.shape[1]
        single = np.array([np.append(ids, [-1] * (width - len(ids))) for ids in held], dtype=np.int64)
        return np.asarray(true(counts, single.reshape(overlay.shape)))

    return wrong


@fault("dflash_reference.penalties.occurrences", clauses=("PROC-008",), report=ROUND, effect="output", profiles=KEYED)
def overlay_hidden_by_the_counts(true: Function) -> Function:
    """A token that was counted before is not counted again in the block."""
    return lambda counts, overlay: np.where(counts > 0, counts, true(counts, overlay))


@fault("dflash_reference.penalties.occurrences", clauses=("PROC-008",), report=ROUND, effect="output", profiles=KEYED)
def overlay_instead_of_the_counts(true: Function) -> Function:
    """Rows with proposals forget what was emitted before them."""
    return lambda counts, overlay: np.where(
        (overlay >= 0).any(axis=1, keepdims=True), true(np.zeros_like(counts), overlay), true(counts, overlay)
    )


@fault(
    "dflash_reference.penalties.occurrences", clauses=("PROC-008",), effect="output", profiles=KEYED,
    report="https://github.com/vllm-project/vllm/pull/40768",
)  # fmt: skip
def empty_slot_counts_the_last_id(true: Function) -> Function:
    """An empty slot of -1 indexes the last id."""
    return lambda counts, overlay: true(counts, np.where(overlay < 0, len(counts) - 1, overlay))


@fault(
    "dflash_reference.penalties.occurrences", clauses=("PROC-008",), report=SAMPLING, effect="output", profiles=KEYED
)
def counts_held_in_a_byte(true: Function) -> Function:
    """A count wraps around at 256."""
    return lambda counts, overlay: np.asarray(true(counts, overlay)) % 256


def _overlay(rows: Any) -> Function:
    """An overlay [P + 1, P] by another rule: `rows` gets the anchor and the proposals and gives the ids of each row."""

    def wrong(anchor: int, proposals: Array, profile: Any) -> Any:
        count = len(proposals)
        held = np.full((count + 1, count), -1)
        for row, ids in enumerate(rows(int(anchor), [int(id_) for id_ in proposals])):
            kept = ids[:count]
            held[row, : len(kept)] = kept
        return penalties.Overlay(held)

    return wrong


@fault("dflash_reference.penalties.overlay", clauses=("PROC-009",), report=IGNORED, effect="output", profiles=KEYED)
def penalties_do_not_grow_in_a_block(true: Function) -> Function:
    """The counts of the round's start serve every row: a token that the block repeats is not punished."""
    return _overlay(lambda anchor, drafts: [[] for _ in range(len(drafts) + 1)])


@fault(
    "dflash_reference.penalties.overlay", clauses=("PROC-009",), report=PENALTY_ROWS, effect="output", profiles=KEYED
)
def last_penalty_row_for_the_block(true: Function) -> Function:
    """One penalty row, which holds all proposals, is broadcast over the block."""
    return _overlay(lambda anchor, drafts: [drafts for _ in range(len(drafts) + 1)])


@fault("dflash_reference.penalties.overlay", clauses=("PROC-009",), report=TWICE, effect="output", profiles=KEYED)
def anchor_counted_twice(true: Function) -> Function:
    """The overlay begins with the anchor, which the counts hold already."""
    return _overlay(lambda anchor, drafts: [[anchor, *drafts[:row]] for row in range(len(drafts) + 1)])


@fault("dflash_reference.penalties.overlay", clauses=("PROC-009",), report=ROUND, effect="output", profiles=KEYED)
def own_proposal_counted_in_its_row(true: Function) -> Function:
    """The row that judges a proposal counts it already."""
    return _overlay(lambda anchor, drafts: [drafts[: row + 1] for row in range(len(drafts) + 1)])


@fault("dflash_reference.penalties.overlay", clauses=("PROC-009",), report=ROUND, effect="output", profiles=KEYED)
def last_proposal_never_counted(true: Function) -> Function:
    """A proposal is counted a row late, and the last one not at all."""
    return _overlay(lambda anchor, drafts: [drafts[: max(row - 1, 0)] for row in range(len(drafts) + 1)])


@fault("dflash_reference.penalties.overlay", clauses=("PROC-009",), report=ROUND, effect="output", profiles=KEYED)
def previous_proposal_alone_counted(true: Function) -> Function:
    """A row counts the proposal before it, and forgets those before that."""
    return _overlay(lambda anchor, drafts: [drafts[max(row - 1, 0) : row] for row in range(len(drafts) + 1)])


@fault(
    "dflash_reference.penalties.counted_before", clauses=("PROC-017",), report=SAMPLING, effect="output", profiles=KEYED
)
def prompt_counted(true: Function) -> Function:
    """Words of the prompt count as emitted."""
    return lambda prompt, emitted: np.concatenate([prompt, emitted]).astype(np.int64)


@fault(
    "dflash_reference.penalties.counted_before", clauses=("PROC-017",), effect="output", profiles=KEYED,
    report="Infernix src/models/qwen3_5/program/prefill.cpp",
)  # fmt: skip
def first_token_not_counted(true: Function) -> Function:
    """The token that the prefill draws is not counted."""
    return lambda prompt, emitted: emitted[1:]


@fault(
    "dflash_reference.penalties.counted_before", clauses=("PROC-017",), report=DRIFT, effect="output", profiles=KEYED
)
def emitted_tokens_counted_once(true: Function) -> Function:
    """A token that was emitted before does not count again."""
    return lambda prompt, emitted: np.unique(emitted)


@fault(
    "dflash_reference.penalties.counted_of_certain",
    clauses=("PROC-018",),
    report=DRIFT,
    effect="output",
    profiles=KEYED,
)
def round_counted_twice(true: Function) -> Function:
    """Accepted tokens are recorded by the draft's copy of the counts, and by the commit once more."""
    return lambda licensed, kept: np.concatenate([licensed, licensed])


@fault(
    "dflash_reference.penalties.counted_of_certain",
    clauses=("PROC-018",),
    report=ROUND,
    effect="output",
    profiles=KEYED,
)
def certain_round_counts_what_is_kept(true: Function) -> Function:
    """A round of certain proposals counts only what its end leaves."""
    return lambda licensed, kept: licensed[:kept]


@fault(
    "dflash_reference.penalties.counted_of_drawn", clauses=("PROC-019",), report=DRIFT, effect="output", profiles=KEYED
)
def dropped_tokens_counted(true: Function) -> Function:
    """A round of drawn proposals counts tokens that a stop dropped."""
    return lambda licensed, kept: licensed


@fault(
    "dflash_reference.penalties.counted_of_drawn", clauses=("PROC-019",), report=ROUND, effect="output", profiles=KEYED
)
def terminal_token_not_counted(true: Function) -> Function:
    """Only accepted proposals count; the round's own token does not."""
    return lambda licensed, kept: licensed[: min(kept, max(len(licensed) - 1, 0))]
