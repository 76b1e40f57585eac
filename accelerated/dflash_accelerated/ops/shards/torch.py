"""What each rank of a split draft computes, and how the parts join, in PyTorch.

Source: vLLM Neuron DFlash guide, context KV injection, draft model architecture, target auxiliary hidden state
extraction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops import attention
from dflash_accelerated.ops.linear import linear
from dflash_accelerated.ops.rms_norm import rms_norm
from dflash_accelerated.ops.rope import Tables, rotate


class Context(NamedTuple):
    """Raw, normed and rotated keys and the values of one rank, each [L, T, E, D]."""

    raw: Tensor
    normed: Tensor
    key: Tensor
    value: Tensor


class Head(NamedTuple):
    """Each rank's best logit and global id [P, N], and the proposals I64 [P]."""

    best: Tensor
    best_ids: Tensor
    proposals: Tensor


def heads_of(rank: int, ranks: int, kv_heads: int) -> slice:
    """The KV heads of a rank. Raises TensorError where they do not split evenly. Clause: ASYNC-016."""
    if ranks < 1 or kv_heads % ranks or not 0 <= rank < ranks:
        raise TensorError(f"rank {rank} of {ranks} for {kv_heads} KV heads, expected as many on each")
    share = kv_heads // ranks
    return slice(rank * share, (rank + 1) * share)


def context_kv(
    c: Tensor, k_proj: Tensor, v_proj: Tensor, k_norm: Tensor, turn: Tables, eps: float, ranks: int, rank: int,
    numerics: Numerics,
) -> Context:  # fmt: skip
    """The keys and values of all layers that one rank holds, of context rows c ACT [T, H], by one product.

    Projections are [L, KV · D, H], k_norm [L, D]; `turn` holds the rows' positions. Raises TensorError.

    Clauses: ASYNC-015, ASYNC-016, ASYNC-017.
    """
    layers, dim = k_norm.shape
    own = heads_of(rank, ranks, k_proj.shape[1] // dim)
    both = torch.stack((k_proj, v_proj), 1).view(layers, 2, -1, dim, c.shape[1])[:, :, own]
    product = linear(c, both.flatten(0, 3)).view(len(c), layers, 2, -1, dim)
    keys, values = numerics.activation(product).permute(2, 1, 0, 3, 4)
    normed = rms_norm(keys, k_norm[:, None, None], eps, numerics)
    turned = torch.stack([rotate(rows, turn, numerics) for rows in normed])
    return Context(keys, normed, turned, numerics.stored_value(values))


def head(logits: Tensor, ranks: int) -> Head:
    """The proposals of logits [P, V] whose columns are split, ceil(V / N) to a rank; none past V wins.

    Raises TensorError for no rank.

    Clauses: ASYNC-018, ASYNC-019. Source: SGLang python/sglang/srt/speculative/dflash_worker.py;
    pegainfer-project/pegainfer pull 204.
    """
    if ranks < 1:
        raise TensorError(f"{ranks} ranks, expected at least 1")
    share = (logits.shape[1] + ranks - 1) // ranks
    missing = ranks * share - logits.shape[1]
    parts = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf).view(len(logits), ranks, share)
    best, local = parts.max(2)
    ids = local + share * torch.arange(ranks)
    # Ranks are in the order of ids, so the first of equal maxima is the lowest id.
    return Head(best, ids, ids.gather(1, best.argmax(1, keepdim=True))[:, 0])


def attend(
    queries: Tensor, parts: list[attention.Rows], visible: Tensor, ranks: int, numerics: Numerics
) -> Tensor:  # fmt: skip
    """Attention as `attention.attend_rows`, rank by rank: ACT [R, QH · D]. Raises TensorError where heads do not split.

    Clause: ASYNC-020.
    """
    kv_heads = parts[0].key.shape[0]
    group = queries.shape[1] // kv_heads
    made = []
    for rank in range(max(1, ranks)):
        own = heads_of(rank, ranks, kv_heads)
        held = [attention.Rows(part.key[own], part.value[own]) for part in parts]
        made.append(attention.attend_rows(queries[:, own.start * group : own.stop * group], held, visible, numerics))
    return torch.cat(made, 1)


def output(attended: Tensor, o_proj: Tensor, x: Tensor, ranks: int, numerics: Numerics) -> Tensor:
    """x + the ranks' parts of o_proj · attended, ACT [R, H]. Raises TensorError where columns do not split.

    Clause: ASYNC-021. Source: lightseekorg/tokenspeed pull 472.
    """
    columns = attended.shape[1]
    if ranks < 1 or columns % ranks:
        raise TensorError(f"{columns} columns over {ranks} ranks, expected as many on each")
    share = columns // ranks
    parts = [
        linear(rows, own)
        for rows, own in zip(*(torch.split(part, share, 1) for part in (attended, o_proj)), strict=True)
    ]
    branch = torch.stack(parts).sum(0)
    return numerics.activation(x.to(branch.dtype) + branch)
