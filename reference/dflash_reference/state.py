"""What outlives a round: the state of one request, and the images from which a state can be had again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from dflash_spec.errors import StateError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import commit
from dflash_reference.names import Position, TokenId

NO_TOKEN = TokenId(-1)


class Checkpoint(NamedTuple):
    """frontier: of the target. backend_frontier: of the draft's context."""

    frontier: int
    backend_frontier: int
    refused: int = 0


class Rest(NamedTuple):
    """ids and positions: [R] int64, what is left to feed."""

    ids: Array
    positions: Array
    refused: int = 0


class Part(Protocol):
    """The target's K/V or the draft's context of a state: it counts the positions that it covers, and can be copied."""

    @property
    def length(self) -> int: ...
    def copy(self) -> Self: ...


@dataclass
class Held:
    """All that one request keeps between rounds.

    The target has consumed the tokens at [0, frontier); `anchor` is the one at `frontier`, if it is chosen; `tail` is
    the target's hidden row of the token before it, None where there is none. `pending` feature rows are not in the
    draft's context yet, and the last `uncommitted` rows of the target belong to a round that is not resolved.
    """

    target: Any
    draft: Any
    frontier: Position
    pending: commit.Pending
    anchor: TokenId = NO_TOKEN
    tail: Any = None
    uncommitted: int = 0


class Image(NamedTuple):
    """A state that was kept: both parts and the hidden row, and the frontier that they stand at."""

    target: Any
    draft: Any
    tail: Any
    frontier: Position


def checkpoint(
    execution: int, target_rows: int, context_rows: int, uncommitted: int, tail: int, fork: int, profile: Profile
) -> Checkpoint:
    """The frontiers that an image of this state records.

    Raises StateError where the state cannot be kept.

    Clause: STATE-001
    Source: Infernix src/models/qwen3_5/program/transactions/capture.cpp.
    """
    committed(uncommitted)
    if not execution == target_rows == context_rows:
        raise StateError(
            f"state: the target has consumed {execution} tokens and holds {target_rows} rows, the context holds "
            f"{context_rows}, expected three equal counts"
        )
    if not tail or fork:
        raise StateError(
            f"state: hidden row {'' if tail else 'in'}valid, {fork} open forks, expected a valid one and 0"
        )
    return Checkpoint(execution, context_rows)


def committed(uncommitted: int) -> None:
    """Raise StateError within a round, of which rows stand in the target's K/V that may yet be rejected.

    Clause: STATE-002
    Source: Infernix docs/maintainer/resource-scheduling-and-context-cache.md.
    """
    if uncommitted:
        raise StateError(f"state: {uncommitted} rows of a verify are not resolved, expected 0")


def restore(prompt: Array, identity: Array, target_rows: int, draft_rows: int, profile: Profile) -> Rest:
    """What is left to feed of prompt [T] after an image of the tokens identity [F].

    Raises StateError if the image is of another text, or if its parts do not cover it.

    Clause: STATE-005
    Source: Luce-Org/lucebox-hub@8305b6c server/test/test_restore_delta.cpp.
    """
    start = covered(target_rows, draft_rows, len(identity))
    if not np.array_equal(prompt[:start], identity):
        raise StateError(f"state: an image of tokens {identity.tolist()}, expected {prompt[:start].tolist()}")
    return Rest(prompt[start:], np.arange(start, len(prompt)))


def covered(target_rows: int, draft_rows: int, frontier: int) -> int:
    """The frontier of an image, which both of its parts cover exactly. Raises StateError where they do not.

    Clause: STATE-004
    Source: NInfer docs/maintainer/dflash.md, storage; weicj/vLLM-2080Ti-Definitive pull 194.
    """
    if not target_rows == draft_rows == frontier:
        raise StateError(
            f"state: an image of {frontier} positions with {target_rows} of the target and {draft_rows} of the draft, "
            "expected three equal counts"
        )
    return frontier


def nothing_pending(columns: int) -> commit.Pending:
    """No feature rows [0, columns]: all that a state has to which no round of its own has left any.

    Clause: STATE-008
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    return commit.Pending(np.zeros((0, columns), dtype=np.int64), np.zeros(0, dtype=np.int64), 0)


def fresh(target: Part, draft: Part) -> Held:
    """The state of a request that has consumed nothing, with parts that hold nothing.

    Clause: STATE-010
    Source: Luce-Org/lucebox-hub commit 855c87f; ggml-org/llama.cpp pull 22105.
    """
    return Held(target, draft, Position(0), nothing_pending(1))


def keep(held: Held, profile: Profile) -> Image:
    """An image of the state, which goes on as it was. Raises StateError where it cannot be kept.

    Clause: STATE-003
    Source: NInfer docs/maintainer/dflash.md, storage; vllm-project/vllm issue 47930.
    """
    check_settled(held, profile)
    return Image(held.target.copy(), held.draft.copy(), held.tail, held.frontier)


def check_settled(held: Held, profile: Profile) -> None:
    """Raise StateError where the state can be neither kept nor forked."""
    rows = held.frontier, held.target.length - held.uncommitted, held.draft.length
    checkpoint(*rows, held.uncommitted, int(held.tail is not None), 0, profile)


def restored(image: Image, columns: int = 1) -> Held:
    """A state that stands where the image was made, for feature rows of so many columns.

    Raises StateError if the image's parts do not agree.
    """
    frontier = covered(image.target.length, image.draft.length, image.frontier)
    return Held(image.target.copy(), image.draft.copy(), Position(frontier), nothing_pending(columns), tail=image.tail)


def fork(held: Held, profile: Profile) -> Held:
    """A second state that goes on from where the first one stands, its anchor included, and shares nothing with it.

    Raises StateError where the state cannot be forked.

    Clause: STATE-007
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    check_settled(held, profile)
    parts = held.target.copy(), held.draft.copy()
    return Held(*parts, held.frontier, nothing_pending(held.pending.features.shape[1]), held.anchor, held.tail)
