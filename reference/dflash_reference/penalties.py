"""What a request's own text and mask do to the target's logits: forbidden ids, penalties, and what they count."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import arguments, num, processing
from dflash_reference.names import TokenId


class Adjusted(NamedTuple):
    """adjusted: [N, V], represented in F32, -infinity where an id is no candidate."""

    adjusted: Array


class Overlay(NamedTuple):
    """overlay: [P + 1, P] int64 ids, -1 where there is none."""

    overlay: Array


class Counts(NamedTuple):
    """counts: [V] int64, V the public ids."""

    counts: Array


def adjust(
    logits: Array, public: int, allowed: Array, counts: Array, overlay: Array, presence: float, frequency: float,
    profile: Profile,
) -> Adjusted:  # fmt: skip
    """The logits [N, V] that are sampled: public and allowed [N, V] ids alone, penalised by how often they occurred.

    counts [V] hold for every row, overlay [N, O] counts for its own. Raises RequestError for a penalty that is not
    finite or that the profile does not have, TensorError where a row cannot be sampled, before or after.
    """
    given = {name: arguments.penalty(name, value, profile) for name, value in
             (("presence", presence), ("frequency", frequency))}  # fmt: skip
    rows = processing.public_columns(logits, public)
    candidates = masked(np.pad(rows, ((0, 0), (0, logits.shape[1] - rows.shape[1])), constant_values=-np.inf), allowed)
    return Adjusted(processing.sampleable(penalised(candidates, occurrences(counts, overlay), **given)))


def masked(rows: Array, allowed: Array) -> Array:
    """The rows [N, V] with -infinity wherever `allowed` [N, V] is 0.

    Clause: PROC-006
    Source: Infernix include/infernix/ops/sampling.h.
    """
    return np.where(allowed != 0, rows, -np.inf)


def occurrences(counts: Array, overlay: Array) -> Array:
    """How often each id has occurred before each row, [N, V]: counts [V], and every entry of its overlay [N, O].

    Raises TensorError for an overlay entry that is neither an id nor -1.

    Clause: PROC-008
    Source: Infernix include/infernix/ops/sampling.h.
    """
    if overlay.size and not -1 <= overlay.min() <= overlay.max() < len(counts):
        raise TensorError(
            f"proc.adjust: overlay of {overlay.min()} to {overlay.max()}, expected -1 to {len(counts) - 1}"
        )
    own = [np.bincount(row[row >= 0], minlength=len(counts)) for row in overlay]
    return counts + np.array(own, dtype=np.int64).reshape(len(overlay), len(counts))


def penalised(rows: Array, occurred: Array, presence: float, frequency: float) -> Array:
    """The rows [N, V] less, where an id has occurred [N, V], presence and then frequency times how often: in F32.

    Without penalties they are the rows as they are, and -infinity stays so with them.

    Clause: PROC-007
    Source: Infernix include/infernix/ops/sampling.h.
    """
    if not presence and not frequency:
        return rows
    once = less(rows, np.full(rows.shape, presence))
    twice = less(once, num.round_to(frequency * num.round_to(occurred, "F32"), "F32"))
    return np.where((occurred > 0) & np.isfinite(rows), twice, rows)


def less(x: Array, y: Array) -> Array:
    """x - y of F32 values, rounded to F32 once."""
    return num.round_to(num.sum_to_odd(x, -y), "F32")


def overlay(anchor: TokenId, proposals: Array, profile: Profile) -> Overlay:
    """What counts for each row of a verify pass of proposals [P] beside what was emitted: those before the row.

    The anchor was emitted, and is in the counts.

    Clause: PROC-009
    Source: Infernix src/ops/kernel/speculative_round.cuh; sgl-project/sglang pull 28242.
    """
    before = np.arange(len(proposals)) < np.arange(len(proposals) + 1)[:, np.newaxis]
    return Overlay(np.where(before, proposals, -1))


def count(
    prompt: Array, emitted: Array, licensed: Array, kept: int, own_law: int, public: int, profile: Profile
) -> Counts:
    """The counts after a round that licensed tokens [L], of which `kept` were kept, after `emitted` tokens [E].

    Raises TensorError for a token that is not public, or a count of kept tokens outside 0 to L.
    """
    if not 0 <= kept <= len(licensed):
        raise TensorError(f"proc.count: kept is {kept}, expected 0 to {len(licensed)}, the licensed tokens")
    round_ = counted_of_drawn(licensed, kept) if own_law else counted_of_certain(licensed, kept)
    tokens = np.concatenate([counted_before(prompt, emitted), round_]).astype(np.int64)
    for token in tokens:
        if not 0 <= token < public:
            raise TensorError(f"proc.count: token {token}, expected 0 to {public - 1}")
    return Counts(np.bincount(tokens, minlength=public))


def counted_before(prompt: Array, emitted: Array) -> Array:
    """What counts of a request before its round: the emitted tokens [E], and nothing of the prompt [T].

    Clause: PROC-017
    Source: Infernix src/models/qwen3_5/program/prefill.cpp and decode.cpp.
    """
    return emitted


def counted_of_certain(licensed: Array, kept: int) -> Array:
    """What counts of a round of certain proposals: all licensed tokens [L], kept or not.

    Clause: PROC-018
    Source: Infernix include/infernix/ops/speculative_round.h.
    """
    return licensed


def counted_of_drawn(licensed: Array, kept: int) -> Array:
    """What counts of a round whose proposals have a law of their own: the tokens that were kept.

    Clause: PROC-019
    Source: Infernix src/models/qwen3_5/program/prefill.cpp.
    """
    return licensed[:kept]
