"""Rounding happens once, where the profile says; BF16 of PyTorch modules is another sense of BF16."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import torch
from dflash_accelerated import Numerics
from dflash_accelerated.layers import LayerWeights
from dflash_accelerated.ops import materialize, mlp, rms_norm, rope, rounding
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.random import keys, uniforms
from dflash_spec.errors import RequestError
from dflash_spec.registry import load_profile
from torch import Tensor

NINFER, ZLAB = load_profile("ninfer"), load_profile("zlab")
FORMATS = {torch.bfloat16: (8, -133, 127), torch.float16: (11, -24, 15)}
"""Significant bits, exponent of the least subnormal, largest exponent."""


def exactly_rounded(value: mpmath.mpf, dtype: torch.dtype) -> float:
    """`value` to nearest, ties to even, by integers: the multiple of the format's step at that magnitude."""
    bits, least, top = FORMATS[dtype]
    if value == 0:
        return 0.0
    step = mpmath.mpf(2) ** max(int(mpmath.floor(mpmath.log(abs(value), 2))) - bits + 1, least)
    whole = mpmath.nint(value / step)  # nint rounds halves to even
    rounded = whole * step
    limit = (2 - mpmath.mpf(2) ** (1 - bits)) * mpmath.mpf(2) ** top
    return float(mpmath.sign(value) * mpmath.inf if abs(rounded) > limit else rounded)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_sum_of_two_fp32_values_is_rounded_once(dtype: torch.dtype) -> None:
    halves = [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 2.0**-134, 3 * 2.0**-134]
    halves += [2.0**-25, 3 * 2.0**-25, 65520.0, 65504.0, 3.0e38, float(np.float32(3.3961775e38)), 0.7]
    nudges = [0.0, 2.0**-40, -(2.0**-40), 2.0**-149, -(2.0**-149), 2.0**-60, -(2.0**-30)]
    pairs = [(sign * half, nudge) for half, nudge, sign in itertools.product(halves, nudges, (1, -1))]
    high, low = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    with mpmath.workprec(400):
        expected = [
            exactly_rounded(mpmath.mpf(float(a)) + mpmath.mpf(float(b)), dtype) for a, b in zip(high, low, strict=True)
        ]
    assert rounding.round_sum(high, low, dtype).tolist() == expected


def test_float64_is_not_rounded_through_fp32() -> None:
    above_half = torch.tensor([1.0 + 2.0**-8 + 2.0**-30], dtype=torch.float64)
    assert above_half.to(torch.bfloat16).item() == 1.0  # what PyTorch does by itself
    assert rounding.narrow(above_half, torch.bfloat16).item() == 1.0 + 2.0**-7


def test_zeros_keep_their_sign_and_nan_stays_nan() -> None:
    kept = rounding.narrow(torch.tensor([-0.0, torch.nan, -torch.inf], dtype=torch.float64), torch.bfloat16)
    assert torch.signbit(kept[0])
    assert torch.isnan(kept[1])
    assert kept[2] == -torch.inf


def test_a_profile_has_the_dtypes_it_can_be_run_in() -> None:
    assert Numerics.of(NINFER).value == torch.float16
    assert Numerics.of(ZLAB, torch.bfloat16).compute == torch.bfloat16
    with pytest.raises(RequestError, match=r"dtype torch.float32 in profile ninfer, expected torch.bfloat16"):
        Numerics.of(NINFER, torch.float32)


def test_context_values_are_rounded_twice_in_ninfer() -> None:
    """65536 - 17 = 65519 is 65504 in FP16 but 65536 in BF16, which FP16 has as infinity."""
    numerics = Numerics.of(NINFER)
    c, v_proj = torch.ones(1, 2), torch.tensor([[65536.0, -17.0], [1.0, 2.0**-10]])
    raw = Product([numerics.weight(v_proj)], numerics)(numerics.activation(c))
    assert numerics.activation(raw).flatten().tolist() == [65536.0, 1.0]
    assert materialize.values(raw, numerics).flatten().tolist() == [torch.inf, 1.0]


@pytest.mark.parametrize(("profile", "table"), [("ninfer", "ideal"), ("zlab", "fp32")])
def test_angles_are_ideal_or_fp32_as_the_profile_says(profile: str, table: str) -> None:
    position, dim, theta = 262_143, 128, 1e7
    turn = rope.tables(torch.tensor([position]), theta, dim, Numerics.of(load_profile(profile)))
    with mpmath.workprec(200):
        angles = [position * mpmath.mpf(theta) ** (mpmath.mpf(-2 * pair) / dim) for pair in range(dim // 2)]
        away = max(abs(float(cos) - mpmath.cos(angle)) for cos, angle in zip(turn.cos[0], angles, strict=True))
    if table == "ideal":
        assert away <= 2.0**-24
    else:
        # Inverse frequency and product are each off by half an ulp at most: 2^-25 of 2^18 twice, and the cosine's own.
        assert 2.0**-10 < away <= 2 * 2.0**18 * 2.0**-24


def late(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same norm in both senses of BF16."""
    senses = (Numerics.of(NINFER), Numerics.of(ZLAB, torch.bfloat16))
    once, twice = (rms_norm.rms_norm(n.activation(x), n.weight(weight), 1e-6, n) for n in senses)
    return once, twice


def test_modules_in_bf16_round_the_quotient_before_the_weight_and_ninfer_does_not() -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(9, 33, generator=generator), 1 + 0.3 * torch.randn(33, generator=generator)
    once, twice = late(x, weight)
    wide = x.bfloat16().double()
    ideal = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.bfloat16().double()
    assert bool(((once.double() - ideal).abs() <= ideal.abs() * 2.0**-8).all())
    assert 0 < int((once != twice).sum()) < once.numel() / 2


def test_gate_and_up_are_not_rounded_before_their_product_in_ninfer() -> None:
    numerics = Numerics.of(NINFER)
    generator = torch.Generator().manual_seed(4)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in {
        "gate_proj": (21, 10), "up_proj": (21, 10), "down_proj": (10, 21), "post_norm": (10,)
    }.items()}  # fmt: skip
    held = {name: numerics.weight(weight) for name, weight in weights.items()}
    none = Product([torch.empty(0, 0)], numerics)
    read = (("gate_proj", "up_proj"), ("down_proj",))
    gate_up, down = (Product([held[name] for name in names], numerics) for names in read)
    layer = LayerWeights(torch.empty(0), none, torch.empty(0), none, held["post_norm"], gate_up, down)
    made = mlp.mlp(numerics.activation(torch.randn(5, 10, generator=generator)), layer, 1e-6, numerics)
    m = made.m.double()
    gate, up = m @ held["gate_proj"].double().T, m @ held["up_proj"].double().T
    ideal = rounding.narrow(gate * torch.sigmoid(gate) * up, torch.bfloat16)
    # One rounding: a few products that lie within FP32 error of a midpoint may fall on its other side, no more.
    assert int((made.product != ideal).sum()) <= 1


def test_the_keyed_hash_is_the_published_one() -> None:
    """SplitMix64's first output for seed 0 is the outside anchor of the mixing step: key 0 mixes it once more."""
    assert keys(0, 0, 0, 0).tolist() == [0xA706DD2F4D197E6F]
    assert keys(2**64 - 1, 2**31 - 1, 4, 0).tolist() == [0xE7C0075372C8584B]
    assert uniforms(keys(42, 103, 5, 257)).tolist() == [16091432 * 2.0**-24]
    assert keys([1, 42], [0, 100], [0, 1], [0, 0]).tolist() == [0x5E41AB087439611E, 0x8699EDA4CB17AACF]
