"""The weights of one decoder layer, which drafts and Qwen3 targets share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import Product


class Rounded:
    """The weights of a model by published name, in the compute dtype, contiguous and on the device, each made when
    asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], numerics: Numerics, device: torch.device) -> None:
        """`tensors` in any float dtype."""
        self._tensors, self._numerics, self._device = tensors, numerics, device

    def __getitem__(self, name: str) -> Tensor:
        return self._numerics.weight(self._tensors[name].to(self._device)).contiguous()

    def product(self, names: Sequence[str], adds: bool = False) -> Product:
        """The product of one weight, or of several that read one input."""
        return Product([self[name] for name in names], self._numerics, adds)


class ConvWeights(NamedTuple):
    """A branch's convolution: base [2, taps, H] in the compute dtype, and the product that gives 2 · taps · G."""

    base: Tensor
    projection: Product

    @staticmethod
    def take(held: Rounded, prefix: str) -> ConvWeights:
        """The convolution published under `prefix`, such as `layers.0.mlp_conv.`."""
        return ConvWeights(held[f"{prefix}base_kernel"], held.product([f"{prefix}kernel_projection.weight"]))


Convolutions = tuple[ConvWeights, ConvWeights]
"""Those around attention and around the MLP."""


class LayerWeights(NamedTuple):
    """Norms [H] in the compute dtype, and products of what reads one input.

    `qkv` gives QH + 2 KV heads, `head_norm` [QH + KV, D] is the norm of each of those that turn.
    """

    input_norm: Tensor
    qkv: Product
    head_norm: Tensor
    o_proj: Product
    post_norm: Tensor
    gate_up: Product
    down_proj: Product
    convolutions: Convolutions | None = None

    @staticmethod
    def take(held: Rounded, prefix: str, convolved: bool = False) -> LayerWeights:
        """The layer published under `prefix`, such as `layers.0.`; `convolved` says that it has convolutions."""

        def product(block: str, *names: str, adds: bool = False) -> Product:
            return held.product([f"{prefix}{block}.{name}.weight" for name in names], adds)

        def conv(name: str) -> ConvWeights:
            return ConvWeights.take(held, f"{prefix}{name}.")

        qkv = product("self_attn", "q_proj", "k_proj", "v_proj")
        q_norm, k_norm = (held[f"{prefix}self_attn.{name}.weight"] for name in ("q_norm", "k_norm"))
        o_proj = product("self_attn", "o_proj", adds=not convolved)
        return LayerWeights(
            held[f"{prefix}input_layernorm.weight"],
            qkv,
            head_norms(q_norm, k_norm, o_proj.inputs // len(q_norm), qkv.outputs // len(q_norm)),
            o_proj,
            held[f"{prefix}post_attention_layernorm.weight"],
            product("mlp", "gate_proj", "up_proj"),
            product("mlp", "down_proj", adds=not convolved),
            (conv("attention_conv"), conv("mlp_conv")) if convolved else None,
        )

    @property
    def products(self) -> tuple[Product, ...]:
        """All matrix products of the layer."""
        own = (self.qkv, self.o_proj, self.gate_up, self.down_proj)
        return (*own, *(each.projection for each in self.convolutions or ()))

    @property
    def held_bytes(self) -> int:
        norms = (self.input_norm, self.head_norm, self.post_norm)
        bases = [each.base.nbytes for each in self.convolutions or ()]
        return sum(product.held_bytes for product in self.products) + sum(norm.nbytes for norm in norms) + sum(bases)


def head_norms(q_norm: Tensor, k_norm: Tensor, queries: int, heads: int) -> Tensor:
    """The norm [QH + KV, D] of each head that turns, from those [D] of queries and of keys.

    `queries` is QH, `heads` the QH + 2 KV of a joined projection.
    """
    keys = (heads - queries) // 2
    return torch.cat((q_norm.expand(queries, -1), k_norm.expand(keys, -1)))
