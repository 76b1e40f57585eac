"""The weights of one decoder layer, which drafts and Qwen3 targets share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class LayerWeights(NamedTuple):
    """All in the compute dtype: norms [H] or [D], projections output-major as they are published."""

    input_norm: Tensor
    q_proj: Tensor
    k_proj: Tensor
    v_proj: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o_proj: Tensor
    post_norm: Tensor
    gate_proj: Tensor
    up_proj: Tensor
    down_proj: Tensor

    @staticmethod
    def take(tensors: Mapping[str, Tensor], prefix: str) -> LayerWeights:
        """The layer published under `prefix`, such as `layers.0.`."""
        names = {
            field: f"self_attn.{field}.weight" for field in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj")
        }
        names |= {field: f"mlp.{field}.weight" for field in ("gate_proj", "up_proj", "down_proj")}
        names |= {"input_norm": "input_layernorm.weight", "post_norm": "post_attention_layernorm.weight"}
        return LayerWeights(**{field: tensors[prefix + name] for field, name in names.items()})


class ConvWeights(NamedTuple):
    """A branch's convolution, in the compute dtype: base [2, taps, H], projection [2 · taps · G, H]."""

    base: Tensor
    projection: Tensor

    @staticmethod
    def take(tensors: Mapping[str, Tensor], prefix: str) -> ConvWeights:
        """The convolution published under `prefix`, such as `layers.0.mlp_conv.`."""
        return ConvWeights(tensors[f"{prefix}base_kernel"], tensors[f"{prefix}kernel_projection.weight"])
