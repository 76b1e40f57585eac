"""Lanes and images: whatever is done to them, a lane shows its own ledger and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from dflash_reference import chain, operations, slots, state
from dflash_spec.errors import RequestError, StateError
from dflash_spec.registry import load_profile
from dflash_vectors import scripts
from dflash_vectors.scripts import CANCELLED, ENDS, GOES_ON, Script, Turn
from hypothesis import given
from hypothesis import strategies as st

PROFILE, LUCE = load_profile("ninfer"), load_profile("luce")
CAPACITY, LANES, SLOTS = 14, 3, 3
WALKS, STEPS = 40, 25


@dataclass
class Ledger:
    """What a lane should show: its tokens, how many are context, and the anchor."""

    tokens: list[int]
    context: int
    anchor: int = -1
    ended: bool = False
    block: Turn | None = None

    def copy(self) -> Ledger:
        return Ledger(list(self.tokens), self.context, self.anchor, self.ended)

    @property
    def settled(self) -> bool:
        return self.block is None and self.context == len(self.tokens)


@dataclass
class Model:
    """An oracle that keeps texts, not rows. Each action says whether the step is refused."""

    script: Script
    random: Random
    lanes: list[Ledger | None] = field(default_factory=lambda: [None] * LANES)
    images: list[Ledger | None] = field(default_factory=lambda: [None] * SLOTS)
    generations: list[int] = field(default_factory=lambda: [0] * SLOTS)
    names: list[tuple[int, int]] = field(default_factory=list)
    played: list[tuple[int, list[Turn]]] = field(default_factory=list)
    word: int = 100

    def words(self, count: int) -> list[int]:
        """Tokens that were never used before."""
        self.word += count
        return list(range(self.word - count, self.word))

    def prefill(self, lane: int, count: int, chooses: bool) -> bool:
        tokens = self.words(count)
        anchor = self.words(1)[0] if chooses else -1
        self.script.prefill(lane, tokens, anchor)
        held = self.lanes[lane] or Ledger([], 0)
        if held.anchor >= 0 or held.block or len(held.tokens) + count > CAPACITY or not (count or held.tokens):
            return True
        held.tokens += tokens
        held.context, held.anchor = len(held.tokens), anchor
        self.lanes[lane] = held
        return False

    def play(self, lanes: list[int], commits: bool) -> bool:
        """Verify a round, and commit it too if that is asked for."""
        turns, bad = [], False
        for lane in lanes:
            held, pick = self.lanes[lane], self.random
            anchor = held.anchor if held and held.anchor >= 0 else self.words(1)[0]
            drafts = pick.randint(0, 3)
            block = (anchor, *self.words(drafts))
            accepted = pick.randint(0, drafts)
            licensed = (*block[1 : accepted + 1], *self.words(1))
            end = pick.choice([GOES_ON, GOES_ON, GOES_ON, ENDS, CANCELLED])
            kept = {GOES_ON: accepted + 1, ENDS: pick.randint(1, accepted + 1), CANCELLED: 0}[end]
            turns.append(Turn(lane, block, licensed, kept, end))
            bad |= held is None or held.anchor < 0 or held.ended or held.block is not None
            bad |= held is not None and len(held.tokens) + len(block) > CAPACITY
        number = self.script.verify(*turns)
        if bad:
            return True
        for turn in turns:
            held = self.lanes[turn.lane]
            assert held is not None
            held.context, held.block = len(held.tokens), turn
        self.played.append((number, turns))
        return self.commit(number, turns) if commits else False

    def commit(self, number: int, turns: list[Turn]) -> bool:
        self.script.step(scripts.COMMIT, number)
        held = [self.lanes[turn.lane] for turn in turns]
        if not turns or any(lane is None or lane.block is not turn for lane, turn in zip(held, turns, strict=True)):
            return True
        for turn in turns:
            self.resolve(turn)
        return False

    def resolve(self, turn: Turn) -> None:
        held = self.lanes[turn.lane]
        assert held is not None
        held.block = None
        consumed = [*turn.block[:1], *turn.licensed]
        held.tokens += consumed[: turn.kept]
        held.anchor = consumed[turn.kept]
        if turn.end == CANCELLED:
            self.lanes[turn.lane] = None
        elif turn.end == ENDS:
            held.context, held.ended = len(held.tokens), True

    def catch_up(self, lane: int) -> bool:
        self.script.step(scripts.CATCH_UP, lane)
        held = self.lanes[lane]
        if held is None or held.block:
            return True
        held.context = len(held.tokens)
        return False

    def keep(self, lane: int, slot: int) -> bool:
        self.script.step(scripts.CHECKPOINT, lane, slot)
        held = self.lanes[lane]
        if held is None or not held.settled or self.images[slot]:
            return True
        self.images[slot] = held.copy()
        self.generations[slot] += 1
        self.names.append((slot, self.generations[slot]))
        return False

    def named(self, name: tuple[int, int]) -> Ledger | None:
        return self.images[name[0]] if self.generations[name[0]] == name[1] else None

    def restore(self, name: tuple[int, int], lane: int) -> bool:
        self.script.step(scripts.RESTORE, *name, lane)
        image = self.named(name)
        if image is None or self.lanes[lane] or not image.settled:
            return True
        self.lanes[lane] = Ledger(list(image.tokens), len(image.tokens))
        return False

    def release(self, name: tuple[int, int]) -> bool:
        self.script.step(scripts.RELEASE, *name)
        if self.named(name) is None:
            return True
        self.images[name[0]] = None
        return False

    def replicate(self, name: tuple[int, int], slot: int, aborted: bool) -> bool:
        self.script.step(scripts.REPLICATE, *name, slot, int(aborted))
        image = self.named(name)
        if image is None or self.images[slot]:
            return True
        if not aborted:
            self.images[slot] = image.copy()
            self.generations[slot] += 1
            self.names.append((slot, self.generations[slot]))
        return False

    def fork(self, lane: int, to: int) -> bool:
        self.script.step(scripts.FORK, lane, to)
        held = self.lanes[lane]
        if held is None or not held.settled or self.lanes[to]:
            return True
        self.lanes[to] = held.copy()
        return False

    def close(self, lane: int) -> bool:
        self.script.step(scripts.CLOSE, lane)
        held = self.lanes[lane]
        if held is None or held.block:
            return True
        self.lanes[lane] = None
        return False

    def drop(self, name: tuple[int, int], length: int) -> bool:
        self.script.step(scripts.DROP, *name, length)
        image = self.named(name)
        if image is None or length > image.context:
            return True
        image.context = length
        return False

    def choice(self) -> Callable[[Model], bool]:
        """A step at random."""
        pick = self.random
        lane, other, slot = pick.randrange(LANES), pick.randrange(LANES), pick.randrange(SLOTS)
        name = pick.choice(self.names[-3:] or [(slot, 1)])
        group = pick.sample(range(LANES), pick.randint(1, LANES))
        count, flag = pick.randint(0, 4), pick.random() < 0.5
        place = pick.randint(1, 4)
        actions: list[Callable[[Model], bool]] = [
            lambda model: model.prefill(lane, count, flag),
            lambda model: model.play(group, commits=True),
            lambda model: model.play([lane], commits=True),
            lambda model: model.play([lane], commits=False),
            lambda model: model.play(group, commits=False),
            lambda model: model.commit(*(model.played[-place:] or [(0, [])])[0]),
            lambda model: model.catch_up(lane),
            lambda model: model.keep(lane, slot),
            lambda model: model.restore(name, lane),
            lambda model: model.release(name),
            lambda model: model.replicate(name, slot, flag),
            lambda model: model.fork(lane, other),
            lambda model: model.drop(name, count),
            lambda model: model.close(lane),
        ]
        return pick.choice(actions)

    def act(self) -> bool:
        """One step, most often one that is not refused, and the commit of its round if it is one."""
        for _ in range(self.random.choice([1, 12, 12])):
            action = self.choice()
            if not action(copy.deepcopy(self)):
                break
        return action(self)

    def shown(self, ring: int) -> list[dict[str, object]]:
        return [show(held, ring) for held in self.lanes]


def show(held: Ledger | None, ring: int) -> dict[str, object]:
    target, draft = np.full((2, CAPACITY), -1), np.full((2, CAPACITY), -1)
    if held is None:
        return {"frontiers": [-1] * 4, "anchors": -1, "tails": -1, "target": target.tolist(), "draft": draft.tolist()}
    for place, token in enumerate(held.tokens):
        target[:, place] = 1000 * token + 10 * place + np.arange(2)
        if held.context - ring <= place < held.context:
            draft[:, place] = 1000 * token + 10 * place + 5 + np.arange(2)
    length = len(held.tokens)
    return {
        "frontiers": [length, length, held.context, length - held.context],
        "anchors": held.anchor,
        "tails": 1000 * held.tokens[-1] + 10 * (length - 1) + 9,
        "target": target.tolist(),
        "draft": draft.tolist(),
    }


@pytest.mark.parametrize("ring", [0, 3, 5])
def test_a_lane_shows_its_own_ledger_whatever_is_done_to_any_of_them(ring: int) -> None:
    for seed in range(WALKS):
        model = Model(Script(ring, LANES, SLOTS, (2, 2), CAPACITY, width=5, rows=LANES), Random(seed))
        model.script.plan(None)
        expected = []
        for _ in range(STEPS):
            refused = int(model.act())
            expected.append((len(model.script.steps) - 1, refused, model.shown(ring or CAPACITY)))
        got = operations.run("state.script", model.script.inputs(), PROFILE)
        for step, refusal, lanes in expected:
            assert got["refusals"][step] == refusal, (seed, model.script.steps[: step + 1])
            for lane, shown in enumerate(lanes):
                found = {name: got[name][step, lane].tolist() for name in shown}
                assert found == shown, (seed, lane, model.script.steps[: step + 1])


def test_a_step_that_is_none_is_told_apart_from_a_refusal() -> None:
    script = Script()
    script.plan(None)
    script.step(12, 0)
    with pytest.raises(RequestError, match=r"step \[12, 0, 0, 0, 0\], expected a code from 1 to 11"):
        operations.run("state.script", script.inputs(), PROFILE)
    script.steps[-1] = (1, 0, 0, 4, -1)
    with pytest.raises(RequestError, match="given tokens"):
        operations.run("state.script", script.inputs(), PROFILE)


@given(rows=st.tuples(*[st.integers(3, 5)] * 3), uncommitted=st.integers(0, 2), tail=st.integers(0, 1))
def test_only_a_state_whose_parts_agree_is_kept(rows: tuple[int, int, int], uncommitted: int, tail: int) -> None:
    if len(set(rows)) == 1 and not uncommitted and tail:
        assert state.checkpoint(*rows, uncommitted, tail, 0, PROFILE)[:2] == (rows[0], rows[2])
        return
    with pytest.raises(StateError):
        state.checkpoint(*rows, uncommitted, tail, 0, PROFILE)


@given(prompt=st.lists(st.integers(0, 2), min_size=1, max_size=6), cut=st.integers(0, 6), change=st.integers(0, 9))
def test_after_a_restore_the_rest_of_the_prompt_is_fed_and_another_text_is_refused(
    prompt: list[int], cut: int, change: int
) -> None:
    identity = prompt[:cut]
    rest = state.restore(np.array(prompt), np.array(identity, dtype=int), len(identity), len(identity), PROFILE)
    assert [*identity, *rest.ids.tolist()] == prompt
    assert rest.positions.tolist() == list(range(len(identity), len(prompt)))
    if identity:
        identity[change % len(identity)] += 1
        with pytest.raises(StateError, match="an image of tokens"):
            state.restore(np.array(prompt), np.array(identity), len(identity), len(identity), PROFILE)


@pytest.mark.parametrize(("target", "draft"), [(3, 2), (2, 3), (3, 0), (0, 3), (4, 4), (2, 2), (4, 3), (3, 4)])
def test_an_image_that_covers_other_positions_than_its_text_is_refused(target: int, draft: int) -> None:
    prompt = np.array([5, 6, 7, 8])
    with pytest.raises(
        StateError, match=f"an image of 3 positions with {target} of the target and {draft} of the draft"
    ):
        state.restore(prompt, prompt[:3], target, draft, PROFILE)


def test_a_state_is_not_kept_while_it_is_being_forked() -> None:
    with pytest.raises(StateError, match="1 open forks"):
        state.checkpoint(4, 4, 4, 0, 1, 1, PROFILE)


@given(kind=st.integers(0, 2), places=st.permutations(range(3)), segment=st.integers(0, 99))
def test_a_copy_moves_every_bit_of_its_components_and_no_other(kind: int, places: list[int], segment: int) -> None:
    source, destination, other = places
    rings, recurrent, hidden = parts = [
        np.random.default_rng(7).standard_normal(shape) for shape in ((3, 2, 4, 2), (3, 5), (3, 3))
    ]
    recurrent[source, :2] = -0.0, 5e-324
    done = slots.copy(rings, recurrent, hidden, source, destination, kind, segment, PROFILE)
    moved = 1 if kind == slots.LOCAL_FORK else 3
    for index, (before, after) in enumerate(zip(parts, done, strict=True)):
        assert after[source].tobytes() == before[source].tobytes()
        assert after[other].tobytes() == before[other].tobytes()
        wanted = before[destination] if index >= moved else 0 * before[0] if kind == slots.ZERO else before[source]
        assert np.array_equal(after[destination], wanted)
        if kind == slots.WHOLE:
            assert after[destination].tobytes() == before[source].tobytes()


def test_a_slot_that_is_not_there_is_refused() -> None:
    parts = np.zeros((2, 1, 1, 1)), np.zeros((2, 1)), np.zeros((2, 1))
    for source, destination, kind, segment in ((2, 0, 0, 0), (0, -1, 0, 0), (0, 1, 3, 0), (0, 1, 0, -4)):
        with pytest.raises(StateError, match=f"kind {kind} from slot {source} to {destination}"):
            slots.copy(*parts, source, destination, kind, segment, PROFILE)


@given(ends=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data())
def test_a_chain_leaves_at_each_position_the_row_of_the_last_snapshot_that_covers_it(
    ends: list[int], data: st.DataObject
) -> None:
    reached = 0
    starts: list[int] = []
    for end in ends:
        starts.append(data.draw(st.integers(0, min(end - 1, reached))) if starts else 0)
        reached = max(reached, end)
    owner = {place: index for index, (a, b) in enumerate(zip(starts, ends, strict=True)) for place in range(a, b)}
    rows = [
        [10.0 * index + place] for index, (a, b) in enumerate(zip(starts, ends, strict=True)) for place in range(a, b)
    ]
    thick = np.eye(1, len(ends), dtype=np.int64)[0]
    window = data.draw(st.integers(1, 12))
    done = chain.chain(
        thick, np.array(starts), np.array(ends), np.arange(len(ends)) + 70, np.array(rows), 9, window, LUCE
    )
    assert done.rows[:, 0].tolist() == [10.0 * owner[place] + place for place in range(reached)]
    assert (done.position, done.recurrent) == (reached, ends[0])
    assert done.last_token == (70 if reached == ends[0] else -1)
    first, count = done.resync
    assert (first + count, count) == (reached, min(reached, window))


@pytest.mark.parametrize(
    ("thick", "starts", "ends"),
    [((0, 0), (0, 2), (2, 4)), ((1, 1), (0, 2), (2, 4)), ((0, 1), (0, 2), (2, 4)), ((1, 0), (0, 2), (2, 10)),
     ((1, 0), (0, 2), (2, 2)), ((1, 0), (0, 4), (2, 3)), ((1, 0), (1, 2), (2, 4)), ((), (), ())],
)  # fmt: skip
def test_a_chain_that_is_not_one_thick_snapshot_and_then_thin_ones_within_the_cache_is_refused(
    thick: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    first, start, end = (np.array(values, dtype=np.int64) for values in (thick, starts, ends))
    rows = int(np.maximum(end - start, 0).sum())
    with pytest.raises(StateError, match=r"expected (1 from 0|ranges within 9)"):
        chain.chain(first, start, end, first + 70, np.zeros((rows, 1)), 9, 4, LUCE)


def test_a_chain_with_a_gap_is_refused() -> None:
    with pytest.raises(StateError, match="no row at position 2"):
        chain.chain(
            np.array([1, 0]), np.array([0, 3]), np.array([2, 4]), np.array([7, 8]), np.zeros((3, 1)), 9, 4, LUCE
        )  # fmt: skip
