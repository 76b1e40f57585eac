"""What the target's rows decide, for a whole batch at once: how many proposals stand, and the token after them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from torch import Tensor

from dflash_accelerated.coins import Coins
from dflash_accelerated.counts import TokenCounts
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import acceptance, filters, head, penalties
from dflash_accelerated.ops.acceptance import Chains, Verdict
from dflash_accelerated.ops.rows import RowRange, gathered
from dflash_accelerated.protocols import Proposal
from dflash_accelerated.settings import Sampling, SettingRows, is_greedy
from dflash_accelerated.transfers import listed, sent


class Turn(NamedTuple):
    """One request in a round: its settings, what was proposed, its `tokens` on the host too, and the target's logits
    LOGIT [P + 1, V] of that.

    `allowed` bool [P + 1, public] is what each row may say, None for anything; `lane` holds its token counts, where it
    has penalties.
    """

    sampling: Sampling
    proposal: Proposal
    tokens: Sequence[int]
    logits: RowRange
    allowed: Tensor | None = None
    lane: int | None = None


class Decision(NamedTuple):
    """The licensed tokens, the accepted proposals and then the terminal token. A `refused` one is no token at all."""

    licensed: list[int]
    refused: bool

    @property
    def accepted(self) -> int:
        """How many proposals were accepted."""
        return len(self.licensed) - 1


def decide(
    turns: Sequence[Turn], toss: Callable[[], Coins], counts: TokenCounts, public: int, numerics: Numerics
) -> list[Decision]:
    """Each turn's decision; no request's depends on the others. `toss` gives the round's uniforms, if any are needed.

    A row that holds a NaN or a plus infinity, or that may say nothing, accepts no proposal, and where its token is
    needed the decision is refused. Rows after that are not read.

    Clauses: LAW-013, PROC-010, PROC-022. Source: Infernix include/infernix/ops/sampling.h,
    src/ops/kernel/speculative_round.cuh; vllm-project/vllm pull 50183.
    """
    device = turns[0].logits.rows.device
    lengths = [len(turn.tokens) + 1 for turn in turns]
    places = [slice(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]
    rows = SettingRows.of([turn.sampling for turn in turns], lengths, numerics.profile, device)
    logits = gathered([turn.logits for turn in turns])
    mask, penalised = _mask(turns, places, device), _penalties(turns, places, counts, device)
    if mask is None and penalised is None and not rows.some_sampled:
        # Not widened, and read once.
        return licensed([turn.tokens for turn in turns], head.chosen(logits, public, numerics))
    adjusted = penalties.adjust(logits, public, mask, penalised)
    if not rows.some_sampled:
        return licensed([turn.tokens for turn in turns], choose(adjusted, numerics))
    chains = Chains.of([turn.proposal.tokens for turn in turns])
    law = filters.distribution(adjusted.scores, rows, numerics)
    drawn = _read(judge(chains, _laws(turns, public), law, toss(), numerics, adjusted.refused))
    if not rows.some_greedy:
        return drawn
    greedy = licensed([turn.tokens for turn in turns], choose(adjusted, numerics))
    return [
        one if is_greedy(turn.sampling.temperature, numerics.profile) else other
        for turn, one, other in zip(turns, greedy, drawn, strict=True)
    ]


def choose(adjusted: penalties.Adjusted, numerics: Numerics) -> list[int]:
    """The argmaxes of adjusted rows, the lowest id on ties; -1 where a row is refused."""
    best = head.best(adjusted.scores, adjusted.scores.shape[1], numerics)
    usable = (best.score.abs() < torch.inf) & ~adjusted.refused
    return cast("list[int]", best.id.where(usable, -1).tolist())


def licensed(proposals: Iterable[Sequence[int]], tokens: list[int]) -> list[Decision]:
    """Each request's decision at temperature 0, from the tokens of all rows: -1 where none is decided."""
    made, first = [], 0
    for own in proposals:
        end = first + len(own) + 1
        matched = acceptance.matched(own, tokens[first:end])
        made.append(Decision(matched, matched[-1] < 0))
        first = end
    return made


def judge(
    chains: Chains, drawn_from: acceptance.SparseLaw, law: filters.Distribution, coins: Coins, numerics: Numerics,
    refused: Tensor | None = None,
) -> Verdict:  # fmt: skip
    """Sampled verification: the accept tests in order, then a correction or a bonus. No token comes of `refused` rows
    of the law, bool [R]."""
    accept, ends = (sent(torch.from_numpy(part), law.p.device) for part in coins)
    return acceptance.verdict(chains, drawn_from, law, refused, accept, ends, numerics)


def _mask(turns: Sequence[Turn], places: Sequence[slice], device: torch.device) -> penalties.Mask | None:
    masked = [(own, turn.allowed) for own, turn in zip(places, turns, strict=True) if turn.allowed is not None]
    if not masked:
        return None
    rows = [row for own, _ in masked for row in range(own.start, own.stop)]
    return penalties.Mask(listed(rows, torch.int64, device), torch.cat([allowed for _, allowed in masked]))


def _penalties(
    turns: Sequence[Turn], places: Sequence[slice], counts: TokenCounts, device: torch.device
) -> penalties.Penalties | None:
    held = [
        (row, turn.lane, turn.sampling.presence, turn.sampling.frequency)
        for own, turn in zip(places, turns, strict=True) if turn.lane is not None for row in range(own.start, own.stop)
    ]  # fmt: skip
    if not held:
        return None
    rows, lanes, presence, frequency = zip(*held, strict=True)
    at, chains = listed(rows, torch.int64, device), Chains.of([turn.proposal.tokens for turn in turns])
    overlay = penalties.overlay(chains.proposals, chains.owner[at], chains.column[at])
    weights = (listed(part, torch.float32, device) for part in (presence, frequency))
    return penalties.Penalties(at, counts.rows(lanes), overlay, *weights)


def _laws(turns: Sequence[Turn], public: int) -> acceptance.SparseLaw:
    if not any(turn.proposal.law for turn in turns):
        return acceptance.one_hot(torch.cat([turn.proposal.tokens for turn in turns]))
    laws = [turn.proposal.law or acceptance.one_hot(turn.proposal.tokens) for turn in turns if turn.tokens]
    return acceptance.joined(laws, public)


def _read(verdict: Verdict) -> list[Decision]:
    """What was decided, for which the host waits once."""
    table = torch.cat((verdict.accepted[:, None], verdict.licensed), dim=1).tolist()
    return [Decision(tokens[: count + 1], tokens[count] < 0) for count, *tokens in table]
