"""An engine on PyTorch's `meta` device, which stands for a GPU: tensors there have shapes, dtypes and no numbers.

Its rounds go the way that they go on CUDA, with Triton's kernels and recorded forwards, at the sizes of a published
pair. What they launch can be looked at, and what they copy from and to the host. The host reads 0 for every number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from dflash_accelerated import Engine, engine, planning
from dflash_accelerated.graphs import Captured, Tensors
from dflash_accelerated.loading import load_draft
from dflash_accelerated.models.qwen3 import Qwen3Target
from dflash_accelerated.numerics import Numerics
from dflash_spec.config import draft_tensors, read_draft_config, read_target_config, target_tensors
from dflash_spec.registry import load_profile
from triton.runtime.jit import JITFunction

META = torch.device("meta")
LAYERS, DRAFTS, VOCABULARY = 2, 15, 151_936
SIZES = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12_288,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
TARGET = SIZES | {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": LAYERS, "layer_types": ["full_attention"] * LAYERS,
    "use_sliding_window": False, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
BLOCK = {"block_size": DRAFTS + 1, "target_layer_ids": [0, 1]}
SECOND = {"conv_kernel_size": 4, "conv_group_size": 64, "selector_rank": 256, "selector_top_k": 16}
DRAFT: dict[str, Any] = SIZES | {
    "num_hidden_layers": 2, "num_target_layers": LAYERS, "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True, "sliding_window": 2048,
}  # fmt: skip

Launch = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]
"""What is done with a kernel in place of its launch, its arguments and those with names."""


def load(profile: str, dtype: torch.dtype, second: bool, vocabulary: int = VOCABULARY) -> Engine:
    """An engine of two layers, whose draft has a local and a full layer and is a DFlash2 draft where `second` says so.

    It can be made, and make rounds, within `device`.
    """
    rules = load_profile(profile)
    numerics = Numerics.of(rules, dtype, "triton")
    ids = {"vocab_size": vocabulary, "eos_token_id": vocabulary - 291}
    target = read_target_config(json.dumps(TARGET | ids).encode())
    kind = "DFlash2DraftModel" if second else "DFlashDraftModel"
    block = BLOCK | {"mask_token_id": vocabulary - 267} | (SECOND if second else {})
    config = DRAFT | {"vocab_size": vocabulary, "architectures": [kind], "dflash_config": block}
    draft = read_draft_config(json.dumps(config).encode(), load_profile("zlab"), target)
    return Engine(
        Qwen3Target(target, _weights(target_tensors(target)), vocabulary, numerics, META),
        load_draft(draft, _weights(draft_tensors(draft)), numerics, META),
        numerics,
        draft_tokens=DRAFTS,
        max_context=8000,
    )


def _weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, dtype=torch.bfloat16, device=META) for name, shape in shapes.items()}


class Recorder:
    """Stands for `CudaCapture`: `capture` computes what is recorded, and a replay computes nothing."""

    def __init__(self, capture: Callable[[Callable[[], Tensors]], Tensors]) -> None:
        self._capture = capture
        self.held_bytes = 0

    def __call__(self, body: Callable[[], Tensors]) -> Captured:
        return Captured(self._capture(body), lambda: None)


@contextmanager
def device(launch: Launch, capture: Callable[[Callable[[], Tensors]], Tensors] = lambda body: body()) -> Iterator[None]:
    """Engines on `meta` take it for a GPU. `capture` is as in `Recorder`."""

    def run(kernel: Any, *arguments: Any, grid: object, warmup: bool, **named: Any) -> None:
        launch(kernel, arguments, named)

    read = torch.Tensor.tolist

    def zeros(tensor: torch.Tensor) -> Any:
        return read(tensor if tensor.device != META else torch.zeros(tensor.shape, dtype=torch.int64))

    with ExitStack() as stack:
        for place, name, instead in (
            (JITFunction, "run", run),
            (torch.Tensor, "tolist", zeros),
            (engine, "CudaCapture", lambda device: Recorder(capture)),
            (engine, "resolve_graphs", lambda *asked: True),
            (planning, "available", lambda device: None),
        ):
            stack.enter_context(patch.object(place, name, instead))
        yield


def play(engine: Engine, requests: int, rounds: int, **options: Any) -> None:
    """So many requests of different prompts through so many rounds, the first of which reads the prompts."""
    tickets = [
        engine.submit(engine.request(range(1, 9 + at), 100, seed=at, stop_ids=[], **options)) for at in range(requests)
    ]
    for _ in range(rounds):
        for made in engine.step().values():
            if made.error:
                raise made.error
    for ticket in tickets:
        engine.cancel(ticket)
