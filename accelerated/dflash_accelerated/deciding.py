"""How rounds are decided: what each running request brings to a decision, and what comes of it for that request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from dflash_accelerated import coins, masks, refusals, rounds
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.decisions import Decision, Turn, decide, licensed
from dflash_accelerated.joint import Proposals, Steps
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rows import RowRange
from dflash_accelerated.protocols import Proposal
from dflash_accelerated.requests import Running
from dflash_accelerated.settings import is_greedy

Mask = Tensor | Exception | None
"""What columns may say, or what the request's grammar raised instead."""
Decided = Decision | Exception
"""What a request goes on with, or why it cannot: its grammar failed, or its logits decide nothing."""


class Decider:
    """Decides for the requests that run on one target: asks grammars, draws, and counts tokens for penalties.

    Clauses: PROC-017 to PROC-019, RNG-004 to RNG-006. Source: Infernix src/models/qwen3_5/program/decode.cpp,
    src/models/qwen3_5/program/prefill.cpp.
    """

    def __init__(self, public: int, device: torch.device, numerics: Numerics, drafting: bool, lanes: int) -> None:
        """Ids are [0, public). Without `drafting` a round is one draw; `lanes` is how many requests have token counts
        without further memory."""
        self._public, self._device, self._numerics, self._drafting = public, device, numerics, drafting
        self._counts = TokenCounts(public, device, lanes)

    def admit(self, running: Running) -> None:
        """Make ready what decisions need of a request for as long as it runs."""
        request, sampling = running.request, running.request.sampling
        if request.allowed is not None:
            running.allowed = masks.of_ids(request.allowed, self._public, self._device)
        if sampling.penalised:
            running.lane = self._counts.take()
        masked = request.allowed is not None or request.grammar is not None
        greedy = is_greedy(sampling.temperature, self._numerics.profile)
        running.plain = greedy and not masked and not sampling.penalised

    def dismiss(self, running: Running) -> None:
        """Give back what `admit` took."""
        if running.lane is not None:
            self._counts.give(running.lane)
            running.lane = None

    def follow(self, other: Running, running: Running) -> None:
        """Have a request that was admitted go on with the counts of another."""
        if running.lane is not None and other.lane is not None:
            self._counts.copy(running.lane, other.lane)

    def allowed(self, running: Sequence[Running], tokens: Sequence[Sequence[int]]) -> list[Mask] | None:
        """What the columns of each request's verify pass may say; None where all requests are plain."""
        return None if all(each.plain for each in running) else list(map(self._mask, running, tokens))

    def _mask(self, running: Running, tokens: Sequence[int]) -> Mask:
        fixed, grammar = running.allowed, running.request.grammar
        if fixed is None and grammar is None:
            return None
        try:
            return masks.allowed_rows(fixed, grammar, tuple(running.said), tokens, self._public, self._device)
        except Exception as error:
            return error

    def first(self, running: Running) -> Decided:
        """The token after the prompt, which is counted."""
        request = running.request
        toss = partial(coins.of_single_draws, [request.seed], [rounds.prefill_key(len(request.prompt))])
        nothing = Proposals.certain([[]], self._device)
        scores = cast(RowRange, running.scores)  # the prompt's last row has been read
        (decided,) = self._judged([running], nothing, [scores], [self._mask(running, ())], toss)
        self.count([running], nothing, [decided], [1])
        return decided

    def decide(
        self, running: Sequence[Running], proposals: Proposals, steps: Steps, allowed: list[Mask] | None
    ) -> Sequence[Decided]:
        """What each verify pass decides, where its columns may say what `allowed` gave."""
        if allowed is None and steps.chosen is not None:
            decided = licensed(proposals.tokens, steps.chosen)
            if not any(decision.refused for decision in decided):
                return decided
        toss = partial(self._toss, running, proposals.tokens)
        logits = [each.logits for each in steps.seen]
        return self._judged(running, proposals, logits, allowed or [None] * len(running), toss)

    def _toss(self, running: Sequence[Running], tokens: Sequence[Sequence[int]]) -> coins.Coins:
        """The draws of a round; where nothing is ever proposed, one of each request."""
        seeds, frontiers = [each.request.seed for each in running], [each.frontier for each in running]
        if not self._drafting:
            return coins.of_single_draws(seeds, list(map(rounds.decode_key, frontiers)))
        extents = list(map(len, tokens))
        return coins.of_rounds(seeds, frontiers, extents, max(extents))

    def _judged(
        self, running: Sequence[Running], proposals: Proposals, logits: Sequence[RowRange], allowed: Sequence[Mask],
        toss: Callable[[], coins.Coins],
    ) -> list[Decided]:  # fmt: skip
        """What the logits decide, each request's own; an error where that is refused, or where it has no mask."""
        turns = [
            Turn(each.request.sampling, proposed, own, rows, None if isinstance(mask, Exception) else mask, each.lane)
            for each, proposed, own, rows, mask
            in zip(running, proposals, proposals.tokens, logits, allowed, strict=True)
        ]  # fmt: skip
        made: list[Decided] = []
        decided = decide(turns, toss, self._counts, self._public, self._numerics)
        for each, turn, decision, mask in zip(running, turns, decided, allowed, strict=True):
            if isinstance(mask, Exception):
                made.append(mask)
            elif decision.refused:
                made.append(refusals.of(turn, decision, each.target.length - len(turn.logits), self._public))
            else:
                made.append(decision)
        return made

    def count(
        self, running: Sequence[Running], proposals: Sequence[Proposal], decided: Sequence[Decided], kept: Sequence[int]
    ) -> None:
        """Take what a round licensed, of which `kept` tokens were kept, into the counts of requests with penalties."""
        lanes: list[int] = []
        tokens: list[int] = []
        for at, each in enumerate(running):
            if each.lane is not None and isinstance(decision := decided[at], Decision):
                counted = rounds.counted(decision.licensed, kept[at], proposals[at].law is not None)
                lanes += [each.lane] * len(counted)
                tokens += counted
        if lanes:
            self._counts.add(lanes, tokens)
