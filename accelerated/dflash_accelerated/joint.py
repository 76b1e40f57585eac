"""What crosses the seams in joint form: the rows of all requests at once, and each request's own when somebody asks.

To an adapter, and coming from one, these are sequences of the protocols' items. An adapter that knows more of them
takes and gives whole batches, without an op of PyTorch for each request; one that does not sees no difference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from dflash_accelerated.once import once
from dflash_accelerated.ops.rows import RowRange, joined, parted
from dflash_accelerated.protocols import ContextRows, Proposal, Recorder, Segment, SequenceState, TargetStep
from dflash_accelerated.transfers import listed

Item = TypeVar("Item")


class Joint(Sequence[Item]):
    """A sequence whose items are made when somebody looks at one."""

    @abstractmethod
    def _made(self) -> Sequence[Item]:
        """The items."""

    @once
    def _items(self) -> Sequence[Item]:
        return self._made()

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)


class Segments(Joint[Segment]):
    """Segments of `states`, which have `counts` rows each."""

    def __init__(
        self, states: Sequence[SequenceState], ids: list[int] | Tensor, counts: list[int], device: torch.device,
        choosing: bool = False,
    ) -> None:  # fmt: skip
        """`ids` of all rows, on the host or I64 [R]; `choosing` says that somebody will ask for `Steps.chosen`."""
        self.states, self.ids, self.counts = states, ids, counts
        self.choosing = choosing
        self._device = device

    @staticmethod
    def of(given: Sequence[Segment]) -> Segments:
        """The joint form of segments that may have it already."""
        if isinstance(given, Segments):
            return given
        ids = joined([each.ids for each in given])
        return Segments([each.state for each in given], ids, [each.ids.shape[0] for each in given], ids.device)

    @property
    def rows(self) -> Tensor:
        """The ids of all rows: I64 [R]."""
        return self.ids if isinstance(self.ids, Tensor) else listed(self.ids, torch.int64, self._device)

    def __len__(self) -> int:
        return len(self.counts)

    def _made(self) -> list[Segment]:
        return list(map(Segment, self.states, parted(self.rows, self.counts)))


class Seen:
    """A request's own rows of `Steps`, none of which is taken yet."""

    __slots__ = ("_count", "_features", "_first", "_logits")

    def __init__(self, logits: Tensor, features: Tensor, first: int, count: int) -> None:
        """Of the rows of all requests, the `count` from `first` on."""
        self._logits, self._features, self._first, self._count = logits, features, first, count

    @staticmethod
    def of(step: TargetStep) -> Seen:
        """A step that was taken; it has logits."""
        return Seen(cast(Tensor, step.logits), step.features, 0, step.features.shape[0])

    @property
    def logits(self) -> RowRange:
        return RowRange(self._logits, self._first, self._count)

    @property
    def features(self) -> RowRange:
        return RowRange(self._features, self._first, self._count)

    def after(self, column: int) -> RowRange:
        """What the target says after one of its columns, LOGIT [1, V]."""
        return RowRange(self._logits, self._first + column, 1)

    def captured(self, rows: int) -> RowRange:
        """The features of its first columns, ACT [N, n·H]."""
        return RowRange(self._features, self._first, rows)


class Steps(Joint[TargetStep]):
    """What a target says of segments with `counts` rows each: logits LOGIT [R, V], or [B, V] of each one's last row,
    or none, and features ACT [R, n·H].

    `chosen` is the best of the public ids of each row of logits, -1 where its logit is no finite number; None where the
    target leaves that to others, and once somebody has looked at an item, who may have written into its rows.
    """

    def __init__(
        self, counts: list[int], logits: Tensor | None, features: Tensor, chosen: list[int] | None = None
    ) -> None:
        self.counts, self.logits, self.features, self.chosen = counts, logits, features, chosen

    @staticmethod
    def of(given: Sequence[TargetStep], counts: list[int], tapped: bool) -> Steps:
        """The joint form of steps that may have it already; all of them have logits, or none."""
        if isinstance(given, Steps):
            return given
        logits = [each.logits for each in given if each.logits is not None]
        features = [each.features for each in given] if tapped else [torch.empty(sum(counts), 0)]
        return Steps(counts, joined(logits) if logits else None, joined(features))

    @once
    def seen(self) -> list[Seen]:
        """Each request's own, where there are logits of all rows."""
        if self.logits is None:
            raise TypeError("steps without logits, expected those of all rows")
        logits, features = self.logits, self.features
        firsts = accumulate(self.counts[:-1], initial=0)
        return [Seen(logits, features, first, count) for first, count in zip(firsts, self.counts, strict=True)]

    def __len__(self) -> int:
        return len(self.counts)

    def _made(self) -> list[TargetStep]:
        self.chosen = None
        features = parted(self.features, self.counts)
        if self.logits is None:
            return [TargetStep(None, own) for own in features]
        every = self.logits.shape[0] == self.features.shape[0]
        return list(map(TargetStep, parted(self.logits, self.counts if every else [1] * len(self)), features))


class Contexts(Joint[ContextRows]):
    """Features that become the context of `states`, with the observers that see it."""

    def __init__(
        self, states: Sequence[SequenceState], features: list[RowRange], observers: Sequence[Recorder | None]
    ) -> None:
        self.states, self.features, self.observers = states, features, observers

    @staticmethod
    def of(given: Sequence[ContextRows]) -> Contexts:
        """The joint form of rows that may have it already."""
        if isinstance(given, Contexts):
            return given
        states, features, observers = zip(*given, strict=True)
        return Contexts(states, list(map(RowRange.of, features)), observers)

    def __len__(self) -> int:
        return len(self.features)

    def _made(self) -> list[ContextRows]:
        taken = [each.taken for each in self.features]
        return list(map(ContextRows, self.states, taken, self.observers))


class Proposals(Joint[Proposal]):
    """Proposals whose `tokens` are on the host already."""

    def __init__(self, tokens: list[list[int]], make: Callable[[], Sequence[Proposal]]) -> None:
        """`make` gives the proposals, with their laws where they have one."""
        self.tokens, self._make = tokens, make

    def __len__(self) -> int:
        return len(self.tokens)

    def _made(self) -> Sequence[Proposal]:
        return self._make()

    def first(self, extents: list[int], device: torch.device) -> Proposals:
        """The first P of each request; those of P = 0 have no proposals here, and get none."""
        if list(map(len, self.tokens)) == extents:
            return self

        def proposals() -> list[Proposal]:
            own, nothing = iter(self), Proposal(torch.empty(0, dtype=torch.int64, device=device))
            return [next(own).first(extent) if extent else nothing for extent in extents]

        tokens = iter(self.tokens)
        return Proposals([next(tokens)[:extent] if extent else [] for extent in extents], proposals)

    @staticmethod
    def certain(tokens: list[list[int]], device: torch.device) -> Proposals:
        """Proposals that each are a point mass."""
        return Proposals(tokens, lambda: [Proposal(listed(own, torch.int64, device)) for own in tokens])

    @staticmethod
    def of(given: Sequence[Proposal]) -> Proposals:
        """The joint form of proposals that may have it already; for tokens that do not, the host waits once."""
        if isinstance(given, Proposals):
            return given
        counts = [each.tokens.shape[0] for each in given]
        ids = torch.cat([each.tokens for each in given]).tolist() if any(counts) else []
        return Proposals(cut(ids, counts), lambda: given)


def cut(ids: list[int], counts: Sequence[int]) -> list[list[int]]:
    """The ids of each request, `counts` of each."""
    return [ids[end - count : end] for end, count in zip(accumulate(counts), counts, strict=True)]
