"""DFlash (version 1) drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Protocol, cast

import torch
from dflash_spec.config import DraftConfig
from torch import Tensor

from dflash_accelerated.graphs import Graphs, Profiles, Room, Tensors
from dflash_accelerated.joint import Contexts, Proposals, cut
from dflash_accelerated.layers import LayerWeights, Rounded
from dflash_accelerated.memory import KvPool, check_reserved
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, materialize, rope
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.ops.decoder import Ends, decoder
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.rows import RowRange, gathered, joined, parted
from dflash_accelerated.ops.sampling import propose
from dflash_accelerated.protocols import Block, ContextRows, LendingVocabulary, Proposal, SequenceState
from dflash_accelerated.rounds import Columns, block_columns
from dflash_accelerated.settings import SettingRows
from dflash_accelerated.transfers import listed

WIDEST = 16
"""Rows of a block whose config names no width."""


class DraftState(SequenceState, Protocol):
    """A draft's context: `length` rows in a lane."""

    lane: int
    length: int

    def advance(self, rows: int) -> None:
        """Count `rows` rows that every layer has written."""

    def check_room(self, rows: int) -> None:
        """Raise RequestError where so many rows more do not fit."""


class DFlashDraft:
    """The model of a `DFlashDraftModel` folder: one masked-block forward proposes all tokens of a round.

    Clauses: CTX-001 to CTX-010, BLK-001 to BLK-003, MASK-001 to MASK-006, DRAFT-001 to DRAFT-014. Source: NInfer
    docs/maintainer/dflash.md; dflash 0.1.0 DFlashDraftModel.
    """

    convolved = False
    """Whether layers have convolutions."""
    borrows: tuple[str, ...] = ("embed", "logits", "choose")
    """What is called of the target's vocabulary."""

    def __init__(
        self, config: DraftConfig, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
    ) -> None:
        """`tensors` by published name, any float dtype; they are rounded to the numerics' dtypes and moved."""
        held = Rounded(tensors, numerics, device)
        self.device = device
        self.config = config
        self.taps = config.taps
        self._numerics = numerics
        layers = [LayerWeights.take(held, f"layers.{layer}.", self.convolved) for layer in range(config.layers)]
        seats = [attention.Seat(*each) for each in zip(*self._places(), config.windows, config.causal, strict=True)]
        self._decoder = decoder(layers, held["norm.weight"], seats, False, config.eps, numerics)
        places = [f"layers.{layer}.self_attn." for layer in range(config.layers)]
        context = materialize.ContextWeights(
            held.product(["fc.weight"]), held["hidden_norm.weight"],
            held.product([f"{at}{name}_proj.weight" for name in "kv" for at in places]),
            torch.stack([held[f"{at}k_norm.weight"] for at in places]),
        )  # fmt: skip
        self._materializer = materialize.materializer(context, seats, self._staged(numerics), config.eps, numerics)
        self._turns = rope.Turns(config.theta, config.head_dim, numerics, device)
        self._pool = KvPool(self._full_layers, config.kv_heads, config.head_dim, numerics, device, self.widest)
        self._appending: Graphs | None = None
        self._proposing: Graphs | None = None
        self._margin = 0

    @property
    def widest(self) -> int:
        """Rows of the widest block that needs no further memory."""
        return self.config.block_size or WIDEST

    @property
    def _full_layers(self) -> int:
        """How many layers keep every row."""
        return self.config.layers

    @property
    def _stores(self) -> list[attention.Store]:
        """Where contexts are."""
        return [self._pool.store]

    def _staged(self, numerics: Numerics) -> bool:
        """Whether raw and normed context keys are rounded before they turn."""
        return True

    def _places(self) -> tuple[Sequence[int], Sequence[int]]:
        """Of each layer the store, and its place there."""
        return [0] * self.config.layers, range(self.config.layers)

    def open(self, capacity: int) -> DraftState:
        return self._pool.open(capacity)

    def reserve(self, lanes: int, capacity: int) -> None:
        self._pool.reserve(lanes, capacity)
        self._turns.reserve(capacity + self.widest)
        self._appending = self._proposing = None
        self._margin = 0

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        """Bytes of the buffers of `lanes` sequences of `capacity` rows."""
        return self._pool.planned_bytes(lanes, capacity) + self._turns.planned_bytes(capacity + self.widest)

    def capture(self, profiles: Profiles) -> None:
        """From now on record appends and blocks of these shapes. Raises StateError before `reserve`."""
        check_reserved(self._pool)
        self._margin = profiles.width  # an append's rows that are not live have positions too
        self._turns.reserve(self._pool.capacity + max(self.widest, profiles.width) + self._margin)
        features = Room(profiles.rows * len(self.taps) * self.config.hidden_size, self._numerics.act)
        self._appending = Graphs(profiles, (profiles.width,), self.device, [features], [])
        self._proposing = Graphs(profiles, (profiles.width,), self.device, *self._rooms(profiles))

    def _rooms(self, profiles: Profiles) -> tuple[list[Room], list[Room]]:
        """What a block's forward takes and gives, in the widest profile."""
        hidden = profiles.rows * self.config.hidden_size
        return [Room(profiles.rows, torch.int64)], [Room(hidden, self._numerics.act)]

    def held_bytes(self) -> dict[str, int]:
        """Bytes of weights and of buffers, as they were reserved."""
        weights = sum(layer.held_bytes for layer in self._decoder.layers)
        weights += self._materializer.weights.held_bytes
        graphs = [each.held_bytes for each in (self._appending, self._proposing) if each]
        cache = self._pool.held_bytes + self._turns.held_bytes
        return {"weights": weights, "cache": cache, "workspace": sum(graphs)}

    def products(self) -> list[tuple[Product, str]]:
        """Every matrix product of a round, but for the head, and which rows go through it."""
        made = [(product, "block") for layer in self._decoder.layers for product in layer.products]
        return [*made, *((product, "context") for product in self._materializer.weights.products)]

    def working_bytes(self, rows: int, chunk: int) -> int:
        """Bytes that blocks of `rows` rows, and contexts of as many or of `chunk` rows, hold between their ops."""
        return self._decoder.working_bytes(rows) + self._materializer.working_bytes(max(rows, chunk))

    def append(self, rows: Sequence[ContextRows]) -> None:
        given = Contexts.of(rows)
        states, counts = cast("Sequence[DraftState]", given.states), list(map(len, given.features))
        for state, count in zip(states, counts, strict=True):
            state.check_room(count)
        spans, graphs = self._spans(states, counts), self._appending
        if any(given.observers):
            c = self._materializer(gathered(given.features), self._stores, self._turns, spans)
            self._observe(given, counts, c)
        elif graphs and graphs.holds(counts):
            taken = [each.taken for each in given.features]
            graphs.run("append", spans, [graphs.width] * len(counts), [taken], self._appended)
        else:
            self._append(spans, given.features)
        for state, count in zip(states, counts, strict=True):
            state.advance(count)

    def _observe(self, given: Contexts, counts: Sequence[int], c: Tensor) -> None:
        """Show each observer its request's features, and what they have become."""
        for each, own in zip(given, parted(c, counts), strict=True):
            if each.record:
                each.record("features", each.features)
                each.record("c", own)

    def _append(self, spans: attention.Spans, features: Sequence[RowRange]) -> None:
        """The device part: store what the layers read of features ACT [N, n·H]."""
        self._materializer.take(features, self._stores, self._turns, spans)

    def _appended(self, spans: attention.Spans, features: Tensor) -> Tensors:
        self._append(spans, [RowRange.of(features)])
        return ()

    def propose(self, blocks: Sequence[Block], vocabulary: LendingVocabulary) -> Sequence[Proposal]:
        columns = [self._columns(block) for block in blocks]
        states = [cast(DraftState, block.state) for block in blocks]
        counts = [each.live for each in columns]
        ids = list(chain.from_iterable(each.ids[: each.live] for each in columns))
        spans, graphs = self._spans(states, counts), self._proposing
        recorded = any(block.record for block in blocks)
        ends = None if graphs or recorded else self._ends(blocks, vocabulary)
        if ends:
            best = self._decoder.best(ids, ends, self._stores, self._turns, spans, "proposing")
            return Proposals.certain(cut(best, [count - 1 for count in counts]), self.device)
        inputs = [listed(ids, torch.int64, self.device), *self._controls(blocks, counts)]
        if graphs and graphs.fits(counts) and not recorded:
            found = graphs.run(id(vocabulary), spans, counts, inputs, partial(self._forward, vocabulary, ()))
        else:
            found = self._forward(vocabulary, blocks, spans, *inputs)
        return self._choose(blocks, found, [count - 1 for count in counts], vocabulary)

    def _ends(self, blocks: Sequence[Block], vocabulary: LendingVocabulary) -> Ends | None:
        """Those of a vocabulary from which the best id alone is proposed in each slot."""
        whole: Ends | None = getattr(vocabulary, "proposing_ends", None)
        return None if any(block.uniforms is not None for block in blocks) else whole

    def _forward(
        self,
        vocabulary: LendingVocabulary,
        blocks: Sequence[Block],
        spans: attention.Spans,
        ids: Tensor,
        *controls: Tensor,
    ) -> Tensors:
        """The device part of a proposal. `blocks` are those whose observers see its stages."""
        seen = range(self.config.layers) if any(block.record for block in blocks) else ()
        x = vocabulary.embed(ids)
        hidden, outputs = self._decoder(x, self._stores, self._turns, spans, seen, "proposing")
        for layer in seen:
            record(blocks, f"layer.{layer}", outputs.chunk(len(seen), dim=1)[layer], spans.counts)
        counts = [count - 1 for count in spans.counts]
        record(blocks, "hidden", hidden, counts)
        return self._found(hidden, counts, vocabulary, blocks, *controls)

    def _controls(self, blocks: Sequence[Block], counts: Sequence[int]) -> Tensors:
        """What the device part reads of the requests besides ids; `counts` are the blocks' rows."""
        return ()

    def _found(
        self,
        hidden: Tensor,
        counts: Sequence[int],
        vocabulary: LendingVocabulary,
        blocks: Sequence[Block],
        *controls: Tensor,
    ) -> Tensors:
        """What the device part makes of the blocks' final rows ACT [N, H], `counts` of each."""
        return (hidden,)

    def _columns(self, block: Block) -> Columns:
        return block_columns(block.anchor, self.config.mask_id, block.state.length, block.drafts, block.extent)

    def _spans(self, states: Sequence[DraftState], counts: Sequence[int]) -> attention.Spans:
        lengths = [state.length for state in states]
        spans = attention.Spans([state.lane for state in states], lengths, counts, self.device)
        if self._turns.reach(spans.end + self._margin):
            for graphs in filter(None, (self._appending, self._proposing)):
                graphs.clear()
        return spans

    def _choose(
        self, blocks: Sequence[Block], found: Tensors, counts: list[int], vocabulary: LendingVocabulary
    ) -> Sequence[Proposal]:
        """The proposals that the device part found, `counts` of each block."""
        (hidden,) = found
        logits = vocabulary.logits(hidden)
        record(blocks, "logits", logits, counts)
        made = [Proposal(own) for own in parted(vocabulary.choose(logits), counts)]
        if self._numerics.profile.axes["proposal"] == "sampled":
            for at, proposal in self._draw(blocks, torch.split(logits, counts), vocabulary.public):
                made[at] = proposal
        return made

    def _draw(self, blocks: Sequence[Block], logits: Sequence[Tensor], public: int) -> list[tuple[int, Proposal]]:
        """Of the blocks that have uniforms: which it is, and its proposals, drawn with the request's own settings."""
        drawing = [(at, block, block.uniforms) for at, block in enumerate(blocks) if block.uniforms is not None]
        if not drawing:
            return []
        counts = [len(logits[at]) for at, _, _ in drawing]
        rows = SettingRows.of([block.sampling for _, block, _ in drawing], counts, self._numerics.profile, self.device)
        coins = torch.cat([own[:count] for (_, _, own), count in zip(drawing, counts, strict=True)])
        together = joined([logits[at] for at, _, _ in drawing])
        tokens, q = propose(together, public, rows, coins, self._numerics)
        record([block for _, block, _ in drawing], "q", q, counts)
        laws = zip(drawing, torch.split(tokens, counts), torch.split(q, counts), strict=True)
        return [(at, Proposal(own, SparseLaw(None, law))) for (at, _, _), own, law in laws]


def record(blocks: Sequence[Block], stage: str, rows: Tensor, counts: Sequence[int]) -> None:
    """Give each block's observer its own of a stage's rows, of which each block has so many."""
    if any(block.record for block in blocks):
        for block, own in zip(blocks, torch.split(rows, list(counts)), strict=True):
            if block.record:
                block.record(stage, own)
