"""The chain orchestrator: prefill, then rounds of propose, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, pairwise
from typing import cast

import torch
from dflash_spec.errors import StateError
from torch import Tensor

from dflash_accelerated import coins, rounds, seams
from dflash_accelerated.deciding import Decided, Decider
from dflash_accelerated.images import Image, check_settled, kept, left_to_feed
from dflash_accelerated.joint import Contexts, Proposals, Seen, Segments, Steps
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rows import RowRange, gathered
from dflash_accelerated.protocols import Block, Draft, LendingVocabulary, LogitRows, SequenceState, Target
from dflash_accelerated.requests import Request, Round, RoundTrace, Running, StageLog
from dflash_accelerated.settings import is_greedy
from dflash_accelerated.timing import Clock
from dflash_accelerated.transfers import sent


class ChainOrchestrator:
    """Runs requests on one target, and one draft if there is one; without, each round is a plain step.

    A request whose grammar fails, or whose logits decide nothing, ends with an error; the others go on.

    Clauses: COMMIT-001, COMMIT-002, CTX-009, CTX-010, STATE-003, STATE-007, STATE-010, STOP-001 to STOP-004.
    Source: NInfer docs/maintainer/dflash.md; Infernix src/models/qwen3_5/program/decode.cpp; dflash 0.1.0
    dflash_generate.
    """

    def __init__(self, target: Target, draft: Draft | None, numerics: Numerics, lanes: int = 0) -> None:
        """`lanes` is how many requests have token counts without further memory."""
        self._target = target
        self._draft = draft
        self._numerics = numerics
        self._taps = draft.taps if draft else ()
        self._decider = Decider(target.vocabulary.public, target.device, numerics, draft is not None, lanes)

    def start(self, request: Request, image: Image | None = None) -> tuple[Running, Round]:
        clock = Clock()
        running = self.open(request)
        try:
            if image:
                start = left_to_feed(request.prompt, image.tokens, *image.covered)
                self.load(running, image)
            self._prefill(running, start if image else 0)
            clock.lap("prefill")
            return running, self._first(running, clock)
        except BaseException:
            self.close(running)
            raise

    def open(self, request: Request) -> Running:
        """A sequence that has processed nothing. Raises RequestError if no lane is free."""
        target = self._target.open(request.rows)
        try:
            draft = self._draft.open(request.rows) if self._draft else None
        except BaseException:
            target.close()
            raise
        running = Running(request, target, draft, StageLog() if request.observer else None)
        try:
            self._decider.admit(running)
        except BaseException:
            self.close(running)
            raise
        return running

    def _prefill(self, running: Running, start: int) -> None:
        """Process the prompt from position `start` on; then the tail is what the target says after its last token."""
        request = running.request
        prompt = len(request.prompt)
        for begin, end in pairwise([*range(start, prompt, request.prefill_chunk or prompt), prompt]):
            self.catch_up([running])
            wanted: LogitRows = "last" if end == prompt else "none"
            steps = self._forward([running], [*request.prompt[begin:end]], [end - begin], wanted)
            running.pending, running.tail = steps.features, steps.logits

    def _forward(
        self, running: Sequence[Running], ids: list[int], counts: list[int], wanted: LogitRows, choosing: bool = False
    ) -> Steps:
        """Steps of so many ids of each sequence. Raises TensorError where the target gives something else."""
        segments = Segments([each.target for each in running], ids, counts, self._target.device, choosing)
        steps, tapped = self._target.forward(segments, self._taps, wanted), bool(self._taps)
        seams.check_steps(self._target, steps, counts, wanted, tapped)
        return Steps.of(steps, counts, tapped)

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
            self._decider.follow(other, running)
        except BaseException:
            self.close(other)
            raise
        other.frontier, other.anchor, other.said, other.rounds = (
            running.frontier, running.anchor, [*running.said], running.rounds
        )  # fmt: skip
        other.text, other.shown = running.text, running.shown
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
        tokens = proposals.tokens
        clock.lap("propose")
        allowed = self._decider.allowed(running, tokens)
        clock.lap("decide")
        steps = self._verify(running, tokens, choosing=allowed is None)
        clock.lap("verify")
        decided = self._decider.decide(running, proposals, steps, allowed)
        clock.lap("decide")
        made = list(map(self._settle, running, tokens, steps.seen, decided))
        self._decider.count(running, proposals, decided, [len(each.tokens) for each in made])
        clock.lap("commit")
        times = clock.times(len(running))
        for each in made:
            each.times = times
        return made

    def _verify(self, running: Sequence[Running], tokens: Sequence[Sequence[int]], choosing: bool) -> Steps:
        """The verify pass of each sequence's anchor and proposals."""
        columns = [rounds.live_columns(each.anchor, own) for each, own in zip(running, tokens, strict=True)]
        return self._forward(running, list(chain.from_iterable(columns)), list(map(len, columns)), "all", choosing)

    def close(self, running: Running) -> None:
        with ExitStack() as closing:  # in this order backwards, each whatever another raises
            closing.callback(self._decider.dismiss, running)
            if running.draft:
                closing.callback(running.draft.close)
            closing.callback(running.target.close)

    def _propose(self, running: Sequence[Running]) -> Proposals:
        """The P proposals of each sequence that are verified; where P = 0, it has no draft forward."""
        extents = [self._extent(each) for each in running] if self._draft else []
        proposing = [at for at, extent in enumerate(extents) if extent]
        if self._draft is None or not proposing:
            return Proposals.certain([[]] * len(running), self._target.device)
        served = [running[at] for at in proposing]
        self.catch_up(served)
        blocks = [
            Block(_draft_state(each), each.anchor, each.request.drafts, extents[at], each.record,
                  each.request.sampling, own)
            for at, each, own in zip(proposing, served, self._uniforms(served), strict=True)
        ]  # fmt: skip
        vocabulary = self._target.vocabulary
        given = self._draft.propose(blocks, cast(LendingVocabulary, vocabulary))  # all that it borrows was looked for
        seams.check_proposals(self._draft, given, [extents[at] for at in proposing])
        seams.check_lengths(self._draft, [each.state for each in blocks], [each.frontier for each in served], "propose")
        proposals = Proposals.of(given).first(extents, self._target.device)
        seams.check_tokens(self._draft, proposals.tokens, vocabulary.public)
        return proposals

    def _uniforms(self, running: Sequence[Running]) -> list[Tensor | None]:
        """The coins FP32 [K] of each sequence's proposals; None where it does not sample."""
        made: list[Tensor | None] = [None] * len(running)
        if all(each.plain for each in running):
            return made
        requests, profile = [each.request for each in running], self._numerics.profile
        drawing = [at for at, own in enumerate(requests) if not is_greedy(own.sampling.temperature, profile)]
        if drawing:
            most = max(requests[at].drafts for at in drawing)
            keys = rounds.proposal_keys([running[at].frontier for at in drawing], most)
            drawn = torch.from_numpy(coins.of_keys([requests[at].seed for at in drawing], keys))
            for at, own in zip(drawing, sent(drawn, self._target.device), strict=True):
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
        states, features, observers = [], [], []
        for each in running:
            if each.features is not None:
                states.append(_draft_state(each))
                features.append(each.features)
                observers.append(each.record)
        if not states:
            return
        grown = [state.length + len(own) for state, own in zip(states, features, strict=True)]
        self._draft.append(Contexts(states, features, observers))
        for each in running:
            each.features = None
        seams.check_lengths(self._draft, states, grown, "append")

    def _first(self, running: Running, clock: Clock) -> Round:
        """The token after the prompt."""
        decision = self._decider.first(running)
        clock.lap("decide")
        if isinstance(decision, Exception):
            return Round((), finish_reason="error", error=decision, times=clock.times())
        ending = running.ending(decision.licensed)
        text = running.emit(decision.licensed, len(running.request.prompt), ending)
        clock.lap("commit")
        return Round(tuple(running.said), finish_reason=ending.reason, text=text, times=clock.times())

    def _settle(self, running: Running, proposed: Sequence[int], step: Seen, decided: Decided) -> Round:
        """Keep, commit and roll back one sequence after its verify pass was decided: the round but for its times.

        Where its observer or its pieces raise, that ends it, as an error of the decision does; no neighbour learns.
        """
        try:
            if running.log:
                self._trace(running.log, running, step)
            if isinstance(decided, Exception):
                return _failed(proposed, decided)
            licensed = decided.licensed
            ending = running.ending(licensed)
            committed = commit(running, step, licensed, ending.kept)
            tokens = licensed[: ending.kept]
            text = running.emit(tokens, committed.frontier, ending)
            running.rounds += 1
            return Round(tuple(tokens), tuple(proposed), decided.accepted, ending.reason, None, text)
        except Exception as error:
            return _failed(proposed, error)

    def _trace(self, log: StageLog, running: Running, step: Seen) -> None:
        """Show the round to the request's observer, if it has one."""
        log.record("target.logits", step.logits.taken)
        log.record("target.features", step.features.taken)
        if running.request.observer:
            running.request.observer(RoundTrace(running.rounds, running.frontier, running.anchor, log.take()))


def _failed(proposed: Sequence[int], error: Exception) -> Round:
    """The round that ends a request, in which no token could be decided."""
    return Round((), tuple(proposed), 0, "error", error)


def _draft_state(running: Running) -> SequenceState:
    return cast(SequenceState, running.draft)  # opened wherever there is a draft


def commit(running: Running, step: Seen, licensed: Sequence[int], count: int) -> rounds.Commit:
    """Bring target, pending features and tail of a sequence to the end of a round that keeps `count` tokens.

    Rows that were pending still, because nothing was proposed from them, stay so before the new ones. Without a draft
    nothing is pending.
    """
    frontier, before, said = running.frontier, running.features, rounds.continuation(count)
    done = rounds.commit(running.anchor, licensed, count, frontier)
    running.target.rollback(done.frontier)
    seams.check_length(running.target, done.frontier)
    if running.draft is not None:
        captured = step.captured(rounds.pending(frontier, count).rows)
        running.features = captured if before is None else RowRange.of(gathered((before, captured)))
    if said is not None:
        running.scores = step.after(said)
    return done
