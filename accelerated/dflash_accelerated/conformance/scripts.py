"""The op state.script: lanes are prefilled, verified, committed, kept, forked and closed by the engine's own parts.

A lane is a sequence of the chain orchestrator, on a target and a draft whose rows are tags. What the script gives (what
is licensed, how many tokens are kept) is all that the engine would have computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from dflash_spec.errors import DFlashError, StateError
from dflash_spec.tensors import Array
from torch import Tensor

from dflash_accelerated.chain import ChainOrchestrator, commit
from dflash_accelerated.conformance import tags
from dflash_accelerated.conformance.call import Answer, Call
from dflash_accelerated.images import Checkpoint, Images, left_to_feed
from dflash_accelerated.joint import Seen
from dflash_accelerated.lanes import Snapshot
from dflash_accelerated.ops import commits
from dflash_accelerated.protocols import Segment, TargetStep
from dflash_accelerated.requests import Request, Running
from dflash_accelerated.settings import Sampling

NONE = -1


@dataclass
class Lane:
    """A sequence, the round that it is in and what its verify saw, and whether its last round was."""

    running: Running
    round: int = NONE
    step: TargetStep | None = None
    ended: bool = False

    @property
    def uncommitted(self) -> int:
        return 0 if self.step is None else len(self.step.features)

    @property
    def waiting(self) -> int:
        """Rows that are not context yet."""
        return 0 if self.running.pending is None else len(self.running.pending)


def need(holds: bool, what: str) -> None:
    """Raise StateError for a step that cannot be taken."""
    if not holds:
        raise StateError(f"state.script: {what}")


class Desk:
    """Lanes and images, and the steps of a script as methods."""

    def __init__(self, call: Call) -> None:
        numbers = ("target_layers", "draft_layers", "ring", "capacity", "lanes", "images")
        self._layers, self._draft_layers, self._ring, self.capacity, lanes, images = map(call.integer, numbers)
        self._target = tags.TagTarget(self._layers, lanes, self.capacity)
        self._draft = tags.TagDraft(self._draft_layers, self._ring, lanes, self.capacity)
        self._chain = ChainOrchestrator(self._target, self._draft, tags.WIDE)
        self.lanes: list[Lane | None] = [None] * lanes
        self._images = Images(images)
        self._names: list[list[Checkpoint]] = [[] for _ in range(images)]
        self._given = call

    def prefill(self, at: int, begin: int, count: int, anchor: int) -> None:
        """Feed tokens, which become context at once, and choose the anchor."""
        tokens = self._given.integers("tokens")[begin : begin + count]
        free = 0 <= at < len(self.lanes) and self.lanes[at] is None
        before = None if free else self._lane(at).running
        need(before is None or before.anchor < 0, f"lane {at} has an anchor")
        need(bool(tokens) or (before is not None and before.tail is not None), f"lane {at} has nothing to say")
        need((before.frontier if before else 0) + count <= self.capacity, f"{count} rows past lane {at}")
        running = before or self._chain.open(self._request())
        if tokens:
            (step,) = self._target.forward([Segment(running.target, torch.tensor(tokens))], (0,), "all")
            running.pending, running.tail = step.features, cast(Tensor, step.logits)[-1:]
            running.frontier += count
            self._chain.catch_up([running])
        running.said += [*tokens, *([anchor] if anchor >= 0 else [])]
        running.anchor = anchor
        if free:
            self.lanes[at] = Lane(running)

    def verify(self, index: int) -> None:
        """Start a round in all of its lanes."""
        rows = self._rows(index)
        need(bool(rows) and len({at for at, _ in rows}) == len(rows), f"round {index} serves {rows}")
        for at, row in rows:
            lane, block = self._lane(at), self._list("round_blocks", index, row)
            anchored = not lane.ended and lane.running.anchor >= 0 and block[:1] == [lane.running.anchor]
            need(anchored and lane.running.frontier + len(block) <= self.capacity, f"lane {at} verifies {block}")
        served = [self._lane(at) for at, _ in rows]
        self._chain.catch_up([lane.running for lane in served])
        blocks = [torch.tensor(self._list("round_blocks", index, row)) for _, row in rows]
        segments = [Segment(lane.running.target, block) for lane, block in zip(served, blocks, strict=True)]
        for lane, step in zip(served, self._target.forward(segments, (0,), "all"), strict=True):
            lane.step, lane.round = step, index

    def commit(self, index: int) -> None:
        """Resolve a round, all of it or nothing."""
        rows = self._rows(index)
        commits.check_once(not rows or any(self._lane(at, index).round != index for at, _ in rows))
        made = [(self._lane(at, index), at, *self._outcome(index, row)) for at, row in rows]
        for lane, _, licensed, kept, end in made:
            count, width = torch.tensor([len(licensed)]), lane.uncommitted
            commits.check_rounds(count, count - 1, count * 0 + width - 1, width, torch.tensor([kept]),
                                 torch.tensor([end]))  # fmt: skip
        for lane, at, licensed, kept, end in made:
            running = lane.running
            done = commit(running, Seen.of(cast(TargetStep, lane.step)), licensed, kept)
            running.said += licensed[:kept]
            running.anchor, running.frontier = done.anchor, done.frontier
            lane.step, lane.round = None, NONE
            if end == commits.CANCELLED:
                self.close(at)
            elif end == commits.ENDS:
                self._chain.catch_up([running])
                lane.ended = True

    def catch_up(self, at: int) -> None:
        """Make context of a lane's pending rows."""
        self._chain.catch_up([self._lane(at).running])

    def keep(self, at: int, slot: int) -> None:
        """Keep a checkpoint of a lane in an empty slot."""
        self._put(slot, lambda: self._images.put(self._chain.keep(self._settled(at)).copied(), slot))

    def restore(self, slot: int, number: int, at: int) -> None:
        """Bring an image back into a free lane."""
        self._free(at)
        image = self._images.get(self._name(slot, number))
        left_to_feed(image.tokens, image.tokens, *image.covered)
        running = self._chain.open(self._request())
        self._chain.load(running, image)
        running.said, running.frontier = [*image.tokens], len(image.tokens)
        self.lanes[at] = Lane(running)

    def fork(self, at: int, to: int) -> None:
        """Let a free lane go on from where another stands."""
        self._free(to)
        running = self._settled(at)
        self.lanes[to] = Lane(self._chain.fork(running), ended=self._lane(at).ended)

    def replicate(self, slot: int, number: int, to: int, aborted: int) -> None:
        """Copy an image to an empty slot by way of the host. What an aborted copy has read has no name."""
        name = self._name(slot, number)
        copied = self._images.get(name).copied(tags.CPU)
        need(0 <= to < len(self._names) and to not in self._images.held, f"image slot {to} is not empty")
        if not aborted:
            self._put(to, lambda: self._images.put(copied, to))

    def release(self, slot: int, number: int) -> None:
        """Release an image."""
        self._images.release(self._name(slot, number))

    def drop(self, slot: int, number: int, length: int) -> None:
        """Damage an image: its draft part no longer covers what follows `length`."""
        image = self._images.get(self._name(slot, number))
        draft = cast(Snapshot, image.draft)
        need(0 <= length <= draft.length, f"{draft.length} rows cannot be cut to {length}")
        self._images.held[slot] = image._replace(draft=draft._replace(length=length))

    def close(self, at: int) -> None:
        """Free a lane."""
        self._chain.close(self._lane(at).running)
        self.lanes[at] = None

    def show(self) -> list[tuple[Any, ...]]:
        """Frontiers, anchor, tail, and the target's and the draft's visible tags, lane by lane."""
        return [self._shown(lane) for lane in self.lanes]

    def _shown(self, lane: Lane | None) -> tuple[Any, ...]:
        if lane is None:
            nothing = [np.full((count, self.capacity), NONE) for count in (self._layers, self._draft_layers)]
            return np.full(4, NONE), NONE, NONE, *nothing
        running = lane.running
        draft = cast(Any, running.draft)
        rows = running.target.length - lane.uncommitted
        tail = NONE if running.tail is None else int(running.tail)
        frontiers = np.array([running.frontier, rows, draft.length, lane.waiting])
        read = tags.seen(tags.target_contexts(running.target, self._layers), rows, self.capacity)
        context = tags.draft_contexts(draft, self._draft_layers, self._ring)
        drafted = tags.seen(context, draft.length, self.capacity)
        return frontiers, running.anchor, tail, read.numpy(), drafted.numpy()

    def _request(self) -> Request:
        return Request((), self.capacity, Sampling(), 0, frozenset(), None, self.capacity - 1, 0)

    def _lane(self, at: int, index: int = NONE) -> Lane:
        """An open lane that is in no round, or in round `index`."""
        lane = self.lanes[at] if 0 <= at < len(self.lanes) else None
        if lane is None or lane.round not in (NONE, index):
            raise StateError(f"state.script: lane {at} is free or in a round, expected an open one")
        return lane

    def _settled(self, at: int) -> Running:
        lane = self._lane(at)
        need(not lane.waiting, f"lane {at} has {lane.waiting} rows pending")
        return lane.running

    def _free(self, at: int) -> None:
        need(0 <= at < len(self.lanes) and self.lanes[at] is None, f"lane {at} is not free")

    def _put(self, slot: int, put: Callable[[], Checkpoint]) -> None:
        need(0 <= slot < len(self._names), f"there is no image slot {slot}")
        self._names[slot].append(put())

    def _name(self, slot: int, number: int) -> Checkpoint:
        known = 0 <= slot < len(self._names) and 1 <= number <= len(self._names[slot])
        need(known, f"image slot {slot} had no generation {number}")
        return self._names[slot][number - 1]

    def _rows(self, index: int) -> list[tuple[int, int]]:
        """The lanes that a round serves in this very round, each with its row. Clause: STATE-011."""
        table = self._given.array("round_lanes")
        need(0 <= index < len(table), f"there is no round {index}")
        return [(int(at), row) for row, at in enumerate(table[index]) if at != NONE]

    def _list(self, name: str, index: int, row: int) -> list[int]:
        tokens: list[int] = self._given.array(name)[index, row].tolist()
        return tokens[: tokens.index(NONE)] if NONE in tokens else tokens

    def _outcome(self, index: int, row: int) -> tuple[list[int], int, int]:
        kept, ends = (int(self._given.array(f"round_{name}")[index, row]) for name in ("kept", "ends"))
        return self._list("round_licensed", index, row), kept, ends


def script(call: Call) -> Answer:
    """The op state.script."""
    desk = Desk(call)
    actions: dict[int, tuple[Callable[..., None], int]] = {
        1: (desk.prefill, 4), 2: (desk.verify, 1), 3: (desk.commit, 1), 4: (desk.catch_up, 1), 5: (desk.keep, 2),
        6: (desk.restore, 3), 7: (desk.fork, 2), 8: (desk.replicate, 4), 9: (desk.release, 2), 10: (desk.drop, 3),
        11: (desk.close, 1),
    }  # fmt: skip
    refusals, shown = [], []
    for code, *arguments in call.array("steps").tolist():
        action, count = actions[code]
        refusals.append(_refused(action, arguments[:count]))
        shown.append(desk.show())
    names = ("frontiers", "anchors", "tails", "target", "draft")
    columns: list[Array] = [np.array([[lane[at] for lane in lanes] for lanes in shown]) for at in range(len(names))]
    return {"refusals": refusals, **dict(zip(names, columns, strict=True))}


def _refused(action: Callable[..., None], arguments: list[int]) -> int:
    try:
        action(*arguments)
    except DFlashError:
        return 1
    return 0
