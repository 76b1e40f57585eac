"""Norms, RoPE, SwiGLU, convolution, context rows and best scores in C against the torch functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from dflash_accelerated.native import available, kernels
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention.spans import Spans, Store
from dflash_accelerated.ops.conv import native as conv
from dflash_accelerated.ops.conv.torch import convolve
from dflash_accelerated.ops.head import native as head
from dflash_accelerated.ops.materialize import native as materialize
from dflash_accelerated.ops.mlp import native as mlp
from dflash_accelerated.ops.mlp.torch import gated
from dflash_accelerated.ops.norm_rope import native as norm_rope
from dflash_accelerated.ops.norm_rope.torch import norm_rope as plain_norm_rope
from dflash_accelerated.ops.rms_norm import native as rms_norm
from dflash_accelerated.ops.rms_norm.torch import normed as plain_normed
from dflash_accelerated.ops.rms_norm.torch import rms_norm as plain_rms_norm
from dflash_accelerated.ops.rope import Tables
from dflash_spec.registry import load_profile
from torch import Tensor

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
SENSES = {
    "ninfer": Numerics.of(load_profile("ninfer")),
    "zlab-f32": Numerics.of(load_profile("zlab")),
    "zlab-bf16": Numerics.of(load_profile("zlab"), torch.bfloat16),
}
EPS = 1e-6


@pytest.fixture(params=SENSES)
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return SENSES[request.param]


@pytest.fixture
def drawn() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(8)
    return lambda *shape: torch.randn(shape, generator=generator)


def assert_steps(made: Tensor, wanted: Tensor, rarely: float) -> None:
    """Equal but for FP32 sums in another order.

    A mean of n squares moves by n · 2⁻²⁴ of itself at most and its root by half of that; in practice, and here, by less
    than 2⁻²². That is 2⁻²¹ of a row's largest element after a turn, or where the end is narrower one step of that
    element, and then only where a value lies next to a midpoint: `rarely`.
    """
    assert made.dtype == wanted.dtype
    assert made.shape == wanted.shape
    step = {torch.bfloat16: 2.0**-7, torch.float32: 2.0**-21, torch.float16: 2.0**-10}[made.dtype]
    scale = wanted.double().abs().amax(-1, keepdim=True)
    assert bool(((made.double() - wanted.double()).abs() <= step * scale).all())
    if made.dtype != torch.float32:
        assert int((made != wanted).sum()) <= rarely * made.numel() + 1


def test_exp_is_within_two_ulp_over_all_of_fp32() -> None:
    x = torch.cat((torch.linspace(-110, 95, 400_003), torch.linspace(-1, 1, 100_001), torch.tensor([0.0, -0.0])))
    made = torch.empty_like(x)
    kernels().exponentials(x.data_ptr(), made.data_ptr(), x.numel())
    exact = x.double().exp()
    finite = exact < 2.0**128 * (1 - 2.0**-24)
    ulp = torch.maximum((exact.log2().floor() - 23).exp2(), torch.tensor(2.0**-149, dtype=torch.float64))
    assert float(((made.double() - exact).abs() / ulp)[finite].max()) <= 2
    assert bool((made[exact > 2.0**128 * (1 + 2.0**-20)] == torch.inf).all())
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, -3e38, 3e38])
    kernels().exponentials(ends.data_ptr(), ends.data_ptr(), ends.numel())
    assert ends.nan_to_num(7, posinf=9).tolist() == [9, 0, 7, 0, 9]


@pytest.mark.parametrize("n", [1, 15, 36, 100, 512, 1031])
def test_rms_norm_is_the_torch_one(n: int, numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    x, weight = drawn(2, 5, 3, n).to(numerics.act), numerics.weight(1 + 0.2 * drawn(n))
    others = [numerics.weight(1 + 0.2 * drawn(*shape, n)) for shape in ((3,), (1,), (5, 3), (5, 1), (1, 3))]
    for w in (weight, *others):
        assert_steps(rms_norm.rms_norm(x, w, EPS, numerics), plain_rms_norm(x, w, EPS, numerics), 0.01)
        assert_steps(rms_norm.normed(x, w, EPS, numerics), plain_normed(x, w, EPS, numerics), 0.01)
    aside = drawn(5, 2 * n)[:, :n].to(numerics.act)
    assert torch.equal(
        rms_norm.rms_norm(aside, weight, EPS, numerics)[3:4], rms_norm.rms_norm(aside[3:4], weight, EPS, numerics)
    )


def test_rms_norm_of_exact_sums_is_bit_equal(numerics: Numerics) -> None:
    """Powers of two whose mean square is 4, in any order: the quotient is exact, and so only roundings are left."""
    x = torch.tensor([[2.0, -2.0] * 24]).to(numerics.act)
    weight = numerics.weight(1 + 0.3 * torch.randn(48, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(rms_norm.rms_norm(x, weight, 0.0, numerics), plain_rms_norm(x, weight, 0.0, numerics))


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("dim", [2, 10, 64, 128, 130])
def test_norm_rope_is_the_torch_one(dim: int, staged: bool, numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    angles = drawn(7, dim // 2) * 9
    turn = Tables(angles.cos().to(numerics.compute), angles.sin().to(numerics.compute))
    for raw in (drawn(7, 8, dim).to(numerics.act)[:, 2:5], drawn(7, 3, dim).to(numerics.compute)):
        for norm in (numerics.weight(1 + 0.2 * drawn(dim)), numerics.weight(1 + 0.2 * drawn(3, dim))):
            made = norm_rope.norm_rope(raw, norm, turn, EPS, staged, numerics)
            assert_steps(made, plain_norm_rope(raw, norm, turn, EPS, staged, numerics), 0.03)
            alone = norm_rope.norm_rope(raw[4:5], norm, Tables(*(t[4:5] for t in turn)), EPS, staged, numerics)
            assert torch.equal(made[4:5], alone)


@pytest.mark.parametrize("width", [1, 21, 160])
def test_gated_is_the_torch_one(width: int, numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    gate_up = (drawn(9, 2 * width) * 6).to(numerics.compute)
    made = mlp.gated(gate_up, numerics)
    assert_steps(made, gated(gate_up, numerics), 0.01)
    assert torch.equal(made[5:6], mlp.gated(gate_up[5:6], numerics))


@pytest.mark.parametrize(
    ("channels", "groups", "taps"),
    [(36, 9, 2), (128, 4, 3), (50, 1, 4), (24, 24, 1), (1048, 131, 2), (1056, 66, 2), (1044, 29, 3)],
)
def test_convolve_is_the_torch_one_bit_by_bit(
    channels: int, groups: int, taps: int, numerics: Numerics, drawn: Callable[..., Tensor]
) -> None:
    slot = torch.tensor([0, 1, 2, 3, 0, 1, 0])
    z, base = drawn(7, channels).to(numerics.compute), numerics.weight(drawn(taps, channels))
    delta = drawn(7, 2, taps, groups).to(numerics.compute)[:, 1]
    for residual in (None, drawn(7, channels).to(numerics.act)):
        wanted = convolve(z, base, delta, slot, residual, replace(numerics, kernels="torch"))
        assert torch.equal(conv.convolve(z, base, delta, slot, residual, numerics), wanted)


def test_bf16_is_the_nearest_for_every_upper_half() -> None:
    """Every upper half of an FP32 number with lower halves at and around a midpoint, through a weight of 1: subnormal
    numbers, infinities, what becomes infinite, and NaN, whose payload alone is not compared."""
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    z = ((torch.arange(1 << 16, dtype=torch.int32) << 16) + lower[:, None]).view(torch.float32)
    one, nothing = torch.ones(1, 1 << 16), torch.zeros(6, 1, 1)
    made = conv.convolve(z, one, nothing, torch.zeros(6, dtype=torch.int64), None, SENSES["ninfer"])
    assert torch.equal(made.isnan(), z.isnan())
    wanted = torch.where(z.isnan(), 0, z).to(torch.bfloat16)
    assert torch.equal(torch.where(made.isnan(), 0, made).view(torch.int16), wanted.view(torch.int16))


def test_rows_shared_out_are_the_rows_alone(numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    """More rows than one task takes, so that threads, where there are several, have some each."""
    rows, n = 131, 1031
    x, weight, slot = drawn(rows, n).to(numerics.act), numerics.weight(drawn(n)), torch.arange(rows) % 5
    made = rms_norm.rms_norm(x, weight, EPS, numerics)
    assert torch.equal(made, torch.cat([rms_norm.rms_norm(row, weight, EPS, numerics) for row in x.split(3)]))
    wide = drawn(rows, 2 * n).to(numerics.compute)
    assert torch.equal(mlp.gated(wide, numerics), torch.cat([mlp.gated(row, numerics) for row in wide.split(3)]))
    raw, angles = drawn(rows, 9, 74).to(numerics.compute), drawn(rows, 37)
    turn = Tables(angles.cos().to(numerics.compute), angles.sin().to(numerics.compute))
    norm = numerics.weight(drawn(74))
    alone = [
        norm_rope.norm_rope(raw[at : at + 3], norm, Tables(*(t[at : at + 3] for t in turn)), EPS, True, numerics)
        for at in range(0, rows, 3)
    ]
    assert torch.equal(norm_rope.norm_rope(raw, norm, turn, EPS, True, numerics), torch.cat(alone))
    base, delta = numerics.weight(drawn(2, n)), drawn(rows, 2, 1).to(numerics.compute)
    parts = [slice(at, at + 5) for at in range(0, rows, 5)]
    z = x.to(numerics.compute)
    alone = [conv.convolve(z[part], base, delta[part], slot[part], x[part], numerics) for part in parts]
    assert torch.equal(conv.convolve(z, base, delta, slot, x, numerics), torch.cat(alone))


@pytest.mark.parametrize("staged", [True, False])
def test_context_rows_go_to_their_slots(staged: bool, numerics: Numerics, drawn: Callable[..., Tensor]) -> None:
    layers, kv, dim, slots = 3, 2, 10, 7
    spans = Spans([1, 0], [5, 20], [4, 9], torch.device("cpu"))
    raw = drawn(13, 2, layers, kv, dim).to(numerics.compute)
    norms, angles = numerics.weight(1 + 0.2 * drawn(layers, dim)), drawn(13, dim // 2)
    turn = Tables(angles.cos().to(numerics.compute), angles.sin().to(numerics.compute))
    shape = (2, layers, kv, slots + 2, dim)
    store = Store(torch.full(shape, 77.0, dtype=numerics.act), torch.full(shape, 77.0, dtype=numerics.value), slots)
    wanted = Store(store.keys.clone(), store.values.clone(), slots)
    materialize.store(raw[:, 0], raw[:, 1], norms, turn, EPS, staged, store, spans, numerics)
    source = numerics.activation(raw[:, 0]) if staged else raw[:, 0]
    heads = norms[:, None].expand(-1, kv, -1).reshape(-1, dim)
    keys = plain_norm_rope(source.flatten(1, 2), heads, turn, EPS, staged, numerics).view(13, layers, kv, dim)
    values = numerics.stored_value(numerics.activation(raw[:, 1]))
    for lane, start, count, first in spans:
        for row in range(max(0, count - slots), count):
            wanted.keys[lane, :, :, (start + row) % slots] = keys[first + row]
            wanted.values[lane, :, :, (start + row) % slots] = values[first + row]
    assert torch.equal(store.values, wanted.values)
    assert_steps(store.keys, wanted.keys, 0.03)
    assert torch.equal(store.keys == 77, wanted.keys == 77)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_best_score_takes_the_lowest_id_of_the_largest(dtype: torch.dtype, drawn: Callable[..., Tensor]) -> None:
    scores = drawn(19, 1733).to(dtype)
    scores[0, 1700:] = 99.0  # past the public ids
    scores[1] = -torch.inf
    scores[2, [40, 900, 1699]] = 9.0
    scores[3, 1], scores[3, 1698] = torch.inf, torch.nan
    scores[4] = -5.0
    scores[4, [3, 700]] = torch.tensor([-0.0, 0.0]).to(dtype)
    made = head.best(scores, 1700, SENSES["ninfer"])
    assert made.id.tolist() == torch.argmax(scores[:, :1700], -1).tolist()
    assert made.id[:5].tolist()[1:] == [0, 40, 1698, 3]
    assert torch.equal(made.score.nan_to_num(7), scores.gather(1, made.id[:, None])[:, 0].nan_to_num(7))
