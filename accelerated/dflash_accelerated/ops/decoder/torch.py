"""A model's layers, op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

from dflash_accelerated.layers import Convolutions, LayerWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention, conv, head, mlp, qkv, rms_norm, rope
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.transfers import listed

Attend = Callable[[qkv.Prepared | qkv.Projections], Tensor]
"""From rows' heads to what they attend to, ACT [R, QH·D]."""


Wanted = Literal["none", "all", "last", "proposing"]
"""Which rows are normed after the last layer: each, each request's last, or all of a request's but its first."""


class Decoded(NamedTuple):
    """The wanted rows ACT [N, H] after the last layer and the final norm, and the features ACT [R, n·H] of n layers."""

    hidden: Tensor
    features: Tensor


class Ends(NamedTuple):
    """Both ends of a vocabulary: the table ACT [N, H], and a head, of whose first rows `public` are the ids' own."""

    table: Tensor
    head: Product
    public: int


class Scored(NamedTuple):
    """Logits LOGIT [N, V] of the wanted rows, None where there are none, and the features ACT [R, n·H] of n layers.

    `chosen` are the ids of the logits' rows as in `head.chosen`, where they were asked for and come with the rest.
    """

    logits: Tensor | None
    features: Tensor
    chosen: list[int] | None = None


class Decoder:
    """The layers that drafts and Qwen3 targets share; they differ in what their attention reads, and whether
    convolutions stand around their branches.

    Clauses: TGT-006, CONV-001, CONV-002. Source: transformers 5.24.0 Qwen3DecoderLayer; NInfer
    docs/maintainer/dflash.md.
    """

    def __init__(
        self, layers: Sequence[LayerWeights], norm: Tensor, seats: Sequence[Seat], keep: bool, eps: float,
        numerics: Numerics,
    ) -> None:  # fmt: skip
        """`norm` [H] is the final one; `keep` says that rows stay in their store."""
        self.layers, self.norm, self.seats = tuple(layers), norm, tuple(seats)
        self._keep, self._eps, self._numerics = keep, eps, numerics

    def working_bytes(self, rows: int) -> int:
        """Bytes that a forward of so many rows holds between its ops: at most what the products of a layer give."""
        return rows * sum(product.outputs * product.dtype.itemsize for product in self.layers[0].products)

    def __call__(
        self, x: Tensor, stores: Sequence[Store], turns: rope.Turns, spans: Spans, taps: Sequence[int], wanted: Wanted
    ) -> Decoded:
        """Rows x ACT [R, H] of `spans` through all layers, which read `stores`; `turns` reach their positions."""
        self._check_taps(taps)
        turn = turns.at(spans.positions)
        outputs: dict[int, Tensor] = {}
        for layer, (weights, seat) in enumerate(zip(self.layers, self.seats, strict=True)):
            attend = partial(self._attend, seat, stores[seat.group], spans)
            run = self._convolved if weights.convolutions else self._plain
            x = run(x, weights, turn, attend, spans)
            if layer in taps:
                outputs[layer] = x
        return Decoded(self._final(x, spans, wanted), concat_taps(outputs, taps, x))

    def _check_taps(self, taps: Sequence[int]) -> None:
        """Raise TensorError for a layer that there is not."""
        if taps and not 0 <= min(taps) <= max(taps) < len(self.layers):
            raise TensorError(f"taps {list(taps)}, expected layers 0 to {len(self.layers) - 1}")

    def scored(
        self, ids: list[int] | Tensor, ends: Ends, stores: Sequence[Store], turns: rope.Turns, spans: Spans,
        taps: Sequence[int], wanted: Wanted, choosing: bool = False,
    ) -> Scored:  # fmt: skip
        """The same from the rows' ids, on the host or I64 [R], to logits. Raises IndexError for none of the table's.

        `choosing` says that somebody will ask which ids are best.
        """
        x = head.embed(ids if isinstance(ids, Tensor) else listed(ids, torch.int64, spans.device), ends.table)
        hidden, features = self(x, stores, turns, spans, taps, wanted)
        return Scored(None if wanted == "none" else head.logits(hidden, ends.head, self._numerics), features)

    def best(
        self, ids: list[int], ends: Ends, stores: Sequence[Store], turns: rope.Turns, spans: Spans, wanted: Wanted
    ) -> list[int]:
        """The same to the best id of each wanted row, on the host."""
        logits = self.scored(ids, ends, stores, turns, spans, (), wanted).logits
        return cast("list[int]", head.best(cast(Tensor, logits), ends.public, self._numerics).id.tolist())

    def _plain(self, x: Tensor, weights: LayerWeights, turn: rope.Tables, attend: Attend, spans: Spans) -> Tensor:
        heads = qkv.project(x, weights, turn, self._eps, self._numerics)
        y = mlp.attention_output(attend(heads), weights.o_proj, x, self._numerics)
        return mlp.mlp(y, weights, self._eps, self._numerics).x_next

    def _convolved(self, x: Tensor, weights: LayerWeights, turn: rope.Tables, attend: Attend, spans: Spans) -> Tensor:
        (outer, inner), slot = cast(Convolutions, weights.convolutions), spans.places
        eps, numerics = self._eps, self._numerics
        branch = conv.prepare(x, weights.input_norm, outer, slot, eps, numerics)
        heads = qkv.project_prepared(branch.prepared, weights, turn, eps, numerics)
        y = conv.finish(attend(heads), weights.o_proj, outer.base, branch.finish_delta, x, slot, numerics)
        branch = conv.prepare(y, weights.post_norm, inner, slot, eps, numerics)
        product = mlp.swiglu(branch.prepared, weights.gate_up, numerics)
        return conv.finish(product, weights.down_proj, inner.base, branch.finish_delta, y, slot, numerics)

    def _final(self, x: Tensor, spans: Spans, wanted: Wanted) -> Tensor:
        if wanted == "proposing":
            return head.final_rows(x, spans, self.norm, self._eps, self._numerics)
        if wanted == "last":
            x = x[[first + count - 1 for first, count in zip(spans.firsts, spans.counts, strict=True)]]
        return rms_norm.rms_norm(x if wanted != "none" else x[:0], self.norm, self._eps, self._numerics)

    def _attend(self, seat: Seat, store: Store, spans: Spans, heads: qkv.Prepared | qkv.Projections) -> Tensor:
        """What rows attend to, ACT [R, QH·D]."""
        value = self._numerics.stored_value(heads.v) if self._keep else heads.v
        return attention.attend(
            heads.q, heads.k, value, store, seat.place, spans, seat.window, seat.causal, self._keep, self._numerics
        )


def concat_taps(outputs: Mapping[int, Tensor], taps: Sequence[int], x: Tensor) -> Tensor:
    """Features [R, n·H]: slice k is the complete residual output of zero-based block taps[k], in recorded order.

    `outputs` ACT [R, H] by block, before any final norm; `x` [R, H] gives the shape where there are no taps.

    Clauses: TAP-001, TAP-002, TAP-003. Source: NInfer docs/maintainer/dflash.md; dflash 0.1.0 extract_context_feature.
    """
    return torch.cat([outputs[tap] for tap in taps], dim=-1) if taps else x[:, :0]
