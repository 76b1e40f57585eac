"""The chain orchestrator: prefill, then rounds of propose, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import cast

import torch
from dflash_spec.errors import StateError
from torch import Tensor

from dflash_accelerated import coins, masks, refusals, rounds, seams
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.decisions import Decision, Turn, decide
from dflash_accelerated.images import Image, check_settled, left_to_feed
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.protocols import (
    Block,
    ContextRows,
    Draft,
    KeptState,
    LogitRows,
    Proposal,
    Segment,
    SequenceState,
    Target,
    TargetStep,
)
from dflash_accelerated.requests import Outcome, Request, Round, RoundTrace, Running, StageLog
from dflash_accelerated.settings import is_greedy
from dflash_accelerated.timing import Clock


class ChainOrchestrator:
    """Runs requests on one target, and one draft if there is one; without, each round is a plain step.

    A request whose grammar fails, or whose logits decide nothing, ends with an error; the others go on.

    Clauses: COMMIT-001, COMMIT-002, CTX-009, CTX-010, PROC-017 to PROC-019, RNG-004 to RNG-006, STATE-003, STATE-007,
    STATE-010, STOP-001 to STOP-004.
    Source: NInfer docs/maintainer/dflash.md; Infernix src/models/qwen3_5/program/decode.cpp; dflash 0.1.0
    dflash_generate.
    """

    def __init__(self, target: Target, draft: Draft | None, numerics: Numerics, lanes: int = 0) -> None:
        """`lanes` is how many requests have token counts without further memory."""
        self._target = target
        self._draft = draft
        self._numerics = numerics
        self._taps = draft.taps if draft else ()
        self._counts = TokenCounts(target.vocabulary.public, target.device, lanes)
        self._nothing = Proposal(torch.empty(0, dtype=torch.int64, device=target.device))

    def start(self, request: Request, image: Image | None = None) -> tuple[Running, Round]:
        clock = Clock()
        running = self.open(request)
        try:
            if image:
                start = left_to_feed(request.prompt, image.tokens, *image.covered)
                self.load(running, image)
            step = self._prefill(running, start if image else 0)
            clock.lap("prefill")
            return running, self._first(running, step, clock)
        except BaseException:
            self.close(running)
            raise

    def open(self, request: Request) -> Running:
        """A sequence that has processed nothing. Raises RequestError if no lane is free."""
        public, device = self._target.vocabulary.public, self._target.device
        target = self._target.open(request.rows)
        try:
            draft = self._draft.open(request.rows) if self._draft else None
        except BaseException:
            target.close()
            raise
        return Running(
            request,
            target,
            draft,
            StageLog() if request.observer else None,
            allowed=None if request.allowed is None else masks.of_ids(request.allowed, public, device),
            lane=self._counts.take() if request.sampling.penalised else None,
        )

    def _prefill(self, running: Running, start: int) -> TargetStep:
        """Process the prompt from position `start` on: what the target says after its last token."""
        request = running.request
        prompt, device = len(request.prompt), self._target.device
        ids = torch.tensor(request.prompt, device=device)
        step = TargetStep(running.tail, torch.empty(0, device=device))
        for begin, end in pairwise([*range(start, prompt, request.prefill_chunk or prompt), prompt]):
            self.catch_up([running])
            wanted: LogitRows = "last" if end == prompt else "none"
            (step,) = self._forward([Segment(running.target, ids[begin:end])], wanted)
            running.pending = step.features
        running.tail = step.logits
        return step

    def _forward(self, segments: Sequence[Segment], wanted: LogitRows) -> list[TargetStep]:
        """A step for each segment. Raises TensorError where the target gives something else."""
        steps = self._target.forward(segments, self._taps, wanted)
        seams.check_steps(self._target, steps, [each.ids.shape[0] for each in segments], wanted, bool(self._taps))
        return steps

    def keep(self, running: Running) -> Image:
        self.check(running)
        draft = kept(running.draft).view() if running.draft else None
        tail = cast(Tensor, running.tail)  # there is one wherever the rows are settled
        return Image(kept(running.target).view(), draft, tail, running.processed)

    def fork(self, running: Running, seed: int | None = None) -> Running:
        image = self.keep(running)
        request = running.request if seed is None else replace(running.request, seed=seed)
        other = self.open(request)
        try:
            self.load(other, image)
        except BaseException:
            self.close(other)
            raise
        other.frontier, other.anchor, other.said, other.rounds = (
            running.frontier, running.anchor, [*running.said], running.rounds
        )  # fmt: skip
        other.text, other.shown = running.text, running.shown
        if running.lane is not None and other.lane is not None:
            self._counts.give(other.lane)
            other.lane = self._counts.copy(running.lane)
        return other

    def load(self, running: Running, image: Image) -> None:
        """Bring back target, draft and tail together; nothing is pending. Raises StateError where one is missing."""
        if bool(running.draft) != bool(image.draft):
            raise StateError(
                f"an image {'with' if image.draft else 'without'} a draft, expected the sequence's own kind"
            )
        kept(running.target).load(image.target)
        if running.draft and image.draft:
            kept(running.draft).load(image.draft)
        running.tail = image.tail.to(self._target.device, copy=True)

    def check(self, running: Running) -> None:
        """Make context of what is pending. Raises StateError where the sequence can be neither kept nor forked.

        Clauses: STATE-001, STATE-002, STATE-008. Source: Infernix src/models/qwen3_5/program/transactions/capture.cpp.
        """
        self.catch_up([running])
        frontier, rows = running.frontier, running.target.length
        context = running.draft.length if running.draft else frontier
        check_settled(frontier, min(rows, frontier), context, max(0, rows - frontier), running.tail is not None)

    def round(self, running: Sequence[Running]) -> list[Round]:
        clock = Clock()
        proposals = self._propose(running)
        tokens = _listed(proposals)
        seams.check_tokens(self._draft, tokens, self._target.vocabulary.public)
        clock.lap("propose")
        allowed = [self._allowed(*each) for each in zip(running, tokens, strict=True)]
        clock.lap("decide")
        steps = self._forward(self._segments(running, tokens), "all")
        clock.lap("verify")
        decided = self._decide(running, proposals, tokens, steps, allowed)
        clock.lap("decide")
        made = [self._settled(*turn) for turn in zip(running, tokens, steps, decided, strict=True)]
        self._count(
            running,
            [
                () if isinstance(decision, Exception)
                else rounds.counted(decision.licensed, len(outcome.tokens), proposed.law is not None)
                for decision, outcome, proposed in zip(decided, made, proposals, strict=True)
            ],
        )  # fmt: skip
        clock.lap("commit")
        times = clock.times(len(running))
        return [Round(*outcome, times) for outcome in made]

    def _segments(self, running: Sequence[Running], tokens: Sequence[Sequence[int]]) -> list[Segment]:
        """The columns of a verify pass, of which those that live are read."""
        profile, ids, counts = self._numerics.profile, [], []
        for each, own in zip(running, tokens, strict=True):
            columns = rounds.verify_columns(profile, each.anchor, own, each.frontier, each.request.drafts)
            ids += columns.ids[: columns.live]
            counts.append(columns.live)
        parts = torch.tensor(ids, device=self._target.device).split_with_sizes(counts)
        return [Segment(each.target, own) for each, own in zip(running, parts, strict=True)]

    def close(self, running: Running) -> None:
        running.target.close()
        if running.draft:
            running.draft.close()
        if running.lane is not None:
            self._counts.give(running.lane)
            running.lane = None

    def _propose(self, running: Sequence[Running]) -> list[Proposal]:
        """The P proposals of each sequence that are verified; where P = 0, it has no draft forward."""
        made = [self._nothing] * len(running)
        extents = [self._extent(each) for each in running] if self._draft else []
        proposing = [at for at, extent in enumerate(extents) if extent]
        if self._draft is None or not proposing:
            return made
        served = [running[at] for at in proposing]
        self.catch_up(served)
        blocks = [
            Block(_draft_state(each), each.anchor, each.request.drafts, extents[at], each.record,
                  each.request.sampling, own)
            for at, each, own in zip(proposing, served, self._uniforms(served), strict=True)
        ]  # fmt: skip
        proposals = self._draft.propose(blocks, self._target.vocabulary)
        seams.check_proposals(self._draft, proposals, [extents[at] for at in proposing])
        for at, proposal in zip(proposing, proposals, strict=True):
            made[at] = proposal.first(extents[at])
        return made

    def _uniforms(self, running: Sequence[Running]) -> list[Tensor | None]:
        """The coins FP32 [K] of each sequence's proposals; None where it does not sample."""
        made: list[Tensor | None] = [None] * len(running)
        requests, profile = [each.request for each in running], self._numerics.profile
        drawing = [at for at, own in enumerate(requests) if not is_greedy(own.sampling.temperature, profile)]
        if drawing:
            most = max(requests[at].drafts for at in drawing)
            keys = rounds.proposal_keys([running[at].frontier for at in drawing], most)
            drawn = torch.from_numpy(coins.of_keys([requests[at].seed for at in drawing], keys))
            for at, own in zip(drawing, drawn.to(self._target.device), strict=True):
                made[at] = own[: requests[at].drafts]
        return made

    def _extent(self, running: Running) -> int:
        request = running.request
        return rounds.extent(
            self._numerics.profile, request.drafts, running.remaining, request.capacity, running.frontier
        )

    def catch_up(self, running: Sequence[Running]) -> None:
        """Make pending features context, so that it reaches each sequence's processed rows."""
        if self._draft is None:
            return
        waiting = [(each, each.pending) for each in running if each.pending is not None]
        if waiting:
            self._draft.append([ContextRows(_draft_state(each), rows, each.record) for each, rows in waiting])
        for each, _ in waiting:
            each.pending = None

    def _allowed(self, running: Running, tokens: Sequence[int]) -> Tensor | Exception | None:
        """What each column may say, or what the request's grammar raised instead."""
        request, vocabulary = running.request, self._target.vocabulary
        if running.allowed is None and request.grammar is None:
            return None
        try:
            said, device = tuple(running.said), self._target.device
            return masks.allowed_rows(running.allowed, request.grammar, said, tokens, vocabulary.public, device)
        except Exception as error:
            return error

    def _first(self, running: Running, step: TargetStep, clock: Clock) -> Round:
        """The token after the prompt."""
        prompt = len(running.request.prompt)
        toss = partial(coins.of_single_draws, [running.request.seed], [rounds.prefill_key(prompt)])
        allowed = self._allowed(running, ())
        (decision,) = self._judge([running], [self._nothing], [()], [step], [allowed], toss)
        clock.lap("decide")
        if isinstance(decision, Exception):
            return Round((), finish_reason="error", error=decision, times=clock.times())
        ending = running.ending(decision.licensed)
        self._count([running], [decision.licensed])
        text = running.emit(decision.licensed, prompt, ending)
        clock.lap("commit")
        return Round(tuple(running.said), finish_reason=ending.reason, text=text, times=clock.times())

    def _decide(
        self, running: Sequence[Running], proposals: Sequence[Proposal], tokens: Sequence[Sequence[int]],
        steps: Sequence[TargetStep], allowed: Sequence[Tensor | Exception | None],
    ) -> list[Decision | Exception]:  # fmt: skip
        """What each verify pass decides, with the round's own draws; one draw where there is no draft."""
        seeds = [each.request.seed for each in running]
        if self._draft is None:
            toss = partial(coins.of_single_draws, seeds, [rounds.decode_key(each.frontier) for each in running])
        else:
            extents = [len(own) for own in tokens]
            toss = partial(coins.of_rounds, seeds, [each.frontier for each in running], extents, max(extents))
        return self._judge(running, proposals, tokens, steps, allowed, toss)

    def _judge(
        self, running: Sequence[Running], proposals: Sequence[Proposal], tokens: Sequence[Sequence[int]],
        steps: Sequence[TargetStep], allowed: Sequence[Tensor | Exception | None], toss: Callable[[], coins.Coins],
    ) -> list[Decision | Exception]:  # fmt: skip
        turns = [
            Turn(each.request.sampling, proposed, own, _scores(step), None if isinstance(mask, Exception) else mask,
                 each.lane)
            for each, proposed, own, step, mask in zip(running, proposals, tokens, steps, allowed, strict=True)
        ]  # fmt: skip
        public = self._target.vocabulary.public
        decided = decide(turns, toss, self._counts, public, self._numerics)
        made: list[Decision | Exception] = []
        for each, turn, decision, mask in zip(running, turns, decided, allowed, strict=True):
            if isinstance(mask, Exception):
                made.append(mask)
            elif decision.refused:
                made.append(refusals.of(turn, decision, each.target.length - len(turn.logits), public))
            else:
                made.append(decision)
        return made

    def _count(self, running: Sequence[Running], tokens: Sequence[Sequence[int]]) -> None:
        """Take the tokens of each sequence into its counts, where it has penalties."""
        held = [
            (each.lane, token)
            for each, own in zip(running, tokens, strict=True) if each.lane is not None for token in own
        ]  # fmt: skip
        if held:
            lanes, counted = zip(*held, strict=True)
            self._counts.add(lanes, counted)

    def _settled(
        self, running: Running, proposed: Sequence[int], step: TargetStep, decision: Decision | Exception
    ) -> Outcome:
        """The round, or the error that the request's observer or pieces raised: no neighbour learns of it."""
        try:
            return self._settle(running, proposed, step, decision)
        except Exception as error:
            return Outcome((), tuple(proposed), 0, "error", error)

    def _settle(
        self, running: Running, proposed: Sequence[int], step: TargetStep, decision: Decision | Exception
    ) -> Outcome:
        """Keep, commit and roll back one sequence after its verify pass was decided."""
        self._trace(running, step)
        if isinstance(decision, Exception):
            return Outcome((), tuple(proposed), 0, "error", decision)
        licensed = decision.licensed
        ending = running.ending(licensed)
        committed = commit(running, step, licensed, ending.kept)
        tokens = licensed[: ending.kept]
        text = running.emit(tokens, committed.frontier, ending)
        running.rounds += 1
        return Outcome(tuple(tokens), tuple(proposed), decision.accepted, ending.reason, None, text)

    def _trace(self, running: Running, step: TargetStep) -> None:
        """Show the round to the request's observer, if it has one."""
        if running.log and running.request.observer:
            running.log.record("target.logits", _scores(step))
            running.log.record("target.features", step.features)
            running.request.observer(RoundTrace(running.rounds, running.frontier, running.anchor, running.log.take()))


def _listed(proposals: Sequence[Proposal]) -> list[list[int]]:
    """The proposed tokens on the host, for which it waits once."""
    counts = [each.tokens.shape[0] for each in proposals]
    tokens = torch.cat([each.tokens for each in proposals]).tolist() if any(counts) else []
    return [tokens[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]


def _scores(step: TargetStep) -> Tensor:
    return cast(Tensor, step.logits)  # asked for wherever this is called


def _draft_state(running: Running) -> SequenceState:
    return cast(SequenceState, running.draft)  # opened wherever there is a draft


def commit(running: Running, step: TargetStep, licensed: Sequence[int], count: int) -> rounds.Commit:
    """Bring target, pending features and tail of a sequence to the end of a round that keeps `count` tokens.

    Rows that were pending still, because nothing was proposed from them, stay so before the new ones. Without a draft
    nothing is pending.
    """
    frontier, before = running.frontier, running.pending
    done = rounds.commit(running.anchor, licensed, count, frontier)
    running.target.rollback(done.frontier)
    if running.draft is not None:
        captured = rounds.pending(step.features, frontier, count).features
        running.pending = captured if before is None else torch.cat((before, captured))
    running.tail = rounds.continuation(_scores(step), count, running.tail)
    return done


def kept(state: SequenceState) -> KeptState:
    """A state that can be kept. Raises StateError for one of an adapter that does not know how."""
    if not isinstance(state, KeptState):
        raise StateError(f"a {type(state).__name__}, expected a state with view and load, to be kept")
    return state
