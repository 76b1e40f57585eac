"""What outlives a request: images of its state, by names that cannot be mistaken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch
from dflash_spec.errors import StateError
from torch import Tensor

from dflash_accelerated.lanes import Snapshot
from dflash_accelerated.protocols import KeptState, SequenceState

_GENERATIONS = count(1)


@dataclass(frozen=True)
class Checkpoint:
    """The name of an image. `tokens` are those at its positions [0, len(tokens)).

    A prompt that begins with them can be restored from it. No two images of a process have had one name.
    """

    slot: int
    generation: int
    tokens: tuple[int, ...]


class Image(NamedTuple):
    """A state that was kept: what target and draft hold, and the target's logits LOGIT [1, V] after the last token.

    A draft of None is that of an engine without one. `tokens` are those that it was computed from.
    """

    target: Snapshot
    draft: Snapshot | None
    tail: Tensor
    tokens: tuple[int, ...]

    @property
    def covered(self) -> tuple[int, int]:
        """How many positions its two parts cover; without a draft, the target's twice."""
        return self.target.length, (self.draft or self.target).length

    def copied(self, device: torch.device | None = None) -> Image:
        """The same bits in memory of their own, on `device` or where they are."""
        draft = self.draft and self.draft.copied(device)
        return Image(self.target.copied(device), draft, self.tail.clone().to(device or self.tail.device), self.tokens)


class Images:
    """A fixed number of slots, each of which holds one image or none.

    Clauses: STATE-006, STATE-009. Source: Infernix tests/models/qwen3_5/test_state_image.cpp,
    docs/maintainer/resource-scheduling-and-context-cache.md.
    """

    def __init__(self, slots: int) -> None:
        """So many slots, all of them empty."""
        self.held: dict[int, Image] = {}
        self._slots = slots
        self._generations: dict[int, int] = {}

    def put(self, image: Image, slot: int | None = None) -> Checkpoint:
        """Hold an image in an empty slot, or in any: its name. Raises StateError if there is none."""
        if slot is None:
            held = len(self.held)
            if held == self._slots:
                raise StateError(f"{held} checkpoints held, of max_checkpoints {self._slots}: release a checkpoint")
            slot = next(at for at in range(self._slots) if at not in self.held)
        if slot in self.held or not 0 <= slot < self._slots:
            raise StateError(f"image slot {slot}, expected an empty one of {self._slots}")
        self.held[slot], self._generations[slot] = image, next(_GENERATIONS)
        return Checkpoint(slot, self._generations[slot], image.tokens)

    def get(self, name: Checkpoint) -> Image:
        """The image of this name. Raises StateError for one that was released, or is another engine's."""
        if not isinstance(name, Checkpoint):
            raise StateError(f"a checkpoint is {type(name).__name__}, expected what `checkpoint` gave")
        image = self.held.get(name.slot)
        if image is None or self._generations[name.slot] != name.generation:
            raise StateError(
                f"generation {name.generation} of image slot {name.slot}, expected one that is held: it was released, "
                "or is another engine's"
            )
        return image

    def release(self, name: Checkpoint) -> None:
        """Empty the slot of this name. Raises StateError as `get`."""
        self.get(name)
        del self.held[name.slot]

    def replicate(self, name: Checkpoint, device: torch.device, slot: int | None = None) -> Checkpoint:
        """A copy on `device`, with a name of its own; the copy is whole before it has one. Raises StateError."""
        return self.put(self.get(name).copied(device), slot)


def check_settled(
    execution: int, target_rows: int, context_rows: int, uncommitted: int, tail: bool, forks: int = 0
) -> None:
    """Raise StateError where a state can be neither kept nor forked.

    Its three frontiers must be one, with no row of a verify past them, its tail there, and no fork under way.

    Clauses: STATE-001, STATE-002. Source: Infernix src/models/qwen3_5/program/transactions/capture.cpp.
    """
    if uncommitted or not execution == target_rows == context_rows:
        raise StateError(
            f"{execution} tokens processed, {target_rows} rows of the target and {uncommitted} of a verify, "
            f"{context_rows} rows of context, expected three equal counts and no row of a verify"
        )
    if not tail or forks:
        raise StateError(f"a state {'with' if tail else 'without'} its tail, in {forks} forks, expected one with, in 0")


def left_to_feed(prompt: Sequence[int], tokens: Sequence[int], target_rows: int, draft_rows: int) -> int:
    """Where the rest of a prompt begins, once an image of `tokens` is restored.

    Raises StateError if its two parts do not cover these tokens, or if the prompt begins otherwise.

    Clauses: STATE-004, STATE-005. Source: weicj/vLLM-2080Ti-Definitive pull 194; Luce-Org/lucebox-hub@8305b6c
    server/test/test_restore_delta.cpp.
    """
    start = len(tokens)
    if not start == target_rows == draft_rows:
        raise StateError(
            f"an image of {start} tokens with {target_rows} rows of the target and {draft_rows} of the draft, expected "
            "three equal counts"
        )
    if tuple(prompt[:start]) != tuple(tokens):
        at = next((at for at, pair in enumerate(zip(prompt, tokens, strict=False)) if pair[0] != pair[1]), len(prompt))
        raise StateError(
            f"a prompt of {len(prompt)} tokens parts at {at} from the image's {start}, expected all of them"
        )
    return start


def kept(state: SequenceState) -> KeptState:
    """A state that can be kept. Raises StateError for one of an adapter that does not know how."""
    if not isinstance(state, KeptState):
        raise StateError(f"a {type(state).__name__}, expected a state with view and load, to be kept")
    return state
