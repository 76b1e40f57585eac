"""What a caller asks for and what it gets back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
import torch
from dflash_spec.errors import RequestError
from torch import Tensor

from dflash_accelerated.protocols import Recorder, SequenceState

FinishReason = Literal["stop", "length", "capacity"]

FP32 = np.finfo(np.float32)
PRINTED_BITS = 128


@dataclass(frozen=True)
class RoundTrace:
    """The stage tensors of one round, copies in the engine's dtypes, for comparing implementations round by round.

    `stages`, in order: `features` [N, n·H] that became context since the last round, their rows `c` [N, H], residual
    rows `layer.0`, `layer.1`, … [P + 1, H] after each draft layer, `hidden` [P, H], a DFlash draft's `logits` [P, V],
    and the target's `target.logits` and `target.features`, of every verified row. A DFlash2 draft has, in place of
    logits, `candidates`, their `unary` scores, the walk's `scores` and its law `q`, each [P, C]; in profile ninfer its
    rows are K + 1, whatever P. A round without proposals has only the last two.
    """

    index: int
    frontier: int
    anchor: int
    stages: dict[str, Tensor]


Observer = Callable[[RoundTrace], None]


@dataclass(frozen=True)
class Request:
    """A checked generation request. Stop ids end the answer and are part of it.

    `temperature` is an FP32 value, and 0 is greedy. `capacity` is how many tokens the sequence may process:
    positions [0, capacity). `drafts` is K, the most proposals of a round.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: frozenset[int]
    prefill_chunk: int | None
    capacity: int
    drafts: int
    observer: Observer | None = None

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
    with no proposals and `accepted` None. `finish_reason` is set in the last round.
    """

    tokens: tuple[int, ...]
    proposals: tuple[int, ...] = ()
    accepted: int | None = None
    finish_reason: FinishReason | None = None


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
        """The rounds of one stream, joined."""
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

    `pending` are features of processed rows that are not yet the draft's context.
    """

    request: Request
    target: SequenceState
    draft: SequenceState | None
    log: StageLog | None
    frontier: int = 0
    anchor: int = -1
    emitted: int = 0
    rounds: int = 0
    pending: Tensor | None = None

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted."""
        return self.request.budget - self.emitted

    @property
    def record(self) -> Recorder | None:
        return self.log.record if self.log else None

    def emit(self, tokens: tuple[int, ...], frontier: int) -> None:
        """Move on to `frontier`, where the last of the tokens just emitted stands as the anchor."""
        self.anchor, self.frontier = tokens[-1], frontier
        self.emitted += len(tokens)

    def finish_reason(self) -> FinishReason:
        """Why a sequence ended, when it has."""
        if self.anchor in self.request.stop_ids:
            return "stop"
        return "length" if self.emitted == self.request.max_new_tokens else "capacity"


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """`value`, Python's or NumPy's, as an int if it is an integer in [low, high]. Raises RequestError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r}, expected an integer")
    number = operator.index(value)
    if not low <= number <= high:
        # Python refuses to print integers of more than some thousand digits.
        found = number if number.bit_length() <= PRINTED_BITS else f"an integer of {number.bit_length()} bits"
        raise RequestError(f"{name} is {found}, expected {low} to {high}")
    return number


def check_temperature(value: object) -> float:
    """The FP32 value of a temperature: 0, or a number that is normal in FP32. Raises RequestError.

    Logits are divided by it in FP32: one that is 0 there has no distribution, and devices differ on subnormal numbers.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"temperature is {value!r}, expected a number")
    try:
        given = float(value)
    except OverflowError:
        given = math.inf
    if not math.isfinite(given) or given < 0:
        raise RequestError(f"temperature is {given}, expected a finite number of at least 0")
    with np.errstate(over="ignore", under="ignore"):
        kept = np.float32(given)
    if given and not FP32.smallest_normal <= kept <= FP32.max:
        raise RequestError(
            f"temperature is {given}, expected 0 or {FP32.smallest_normal} to {FP32.max}, normal in FP32"
        )
    return float(kept)


def check_ids(name: str, ids: object, vocabulary: int) -> tuple[int, ...]:
    """`ids` (a sequence of integers, or a one-dimensional integer array or tensor) if all lie in [0, vocabulary).

    Raises RequestError that names the index.
    """
    if isinstance(ids, Tensor):
        if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise RequestError(f"{name} is a tensor of {ids.dtype} {list(ids.shape)}, expected integers [T]")
        ids = ids.tolist()
    elif isinstance(ids, np.ndarray):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError(f"{name} is an array of {ids.dtype} {list(ids.shape)}, expected integers [T]")
        ids = ids.tolist()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise RequestError(f"{name} is {type(ids).__name__}, expected a sequence of token ids")
    return tuple(check_integer(f"{name}[{at}]", id_, 0, vocabulary - 1) for at, id_ in enumerate(ids))
