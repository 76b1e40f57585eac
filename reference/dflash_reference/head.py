"""The proposal head: logits of the draft's rows, and the proposal of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import elementary, num


class Logits(NamedTuple):
    """logits: [P, V], represented in LOGIT."""

    logits: Array


class Argmax(NamedTuple):
    """proposals: [P] int64 token ids."""

    proposals: Array


class Top(NamedTuple):
    """candidates: [P, C] int64 global ids, best first. unary: [P, C], represented in F32."""

    candidates: Array
    unary: Array


def logits(hidden: Array, head: Array, profile: Profile) -> Logits:
    """The target's head [V, H] applied to the draft's final rows [P, H], which are normed already.

    Clause: HEAD-001
    Source: NInfer docs/maintainer/dflash.md, proposal.
    """
    return Logits(represent_logits(num.contract(hidden, head), profile))


def represent_logits(x: Array, profile: Profile) -> Array:
    """Round to LOGIT before anything is compared, any shape.

    Clause: HEAD-004
    Source: Infernix src/models/qwen3_5/execution/draft.cpp (version 1 route).
    """
    return num.round_to(x, profile.dtypes["LOGIT"])


def public_rows(logits: Array, public: int) -> Array:
    """The logits [P, public] of ids that a text can hold; padding rows of the table are left out.

    Raises TensorError unless 1 <= public <= V.

    Clause: HEAD-002
    Source: NInfer docs/maintainer/dflash.md, proposal; Infernix include/infernix/ops/argmax.h.
    """
    if not 1 <= public <= logits.shape[1]:
        raise TensorError(f"public is {public}, expected 1 to {logits.shape[1]}, the rows of the head")
    return logits[:, :public]


def first_largest(rows: Array) -> Array:
    """The lowest index of the largest entry of each row, [P, V] -> [P]; +0 and -0 are equal.

    Clause: HEAD-003
    Source: Infernix include/infernix/ops/argmax.h.
    """
    largest: Array = np.argmax(rows == rows.max(axis=1, keepdims=True), axis=1)
    return largest


def argmax(logits: Array, public: int, profile: Profile) -> Argmax:
    """The proposal of each row of logits [P, V]."""
    return Argmax(first_largest(public_rows(logits, public)))


def indexed_argmax(logits: Array, global_ids: Array, profile: Profile) -> Argmax:
    """The proposal of each row of logits [P, V] of an indexed head, whose row v stands for token global_ids[v].

    Clause: HEAD-008
    Source: Infernix src/models/qwen3_5/load/text.cpp and execution/draft.cpp.
    """
    return Argmax(global_ids[first_largest(logits)])


def top(
    hidden: Array, head: Array, global_ids: Array, public: int, multiplier: float, softcap: float, top: int,
    profile: Profile,
) -> Top:  # fmt: skip
    """The `top` best tokens of each of DFlash2's rows hidden [P, H] among the first `public` rows of head [V, H].

    global_ids [V] names the token of each row. Raises TensorError if there are fewer rows than `top`.

    Clause: HEAD-007
    Source: Infernix include/infernix/ops/linear_topk.h.
    """
    rows = public_rows(num.contract(hidden, head), public)
    if not 1 <= top <= public:
        raise TensorError(f"head.top: top is {top}, expected 1 to {public}, the rows that take part")
    scores = represent_scores(capped(rows, multiplier, softcap))
    ids = global_ids[:public]
    ranks = ranked(scores, ids, top)
    return Top(ids[ranks], np.take_along_axis(scores, ranks, axis=1))


def capped(logits: Array, multiplier: float, softcap: float) -> Array:
    """The logits, any shape, times the multiplier, then bent to stay inside the cap; a cap of 0 is none. Not rounded.

    Clause: HEAD-009
    Source: dflash 0.1.0 DFlashDraftModel.compute_logits.
    """
    scaled = logits * multiplier
    return softcap * elementary.tanh(scaled / softcap) if softcap > 0 else scaled


def represent_scores(scores: Array) -> Array:
    """Round scores of candidates to F32, in which they are ranked and kept; any shape.

    Clause: HEAD-006
    Source: Infernix include/infernix/ops/linear_topk.h; vllm-project/vllm pull 52816.
    """
    return num.round_to(scores, "F32")


def ranked(scores: Array, ids: Array, top: int) -> Array:
    """The `top` first columns of each row of scores [P, V], largest score first, lower id [V] first among equals.

    Clause: HEAD-005
    Source: Infernix include/infernix/ops/linear_topk.h.
    """
    return np.lexsort((np.broadcast_to(ids, scores.shape), -scores), axis=-1)[:, :top]
