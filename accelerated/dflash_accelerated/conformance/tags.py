"""A target and a draft that compute nothing: their rows, in the engine's own buffers, say whose they are.

The row of token t at position p is 1000 t + 10 p + d, where d names the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from dflash_spec.registry import load_profile
from torch import Tensor

from dflash_accelerated.memory import Context, KvCache, KvPool
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import materialize
from dflash_accelerated.ops.attention import Spans
from dflash_accelerated.protocols import (
    Block,
    ContextRows,
    LogitRows,
    Proposal,
    Segment,
    SequenceState,
    TargetStep,
    Vocabulary,
)
from dflash_accelerated.rings import Rings, RingState

DRAFT_DIGIT, TAIL_DIGIT = 5, 9
UNWRITTEN = -7.0
CPU = torch.device("cpu")
WIDE = Numerics.of(load_profile("zlab"))
"""FP32 throughout, in which every tag below 2^24 is exact."""


def tags(tokens: Tensor, start: int, digit: int) -> Tensor:
    """Tags FP32 [T] of tokens I64 [T] at consecutive positions."""
    return (1000 * tokens + 10 * torch.arange(start, start + len(tokens)) + digit).to(torch.float32)


class NoWords:
    """The vocabulary of a target that says nothing."""

    public = 1


class TagTarget:
    """Rows of a layer are tags, features are the tokens, and logits the tags of hidden rows."""

    device = CPU
    vocabulary = NoWords()

    def __init__(self, layers: int, lanes: int, capacity: int) -> None:
        """So many lanes, filled with what is no tag."""
        self._layers = layers
        self._pool = KvPool(layers, 1, 1, WIDE, CPU)
        self._pool.reserve(lanes, capacity + 1)
        opened = [self._pool.open(capacity) for _ in range(lanes)]
        for cache in opened:
            cache.keys.fill_(UNWRITTEN)
            cache.values.fill_(UNWRITTEN)
            cache.close()

    def open(self, capacity: int) -> KvCache:
        return self._pool.open(capacity)

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> list[TargetStep]:
        steps = []
        for state, ids in segments:
            cache = cast(KvCache, state)
            for layer in range(self._layers):
                rows = tags(ids, cache.length, layer)[:, None, None]
                cache.write(layer, cache.length, rows, rows)
            tails = tags(ids, cache.length, TAIL_DIGIT)[:, None]
            cache.advance(len(ids))
            steps.append(TargetStep(tails, ids[:, None]))
        return steps


class TagDraft:
    """Context rows of a layer are tags of the tokens that it gets as features."""

    taps = (0,)

    def __init__(self, layers: int, ring: int, lanes: int, capacity: int) -> None:
        """So many lanes, filled with what is no tag. A `ring` of 0 keeps every row."""
        self._windows = (ring,) * layers
        self._rings = Rings.empty(layers if ring else 0, ring or 1, 1, 1, WIDE, CPU, lanes)
        for held in self._rings.store[:2]:
            held.fill_(UNWRITTEN)
        self._target = None if ring else TagTarget(layers, lanes, capacity)

    def open(self, capacity: int) -> RingState:
        return RingState(self._rings, self._target.open(capacity) if self._target else None, self._windows)

    def append(self, rows: Sequence[ContextRows]) -> None:
        for each in rows:
            state, tokens = cast(RingState, each.state), each.features[:, 0]
            made = [tags(tokens, state.length, DRAFT_DIGIT + layer) for layer in range(len(self._windows))]
            if state.pages:
                for layer, own in enumerate(made):
                    state.pages.write(layer, state.length, own[:, None, None], own[:, None, None])
            else:
                written = torch.stack(made, 1)[:, :, None, None]
                spans = Spans([state.lane], [state.length], [len(tokens)], CPU)
                materialize.write(self._rings.store, spans, written, written)
            state.advance(len(tokens))

    def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
        raise NotImplementedError("tags propose nothing")


def seen(contexts: Sequence[Context], count: int, capacity: int) -> Tensor:
    """The tags I64 [layers, capacity] at the positions below `count`, -1 at the others."""
    found = torch.full((len(contexts), capacity), -1)
    for row, (rows, positions) in zip(found, contexts, strict=True):
        live = positions < count
        row[positions[live]] = rows.key[0, live, 0].to(torch.int64)
    return found


def target_contexts(state: SequenceState, layers: int) -> list[Context]:
    """What the target's layers read."""
    return [cast(KvCache, state).context(layer, 0) for layer in range(layers)]


def draft_contexts(state: SequenceState, layers: int, ring: int) -> list[Context]:
    """What the draft's layers read."""
    return [cast(RingState, state).context(layer, ring) for layer in range(layers)]
