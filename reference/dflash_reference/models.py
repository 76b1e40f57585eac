"""Target and draft: a config, and weights by their published names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from dflash_spec.config import DFlash2Config, DraftConfig, TargetConfig, draft_tensors, target_tensors
from dflash_spec.errors import ConfigError, TensorError
from dflash_spec.tensors import Array


class Layer(NamedTuple):
    """The weights of one decoder layer, [out, in] each; norms are [H] or [D]."""

    input_norm: Array
    q_proj: Array
    k_proj: Array
    v_proj: Array
    o_proj: Array
    q_norm: Array
    k_norm: Array
    post_norm: Array
    gate_proj: Array
    up_proj: Array
    down_proj: Array


LAYER_NAMES = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
"""The published names of the fields of Layer."""


class Target:
    """A Qwen3 dense decoder. Raises TensorError where `weights` are not those that the config asks for."""

    def __init__(self, config: TargetConfig, weights: Mapping[str, Array]) -> None:
        self.config = config
        self.weights = _checked("target", weights, target_tensors(config))
        self.layers = [_layer(self.weights, f"model.layers.{index}") for index in range(config.layers)]
        self.embedding = self.weights["model.embed_tokens.weight"]
        self.norm = self.weights["model.norm.weight"]


class Draft:
    """A DFlash draft. Raises TensorError where `weights` are not those that the config asks for, ConfigError where it
    is the config of another backend."""

    def __init__(self, config: DraftConfig, weights: Mapping[str, Array]) -> None:
        if isinstance(config, DFlash2Config) != isinstance(self, Draft2):
            raise ConfigError(f"{type(self).__name__}: a config of {config.architecture}, expected the other backend's")
        self.config = config
        self.weights = _checked("draft", weights, draft_tensors(config))
        self.layers = [_layer(self.weights, f"layers.{index}") for index in range(config.layers)]
        self.fc = self.weights["fc.weight"]
        self.hidden_norm = self.weights["hidden_norm.weight"]
        self.norm = self.weights["norm.weight"]


class Convolution(NamedTuple):
    """The weights of one branch's convolution: base [2, taps, H] and projection [2·taps·G, H]."""

    base: Array
    projection: Array


class Selector(NamedTuple):
    """The selector's weights: projection [rank, H], codebooks [V, rank] by token id."""

    projection: Array
    predecessor: Array
    successor: Array


class Draft2(Draft):
    """A DFlash2 draft: a DFlash draft with two convolutions a layer and a selector. Raises as Draft does."""

    config: DFlash2Config

    def __init__(self, config: DraftConfig, weights: Mapping[str, Array]) -> None:
        super().__init__(config, weights)
        places = [f"layers.{index}" for index in range(config.layers)]
        self.attention_conv = [_convolution(self.weights, f"{place}.attention_conv") for place in places]
        self.mlp_conv = [_convolution(self.weights, f"{place}.mlp_conv") for place in places]
        names = ("hidden_projection.weight", "predecessor_codebook", "successor_codebook")
        self.selector = Selector(*(self.weights[f"candidate_selector.{name}"] for name in names))


def draft_of(config: DraftConfig, weights: Mapping[str, Array]) -> Draft:
    """The draft that the config names. Raises TensorError as Draft does."""
    return Draft2(config, weights) if isinstance(config, DFlash2Config) else Draft(config, weights)


def _convolution(weights: Mapping[str, Array], prefix: str) -> Convolution:
    return Convolution(weights[f"{prefix}.base_kernel"], weights[f"{prefix}.kernel_projection.weight"])


def _layer(weights: Mapping[str, Array], prefix: str) -> Layer:
    return Layer(*(weights[f"{prefix}.{name}.weight"] for name in LAYER_NAMES))


def _checked(where: str, weights: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    for name in weights:
        if name not in expected:
            raise TensorError(f"{where}: found tensor {name}, expected none of this name")
    for name, shape in expected.items():
        if name not in weights:
            raise TensorError(f"{where}: found no tensor {name}, expected one of shape {list(shape)}")
        if tuple(weights[name].shape) != tuple(shape):
            raise TensorError(f"{where}: {name} has shape {list(weights[name].shape)}, expected {list(shape)}")
    return {name: np.asarray(weights[name], dtype=np.float64) for name in expected}
