"""Qwen3 dense decoders as targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from dflash_spec.config import TargetConfig
from torch import Tensor

from dflash_accelerated.graphs import Graphs, Profiles, Room, Tensors
from dflash_accelerated.joint import Segments, Steps
from dflash_accelerated.layers import LayerWeights, Rounded
from dflash_accelerated.memory import KvCache, KvPool, check_reserved
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, head, rope
from dflash_accelerated.ops.decoder import Ends, Scored, decoder
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.protocols import LogitRows, Segment


class Qwen3Vocabulary:
    """Embedding table ACT [V, H], and head.

    The proposal head is the head, or some of its rows.
    """

    def __init__(
        self, table: Tensor, head_weight: Tensor, public: int, numerics: Numerics, index: Sequence[int] | None = None
    ) -> None:
        """`index` are the ids of the proposal head's rows, each below `public`; None takes the whole head."""
        self.public = public
        self.table = numerics.activation(table)
        whole = numerics.weight(head_weight)
        self.head = Product([whole], numerics)
        self.index = None if index is None else torch.tensor(index, dtype=torch.int64, device=table.device)
        self.proposing = self.head if self.index is None else Product([whole[self.index]], numerics)
        self.ends = Ends(self.table, self.head, public)
        self.proposing_ends = self.ends if index is None else None
        """Those whose rows of the head are the ids that proposals are chosen from."""
        self._ids = torch.arange(public, device=table.device) if self.index is None else self.index
        self._numerics = numerics

    @property
    def held_bytes(self) -> int:
        indexed = 0 if self.index is None else self.proposing.held_bytes
        return self.table.nbytes + self.head.held_bytes + indexed

    def embed(self, ids: Tensor) -> Tensor:
        return head.embed(ids, self.table)

    def logits(self, hidden: Tensor) -> Tensor:
        return head.logits(hidden, self.proposing, self._numerics)

    def choose(self, logits: Tensor) -> Tensor:
        if self.index is None:
            return head.best(logits, self.public, self._numerics).id
        return head.indexed_argmax(logits, self.index, self._numerics)

    def top(self, hidden: Tensor, count: int, multiplier: float, softcap: float) -> head.Candidates:
        return head.top(hidden, self.proposing, self._ids, multiplier, softcap, count, self._numerics)


class Qwen3Target:
    """The model of a `Qwen3ForCausalLM` folder.

    Clauses: TGT-001 to TGT-006, TAP-001 to TAP-004. Source: transformers 5.24.0 Qwen3ForCausalLM; NInfer
    docs/maintainer/dflash.md.
    """

    def __init__(
        self,
        config: TargetConfig,
        tensors: Mapping[str, Tensor],
        public: int,
        numerics: Numerics,
        device: torch.device,
        index: Sequence[int] | None = None,
    ) -> None:
        """`tensors` by published name, any float dtype; they are rounded to the numerics' dtypes and moved.

        `index` are the ids among which drafts propose; None takes all `public` ones.
        """
        held = Rounded(tensors, numerics, device)
        table = held["model.embed_tokens.weight"]
        self.device = device
        self.config = config
        head_weight = table if config.tied else held["lm_head.weight"]
        self.vocabulary = Qwen3Vocabulary(table, head_weight, public, numerics, index)
        layers = [LayerWeights.take(held, f"model.layers.{layer}.") for layer in range(config.layers)]
        seats = [attention.Seat(0, layer, window, True) for layer, window in enumerate(config.windows)]
        self._decoder = decoder(layers, held["model.norm.weight"], seats, True, config.eps, numerics)
        self._numerics = numerics
        self._turns = rope.Turns(config.theta, config.head_dim, numerics, device)
        self._pool = KvPool(config.layers, config.kv_heads, config.head_dim, numerics, device)
        self._graphs: Graphs | None = None

    @property
    def _stores(self) -> list[attention.Store]:
        return [self._pool.store]

    def open(self, capacity: int) -> KvCache:
        return self._pool.open(capacity)

    def reserve(self, lanes: int, capacity: int) -> None:
        self._pool.reserve(lanes, capacity)
        self._turns.reserve(capacity)
        self._graphs = None

    def planned_bytes(self, lanes: int, capacity: int) -> int:
        """Bytes of the buffers of `lanes` sequences of `capacity` rows."""
        return self._pool.planned_bytes(lanes, capacity) + self._turns.planned_bytes(capacity)

    def capture(self, profiles: Profiles) -> None:
        """From now on record forwards of these shapes that give all logits. Raises StateError before `reserve`."""
        check_reserved(self._pool)
        features = Room(profiles.rows * len(profiles.taps) * self.config.hidden_size, self._numerics.act)
        logits = Room(profiles.rows * self.vocabulary.head.outputs, self._numerics.act)
        takes = [Room(profiles.rows, torch.int64)]
        self._graphs = Graphs(profiles, (1, profiles.width), self.device, takes, [logits, features])

    def held_bytes(self) -> dict[str, int]:
        """Bytes of weights and of buffers, as they were reserved."""
        weights = self.vocabulary.held_bytes + sum(layer.held_bytes for layer in self._decoder.layers)
        workspace = self._graphs.held_bytes if self._graphs else 0
        return {"weights": weights, "cache": self._pool.held_bytes + self._turns.held_bytes, "workspace": workspace}

    def products(self) -> list[tuple[Product, str]]:
        """Every matrix product of a verify pass, and which rows go through it."""
        made = [(product, "verify") for layer in self._decoder.layers for product in layer.products]
        return [*made, (self.vocabulary.head, "head")]

    def working_bytes(self, rows: int, chunk: int) -> int:
        """Bytes that forwards of `rows` rows, or of `chunk` rows of a prompt, hold between their ops."""
        return self._decoder.working_bytes(max(rows, chunk))

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> Steps:
        given = Segments.of(segments)
        caches, counts = cast("Sequence[KvCache]", given.states), given.counts  # a state returns to who opened it
        lanes, lengths = [], []
        for cache, count in zip(caches, counts, strict=True):
            cache.check_room(count)
            lanes.append(cache.lane)
            lengths.append(cache.length)
        spans = attention.Spans(lanes, lengths, counts, self.device)
        if self._turns.reach(spans.end) and self._graphs:
            self._graphs.clear()
        taps = tuple(taps)
        if self._graphs and logits == "all" and self._graphs.fits(counts):
            scores, features = self._graphs.run(taps, spans, counts, [given.rows], partial(self._recorded, taps))
            made = Scored(scores, features)
        else:
            made = self._decoder.scored(
                given.ids, self.vocabulary.ends, self._stores, self._turns, spans, taps, logits, given.choosing
            )
        for cache, count in zip(caches, counts, strict=True):
            cache.advance(count)
        return Steps(counts, *made)

    def _recorded(self, taps: tuple[int, ...], spans: attention.Spans, ids: Tensor) -> Tensors:
        """The device part of a forward."""
        made = self._decoder.scored(ids, self.vocabulary.ends, self._stores, self._turns, spans, taps, "all")
        return cast(Tensor, made.logits), made.features
