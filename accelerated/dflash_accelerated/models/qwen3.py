"""Qwen3 dense decoders as targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from dflash_spec.config import TargetConfig
from torch import Tensor

from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.memory import KvCache, KvPool, positions_of
from dflash_accelerated.models.decoder import decoder_layer
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, head, rms_norm, rope
from dflash_accelerated.protocols import LogitRows, Segment, TargetStep


class Qwen3Vocabulary:
    """Embedding table and head: table ACT [V, H], head [V, H] in the compute dtype.

    The proposal head is the head, or some of its rows.
    """

    def __init__(
        self, table: Tensor, head_weight: Tensor, public: int, numerics: Numerics, index: Sequence[int] | None = None
    ) -> None:
        """`index` are the ids of the proposal head's rows, each below `public`; None takes the whole head."""
        self.public = public
        self.table = numerics.activation(table)
        self.head = numerics.weight(head_weight)
        self.index = None if index is None else torch.tensor(index, dtype=torch.int64, device=table.device)
        self._indexed = None if self.index is None else self.head[self.index]
        self._numerics = numerics

    def embed(self, ids: Tensor) -> Tensor:
        return head.embed(ids, self.table)

    def logits(self, hidden: Tensor) -> Tensor:
        return head.logits(hidden, self.head if self._indexed is None else self._indexed, self._numerics)

    def choose(self, logits: Tensor) -> Tensor:
        return head.argmax(logits, self.public) if self.index is None else head.indexed_argmax(logits, self.index)

    def top(self, hidden: Tensor, count: int, multiplier: float, softcap: float) -> head.Candidates:
        ids, rows = self.index, self._indexed
        if ids is None or rows is None:
            ids, rows = torch.arange(self.public, device=self.head.device), self.head[: self.public]
        return head.top(hidden, rows, ids, multiplier, softcap, count)


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
        held = {name: numerics.weight(tensor).to(device) for name, tensor in tensors.items()}
        table = held["model.embed_tokens.weight"]
        self.device = device
        self.config = config
        head_weight = table if config.tied else held["lm_head.weight"]
        self.vocabulary = Qwen3Vocabulary(table, head_weight, public, numerics, index)
        self._layers = [LayerWeights.take(held, f"model.layers.{layer}.") for layer in range(config.layers)]
        self._norm = held["model.norm.weight"]
        self._numerics = numerics
        self._pool = KvPool(config.layers, config.kv_heads, config.head_dim, numerics, device)

    def open(self, capacity: int) -> KvCache:
        return self._pool.open(capacity)

    def reserve(self, lanes: int, capacity: int) -> None:
        self._pool.reserve(lanes, capacity)

    def forward(self, segments: Sequence[Segment], taps: Sequence[int], logits: LogitRows) -> list[TargetStep]:
        caches = [cast(KvCache, segment.state) for segment in segments]  # a state returns to the adapter that opened it
        counts = [len(segment.ids) for segment in segments]
        spans = [(cache.length, count) for cache, count in zip(caches, counts, strict=True)]
        positions = positions_of(spans, self.device)
        turn = rope.tables(positions, self.config.theta, self.config.head_dim, self._numerics)
        x = self.vocabulary.embed(torch.cat([segment.ids for segment in segments]))
        outputs: dict[int, Tensor] = {}
        for layer, weights in enumerate(self._layers):
            attend = partial(self._attend, layer)
            x = decoder_layer(x, weights, turn, caches, counts, attend, self.config.eps, self._numerics)
            if layer in taps:
                outputs[layer] = x
        for cache, count in zip(caches, counts, strict=True):
            cache.advance(count)
        features = torch.split(concat_taps(outputs, taps, x), counts)
        return [
            TargetStep(self._scores(rows, logits), feature)
            for rows, feature in zip(torch.split(x, counts), features, strict=True)
        ]

    def _attend(self, layer: int, cache: KvCache, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        window = self.config.windows[layer]
        end = cache.length + query.shape[0]
        begin = max(0, cache.length - window + 1) if window else 0
        cache.write(layer, cache.length, key, self._numerics.stored_value(value))
        positions = torch.arange(cache.length, end, device=self.device)
        return attend_causally(query, cache.read(layer, begin, end), positions, begin, window, self._numerics)

    def _scores(self, x: Tensor, rows: LogitRows) -> Tensor | None:
        if rows == "none":
            return None
        rows_read = x[-1:] if rows == "last" else x
        return final_logits(rows_read, self._norm, self.vocabulary.head, self.config.eps, self._numerics).logits


def concat_taps(outputs: Mapping[int, Tensor], taps: Sequence[int], x: Tensor) -> Tensor:
    """Features [R, n·H]: slice k is the complete residual output of zero-based block taps[k], in recorded order.

    `outputs` ACT [R, H] by block, before any final norm; `x` [R, H] gives the shape where there are no taps.

    Clauses: TAP-001, TAP-002, TAP-003. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 extract_context_feature.
    """
    return torch.cat([outputs[tap] for tap in taps], dim=-1) if taps else x[:, :0]


class FinalLogits(NamedTuple):
    """The final norm's rows ACT [R, H] and their logits LOGIT [R, V]."""

    hidden: Tensor
    logits: Tensor


def final_logits(x: Tensor, norm: Tensor, head_weight: Tensor, eps: float, numerics: Numerics) -> FinalLogits:
    """The target's logits from its last residual rows x ACT [R, H].

    Clause: TGT-004. Source: transformers 5.24.0 Qwen3ForCausalLM.
    """
    hidden = rms_norm.rms_norm(x, norm, eps, numerics)
    return FinalLogits(hidden, head.logits(hidden, head_weight, numerics))


def attend_causally(
    queries: Tensor, rows: attention.Rows, positions: Tensor, begin: int, window: int, numerics: Numerics
) -> Tensor:
    """Queries [R, QH, D] at `positions` [R] over rows that start at position `begin`: ACT [R, QH·D].

    Clauses: TGT-001, TGT-002. Source: transformers 5.24.0 masking_utils.
    """
    keys = torch.arange(begin, begin + rows.key.shape[1], device=positions.device)
    visible = attention.visibility(positions, keys, window, causal=True)
    return attention.attend(queries, [rows], visible, numerics)
