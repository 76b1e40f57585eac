"""The proposal head: logits of the draft's rows, and the proposal of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import num


class Logits(NamedTuple):
    """logits: [P, V], represented in LOGIT."""

    logits: Array


class Argmax(NamedTuple):
    """proposals: [P] int64 token ids."""

    proposals: Array


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
