"""What a caller asks for and what it gets back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from dflash_spec.errors import RequestError
from torch import Tensor

from dflash_accelerated.masks import Grammar
from dflash_accelerated.once import once
from dflash_accelerated.ops.rows import RowRange
from dflash_accelerated.protocols import Recorder, SequenceState
from dflash_accelerated.settings import Sampling
from dflash_accelerated.stops import Ending, FinishReason, scan, settled
from dflash_accelerated.timing import StageTimes


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
Pieces = Callable[[int], bytes]
"""From a token to the bytes that it adds to the text."""


@dataclass(frozen=True)
class Request:
    """A checked generation request. Stop ids end the answer and are part of it.

    `capacity` is how many tokens the sequence may process: positions [0, capacity). `drafts` is K, the most proposals
    of a round. Every token is one of `allowed`, where there are such, and one that the `grammar` lets follow.
    `stop_strings` are looked for in the text that `pieces` give; it shows a stop id's own piece only if `show_stop`.
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
    pieces: Pieces | None = None
    stop_strings: tuple[bytes, ...] = ()
    show_stop: bool = False

    @once
    def room(self) -> int:
        """How many tokens the capacity lets it emit: the last one is not processed."""
        return self.capacity - len(self.prompt) + 1

    @once
    def budget(self) -> int:
        """How many tokens it may emit, by its own limit and by the room."""
        return min(self.max_new_tokens, self.room)

    @property
    def rows(self) -> int:
        """Rows that target and draft must hold at most, those of a verify pass included."""
        return len(self.prompt) + self.budget


@dataclass(slots=True)
class Round:
    """What one round emitted.

    `tokens` are the kept ones; `accepted` of the `proposals` matched. The prefill's round holds the first token alone,
    with no proposals and `accepted` None. `finish_reason` is set in the last round. Where that is `error`, no token of
    the round could be decided, and `error` says why. `text` is what the round adds to the text, where the request has
    pieces; what may yet turn out to be a stop string is held back until that is known. `times` is how long its stages
    took; two rounds that differ in nothing else are equal.
    """

    tokens: tuple[int, ...]
    proposals: tuple[int, ...] = ()
    accepted: int | None = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    text: bytes = b""
    # Filled in last: it is known once all requests that shared the round are settled.
    times: StageTimes = field(default=StageTimes(), compare=False)


@dataclass(frozen=True)
class Generation:
    """A whole answer: `tokens` emitted, their `text`, and per round the proposals and how many of them were accepted.

    `accepted` counts matching proposals, also in a last round that a stop id or the budget then cut shorter. `times`
    has the prefill's round first, then one item for each of `accepted`; two answers that differ in nothing else are
    equal.

        answer = engine.generate(prompt_ids, 100)
        print(Statistics.of(answer))
    """

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]
    proposals: tuple[tuple[int, ...], ...]
    finish_reason: FinishReason
    text: bytes = b""
    times: tuple[StageTimes, ...] = field(default=(), compare=False)

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
            b"".join(each.text for each in rounds),
            tuple(each.times for each in rounds),
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

    `features` of processed rows are not yet the draft's context, and `scores` are the target's logits LOGIT [1, V]
    after the last of these rows. `said` are the tokens emitted so far, `allowed` bool [public] is the request's own
    mask, and `lane` holds the token counts of one with penalties. A `plain` request takes the target's argmax, whatever
    it is. Of the `text`, `shown` bytes are published.
    """

    request: Request
    target: SequenceState
    draft: SequenceState | None
    log: StageLog | None
    frontier: int = 0
    anchor: int = -1
    said: list[int] = field(default_factory=list)
    rounds: int = 0
    features: RowRange | None = None
    allowed: Tensor | None = None
    lane: int | None = None
    scores: RowRange | None = None
    plain: bool = False
    text: bytes = b""
    shown: int = 0

    @property
    def pending(self) -> Tensor | None:
        """The features that wait, ACT [N, n·H]."""
        return None if self.features is None else self.features.taken

    @pending.setter
    def pending(self, rows: Tensor | None) -> None:
        self.features = None if rows is None else RowRange.of(rows)

    @property
    def tail(self) -> Tensor | None:
        """What the target said last, LOGIT [1, V]."""
        return None if self.scores is None else self.scores.taken

    @tail.setter
    def tail(self, row: Tensor | None) -> None:
        self.scores = None if row is None else RowRange.of(row)

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted."""
        return self.request.budget - len(self.said)

    @property
    def record(self) -> Recorder | None:
        return self.log.record if self.log else None

    @property
    def processed(self) -> tuple[int, ...]:
        """The tokens at positions [0, frontier)."""
        return (*self.request.prompt, *self.said)[: self.frontier]

    def ending(self, licensed: Sequence[int]) -> Ending:
        """How a round of these tokens ends. Of more than may still be emitted the first ones count."""
        request, said = self.request, len(self.said)
        if not request.pieces and len(licensed) < request.budget - said and request.stop_ids.isdisjoint(licensed):
            return Ending(len(licensed), None, -1, 0)
        left = (request.max_new_tokens - said, request.room - said)
        tokens = licensed[: min(left)]
        if not request.pieces:
            return scan(tokens, [b""] * len(tokens), b"", (), request.stop_ids, request.show_stop, *left)
        pieces = [request.pieces(token) for token in tokens]
        # No stop string reaches further back.
        reach = max(0, len(self.text) + 1 - max(map(len, request.stop_strings), default=1))
        before = self.text[reach:]
        found = scan(tokens, pieces, before, request.stop_strings, request.stop_ids, request.show_stop, *left)
        return found._replace(text_end=reach + found.text_end)

    def emit(self, tokens: Sequence[int], frontier: int, ending: Ending) -> bytes:
        """Move on to `frontier`, where the last of the tokens just emitted stands as the anchor: what is shown of them.

        A stop string may begin in text before them, which was then held back.
        """
        self.anchor, self.frontier = tokens[-1], frontier
        self.said += tokens
        if not self.request.pieces:
            return b""
        self.text = (self.text + b"".join(map(self.request.pieces, tokens)))[: ending.text_end]
        shown, self.shown = (
            self.shown,
            len(self.text) if ending.reason else settled(self.text, self.request.stop_strings),
        )
        return self.text[shown : self.shown]
