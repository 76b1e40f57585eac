"""DFlash (version 1) drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import torch
from dflash_spec.config import DraftConfig
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.memory import Context, KvCache, KvPool, positions_of
from dflash_accelerated.models.decoder import Attend, decoder_layer
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, context_kv, head, rope
from dflash_accelerated.ops.acceptance import SparseLaw
from dflash_accelerated.ops.sampling import propose
from dflash_accelerated.protocols import Block, ContextRows, Proposal, SequenceState, Vocabulary
from dflash_accelerated.rounds import Columns, block_columns
from dflash_accelerated.settings import SettingRows


class DraftState(SequenceState, Protocol):
    """A draft's context: `length` rows, of which a layer reads what its window says."""

    def context(self, layer: int, window: int) -> Context:
        """What the rows after the last one may see of one layer; a `window` of 0 is a full layer."""

    def advance(self, rows: int) -> None:
        """Count `rows` rows that every layer has written."""


class DFlashDraft:
    """The model of a `DFlashDraftModel` folder: one masked-block forward proposes all tokens of a round.

    Clauses: CTX-001 to CTX-010, BLK-001 to BLK-003, MASK-001 to MASK-006, DRAFT-001 to DRAFT-014. Source: NInfer
    docs/maintainer/dflash.md; dflash 0.1.0 DFlashDraftModel.
    """

    def __init__(
        self, config: DraftConfig, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device
    ) -> None:
        """`tensors` by published name, any float dtype; they are rounded to the numerics' dtypes and moved."""
        held = {name: numerics.weight(tensor).to(device) for name, tensor in tensors.items()}
        self.device = device
        self.config = config
        self.taps = config.taps
        self._layers = [LayerWeights.take(held, f"layers.{layer}.") for layer in range(config.layers)]
        self._fc, self._hidden_norm = held["fc.weight"], held["hidden_norm.weight"]
        self._norm = held["norm.weight"]
        self._numerics = numerics
        self._pool = KvPool(config.layers, config.kv_heads, config.head_dim, numerics, device)

    def open(self, capacity: int) -> DraftState:
        return self._pool.open(capacity)

    def reserve(self, lanes: int, capacity: int) -> None:
        self._pool.reserve(lanes, capacity)

    def append(self, rows: Sequence[ContextRows]) -> None:
        counts = [len(each.features) for each in rows]
        features = torch.cat([each.features for each in rows])
        c = context_kv.feature(features, self._fc, self._hidden_norm, self.config.eps, self._numerics).c
        states = [cast(DraftState, each.state) for each in rows]  # a state returns to the adapter that opened it
        self._materialize(states, torch.split(c, counts))
        for each, state, own_c in zip(rows, states, torch.split(c, counts), strict=True):
            state.advance(len(each.features))
            if each.record:
                each.record("features", each.features)
                each.record("c", own_c)

    def propose(self, blocks: Sequence[Block], vocabulary: Vocabulary) -> list[Proposal]:
        columns = [self._columns(block) for block in blocks]
        states = [cast(DraftState, block.state) for block in blocks]
        counts = [each.live for each in columns]
        ids = [id_ for each in columns for id_ in each.ids[: each.live]]
        x = vocabulary.embed(torch.tensor(ids, device=self.device))
        turn = self._turn([(state.length, count) for state, count in zip(states, counts, strict=True)])
        for layer in range(self.config.layers):
            x = self._layer(layer, x, turn, states, counts)
            record(blocks, f"layer.{layer}", torch.split(x, counts))
        hidden = [head.final_rows(rows, self._norm, self.config.eps, self._numerics) for rows in torch.split(x, counts)]
        record(blocks, "hidden", hidden)
        return self._choose(blocks, hidden, vocabulary)

    def _columns(self, block: Block) -> Columns:
        return block_columns(block.anchor, self.config.mask_id, block.state.length, block.drafts, block.extent)

    def _materialize(self, states: Sequence[DraftState], c: Sequence[Tensor]) -> None:
        """Write the keys and values of context rows c ACT [N, H], which follow each state's length."""
        caches, counts = [cast(KvCache, state) for state in states], [len(rows) for rows in c]
        joined, eps = torch.cat(list(c)), self.config.eps
        turn = self._turn([(cache.length, count) for cache, count in zip(caches, counts, strict=True)])
        for layer, weights in enumerate(self._layers):
            keys = context_kv.keys(joined, weights.k_proj, weights.k_norm, turn, eps, self._numerics).key
            values = context_kv.values(joined, weights.v_proj, self.config.kv_heads, self._numerics).value
            for cache, key, value in zip(caches, torch.split(keys, counts), torch.split(values, counts), strict=True):
                cache.write(layer, cache.length, key, value)

    def _layer(
        self, layer: int, x: Tensor, turn: rope.Tables, states: Sequence[DraftState], counts: list[int]
    ) -> Tensor:
        """Block rows x ACT [R, H], `counts` of each state, after one layer."""
        weights, eps = self._layers[layer], self.config.eps
        return decoder_layer(x, weights, turn, states, counts, self._reading(layer), eps, self._numerics)

    def _choose(self, blocks: Sequence[Block], hidden: Sequence[Tensor], vocabulary: Vocabulary) -> list[Proposal]:
        """What the blocks' final rows ACT [P, H] propose."""
        logits = torch.split(vocabulary.logits(torch.cat(list(hidden))), [len(rows) for rows in hidden])
        record(blocks, "logits", logits)
        made = [Proposal(vocabulary.choose(rows)) for rows in logits]
        if self._numerics.profile.axes["proposal"] == "sampled":
            for at, proposal in self._draw(blocks, logits, vocabulary.public):
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
        joined = torch.cat([logits[at] for at, _, _ in drawing])
        tokens, q = (torch.split(part, counts) for part in propose(joined, public, rows, coins, self._numerics))
        record([block for _, block, _ in drawing], "q", q)
        return [
            (at, Proposal(own, SparseLaw(None, law))) for (at, _, _), own, law in zip(drawing, tokens, q, strict=True)
        ]

    def _reading(self, layer: int) -> Attend[DraftState]:
        return partial(self._attend, layer)

    def _attend(self, layer: int, state: DraftState, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        window, causal = self.config.windows[layer], self.config.causal[layer]
        positions = torch.arange(state.length, state.length + query.shape[0], device=self.device)
        context = state.context(layer, window)
        visible = block_visibility(context.positions, positions, window, causal)
        own = attention.Rows(key.transpose(0, 1), value.transpose(0, 1))
        return attention.attend(query, [context.rows, own], visible, self._numerics)

    def _turn(self, spans: Sequence[tuple[int, int]]) -> rope.Tables:
        positions = positions_of(spans, self.device)
        return rope.tables(positions, self.config.theta, self.config.head_dim, self._numerics)


def block_visibility(context_positions: Tensor, positions: Tensor, window: int, causal: bool) -> Tensor:
    """What each block row sees of the context rows and then of the block rows: bool [R, C + R].

    Clauses: MASK-001 to MASK-006. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 _attention_mask.
    """
    return attention.visibility(positions, torch.cat((context_positions, positions)), window, causal)


def record(blocks: Sequence[Block], stage: str, rows: Sequence[Tensor]) -> None:
    """Give each block's observer its own part of a stage."""
    for block, own in zip(blocks, rows, strict=True):
        if block.record:
            block.record(stage, own)
