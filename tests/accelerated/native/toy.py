"""The small model of these tests: weights, stores, vocabulary and context of keyed numbers, in no round sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from dflash_accelerated.layers import LayerWeights, Rounded
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import rope
from dflash_accelerated.ops.attention import Seat, Spans, Store
from dflash_accelerated.ops.decoder import Decoder, Ends, decoder
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.materialize import ContextWeights, Materializer, materializer
from dflash_spec.registry import load_profile
from torch import Tensor

CPU = torch.device("cpu")
HIDDEN, QUERIES, KV, DIM, INNER, TAPS, GROUPS = 36, 6, 2, 10, 53, 2, 3
SENSES = {
    "ninfer": Numerics.of(load_profile("ninfer"), None, "native"),
    "zlab": Numerics.of(load_profile("zlab"), None, "native"),
    "zlab-bf16": Numerics.of(load_profile("zlab"), torch.bfloat16, "native"),
}
SEATS = [Seat(0, 0, 0, True), Seat(1, 0, 9, True), Seat(1, 1, 9, False)]
LANES, STARTS, COUNTS = [2, 0, 1], [23, 0, 6], [5, 3, 1]


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(convolved: bool, dim: int = DIM, hidden: int = HIDDEN) -> Mapping[str, Tensor]:
    """By published name; each tensor has numbers of its own."""
    shapes = {
        "self_attn.q_proj": (QUERIES * dim, hidden), "self_attn.k_proj": (KV * dim, hidden),
        "self_attn.v_proj": (KV * dim, hidden), "self_attn.o_proj": (hidden, QUERIES * dim),
        "mlp.gate_proj": (INNER, hidden), "mlp.up_proj": (INNER, hidden), "mlp.down_proj": (hidden, INNER),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,),
    }  # fmt: skip
    if convolved:
        shapes |= {f"{name}.kernel_projection": (2 * TAPS * GROUPS, hidden) for name in ("attention_conv", "mlp_conv")}
    made = {"norm.weight": 1 + drawn(7, hidden) / 4}
    for layer in range(len(SEATS)):
        for place, (name, shape) in enumerate(shapes.items()):
            made[f"layers.{layer}.{name}.weight"] = drawn(100 * layer + place, *shape) / 4 + ("norm" in name)
        for name in ("attention_conv", "mlp_conv") if convolved else ():
            made[f"layers.{layer}.{name}.base_kernel"] = drawn(len(name) + layer, 2, TAPS, hidden)
    return made


def stores(numerics: Numerics, dim: int = DIM, positions: int = 40) -> list[Store]:
    """A cache of so many positions, and rings of nine; NaN in slots that no row may see."""
    made = []
    for seed, slots, layers in ((1, positions, 1), (2, 9, 2)):
        shape = (3, layers, KV, slots + 5, dim)
        keys, values = drawn(seed, *shape).to(numerics.act), drawn(seed + 5, *shape).to(numerics.value)
        for lane, start in zip(LANES, STARTS, strict=True):
            for held in (keys, values):
                held[lane, :, :, min(start, slots) :] = torch.nan
        made.append(Store(keys, values, slots))
    return made


def held(convolved: bool, keep: bool, numerics: Numerics, dim: int = DIM, hidden: int = HIDDEN) -> Decoder:
    tensors = Rounded(weights(convolved, dim, hidden), numerics, CPU)
    layers = [LayerWeights.take(tensors, f"layers.{layer}.", convolved) for layer in range(len(SEATS))]
    return decoder(layers, tensors["norm.weight"], SEATS, keep, 1e-5, numerics)


def check_same(whole: list[Store], parted: list[Store]) -> None:
    """Bit for bit, NaN too."""
    for one, other in zip(whole, parted, strict=True):
        for part in ("keys", "values"):
            bits: Any = [getattr(store, part).contiguous().view(torch.uint8) for store in (one, other)]
            assert torch.equal(*bits)


def ends(numerics: Numerics, known: int = 71, public: int = 67) -> Ends:
    """A vocabulary of `known` rows, with numbers of its own."""
    table = numerics.activation(drawn(8 * known, known, HIDDEN))
    return Ends(table, Product([numerics.weight(drawn(9 * known, known, HIDDEN))], numerics), public)


def turns(numerics: Numerics, theta: float = 10000.0) -> rope.Turns:
    made = rope.Turns(theta, DIM, numerics, CPU)
    made.reserve(64)
    return made


def spans() -> Spans:
    return Spans(LANES, STARTS, COUNTS, CPU)


def context(numerics: Numerics, staged: bool = True, inputs: int = 2 * HIDDEN) -> Materializer:
    """That of features with so many `inputs` a row."""
    layers = len(SEATS)
    weights = ContextWeights(
        Product([numerics.weight(drawn(1, HIDDEN, inputs))], numerics), numerics.weight(1 + drawn(2, HIDDEN) / 4),
        Product([numerics.weight(drawn(3, 2 * layers * KV * DIM, HIDDEN))], numerics),
        numerics.weight(1 + drawn(4, layers, DIM) / 4),
    )  # fmt: skip
    return materializer(weights, SEATS, staged, 1e-5, numerics)
