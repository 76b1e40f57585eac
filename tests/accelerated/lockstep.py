"""A state machine that plays random scripts on the engine and on the reference, in step with a stateless recomputation.

After every step each open request must show, in both, what models show that read the committed tokens from scratch: the
next token, the frontiers, every live row of the target's cache and of the draft's rings, and in every round the draft's
own proposals. The scripts choose how many proposals each row accepts: proposals are planted after the draft made its
own, right up to that count and wrong after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from dflash_accelerated import Checkpoint, Engine
from dflash_accelerated.models.dflash2 import DFlash2Draft
from dflash_accelerated.protocols import Block, LendingVocabulary, Proposal
from dflash_accelerated.requests import Running
from dflash_reference import context, draft, draft2, session
from dflash_reference import engine as reference
from dflash_reference import target as target_model
from dflash_reference.models import Draft, Draft2, Target, draft_of
from dflash_reference.request import Request, Settings
from dflash_reference.target import Cache
from dflash_spec.config import read_draft_config, read_target_config
from dflash_spec.errors import StateError
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array
from dflash_vectors import planted
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

ZLAB = load_profile("zlab")
DRAFTS, RING, PLACES, IMAGES, LONGEST = 5, 14, 3, 4, 97
SIZES: dict[str, Any] = {
    "gaps": ((1, 6, 2, 3), (4, 2, 5, 1)), "drafts": DRAFTS, "target_windows": (0, 0), "draft_windows": (RING,),
    "taps": (0,), "hidden": 32, "code": 24, "heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate": 20, "idle": 3,
    "padding": 4, "rank": 6, "candidates": 8,
}  # fmt: skip
"""As few layers and channels as let a draft follow; every text is longer than the ring."""
STAGES, TERMS = 12, 64
LIMIT = STAGES * TERMS * 2.0**-24
"""A row comes out of at most 12 stages that round to FP32 (embedding, norms, projections, RoPE, residual sums), each a
sum of at most 64 products, whose order is free: each stage moves a row of size 1 by at most 64 roundings of 2^-24."""
ACCEPTS = st.lists(st.integers(0, DRAFTS), min_size=PLACES, max_size=PLACES)
HOLD = st.sampled_from([False, False, False, True])
LENGTHS = (3, 13, 14, 15, 23, 30)
"""Of prompts: around the ring, below and past it."""


class Truth(NamedTuple):
    """What a text shows that is read from scratch: the rows of each part [T, ...] and the logits after it."""

    target: tuple[Array, ...]
    draft: tuple[Array, ...]
    tail: Array

    @property
    def following(self) -> int:
        return int(np.argmax(self.tail))


class Pair:
    """A planted pair as both load it, and what is recomputed of it."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.plan = planted.pair("standard", backend=backend, **SIZES)
        self.folder = folder
        planted.write(folder, self.plan)
        config = read_target_config(folder / "target")
        self.target = Target(config, self.plan.target)
        self.draft: Draft = draft_of(read_draft_config(folder / "draft", ZLAB, config, "published"), self.plan.draft)
        self.walks = [[*prompt, *self.plan.continuation(prompt, LONGEST)] for prompt in self.plan.prompts]
        self.recomputed = cache(self._recomputed)
        self.proposed = cache(self._proposed)

    def engine(self) -> Engine:
        return Engine.from_pretrained(
            self.folder / "target", self.folder / "draft", draft_tokens=DRAFTS, public_tokens=self.plan.public,
            max_batch=PLACES, max_checkpoints=IMAGES, max_context=LONGEST,
        )  # fmt: skip

    def _context(self, text: tuple[int, ...]) -> tuple[Cache, context.Context, Array]:
        """One prefill of the whole text in an empty cache, and its features in an empty context."""
        own, rows, ids = Cache(self.target.config), context.Context(self.draft.config), np.array(text)
        done = target_model.prefill(self.target, own, ids, (len(text),), self.draft.config.taps, ZLAB)
        context.materialise(self.draft, rows, done.features, np.arange(len(text)), ZLAB)
        return own, rows, done.residuals[-1][-1:]

    def _recomputed(self, text: tuple[int, ...]) -> Truth:
        own, rows, last = self._context(text)
        head = self.target.norm, target_model.head(self.target), self.target.config.eps
        logits = target_model.logits(last, *head, ZLAB).logits[0, : self.plan.public]
        return Truth(held(own), held(rows), logits)

    def _proposed(self, text: tuple[int, ...], extent: int) -> tuple[int, ...]:
        """What the draft proposes after a text whose last token is the anchor."""
        _, rows, _ = self._context(text[:-1])
        model, place = (self.target.embedding, target_model.head(self.target)), (text[-1], len(text) - 1)
        given: Any = (self.draft, rows, *model, *place, DRAFTS, extent, self.plan.public)
        greedy: Any = (0.0, np.zeros(DRAFTS), ZLAB) if isinstance(self.draft, Draft2) else (ZLAB,)
        done: Any = (draft2 if isinstance(self.draft, Draft2) else draft).propose(*given, *greedy)
        return tuple(int(token) for token in done.proposals[:extent])

    def planted(self, anchor: int, extent: int, count: int) -> list[int]:
        """Proposals of which the target accepts exactly `count`, or all."""
        tokens = self.plan.continuation([anchor], extent)
        others = [token for walk in self.walks for token in walk[:1]]
        for at in range(count, extent):
            tokens[at] = next(other for other in others if other != tokens[at])
        return tokens


def held(rows: Cache | context.Context) -> tuple[Array, ...]:
    """Keys and values of each layer, [T, KV, D]."""
    return tuple(np.array(part.view) for pair in zip(rows.keys, rows.values, strict=True) for part in pair)


@dataclass
class Lane:
    """A request that was submitted: in the engine by its ticket, in the reference as a session once it has a place."""

    ticket: int
    prompt: tuple[int, ...]
    settings: Settings
    hold: bool
    kept: session.Kept | None = None
    name: Checkpoint | None = None
    opened: session.Session | None = None
    rejected: bool = False
    after_reject: bool = False

    @property
    def own(self) -> session.Session:
        return cast(session.Session, self.opened)  # there is one wherever the lane is open


@dataclass
class Named:
    """An image that both keep. `rejected` tells whether the round before it rejected a proposal."""

    name: Checkpoint
    kept: session.Kept
    rejected: bool


@dataclass
class Planting:
    """How many proposals are accepted, by whatever names a request here, and what the draft itself proposed."""

    pair: Pair
    counts: dict[int, int] = field(default_factory=dict)
    own: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def plant(self, key: int, anchor: int, made: Sequence[int], extent: int) -> list[int]:
        self.own[key] = tuple(int(token) for token in made[:extent])
        return self.pair.planted(anchor, extent, self.counts[key])


class Lockstep(RuleBasedStateMachine):
    """Rules are what a server does; `pair` and `seen` are set by whoever runs it."""

    pair: Pair
    seen: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.pair.engine()
        self.lanes: dict[int, Lane] = {}
        self.waiting: list[Lane] = []
        self.images: list[Named] = []
        self.stale: list[Checkpoint] = []
        self.swapped = False
        self.here, self.there = Planting(self.pair), Planting(self.pair)
        self.patch = pytest.MonkeyPatch()
        self._plant()

    def teardown(self) -> None:
        self.patch.undo()

    def _plant(self) -> None:
        """Plant proposals in both, after the draft made its own."""
        ours, theirs = self.engine.draft.propose, reference.propose

        def propose(blocks: Sequence[Block], vocabulary: LendingVocabulary) -> list[Proposal]:
            return [
                made._replace(
                    tokens=torch.tensor(self.here.plant(id(b.state), b.anchor, made.tokens.tolist(), b.extent))
                )
                for b, made in zip(blocks, ours(blocks, vocabulary), strict=True)
            ]

        def reference_propose(request: Request, *rest: Any) -> reference.Proposal:
            made: Any = theirs(request, *rest)
            tokens = self.there.plant(id(request), request.anchor, made.proposals.tolist(), rest[-1])
            return cast(reference.Proposal, made._replace(proposals=np.array(tokens)))

        self.patch.setattr(self.engine.draft, "propose", propose)
        self.patch.setattr(reference, "propose", reference_propose)

    # What the engine keeps of a request is nobody's business but its own and this test's.
    def running(self, lane: Lane) -> Running:
        batch = self.engine._submitted
        return batch._running.get(lane.ticket) or batch._held[lane.ticket]

    @property
    def going(self) -> list[Lane]:
        """Open lanes whose requests have not ended, in the order of their rows."""
        return [self.lanes[ticket] for ticket in self.engine._submitted._running]

    def _take(self, lane: Lane) -> None:
        self.waiting.append(lane)
        self.seen["step"] += 1

    @precondition(lambda self: len(self.waiting) + len(self.lanes) < PLACES + 1)
    @rule(
        walk=st.integers(0, 1), length=st.sampled_from(LENGTHS), chunk=st.sampled_from([None, 1, 2, 5, 9, 16]),
        count=st.integers(6, 40), stop=st.sampled_from([None, None, 2, 6, 11]), hold=HOLD,
    )  # fmt: skip
    def submit(self, walk: int, length: int, chunk: int | None, count: int, stop: int | None, hold: bool) -> None:
        prompt = self.pair.walks[walk][:length]
        self._ask(prompt, chunk, count, stop, hold, None)

    def _ask(
        self, prompt: list[int], chunk: int | None, count: int, stop: int | None, hold: bool, start: Named | None
    ) -> None:
        stops = () if stop is None else (self.pair.plan.continuation(prompt, stop)[-1],)
        asked = self.engine.request(prompt, count, stop_ids=stops, prefill_chunk=chunk)
        settings = Settings(DRAFTS, min(count, LONGEST - len(prompt) + 1), stops, self.pair.plan.public)
        if start:
            ticket = self.engine.restore(start.name, asked, hold)
            self._take(Lane(ticket, tuple(prompt), settings, hold, start.kept, start.name, after_reject=start.rejected))
        else:
            self._take(Lane(self.engine.submit(asked, hold), tuple(prompt), settings, hold))

    @precondition(lambda self: self.waiting or self.going)
    @rule(accepts=ACCEPTS)
    def play(self, accepts: list[int]) -> None:
        """One step of all rows, each of which accepts what the script says."""
        playing = self.going
        for lane, count in zip(playing, accepts, strict=False):
            self.here.counts[id(self.running(lane).draft)] = self.there.counts[id(lane.own.request)] = count
        states = {lane.ticket: self.running(lane) for lane in playing}
        before = {ticket: (cast(Any, state.draft).length, state.frontier) for ticket, state in states.items()}
        made = self.engine.step()
        for lane in playing:
            context_before, frontier = before[lane.ticket]
            round_, running = made[lane.ticket], states[lane.ticket]
            extent, text = len(round_.proposals), (*lane.prompt, *lane.own.request.tokens)[: frontier + 1]
            ours = lane.own.play()
            assert round_.proposals == tuple(self.pair.planted(text[-1], extent, self.here.counts[id(running.draft)]))
            assert round_.accepted == ours.accepted, f"accepted, of {round_.proposals}"
            assert round_.tokens == tuple(ours.licensed[: ours.kept].tolist())
            assert bool(round_.finish_reason) == lane.own.request.ended
            own = (self.here.own[id(running.draft)], self.there.own[id(lane.own.request)])
            assert own[0] == own[1] == self.pair.proposed(text, extent), "what the draft itself proposes"
            lane.rejected = ours.accepted < extent
            self.seen["partial accept"] += 0 < ours.accepted < extent
            self.seen["row swap"] += self.swapped
            self.seen["ring wrap"] += context_before // RING < lane.own.rows.length // RING
            self._left(lane)
        self.swapped = False
        for lane in [each for each in self.waiting if each.ticket in made]:
            self._join(lane, made[lane.ticket].error)
        self.seen["step"] += 1

    def _join(self, lane: Lane, error: Exception | None) -> None:
        """A request that has found a place, or has ended with its first token."""
        self.waiting.remove(lane)
        if lane.name in self.stale:
            assert isinstance(error, StateError), "a released image was restored"
            return
        lane.opened = session.opened(self.pair.target, self.pair.draft, lane.prompt, lane.settings, ZLAB, lane.kept)
        assert error is None
        self.lanes[lane.ticket] = lane
        self.seen["restore after reject"] += lane.after_reject
        self.seen["ring wrap"] += len(lane.prompt) // RING
        self._left(lane)

    def _left(self, lane: Lane) -> None:
        if lane.own.request.ended and not lane.hold:
            del self.lanes[lane.ticket]

    @precondition(lambda self: len(self.going) > 1)
    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:
        """The rows of the next round, in another order."""
        before = [lane.ticket for lane in self.going]
        order = data.draw(st.permutations(before).filter(lambda order: order != before))
        self.engine.arrange(order)
        self.swapped = True
        self.seen["step"] += 1

    @precondition(lambda self: len(self.going) > 1)
    @rule(data=st.data(), accepts=ACCEPTS)
    def swap_and_play(self, data: st.DataObject, accepts: list[int]) -> None:
        """One step right after two rows have changed places."""
        self.swap(data)
        self.play(accepts)

    @precondition(lambda self: self.lanes and len(self.images) < IMAGES)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        self._keep(self.lanes[data.draw(st.sampled_from(sorted(self.lanes)))])

    def _keep(self, lane: Lane) -> None:
        name = self.engine.checkpoint(lane.ticket)
        lane.own.catch_up()
        kept = lane.own.keep()
        assert name.tokens == tuple(int(token) for token in kept.identity)
        self.images.append(Named(name, kept, lane.rejected))
        self.seen["step"] += 1

    @precondition(lambda self: self.going and len(self.lanes) < PLACES)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        lane = data.draw(st.sampled_from(self.going))
        ticket = self.engine.fork(lane.ticket)
        lane.own.catch_up()
        own = lane.own.fork()
        self.lanes[ticket] = Lane(ticket, lane.prompt, lane.settings, lane.hold, opened=own, rejected=lane.rejected)
        self.seen["step"] += 1

    @precondition(lambda self: self.images and len(self.waiting) + len(self.lanes) < PLACES + 1)
    @rule(
        data=st.data(), more=st.integers(0, 6), other=st.booleans(), chunk=st.sampled_from([None, 1, 3, 8]),
        count=st.integers(6, 30), hold=HOLD,
    )  # fmt: skip
    def restore(self, data: st.DataObject, more: int, other: bool, chunk: int | None, count: int, hold: bool) -> None:
        """A prompt that begins with an image's tokens, and goes on as they would, or elsewhere, or not at all."""
        after_rejects = [image for image in self.images if image.rejected]
        self._restore(data.draw(st.sampled_from(after_rejects or self.images)), more, other, chunk, count, hold)

    def _restore(self, start: Named, more: int, other: bool, chunk: int | None, count: int, hold: bool) -> None:
        tokens = list(start.name.tokens)
        more = max(0, min(more, LONGEST - 5 - len(tokens)))
        rest = self.pair.walks[0][:more] if other else self.pair.plan.continuation(tokens, more)
        self._ask([*tokens, *rest], chunk, count, None, hold, start)

    @precondition(lambda self: any(lane.rejected for lane in self.lanes.values()))
    @rule(data=st.data(), more=st.integers(0, 6), other=st.booleans(), count=st.integers(6, 30))
    def go_back(self, data: st.DataObject, more: int, other: bool, count: int) -> None:
        """Keep a lane whose last round rejected a proposal, drop it, and restore it."""
        if len(self.images) == IMAGES:
            self.evict(data)
        lane = data.draw(st.sampled_from([lane for lane in self.lanes.values() if lane.rejected]))
        self._keep(lane)
        self.engine.cancel(lane.ticket)
        del self.lanes[lane.ticket]
        self._restore(self.images[-1], more, other, None, count, False)
        self.play([0, DRAFTS, 2, 3][:PLACES])

    @precondition(lambda self: self.going)
    @rule(data=st.data(), accepts=ACCEPTS, more=st.integers(0, 6), other=st.booleans(), count=st.integers(6, 30))
    def play_and_go_back(
        self, data: st.DataObject, accepts: list[int], more: int, other: bool, count: int
    ) -> None:  # fmt: skip
        """Let the rows play, and one whose proposals were not all accepted once more from there."""
        self.play([min(accepted, DRAFTS - 1) for accepted in accepts])
        if any(lane.rejected for lane in self.lanes.values()):
            self.go_back(data, more, other, count)

    @precondition(lambda self: self.images and len(self.images) < IMAGES)
    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(self.images))
        name = self.engine.replicate(source.name)
        assert name != source.name
        self.images.append(Named(name, source.kept, source.rejected))
        self.seen["step"] += 1

    @precondition(lambda self: len(self.images) > 1)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        image = data.draw(st.sampled_from(self.images))
        self.images.remove(image)
        self.engine.release(image.name)
        self.stale.append(image.name)
        self.seen["step"] += 1

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def use_stale(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.stale))
        for use in (self.engine.release, self.engine.replicate):
            with pytest.raises(StateError, match=f"generation {name.generation}"):
                use(name)
        with pytest.raises(StateError):
            self.engine.restore(name, self.engine.request(name.tokens, 3))
        self.seen["step"] += 1

    @precondition(lambda self: len(self.lanes) == PLACES)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Drop a request, one that has ended and is held first."""
        ended = [ticket for ticket, lane in self.lanes.items() if lane.own.request.ended]
        ticket = data.draw(st.sampled_from(ended or sorted(self.lanes)))
        self.engine.cancel(ticket)
        del self.lanes[ticket]
        self.seen["step"] += 1

    @invariant()
    def every_lane_shows_what_its_tokens_show(self) -> None:
        for lane in self.lanes.values():
            self._check(lane)
        if isinstance(self.engine.draft, DFlash2Draft):
            assert self.engine.draft.rings.lanes.free == PLACES - len(self.lanes)

    def _check(self, lane: Lane) -> None:
        running, own = self.running(lane), lane.own
        text, frontier = (*lane.prompt, *own.request.tokens), own.request.frontier
        truth = self.pair.recomputed(tuple(int(token) for token in text[:frontier]))
        assert running.said == list(own.request.tokens)
        assert running.anchor == own.request.anchor == text[frontier] == truth.following, "the next token"
        assert running.frontier == running.target.length == own.request.cache.length == frontier
        waiting = 0 if running.pending is None else len(running.pending)
        draft_state: Any = running.draft
        assert draft_state.length + waiting == own.rows.length + len(own.pending.positions) == frontier
        # Chunks of a prompt that were read become context early, in the engine alone.
        assert draft_state.length == own.rows.length or not running.rounds, "the context's frontier"
        self._rows(self._target_rows(running), held(own.request.cache), truth.target, np.arange(frontier))
        for layer, window in enumerate(self.pair.draft.config.windows):
            (key, value), positions = draft_state.context(layer, window)
            at = positions.numpy()
            oldest = max(0, draft_state.length - self.reach)
            assert sorted(at) == list(range(oldest, draft_state.length)), "the positions that live"
            ours = [part.transpose(0, 1).numpy() for part in (key, value)]
            both = slice(2 * layer, 2 * layer + 2)
            self._rows(ours, held(own.rows)[both], truth.draft[both], at)
        tail = cast(torch.Tensor, running.tail)[0, : self.pair.plan.public].numpy()
        assert np.abs(tail - truth.tail).max() <= LIMIT * max(1.0, float(np.abs(truth.tail).max()))

    @property
    def reach(self) -> int:
        """How many rows a draft layer gives: a ring has as many as its window, a cache one fewer."""
        return RING if isinstance(self.pair.draft, Draft2) else RING - 1

    @staticmethod
    def _target_rows(running: Running) -> list[Array]:
        keys, values = cast(Any, running.target).view().parts
        return [part.transpose(0, 1).numpy() for pair in zip(keys, values, strict=True) for part in pair]

    @staticmethod
    def _rows(ours: Sequence[Array], theirs: Sequence[Array], truth: Sequence[Array], at: Array) -> None:
        """Rows at positions `at` of the engine, against those of the reference and those that are recomputed."""
        for own, kept, expected in zip(ours, theirs, truth, strict=True):
            limit = LIMIT * max(1.0, float(np.abs(expected).max(initial=0.0)))
            assert np.abs(own - expected[at]).max(initial=0.0) <= limit, "the engine's rows"
            there = at[at < len(kept)]
            assert np.abs(kept[there] - expected[there]).max(initial=0.0) <= limit, "the reference's rows"
