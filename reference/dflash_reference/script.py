"""The script of STATE: lanes that prefill, verify, commit, are kept, forked, restored and closed, and show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from dflash_spec.errors import DFlashError, RequestError, StateError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import commit, resolve, state, tags
from dflash_reference.images import Images
from dflash_reference.names import Position, TokenId
from dflash_reference.state import NO_TOKEN, Held

FREE = -1


class Scripted(NamedTuple):
    """refusals: [N]. frontiers: [N, G, 4]. anchors, tails: [N, G]. target, draft: [N, G, layers, capacity]."""

    refusals: Array
    frontiers: Array
    anchors: Array
    tails: Array
    target: Array
    draft: Array


@dataclass(frozen=True)
class Rounds:
    """The rounds that a script plays, R of them with B rows each: what is verified, licensed, kept, and how it ends."""

    lanes: Array
    blocks: Array
    licensed: Array
    kept: Array
    ends: Array

    def rows(self, index: int) -> Iterator[tuple[int, int]]:
        """The rows of a round that serve a lane, each with its lane. Raises StateError if there is no such round."""
        if not 0 <= index < len(self.lanes):
            raise StateError(f"state.script: round {index}, expected 0 to {len(self.lanes) - 1}")
        for row in range(self.lanes.shape[1]):
            lane = lane_of(self.lanes, index, row)
            if lane != FREE:
                yield row, lane

    def block(self, index: int, row: int) -> Array:
        """Anchor and proposals [P + 1]."""
        return tokens_of(self.blocks[index, row])

    def outcome(self, index: int, row: int) -> tuple[Array, int, int]:
        """The licensed tokens [L], N, and the end."""
        licensed = tokens_of(self.licensed[index, row])
        return licensed, int(self.kept[index, row]), int(self.ends[index, row])


def lane_of(lanes: Array, index: int, row: int) -> int:
    """The lane that a batch row serves in this round, of lanes [R, B].

    Clause: STATE-011
    Source: vllm-project/vllm pull 45100; NInfer docs/maintainer/dflash.md, commit.
    """
    return int(lanes[index, row])


def tokens_of(padded: Array) -> Array:
    """The tokens before the padding of -1."""
    return padded[: np.argmax(np.append(padded, FREE) < 0)]


class Machine:
    """Lanes, images, the round that each lane is in, and the lanes whose last round was."""

    def __init__(self, lanes: int, images: int, layers: tuple[int, int], ring: int, capacity: int, profile: Profile):
        self.lanes: list[Held | None] = [None] * lanes
        self.images = Images(images)
        self.layers, self.ring, self.capacity, self.profile = layers, ring or capacity, capacity, profile
        self.rounds: dict[int, int] = {}
        self.ended: set[int] = set()

    def lane(self, index: int, settled: bool = True) -> Held:
        """The state of an open lane, which is in no round if it must be `settled`. Raises StateError otherwise."""
        held = self.lanes[index] if 0 <= index < len(self.lanes) else None
        if held is None:
            raise StateError(f"state.script: lane {index}, expected an open one of {len(self.lanes)}")
        if settled and index in self.rounds:
            raise StateError(
                f"state.script: lane {index} is in round {self.rounds[index]}, expected one that is in none"
            )
        return held

    def free(self, index: int) -> None:
        """Raise StateError unless the lane is there and free."""
        if not 0 <= index < len(self.lanes) or self.lanes[index] is not None:
            raise StateError(f"state.script: lane {index}, expected a free one of {len(self.lanes)}")

    def close(self, index: int) -> None:
        """Free the lane of a request that is in no round."""
        self.lane(index)
        self.lanes[index] = None
        self.ended.discard(index)

    def prefill(self, index: int, tokens: Array, anchor: int) -> None:
        """Feed tokens [T], which become context at once, and choose the anchor, unless that is -1."""
        is_free = 0 <= index < len(self.lanes) and self.lanes[index] is None
        held = self.opened() if is_free else self.lane(index)
        if held.anchor != NO_TOKEN or (not len(tokens) and held.tail is None):
            raise StateError(
                f"state.script: lane {index} has anchor {held.anchor}, and is to feed {len(tokens)} tokens"
            )
        self.fits(index, held, len(tokens))
        positions = held.frontier + np.arange(len(tokens))
        held.target.append(tokens, positions)
        held.draft.append(tokens, positions)
        held.tail = commit.continuation(tags.tails(tokens, positions), len(tokens), held.tail)
        held.frontier, held.anchor = Position(held.frontier + len(tokens)), TokenId(anchor)
        self.lanes[index] = held

    def opened(self) -> Held:
        """What a lane holds when a request gets it."""
        return state.fresh(tags.TargetTags(self.layers[0]), tags.DraftTags(self.layers[1], self.ring))

    def fits(self, index: int, held: Held, count: int) -> None:
        """Raise StateError if `count` more rows do not fit the lane."""
        if held.frontier + count > self.capacity:
            raise StateError(f"state.script: lane {index}: {count} rows at {held.frontier}, expected {self.capacity}")

    def verify(self, index: int, rounds: Rounds) -> None:
        """Start a round: every lane's context is caught up, then its block is read by the target."""
        rows = list(rounds.rows(index))
        if not rows or len({lane for _, lane in rows}) != len(rows):
            raise StateError(f"state.script: round {index} serves lanes {[lane for _, lane in rows]}, expected others")
        for row, lane in rows:
            held, block = self.lane(lane), rounds.block(index, row)
            if lane in self.ended or held.anchor == NO_TOKEN or block[:1].tolist() != [held.anchor]:
                raise StateError(f"state.script: lane {lane} verifies {block.tolist()}, expected anchor {held.anchor}")
            self.fits(lane, held, len(block))
        for row, lane in rows:
            held, block = self.lane(lane), rounds.block(index, row)
            catch_up(held)
            held.target.append(block, held.frontier + np.arange(len(block)))
            held.uncommitted, self.rounds[lane] = len(block), index

    def commit(self, index: int, rounds: Rounds) -> None:
        """Resolve a round, all of it or nothing."""
        rows = list(rounds.rows(index))
        resolve.once(not rows or any(self.rounds.get(lane) != index for _, lane in rows))
        for row, _ in rows:
            licensed, kept, end = rounds.outcome(index, row)
            width = len(rounds.block(index, row))
            resolve.licenses(row, len(licensed), len(licensed) - 1, width - 1, width)
            resolve.decision(row, len(licensed), kept, end)
        for row, lane in rows:
            licensed, kept, end = rounds.outcome(index, row)
            settle(self.lane(lane, settled=False), rounds.block(index, row), licensed, kept, self.profile)
            del self.rounds[lane]
            self.finish(lane, end)

    def finish(self, index: int, end: int) -> None:
        """What becomes of a lane after a round: a cancelled one is free, an ended one has its context caught up."""
        if end == resolve.CANCELLED:
            self.close(index)
        elif end == resolve.ENDS:
            catch_up(self.lane(index))
            self.ended.add(index)

    def catch_up(self, index: int) -> None:
        """Make context of a lane's pending rows."""
        catch_up(self.lane(index))

    def keep(self, index: int, slot: int) -> None:
        """Keep a checkpoint of a lane."""
        self.images.free(slot)
        self.images.put(slot, state.keep(self.lane(index, settled=False), self.profile))

    def restore(self, slot: int, generation: int, index: int) -> None:
        """Give a free lane the state of an image."""
        self.free(index)
        self.lanes[index] = state.restored(self.images.get(slot, generation))

    def fork(self, index: int, to: int) -> None:
        """Give a free lane the state of another."""
        self.free(to)
        self.lanes[to] = state.fork(self.lane(index, settled=False), self.profile)
        self.ended |= {to} if index in self.ended else set()

    def drop(self, slot: int, generation: int, length: int) -> None:
        """Drop the draft's rows of an image from `length` on."""
        image = self.images.get(slot, generation)
        image.draft.cut(length)


def settle(held: Held, block: Array, licensed: Array, kept: int, profile: Profile) -> None:
    """Move a state to the end of a round of block [P + 1], of whose licensed tokens [L] it keeps N.

    Clause: STATE-013
    Source: NInfer docs/maintainer/dflash.md, commit; ml-explore/mlx-swift-lm pull 584.
    """
    done = commit.commit(held.anchor, licensed, kept, held.frontier, held.target.length, profile)
    tails = tags.tails(block, held.frontier + np.arange(len(block)))
    held.tail = commit.continuation(tails, kept, held.tail)
    held.pending = commit.pending(block[:, np.newaxis], held.frontier, kept, profile)
    held.target.cut(done.target_rows_kept)
    held.anchor, held.frontier, held.uncommitted = TokenId(done.next_anchor), Position(done.next_frontier), 0


def catch_up(held: Held) -> None:
    """Make context of a state's pending rows, which have the token as their only feature."""
    held.draft.append(held.pending.features[:, 0], held.pending.positions)
    held.pending = state.nothing_pending(1)


def script(
    steps: Array, tokens: Array, round_lanes: Array, round_blocks: Array, round_licensed: Array, round_kept: Array,
    round_ends: Array, lanes: int, images: int, target_layers: int, draft_layers: int, ring: int, capacity: int,
    profile: Profile,
) -> Scripted:  # fmt: skip
    """What every lane shows after each step, as the op state.script has them. Raises RequestError for no such step."""
    layers = target_layers, draft_layers
    machine = Machine(lanes, images, layers, ring, capacity, profile)
    rounds = Rounds(round_lanes, round_blocks, round_licensed, round_kept, round_ends)
    refusals, shown = [], []
    for line in steps:
        action = action_of(machine, rounds, tokens, *(int(value) for value in line))
        try:
            action()
            refusals.append(0)
        except DFlashError:
            refusals.append(1)
        shown.append([show(held, layers, capacity) for held in machine.lanes])
    columns = zip(*(zip(*lanes_, strict=True) for lanes_ in shown), strict=True)
    return Scripted(np.array(refusals), *(np.array(column) for column in columns))


def action_of(
    machine: Machine, rounds: Rounds, tokens: Array, code: int, a: int, b: int, c: int, d: int
) -> Callable[[], None]:
    """What a step does. Raises RequestError for a code or tokens that are not there."""
    if not 1 <= code <= 11 or (code == 1 and not 0 <= b <= b + c <= len(tokens)):
        raise RequestError(f"state.script: step {[code, a, b, c, d]}, expected a code from 1 to 11 and given tokens")
    actions: dict[int, Callable[[], None]] = {
        1: lambda: machine.prefill(a, tokens[b : b + c], d),
        2: lambda: machine.verify(a, rounds),
        3: lambda: machine.commit(a, rounds),
        4: lambda: machine.catch_up(a),
        5: lambda: machine.keep(a, b),
        6: lambda: machine.restore(a, b, c),
        7: lambda: machine.fork(a, b),
        8: lambda: machine.images.replicate(a, b, c, bool(d)),
        9: lambda: machine.images.release(a, b),
        10: lambda: machine.drop(a, b, c),
        11: lambda: machine.close(a),
    }
    return actions[code]


class Shown(NamedTuple):
    """One lane after one step. frontiers: [4]. target, draft: [layers, capacity]."""

    frontiers: Array
    anchor: int
    tail: int
    target: Array
    draft: Array


def show(held: Held | None, layers: tuple[int, int], capacity: int) -> Shown:
    """What a lane shows; -1 for everything in a free one."""
    if held is None:
        target, draft = (np.full((count, capacity), tags.INVISIBLE) for count in layers)
        return Shown(np.full(4, FREE), NO_TOKEN, FREE, target, draft)
    rows = held.target.length - held.uncommitted
    frontiers = held.frontier, rows, held.draft.length, len(held.pending.positions)
    tail = FREE if held.tail is None else int(held.tail)
    target, draft = held.target.seen(rows, capacity), held.draft.seen(capacity)
    return Shown(np.array(frontiers), held.anchor, tail, target, draft)
