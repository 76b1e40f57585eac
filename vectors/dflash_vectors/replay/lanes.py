"""The reference along the tokens that a trace has committed: once as it is, and a few times with its roundings moved.

A lane is the state that a right engine would have: the target's rows, and the draft's context. Lane 0 is the reference;
the others are its perturbed runs, from which bounds of composites come. They are brought up to date only when a
comparison asks for them, many rounds in one pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from dflash_reference import context, target
from dflash_reference.models import Draft, Target
from dflash_reference.names import Position
from dflash_reference.rows import Rows
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import perturb

MULTIPLE = 2 * perturb.MULTIPLE
"""A trace's bounds are this multiple of the largest deviation: a vector's bound was met once, by rows of one pass, and
is twice as near. One layer has few roundings that could make up for each other, and a trace has many rows: sums in
reversed order move one of them by up to 3.5 times the furthest run, and stay within half a bound only so."""


class Pair(NamedTuple):
    """Both models, and the profile whose rules they follow."""

    target: Target
    draft: Draft
    profile: Profile


class Chunk(NamedTuple):
    """Rows [start, stop) that became context together; what the trace has of them, [T, n·H] and [T, H], or None."""

    start: int
    stop: int
    features: Array | None
    c: Array | None


@dataclass
class History:
    """What is committed: `ids` are the tokens at [0, frontier), `chunks` what became context."""

    ids: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def frontier(self) -> Position:
        return Position(len(self.ids))


class Lane:
    """One run of the reference. `features` are what it has captured of the rows that its target holds."""

    def __init__(self, pair: Pair, history: History) -> None:
        self.pair, self.history = pair, history
        self.cache = target.Cache(pair.target.config)
        self.context = context.Context(pair.draft.config)
        self.features = Rows(len(pair.draft.config.taps) * pair.target.config.hidden_size)
        self.spoiled = False  # whether a suspect has put rows in that no right engine would have
        self._ids: list[int] = []
        self._sure = 0  # rows known to be those of committed tokens; later ones were only verified

    def copy(self, history: History) -> Lane:
        """The same state, to be changed apart, over another history."""
        other = Lane(self.pair, history)
        other.cache, other.context, other.features = copy.deepcopy((self.cache, self.context, self.features))
        other._ids, other._sure = list(self._ids), self._sure
        return other

    def reach(self) -> None:
        """Let the target hold the committed tokens, and no others: verified rows that were kept stay."""
        length = self.history.frontier
        self._sure = min(self._sure, length)
        while self._sure < min(len(self._ids), length) and self._ids[self._sure] == self.history.ids[self._sure]:
            self._sure += 1
        self._cut(self._sure)
        if self._sure < length:
            self._extend(np.array(self.history.ids[self._sure :], dtype=np.int64))
            self._sure = length

    def verify(self, ids: Array) -> Array:
        """The residual boundaries [layers + 1, R, H] of ids [R] from the frontier on. The target keeps the rows."""
        if not self.spoiled:
            self.reach()
            self._cut(self._sure)
        return self._extend(ids)

    def catch_up(self) -> None:
        """Let the draft's context hold every chunk, those that it lacks in one pass."""
        lacking = [chunk for chunk in self.history.chunks if chunk.start >= self.context.length]
        if lacking:
            rows = np.concatenate([self.context_rows(chunk) for chunk in lacking])
            self.append(rows, np.arange(lacking[0].start, lacking[-1].stop))

    def context_rows(self, chunk: Chunk) -> Array:
        """The rows c [T, H] of a chunk: recorded, or computed from the features."""
        if chunk.c is not None:
            return chunk.c
        draft = self.pair.draft
        features = self.own_features(chunk) if chunk.features is None else chunk.features
        return context.feature(features, draft.fc, draft.hidden_norm, draft.config.eps, self.pair.profile).c

    def own_features(self, chunk: Chunk) -> Array:
        """What this lane's own target has captured of a chunk's rows, [T, n·H]."""
        if self._sure < chunk.stop:
            self.reach()
        return self.features.view[chunk.start : chunk.stop]

    def append(self, c: Array, positions: Array) -> None:
        """Add context rows c [T, H] at positions [T]."""
        draft, profile = self.pair.draft, self.pair.profile
        for w, keys, values in zip(draft.layers, self.context.keys, self.context.values, strict=True):
            keys.append(context.layer_key(draft, c, w, positions, profile))
            values.append(context.value(c, w.v_proj, draft.config.kv_heads, profile).value)
        self.context.positions.append(positions)

    def _extend(self, ids: Array) -> Array:
        model, draft, profile = self.pair
        residuals = target.extend(model, self.cache, ids, profile)
        self.features.append(target.captured(model, residuals, draft.config.taps, profile))
        self._ids.extend(map(int, ids))
        return residuals

    def _cut(self, length: int) -> None:
        self.cache.cut(length)
        self.features.cut(length)
        del self._ids[length:]


class Value:
    """What a stage reads or gives: one array of the reference, and one of each perturbed run where they are asked for.

    What is recorded, and so the same for all, has no perturbed runs.
    """

    def __init__(self, true: Array, moved: Callable[[int], Array] | None = None) -> None:
        self.true = true
        self._moved = moved
        self._held: dict[int, Array] = {}

    @property
    def given(self) -> bool:
        """Whether it is the same in every run."""
        return self._moved is None

    def of(self, lane: int) -> Array:
        """The array of one lane."""
        if self._moved is None or lane == 0:
            return self.true
        if lane not in self._held:
            self._held[lane] = self._moved(lane)
        return self._held[lane]

    def spread(self, enough: float = np.inf) -> float:
        """The bound of its elements: MULTIPLE times the largest deviation of any of them in any perturbed run.

        Once the bound has come to `enough`, the runs that are left can only raise it, and are left out.
        """
        largest = 0.0
        for lane in range(1, perturb.REPETITIONS + 1) if enough > 0 else ():
            moved = self.of(lane)
            with np.errstate(invalid="ignore"):
                largest = max(largest, float(np.abs(moved - self.true).max(initial=0.0)))
            if MULTIPLE * largest >= enough:
                break
        return MULTIPLE * largest


class Lanes:
    """The reference and its perturbed runs over one history."""

    def __init__(self, pair: Pair, history: History) -> None:
        self.pair, self.history = pair, history
        self._lanes = {0: Lane(pair, history)}

    def lane(self, number: int) -> Lane:
        if number not in self._lanes:
            self._lanes[number] = Lane(self.pair, self.history)
        return self._lanes[number]

    def compute(self, key: str, step: Callable[..., Array], *inputs: Value) -> Value:
        """`step(lane, *inputs)` in every lane; `key` tells this use of the random roundings from every other."""

        def moved(number: int) -> Array:
            given: list[Any] = [value.of(number) for value in inputs]
            with perturb.perturbed(f"{key}/{number}"):
                return step(self.lane(number), *given)

        return Value(step(self.lane(0), *(value.true for value in inputs)), moved)
