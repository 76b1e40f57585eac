"""Context keys and values in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import ring
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.context_kv import feature
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.norm_rope import norm_rope
from dflash_accelerated.ops.rope import Tables, Turns
from dflash_accelerated.ops.rows import RowRange, gathered


class ContextWeights(NamedTuple):
    """What makes context of target features: `fc` [H, n·H], its norm [H], the product of all layers' key and then value
    projections, and the keys' norms [L, D]."""

    fc: Product
    hidden_norm: Tensor
    projection: Product
    norms: Tensor

    @property
    def products(self) -> tuple[Product, ...]:
        return self.fc, self.projection

    @property
    def held_bytes(self) -> int:
        products = sum(product.held_bytes for product in self.products)
        return products + self.hidden_norm.nbytes + self.norms.nbytes


class Group(NamedTuple):
    """The layers whose context is in the store `group`: which they are, I64 [L] or None for all, and norms [L, D]."""

    group: int
    layers: Tensor | None
    norms: Tensor


class Materializer:
    """From features of committed rows to what the layers of a draft read of them, op by op.

    Clauses: CTX-001 to CTX-008, CTX-011 to CTX-015. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/context_kv_materialize.h.
    """

    def __init__(
        self, weights: ContextWeights, seats: Sequence[Seat], staged: bool, eps: float, numerics: Numerics
    ) -> None:
        """`seats` say where each layer's context is; `staged` is as in `keys`."""
        self.weights, self.seats = weights, tuple(seats)
        self._staged, self._eps, self._numerics = staged, eps, numerics
        # Which layers is on the device from the start: a recorded forward cannot copy a list there.
        self._groups = tuple(_groups(seats, weights.norms))

    def working_bytes(self, rows: int) -> int:
        """Bytes that a call with so many rows holds between its ops."""
        return rows * sum(product.outputs * product.dtype.itemsize for product in self.weights.products)

    def __call__(self, features: Tensor, stores: Sequence[Store], turns: Turns, spans: Spans) -> Tensor:
        """Context rows c ACT [T, H] of features ACT [T, n·H], whose keys and values are put into `stores`.

        Raises TensorError for features of another width or dtype.
        """
        self._check(features)
        weights, numerics = self.weights, self._numerics
        c = feature(features, weights.fc, weights.hidden_norm, self._eps, numerics).c
        raw, turn = project(c, weights.projection, *weights.norms.shape), turns.at(spans.positions)
        for group, layers, norms in self._groups:
            k, v = raw if layers is None else (part.index_select(1, layers) for part in raw)
            store(k, v, norms, turn, self._eps, self._staged, stores[group], spans, numerics)
        return c

    def take(self, features: Sequence[RowRange], stores: Sequence[Store], turns: Turns, spans: Spans) -> None:
        """The same of rows wherever they lie, where nobody asks for `c`."""
        self(gathered(features), stores, turns, spans)

    def _check(self, features: Tensor) -> None:
        width, act = self.weights.fc.inputs, self._numerics.act
        if features.shape[1] != width or features.dtype != act:
            found = f"{features.dtype} [.., {features.shape[1]}]"
            raise TensorError(f"context: features {found}, expected {act} [.., {width}]")


def _groups(seats: Sequence[Seat], norms: Tensor) -> Iterator[Group]:
    for group in sorted({seat.group for seat in seats}):
        own = [layer for layer, seat in enumerate(seats) if seat.group == group]
        if len(own) == len(seats):
            yield Group(group, None, norms)
        else:
            layers = torch.tensor(own, device=norms.device)
            yield Group(group, layers, norms[layers])


class Raw(NamedTuple):
    """Keys and values [T, L, KV, D] of L layers as they are projected, in the compute dtype."""

    keys: Tensor
    values: Tensor


class Keys(NamedTuple):
    """Keys [T, L, KV, D]: as they are normed from (ACT where stages are rounded), and as they are stored (ACT)."""

    raw: Tensor
    key: Tensor


def project(c: Tensor, weights: Product, layers: int, head_dim: int) -> Raw:
    """Context rows c ACT [T, H] through the key projections of all layers, and then the value projections.

    Clauses: CTX-004, CTX-008, CTX-012, CTX-015. Source: Infernix include/infernix/ops/context_kv_materialize.h; dflash
    0.1.0 Qwen3DFlashAttention.forward.
    """
    heads = weights.outputs // (2 * layers * head_dim)
    return Raw(*weights(c).view(len(c), 2, layers, heads, head_dim).unbind(1))


def keys(raw: Tensor, norms: Tensor, turn: Tables, eps: float, staged: bool, numerics: Numerics) -> Keys:
    """Keys [T, L, KV, D] at the positions of `turn`, each layer with its own of the norms [L, D].

    With `staged`, raw and normed keys are rounded too; else only the end is.

    Clauses: CTX-005, CTX-006, CTX-011, CTX-015. Source: Infernix include/infernix/ops/context_kv_materialize.h; dflash
    0.1.0 Qwen3DFlashAttention.forward.
    """
    rows, layers, heads, head_dim = raw.shape
    entering = numerics.activation(raw) if staged else raw
    each = norms[:, None].expand(layers, heads, head_dim).reshape(-1, head_dim)
    placed = norm_rope(entering.reshape(rows, layers * heads, head_dim), each, turn, eps, staged, numerics)
    return Keys(entering, placed.view(raw.shape))


def values(raw: Tensor, numerics: Numerics) -> Tensor:
    """Values [T, L, KV, D] as they are stored: neither normed nor turned.

    Clauses: CTX-007, CTX-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/kv_cache_append.h.
    """
    return numerics.stored_value(numerics.activation(raw))


@dispatched("native", "triton")
def store(
    raw_keys: Tensor, raw_values: Tensor, norms: Tensor, turn: Tables, eps: float, staged: bool, held: Store,
    spans: Spans, numerics: Numerics,
) -> None:  # fmt: skip
    """Put context rows of several sequences, raw [T, L, KV, D], where the layers of `held` read them.

    Clauses: CTX-012, CTX-013, CTX-014. Source: Infernix include/infernix/ops/context_kv_materialize.h,
    src/models/qwen3_5/execution/draft.cpp.
    """
    write(held, spans, keys(raw_keys, norms, turn, eps, staged, numerics).key, values(raw_values, numerics))


def write(held: Store, spans: Spans, key: Tensor, value: Tensor) -> None:
    """Rows [T, L, KV, D] of sequences into their slots; of a span longer than a ring its last rows alone.

    Clauses: CTX-013, CTX-014. Source: Infernix src/core/cyclic_kv_cache.h.
    """
    for lane, start, count, first in spans:
        kept = min(count, held.slots)
        if not kept:
            continue
        end, rows = start + count, slice(first + count - kept, first + count)
        begin = (end - kept) % held.slots
        if begin + kept <= held.slots:
            held.keys[lane, :, :, begin : begin + kept] = key[rows].permute(1, 2, 0, 3)
            held.values[lane, :, :, begin : begin + kept] = value[rows].permute(1, 2, 0, 3)
        else:
            slots = ring.slots(spans.positions[rows], held.slots)
            held.keys[lane, :, :, slots] = key[rows].permute(1, 2, 0, 3)
            held.values[lane, :, :, slots] = value[rows].permute(1, 2, 0, 3)
