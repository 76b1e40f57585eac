"""The three seams of the engine. A new target, draft or round plan is a class that keeps one of these protocols.

Everything that crosses a seam is a batch: a list of per-sequence items, at most one per sequence, whose order the
results follow. An adapter may join the rows of all items in one product, or replay a captured graph for the shape that
it is given; nothing here holds a shape that grows, and no state is shared between sequences except through `open`.
Row counts may differ between items. `dflash_accelerated.joint` has batches whose items are made when they are looked
at: an adapter may read the rows of a whole batch from one, and give one in place of a list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, device

from dflash_accelerated.lanes import Snapshot
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.settings import Sampling

if TYPE_CHECKING:
    from dflash_accelerated.graphs import Profiles
    from dflash_accelerated.images import Image
    from dflash_accelerated.requests import Request, Round, Running

Recorder = Callable[[str, Tensor], None]
"""Receives a stage's name and its tensor. The tensor may be a buffer that the next call overwrites: copy to keep."""


LogitRows = Literal["all", "last", "none"]
"""Of which rows of each segment a target gives logits."""


class SequenceState(Protocol):
    """What an adapter keeps for one sequence. It goes back only to the adapter that opened it."""

    @property
    def length(self) -> int:
        """Processed rows: positions [0, length) are covered."""

    def rollback(self, length: int) -> None:
        """Forget every row from position `length` on; what remains is as if they had never been processed."""

    def close(self) -> None:
        """Give back whatever the sequence holds. It is not used again."""


@runtime_checkable
class KeptState(SequenceState, Protocol):
    """A sequence state that can be kept, forked and restored."""

    def view(self) -> Snapshot:
        """All that positions [0, length) need, without a copy: it is copied before the state goes on."""

    def load(self, held: Snapshot) -> None:
        """Hold what another state of this adapter held, and nothing else. Raises StateError where it does not fit."""


@runtime_checkable
class Reserving(Protocol):
    """A target or draft whose buffers are reserved once."""

    def reserve(self, lanes: int, capacity: int) -> None:
        """From now on have buffers for `lanes` sequences of `capacity` rows, and open no more. An engine asks once."""


@runtime_checkable
class Planning(Protocol):
    """A target or draft that knows beforehand what `reserve` takes."""

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        """Bytes of the buffers of `lanes` sequences of `capacity` rows."""


@runtime_checkable
class Capturing(Protocol):
    """A target or draft whose forwards can be recorded and replayed."""

    def capture(self, profiles: Profiles) -> None:
        """From now on record the forwards of these shapes, in a workspace that is reserved here, after `reserve`."""


@runtime_checkable
class Measured(Protocol):
    """A target or draft that says how many bytes it holds."""

    def held_bytes(self) -> dict[str, int]:
        """Bytes by kind: `weights`, `cache` of sequences and, where it has buffers beside them, `workspace`."""


class Vocabulary(Protocol):
    """The ids of a target: all that a draft which borrows nothing asks for."""

    @property
    def public(self) -> int:
        """Ids [0, public) may be proposed and emitted; later rows of table and head are padding."""


class LendingVocabulary(Vocabulary, Protocol):
    """Both ends of the target, for drafts that borrow them."""

    def embed(self, ids: Tensor) -> Tensor:
        """Embedding rows of ids I64 [R]: ACT [R, H], as a draft reads them."""

    def logits(self, hidden: Tensor) -> Tensor:
        """The proposal head's logits of rows that are already normed, ACT [R, H]: LOGIT [R, V]."""

    def choose(self, logits: Tensor) -> Tensor:
        """The global ids I64 [R] that such logits propose."""

    def top(self, hidden: Tensor, count: int, multiplier: float, softcap: float) -> Candidates:
        """The `count` best proposable ids of each row ACT [R, H], best first, and their scores in FP32.

        A score is multiplied, then limited by `softcap` where that is above 0.
        """


class Segment(NamedTuple):
    """Rows to append to one target sequence: ids I64 [Q] at positions state.length to state.length + Q - 1."""

    state: SequenceState
    ids: Tensor


class TargetStep(NamedTuple):
    """What a target says of one segment: logits LOGIT [Q, V] (or [1, V], or none), features ACT [Q, n·H]."""

    logits: Tensor | None
    features: Tensor


@runtime_checkable
class Target(Protocol):
    """A causal language model with feature capture and rollback."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Its ids; a `LendingVocabulary` where a draft is to borrow embedding or head."""

    @property
    def device(self) -> device:
        """Where ids are expected."""

    def open(self, capacity: int) -> SequenceState:
        """A new sequence that may hold `capacity` rows."""

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> Sequence[TargetStep]:
        """Append each segment's rows and advance its state by all of them.

        A row attends to its sequence's rows at its own position and before. Slice k of `features` is the complete
        residual output of zero-based block taps[k], before any final norm; without taps the features have no columns.
        `logits` says of which rows they are wanted.
        """


class ContextRows(NamedTuple):
    """Features ACT [N, n·H] of committed rows, which follow the draft state's length without a gap."""

    state: SequenceState
    features: Tensor
    record: Recorder | None = None


class Block(NamedTuple):
    """A proposal wanted: the anchor at position F = state.length, K configured drafts, of which P can be verified.

    A draft that samples does so where there are `uniforms` FP32 [K] in [0, 1), one a slot, as `sampling` says.
    """

    state: SequenceState
    anchor: int
    drafts: int
    extent: int
    record: Recorder | None = None
    sampling: Sampling = Sampling()
    uniforms: Tensor | None = None


class Proposal(NamedTuple):
    """Proposed tokens I64 [N] for positions F + 1 to F + N, N at least the block's extent, whose first P are verified.

    `law` of N rows is what they were drawn from, in the very FP32 values that the draws compared; None where each is a
    point mass.
    """

    tokens: Tensor
    law: SparseLaw | None = None

    def first(self, count: int) -> Proposal:
        """The first `count` of them."""
        if count == self.tokens.shape[0]:
            return self
        return Proposal(self.tokens[:count], self.law and self.law.first(count))


@runtime_checkable
class Draft(Protocol):
    """A proposer conditioned on target features."""

    @property
    def taps(self) -> tuple[int, ...]:
        """Zero-based target blocks whose outputs it reads, in the order of its projection's columns."""

    def open(self, capacity: int) -> SequenceState:
        """A new sequence whose context may hold `capacity` rows."""

    def append(self, rows: Sequence[ContextRows]) -> None:
        """Make committed features context and advance each state by its rows."""

    def propose(self, blocks: Sequence[Block], vocabulary: LendingVocabulary) -> Sequence[Proposal]:
        """One forward for all blocks. Leaves every state as it was.

        Of the vocabulary there is what the draft says in `borrows`, and `public`.

        `record` receives the stages of op `draft.block`, in order, and what the proposal rests on.
        """


class Orchestrator(Protocol):
    """The plan of a request: prefill, rounds, ends. It alone moves sequences from one frontier to the next.

    An engine makes two, as `Plan` says: one with its draft, and one without for plain decoding.
    """

    def start(self, request: Request, image: Image | None = None) -> tuple[Running, Round]:
        """Open states, prefill the prompt and emit the first token.

        What an `image` of the prompt's beginning holds is not processed again. Raises StateError if it is another's.
        """

    def round(self, running: Sequence[Running]) -> list[Round]:
        """Advance every sequence by one round, in joint forwards. None of them has ended."""

    def keep(self, running: Running) -> Image:
        """An image of where a sequence stands, ended or not. Raises StateError where it cannot be kept."""

    def fork(self, running: Running, seed: int | None) -> Running:
        """A sequence that goes on from here and shares nothing with this one. Raises StateError as `keep`."""

    def close(self, running: Running) -> None:
        """Release a sequence, ended or not. What it has emitted stands."""


Plan = Callable[[Target, Draft | None, Numerics, int], Orchestrator]
"""An orchestrator of a target, a draft if there is one, numerics, and how many requests run at once at most."""
