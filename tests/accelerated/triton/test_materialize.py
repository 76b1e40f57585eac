"""The kernel that writes context rows of all layers into the rings."""

from __future__ import annotations

import pytest
import torch
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.materialize import triton as kernel
from dflash_accelerated.ops.norm_rope import torch as plainly
from dflash_accelerated.ops.rope import tables
from torch import Tensor

EPS, LAYERS, KV, DIM = 1e-6, 2, 3, 10


def empty(numerics: Numerics, slots: int) -> Store:
    shape = (4, LAYERS, KV, slots + 2, DIM)
    return Store(torch.full(shape, 77.0).to(numerics.act), torch.full(shape, 77.0).to(numerics.value), slots)


def raw(rows: int, numerics: Numerics) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values of one projection, and a norm for each layer."""
    torch.manual_seed(rows)
    joined = torch.randn(rows, 2, LAYERS, KV, DIM).to(numerics.compute) * 3
    return joined[:, 0], joined[:, 1], numerics.weight(1 + 0.2 * torch.randn(LAYERS, DIM))


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "fused"])
def test_rows_lie_at_their_positions_in_every_layer(numerics: Numerics, staged: bool):
    """A span that begins in the ring, one that wraps, one longer than the ring, an empty one, and a row of none.

    Keys to three steps of ACT at size 8 (see `test_norm_rope.py`); values and untouched slots exactly.
    """
    spans = Spans((2, 0, 3, 1), (1, 4, 3, 6), (2, 3, 8, 0), torch.device("cpu"))
    raw_k, raw_v, norms = raw(14, numerics)
    turn = tables(torch.cat((spans.positions, torch.tensor([6]))), 1000.0, DIM, numerics)
    held, wanted = empty(numerics, 5), empty(numerics, 5)
    kernel.store(raw_k, raw_v, norms, turn, EPS, staged, held, spans, numerics)
    rounded = numerics.activation(raw_k) if staged else raw_k
    for layer in range(LAYERS):
        keys = plainly.norm_rope(rounded[:, layer], norms[layer], turn, EPS, staged, numerics)
        for lane, start, count, first in spans:
            for own in range(count):  # a later row takes the slot of an earlier one
                slot, row = (start + own) % 5, first + own
                wanted.keys[lane, layer, :, slot] = keys[row]
                wanted.values[lane, layer, :, slot] = numerics.stored_value(numerics.activation(raw_v[row, layer]))
    # In FP32 a norm's sum of ten squares, its root, three products and a sum are 16 roundings of 2⁻²⁴ at most. They may
    # turn BF16's rounding of the raw, the normed and the turned key, each by 2⁻⁸ of a key, which is below 8.
    largest, step = 8.0, 3 * 2.0**-8 if numerics.act == torch.bfloat16 else 16 * 2.0**-24
    assert float((held.keys.float() - wanted.keys.float()).abs().max()) <= largest * step
    assert torch.equal(held.values, wanted.values)
    assert torch.equal(held.keys == 77.0, wanted.keys == 77.0)


def test_a_value_is_rounded_to_act_and_then_as_it_is_stored(numerics: Numerics):
    """BF16 makes 65536 of 65400, and FP16 infinity of that."""
    raw_k, raw_v, norms = raw(1, numerics)
    raw_v = torch.full_like(raw_v, 65400.0)
    held, turn = empty(numerics, 4), tables(torch.tensor([2]), 1000.0, DIM, numerics)
    spans = Spans((1,), (2,), (1,), torch.device("cpu"))
    kernel.store(raw_k, raw_v, norms, turn, EPS, True, held, spans, numerics)
    twice = torch.tensor(65400.0).to(numerics.act).to(numerics.value)
    assert (held.values[1, :, :, 2] == twice).all()


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "fused"])
def test_raw_keys_are_rounded_where_stages_are(numerics: Numerics, staged: bool):
    """There the digits of a raw key that ACT does not hold make no difference; else some key shows them."""
    raw_k, raw_v, norms = raw(3, numerics)
    turn, spans = tables(torch.arange(3), 1000.0, DIM, numerics), Spans((1,), (0,), (3,), torch.device("cpu"))
    full, short = empty(numerics, 3), empty(numerics, 3)
    kernel.store(raw_k, raw_v, norms, turn, EPS, staged, full, spans, numerics)
    shorter = raw_k.to(numerics.act).to(numerics.compute)
    kernel.store(shorter, raw_v, norms, turn, EPS, staged, short, spans, numerics)
    assert torch.equal(full.keys, short.keys) == (staged or numerics.act == numerics.compute)
