"""Luce's two forms of a greedy round: committed rows are run again, or their state is taken from the verify pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import CommitError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import stop
from dflash_reference.names import Position, TokenId


class Replayed(NamedTuple):
    """accepted: the anchor and the proposals after it. tokens: [C] int64. state_rows: those that the state has read."""

    accepted: int
    tokens: Array
    next_anchor: int
    next_frontier: int
    state_rows: int


def replay_round(
    block: Array, target: Array, replayed: int, fast: int, frontier: int, remaining: int, stop_ids: Array,
    profile: Profile,
) -> Replayed:  # fmt: skip
    """The round of the anchor and proposals block [W], after each of which the target says target [W].

    Raises CommitError where nothing is verified or nothing may be emitted.
    """
    if len(block) < 1 or remaining < 1:
        raise CommitError(f"commit.replay_round: {len(block)} rows, {remaining} remaining, expected at least 1 of each")
    accepted = accepted_rows(block, target)
    whole = fast_form(block, target, accepted) if fast else replaying_form(block, target, accepted, replayed)
    tokens, anchor = cut(whole, remaining, stop_ids)
    after = Position(frontier + len(tokens))
    return Replayed(accepted, tokens, anchor, after, after)


def accepted_rows(block: Array, target: Array) -> int:
    """How many rows of block [W] stand, the anchor's among them, by the argmaxes target [W].

    Clause: COMMIT-018
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_spec_decode.cpp.
    """
    count = 1
    while count < len(block) and block[count] == target[count - 1]:
        count += 1
    return count


class Whole(NamedTuple):
    """tokens: [C] int64, those of a round that nothing cuts. anchor: the next one."""

    tokens: Array
    anchor: int


def replaying_form(block: Array, target: Array, accepted: int, replayed: int) -> Whole:
    """The correction is emitted, and runs as the last of the replayed rows; `replayed` is the argmax after it.

    Clause: COMMIT-019
    Source: Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_spec_decode.cpp.
    """
    if accepted == len(block):
        return Whole(block, int(target[-1]))
    return Whole(np.append(block[:accepted], target[accepted - 1]), replayed)


def fast_form(block: Array, target: Array, accepted: int) -> Whole:
    """Correction and bonus alike wait, as the next anchor.

    Clause: COMMIT-020
    Source: Luce-Org/lucebox-hub@8305b6c server/test/test_dflash.cpp.
    """
    return Whole(block[:accepted], int(target[accepted - 1]))


def cut(whole: Whole, remaining: int, stop_ids: Array) -> tuple[Array, TokenId]:
    """The tokens that are emitted, up to the first stop id and `remaining` in all, and the anchor after them.

    Clause: COMMIT-021
    Source: NInfer docs/maintainer/dflash.md, commit.
    """
    kept = stop.through_first_stop(whole.tokens[:remaining], stop_ids)
    return whole.tokens[:kept], TokenId(int([*whole.tokens, whole.anchor][kept]))
