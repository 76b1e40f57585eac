"""What the adapters need to run a peer's modules: building them, filling them, and looking at what passes through.

Nothing here computes a result. A module of the peer is fed the tensors of a vector, by weights where it has them and
by a stand-in for the step before where it has not, and what it computes is read by hooks.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from dflash_spec.tensors import Array
from torch import Tensor, nn
from transformers import Qwen3Config
from transformers.utils import logging as transformers_logging

POSITIONS = 1 << 20
"""`max_position_embeddings` of the modules built here: above every position of a vector."""


def tensor(values: Array) -> Tensor:
    """Floats as float32, integers as int64."""
    kept = np.asarray(values)
    return torch.from_numpy(kept.astype(np.float32 if kept.dtype.kind == "f" else np.int64))


def batch(values: Array) -> Tensor:
    """[...] -> [1, ...]: the peers compute batches."""
    return tensor(values)[None]


def integer(values: Array) -> int:
    """A scalar input."""
    return int(np.asarray(values))


def text(values: Array) -> str:
    """A text input, which a vector holds as bytes. Raises UnicodeDecodeError."""
    return np.asarray(values).astype(np.uint8).tobytes().decode()


def array(values: Tensor) -> Array:
    """The only row of a batch, [1, ...] -> [...]."""
    return np.asarray(values.detach()[0].numpy())


def qwen3_config(
    *, hidden: int = 2, intermediate: int = 2, layers: int = 1, heads: int = 1, kv_heads: int = 1, head_dim: int = 2,
    vocabulary: int = 2, eps: float = 1e-6, theta: float = 1e4, window: int = 0, **more: Any,
) -> Any:  # fmt: skip
    """A config of the given sizes, with every layer local if `window` is not 0; `more` goes in as it is."""
    local: dict[str, Any] = {"use_sliding_window": True, "sliding_window": window} if window else {}
    return Qwen3Config(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=vocabulary, rms_norm_eps=eps,
        rope_parameters={"rope_theta": theta, "rope_type": "default"}, max_position_embeddings=POSITIONS,
        layer_types=["sliding_attention" if window else "full_attention"] * layers, **local, **more,
    )  # fmt: skip


def fill(module: nn.Module, tensors: Mapping[str, Array], *, whole: bool = True) -> None:
    """Put `tensors` in by their published names; all of the module's, or some of them."""
    state = {name: tensor(values) for name, values in tensors.items()}
    unexpected = module.load_state_dict(state, strict=whole).unexpected_keys
    if unexpected:
        raise KeyError(f"the peer has no tensors {unexpected}")
    module.eval()


class Given(nn.Module):
    """Stands in for a step whose result the vector gives: answers [1, rows, ...] with as many rows as it is asked."""

    def __init__(self, values: Array) -> None:
        super().__init__()
        self._values = batch(values).flatten(2)

    def forward(self, rows: Tensor) -> Tensor:
        return self._values[:, : rows.shape[1]]


@contextmanager
def quietly() -> Iterator[None]:
    """Let a broken config's model be built without what torch, NumPy and transformers would print about it."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)


@contextmanager
def capture(**modules: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The outputs of modules while the block runs, by the keyword that names each, call by call."""
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}
    handles = []
    for name, module in modules.items():

        def hook(_module: nn.Module, _arguments: Any, output: Any, calls: list[Tensor] = seen[name]) -> None:
            calls.append(output[0] if isinstance(output, tuple) else output)

        handles.append(module.register_forward_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def unrotated(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    """Cosines of 1 and sines of 0, for heads that a vector gives already rotated."""
    return torch.ones(1, rows, dim), torch.zeros(1, rows, dim)
