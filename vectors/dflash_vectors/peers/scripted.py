"""The authors' `dflash_generate` run on scripted models, to see what its own loop does with what they answer.

A scripted target answers each call with the tokens and the residual rows that the vector gives; the loop, its block
ids, its caches and its decisions are the package's. What the loop decides and does not return is read from its own
local variables, at the moment when it cuts the target's cache.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dflash.model as package
import torch
from torch import Tensor, nn

from dflash_vectors.peers import modules


class ScriptEnded(Exception):
    """The loop asked the scripted target for more than the script holds."""


@dataclass
class Call:
    """One call of a model: ids and positions [rows], and how many rows its cache held before."""

    ids: Tensor
    positions: Tensor
    cached: int


@dataclass
class Reply:
    """What the target answers to one call: an argmax for every row, and its residual boundaries.

    `boundaries[l + 1]` is the output of block l, [rows, H]; blocks that nobody taps may be None.
    """

    tokens: Sequence[int]
    boundaries: Sequence[Tensor | None] = ()


@dataclass
class Round:
    """One round of the loop: proposals [P], how many were accepted, and how many tokens it kept."""

    proposals: list[int]
    accepted: int
    produced: int


@dataclass
class Run:
    """What a run of the loop showed.

    `tokens` is the prompt and everything kept, the next anchor last. `ended` is whether the loop came to its own end,
    not to that of the script. `cached` is how many rows the target's cache held after the last round.
    """

    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ended: bool = False
    cached: int = 0


def grow(cache: Any, rows: int) -> int:
    """Append rows to a cache as a one-layer model would; how many it held before."""
    before = int(cache.get_seq_length())
    cache.update(torch.zeros(1, 1, rows, 1), torch.zeros(1, 1, rows, 1), 0)
    return before


def one_hot(tokens: Sequence[int], vocabulary: int) -> Tensor:
    """Logits [tokens, vocabulary] whose argmaxes are `tokens`."""
    return nn.functional.one_hot(torch.tensor(list(tokens), dtype=torch.long), vocabulary).float()


class ScriptedTarget(nn.Module):
    """Answers calls with `replies` in order. Without a `table`, row t of the embedding holds t, so that ids show."""

    def __init__(
        self, vocabulary: int, replies: Sequence[Reply], table: Tensor | None = None, head: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = modules.qwen3_config(vocabulary=vocabulary)
        self.device = torch.device("cpu")
        self.lm_head: nn.Module = nn.Identity()
        if head is not None:
            self.lm_head = nn.Linear(head.shape[1], head.shape[0], bias=False)
            modules.fill(self.lm_head, {"weight": head.numpy()})
        self.calls: list[Call] = []
        rows = torch.arange(vocabulary, dtype=torch.float32)[:, None] if table is None else table
        self._embedding = nn.Embedding(rows.shape[0], rows.shape[1], _weight=rows)
        self._replies = list(replies)
        self._vocabulary = vocabulary

    def get_input_embeddings(self) -> nn.Embedding:
        return self._embedding

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, past_key_values: Any, logits_to_keep: int = 0, **_: Any
    ) -> SimpleNamespace:
        rows = input_ids.shape[1]
        self.calls.append(Call(input_ids[0], position_ids[0], int(past_key_values.get_seq_length())))
        if not self._replies:
            raise ScriptEnded
        grow(past_key_values, rows)
        reply = self._replies.pop(0)
        boundaries = reply.boundaries or [None, torch.zeros(rows, 1)]
        return SimpleNamespace(
            logits=one_hot(reply.tokens[: logits_to_keep or rows], self._vocabulary)[None],
            hidden_states=[None if part is None else part[None] for part in boundaries],
        )


class ScriptedDraft:
    """Stands in for a draft whose proposals, or whose logits, the vector gives. One tap, block 0."""

    def __init__(self, mask_id: int, block_size: int, logits: Callable[[int], Tensor]) -> None:
        self.config = modules.qwen3_config()
        self.mask_token_id = mask_id
        self.block_size = block_size
        self.target_layer_ids = [0]
        self.calls: list[Call] = []
        self.features: list[Tensor] = []
        self._logits = logits

    def __call__(
        self, target_hidden: Tensor, noise_embedding: Tensor, position_ids: Tensor, past_key_values: Any, **_: Any
    ) -> Tensor:
        before = grow(past_key_values, position_ids.shape[1])
        self.calls.append(Call(noise_embedding[0, :, 0].long(), position_ids[0], before))
        self.features.append(target_hidden[0])
        return noise_embedding

    def compute_logits(self, hidden: Tensor, _head: Any) -> Tensor:
        return self._logits(hidden.shape[1])[None]


def proposing(tokens: Sequence[int], vocabulary: int) -> Callable[[int], Tensor]:
    """Logits whose argmaxes are the first of `tokens`, as many as the loop asks for."""
    return lambda rows: one_hot(tokens[:rows], vocabulary)


@contextmanager
def observed(run: Run) -> Iterator[None]:
    """Record each round of `dflash_generate` into `run` while the block runs."""
    cut = package._crop_to

    def crop(cache: Any, length: int) -> None:
        cut(cache, length)
        loop: dict[str, Any] = sys._getframe(1).f_locals
        if cache is not loop["past_key_values_target"]:
            return
        run.cached = int(cache.get_seq_length())
        run.tokens = loop["output_ids"][0, : length + 1].tolist()
        if "produced" in loop:
            proposals = loop["block_output_ids"][0, 1:].tolist()
            run.rounds.append(Round(proposals, int(loop["acceptance_length"]), int(loop["produced"])))

    with mock.patch.object(package, "_crop_to", crop):
        yield


def generate(
    model: Any, target: Any, prompt: Sequence[int] | Tensor, max_new: int, stop_ids: Sequence[int] = (),
    drafts: int | None = None, sampling: Mapping[str, Any] | None = None,
) -> Run:  # fmt: skip
    """Run the package's loop on prompt [T], greedily unless `sampling` has its settings.

    `drafts` None leaves the width to the model's own block size.
    """
    run = Run()
    with observed(run), warnings.catch_warnings():
        # The package, written for an older transformers, passes its cache under the name used then.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        try:
            ids = package.dflash_generate(
                model, target, torch.as_tensor(prompt, dtype=torch.long)[None], max_new, list(stop_ids) or None,
                block_size=None if drafts is None else drafts + 1, **(sampling or {}),
            )  # fmt: skip
        except ScriptEnded:
            return run
    run.tokens = ids[0].tolist()
    run.ended = True
    return run
