"""The chain orchestrator: prefill, then rounds of propose, verify, accept, commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dflash_accelerated import rounds
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import acceptance, head, random, sampling
from dflash_accelerated.protocols import (
    Block,
    ContextRows,
    Draft,
    LogitRows,
    Proposal,
    Segment,
    SequenceState,
    Target,
    TargetStep,
)
from dflash_accelerated.requests import Request, Round, RoundTrace, Running, StageLog


class ChainOrchestrator:
    """Runs requests on one target, and one draft if there is one; without, each round is a plain step.

    Clauses: COMMIT-001, COMMIT-002, CTX-009, CTX-010, STOP-001 to STOP-004, RNG-004 to RNG-006. Source: NInfer
    docs/maintainer/dflash.md; Infernix src/models/qwen3_5/program/decode.cpp; dflash 0.1.0 dflash_generate.
    """

    def __init__(self, target: Target, draft: Draft | None, numerics: Numerics) -> None:
        self._target = target
        self._draft = draft
        self._numerics = numerics

    def start(self, request: Request) -> tuple[Running, Round]:
        running = Running(
            request,
            self._target.open(request.rows),
            self._draft.open(request.rows) if self._draft else None,
            StageLog() if request.observer else None,
        )
        prompt = len(request.prompt)
        ids = torch.tensor(request.prompt, device=self._target.device)
        for begin, end in pairwise([*range(0, prompt, request.prefill_chunk or prompt), prompt]):
            self._catch_up([running])
            wanted: LogitRows = "last" if end == prompt else "none"
            (step,) = self._target.forward([Segment(running.target, ids[begin:end])], self._taps, wanted)
            running.pending = step.features
        token = self._first_token(request, step)
        kept = rounds.preview([token], request.stop_ids, running.remaining)
        running.emit((token,), prompt)
        return running, Round((token,), finish_reason=running.finish_reason() if kept.terminal else None)

    def round(self, running: Sequence[Running]) -> list[Round]:
        proposals = self._propose(running)
        segments = []
        for each, proposed in zip(running, proposals, strict=True):
            columns = rounds.verify_columns(
                self._numerics.profile, each.anchor, proposed.tokens.tolist(), each.frontier, each.request.drafts
            )
            segments.append(Segment(each.target, torch.tensor(columns.ids[: columns.live], device=self._target.device)))
        steps = self._target.forward(segments, self._taps, "all")
        return [self._settle(*turn) for turn in zip(running, proposals, steps, strict=True)]

    def close(self, running: Running) -> None:
        running.target.close()
        if running.draft:
            running.draft.close()

    @property
    def _taps(self) -> tuple[int, ...]:
        return self._draft.taps if self._draft else ()

    def _propose(self, running: Sequence[Running]) -> list[Proposal]:
        """The P proposals of each sequence that are verified; where P = 0, it has no draft forward."""
        made = [Proposal(torch.empty(0, dtype=torch.int64, device=self._target.device)) for _ in running]
        extents = [self._extent(each) for each in running]
        proposing = [at for at, extent in enumerate(extents) if extent]
        if self._draft is None or not proposing:
            return made
        self._catch_up([running[at] for at in proposing])
        blocks = [self._block(running[at], extents[at]) for at in proposing]
        for at, proposal in zip(proposing, self._draft.propose(blocks, self._target.vocabulary), strict=True):
            made[at] = proposal.first(extents[at])
        return made

    def _block(self, running: Running, extent: int) -> Block:
        request = running.request
        block = Block(_draft_state(running), running.anchor, request.drafts, extent, running.record)
        if request.temperature <= 0:
            return block
        coins = _uniforms(request.seed, rounds.proposal_keys(running.frontier, request.drafts))
        return block._replace(temperature=request.temperature, uniforms=coins.to(self._target.device))

    def _extent(self, running: Running) -> int:
        request = running.request
        drafts = request.drafts if self._draft else 0
        return rounds.extent(self._numerics.profile, drafts, running.remaining, request.capacity, running.frontier)

    def _catch_up(self, running: Sequence[Running]) -> None:
        """Make pending features context, so that it reaches each sequence's processed rows."""
        if self._draft is None:
            return
        waiting = [(each, each.pending) for each in running if each.pending is not None]
        if waiting:
            self._draft.append([ContextRows(_draft_state(each), rows, each.record) for each, rows in waiting])
        for each, _ in waiting:
            each.pending = None

    def _settle(self, running: Running, proposals: Proposal, step: TargetStep) -> Round:
        """Accept, keep, commit and roll back one sequence after its verify pass."""
        frontier, anchor = running.frontier, running.anchor
        verdict = self._accept(running, proposals, step)
        licensed = verdict.licensed[: verdict.accepted + 1].tolist()
        kept = rounds.preview(licensed, running.request.stop_ids, running.remaining)
        committed = rounds.commit(anchor, licensed, kept.kept, frontier)
        running.target.rollback(committed.frontier)
        running.pending = rounds.pending(step.features, frontier, kept.kept).features
        tokens = tuple(licensed[: kept.kept])
        running.emit(tokens, committed.frontier)
        if running.log and running.request.observer:
            running.log.record("target.logits", _scores(step))
            running.log.record("target.features", step.features)
            running.request.observer(RoundTrace(running.rounds, frontier, anchor, running.log.take()))
        running.rounds += 1
        reason = running.finish_reason() if kept.terminal else None
        return Round(tokens, tuple(proposals.tokens.tolist()), verdict.accepted, reason)

    def _accept(self, running: Running, made: Proposal, step: TargetStep) -> acceptance.Verdict:
        proposals, drawn_from = made
        count, frontier, request = len(proposals), running.frontier, running.request
        public = self._target.vocabulary.public
        if request.temperature <= 0:
            return acceptance.greedy(proposals, head.argmax(_scores(step), public))
        law = sampling.distribution(_scores(step), request.temperature, public, self._numerics)
        coins = _uniforms(request.seed, rounds.accept_keys(frontier, count)).to(law.p.device)
        if drawn_from is None:
            accepted = acceptance.accepted_count(proposals, law, coins)
        else:
            accepted = acceptance.sparse_accepted_count(proposals, drawn_from, law, coins, self._numerics)
        key = rounds.terminal_key(frontier, count, accepted) if self._draft else rounds.decode_key(frontier)
        coin = float(_uniforms(request.seed, [key]))
        if drawn_from is None:
            last = acceptance.terminal(proposals, accepted, law, coin, self._numerics)
        else:
            last = acceptance.sparse_terminal(proposals, accepted, drawn_from, law, coin, self._numerics)
        return acceptance.licensed(proposals, accepted, last)

    def _first_token(self, request: Request, step: TargetStep) -> int:
        public = self._target.vocabulary.public
        if request.temperature <= 0:
            return int(head.argmax(_scores(step), public))
        law = sampling.distribution(_scores(step), request.temperature, public, self._numerics)
        coin = _uniforms(request.seed, [rounds.prefill_key(len(request.prompt))])
        return int(sampling.draw(law.support, law.p, coin.to(law.p.device)))


def _scores(step: TargetStep) -> Tensor:
    return cast(Tensor, step.logits)  # asked for wherever this is called


def _draft_state(running: Running) -> SequenceState:
    return cast(SequenceState, running.draft)  # opened wherever there is a draft


def _uniforms(seed: int, keys: Sequence[rounds.DrawKey]) -> Tensor:
    """FP32 [N] for N keys."""
    position, purpose, sub = np.array(keys, dtype=np.int64).reshape(-1, 3).T
    return torch.from_numpy(random.uniforms(random.keys(seed, position, purpose, sub)))
