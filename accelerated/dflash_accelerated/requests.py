"""What a caller asks for and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from dflash_spec.errors import RequestError
from torch import Tensor

from dflash_accelerated.masks import Grammar
from dflash_accelerated.protocols import Recorder, SequenceState
from dflash_accelerated.settings import Sampling

FinishReason = Literal["stop", "length", "capacity", "error"]


@dataclass(frozen=True)
class RoundTrace:
    """The stage tensors of one round, copies in the engine's dtypes, for comparing implementations round by round.

    `stages`, in order: `features` [N, n·H] that became context since the last round, their rows `c` [N, H], residual
    rows `layer.0`, `layer.1`, … [P + 1, H] after each draft layer, `hidden` [P, H], a DFlash draft's `logits` [P, V],
    their law `q` [P, public] where it draws its proposals, and the target's `target.logits` and `target.features`, of
    every verified row. A DFlash2 draft has, in place of logits, `candidates`, their `unary` scores, the walk's `scores`
    and its law `q`, each [P, C]; in profile ninfer its rows are K + 1, whatever P. A round without proposals has only
    the last two.
    """

    index: int
    frontier: int
    anchor: int
    stages: dict[str, Tensor]


Observer = Callable[[RoundTrace], None]


@dataclass(frozen=True)
class Request:
    """A checked generation request. Stop ids end the answer and are part of it.

    `capacity` is how many tokens the sequence may process: positions [0, capacity). `drafts` is K, the most proposals
    of a round. Every token is one of `allowed`, where there are such, and one that the `grammar` lets follow.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    seed: int
    stop_ids: frozenset[int]
    prefill_chunk: int | None
    capacity: int
    drafts: int
    observer: Observer | None = None
    allowed: tuple[int, ...] | None = None
    grammar: Grammar | None = None

    @property
    def budget(self) -> int:
        """How many tokens it may emit, by its own limit and by the room: the last one is not processed."""
        return min(self.max_new_tokens, self.capacity - len(self.prompt) + 1)

    @property
    def rows(self) -> int:
        """Rows that target and draft must hold at most, those of a verify pass included."""
        return len(self.prompt) + self.budget


@dataclass(frozen=True)
class Round:
    """What one round emitted.

    `tokens` are the kept ones; `accepted` of the `proposals` matched. The prefill's round holds the first token alone,
    with no proposals and `accepted` None. `finish_reason` is set in the last round. Where that is `error`, no token of
    the round could be decided, and `error` says why.
    """

    tokens: tuple[int, ...]
    proposals: tuple[int, ...] = ()
    accepted: int | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Generation:
    """A whole answer: `tokens` emitted, and per round the proposals and how many of them were accepted.

    `accepted` counts matching proposals, also in a last round that a stop id or the budget then cut shorter.
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    proposals: tuple[tuple[int, ...], ...]
    finish_reason: FinishReason

    @staticmethod
    def of(rounds: Sequence[Round]) -> Generation:
        """The rounds of one stream, joined. Raises the last one's error, if it has one."""
        if rounds[-1].error:
            raise rounds[-1].error
        reason = rounds[-1].finish_reason
        if reason is None:
            raise RequestError("a stream without its last round, expected one that was read to its end")
        counted = [(each.accepted, each.proposals) for each in rounds if each.accepted is not None]
        return Generation(
            tuple(token for each in rounds for token in each.tokens),
            tuple(accepted for accepted, _ in counted),
            tuple(proposals for _, proposals in counted),
            reason,
        )


class StageLog:
    """Stage tensors on their way into a `RoundTrace`."""

    def __init__(self) -> None:
        self._stages: dict[str, Tensor] = {}

    def record(self, stage: str, tensor: Tensor) -> None:
        """Add rows of a stage; a prompt in several chunks adds to `features` and `c` several times."""
        before = self._stages.get(stage)
        self._stages[stage] = tensor.clone() if before is None else torch.cat((before, tensor))

    def take(self) -> dict[str, Tensor]:
        """What was recorded since the last call."""
        stages, self._stages = self._stages, {}
        return stages


@dataclass
class Running:
    """One request on its way. Positions [0, frontier) are processed; `anchor` stands at `frontier`, unprocessed.

    `pending` are features of processed rows that are not yet the draft's context. `said` are the tokens emitted so far,
    `allowed` bool [public] is the request's own mask, and `lane` holds the token counts of one with penalties.
    """

    request: Request
    target: SequenceState
    draft: SequenceState | None
    log: StageLog | None
    frontier: int = 0
    anchor: int = -1
    said: tuple[int, ...] = ()
    rounds: int = 0
    pending: Tensor | None = None
    allowed: Tensor | None = None
    lane: int | None = None

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted."""
        return self.request.budget - len(self.said)

    @property
    def record(self) -> Recorder | None:
        return self.log.record if self.log else None

    def emit(self, tokens: tuple[int, ...], frontier: int) -> None:
        """Move on to `frontier`, where the last of the tokens just emitted stands as the anchor."""
        self.anchor, self.frontier = tokens[-1], frontier
        self.said += tokens

    def finish_reason(self) -> FinishReason:
        """Why a sequence ended, when it has."""
        if self.anchor in self.request.stop_ids:
            return "stop"
        return "length" if len(self.said) == self.request.max_new_tokens else "capacity"
