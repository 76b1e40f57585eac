"""Published folders of two kinds: planted pairs, whose draft is often right, and random pairs, whose draft never is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_accelerated import Engine
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.files import write_tensors
from dflash_spec.registry import load_profile
from dflash_spec.tensors import Array, Tensor
from dflash_vectors import planted
from torch import Tensor as Torch

COMMON = {
    "model_type": "qwen3",
    "vocab_size": 67,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "hidden_act": "silu",
    "max_position_embeddings": 211,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    "use_sliding_window": True,
}
TARGET = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 7,
    "tie_word_embeddings": False,
    "eos_token_id": 66,
}
DRAFT: dict[str, Any] = COMMON | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 5,
    "num_target_layers": 3,
    "dflash_config": {"block_size": 6, "mask_token_id": 65, "target_layer_ids": [2, 0]},
}
DRAFT2 = DRAFT | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": DRAFT["dflash_config"]
    | {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 10, "selector_top_k": 16},
}


def random_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Array]:
    """Gaussian weights that hold BF16 values: norms near 1, products that keep their rows' scale."""
    generator = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(shapes.items()):
        drawn = (
            generator.standard_normal(shape) / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.1 * generator.random(shape)
        )
        bits = drawn.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        made[name] = bits.view(np.float32)
    return made


def rowwise(x: Torch, weight: Torch) -> Torch:
    """x · weightᵀ, each sum in float64 on its own: no result depends on another row."""
    rows = x.to(torch.float64).reshape(-1, 1, weight.shape[1])
    sums = [(row * weight.to(torch.float64)).sum(-1) for row in rows]
    return torch.stack(sums).to(weight.dtype).view(*x.shape[:-1], -1)


@pytest.fixture
def products_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product that PyTorch makes of a weight as it is."""
    monkeypatch.setattr("dflash_accelerated.ops.linear.torch.linear", rowwise)


def write_model(folder: Path, config: dict[str, Any], weights: dict[str, Array], dtype: str = "F32") -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    write_tensors(folder / "model.safetensors", {name: Tensor.of(dtype, values) for name, values in weights.items()})


def _write_random_pair(
    folder: Path,
    target: dict[str, Any] | None = None,
    draft: dict[str, Any] | None = None,
    dtypes: tuple[str, str] = ("F32", "F32"),
    second: bool = False,
) -> Path:
    configs = (TARGET | (target or {}), (DRAFT2 if second else DRAFT) | (draft or {}))
    read = read_target_config(json.dumps(configs[0]).encode())
    write_model(folder / "target", configs[0], random_weights(target_tensors(read), 1), dtypes[0])
    shapes = draft_tensors(read_draft_config(json.dumps(configs[1]).encode(), load_profile("zlab"), read))
    write_model(folder / "draft", configs[1], random_weights(shapes, 2), dtypes[1])
    return folder


@pytest.fixture(scope="session")
def write_random_pair() -> Callable[..., Path]:
    """Writes `folder/target` and `folder/draft`; `target` and `draft` are config members that differ.

    `second` makes the draft a DFlash2 draft.
    """
    return _write_random_pair


@pytest.fixture(scope="session")
def load() -> Callable[..., Engine]:
    """The engine of a pair's two folders."""
    return _load


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_random_pair(tmp_path_factory.mktemp("random") / "pair")


@pytest.fixture(scope="session")
def random_pair2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pair with a DFlash2 draft."""
    return _write_random_pair(tmp_path_factory.mktemp("random2") / "pair", second=True)


@pytest.fixture(scope="session")
def random_engine(random_pair: Path) -> Engine:
    return _load(random_pair)


@pytest.fixture(scope="session")
def planted_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, planted.Planted]]:
    """A preset's folder and plan, of either backend, written once."""
    written: dict[tuple[str, str], tuple[Path, planted.Planted]] = {}

    def get(preset: str, backend: str = "dflash") -> tuple[Path, planted.Planted]:
        key = (preset, backend)
        if key not in written:
            plan, folder = planted.pair(preset, backend=backend), tmp_path_factory.mktemp(preset)
            planted.write(folder, plan)
            written[key] = (folder, plan)
        return written[key]

    return get


def _load(folder: Path, **arguments: Any) -> Engine:
    return Engine.from_pretrained(folder / "target", folder / "draft", **arguments)
