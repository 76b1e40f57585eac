"""A draft whose heads and vocabulary are split over ranks: what each rank holds, and how the parts join."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import context, layer, mask, num


class ContextKv(NamedTuple):
    """raw and normed: [L, T, E, D], represented in ACT; key in CTX_K and value in CTX_V of the same shape."""

    raw: Array
    normed: Array
    key: Array
    value: Array
    refused: int = 0


class Head(NamedTuple):
    """best: [P, N], represented in LOGIT. best_ids: [P, N] and proposals: [P] int64 global ids."""

    best: Array
    best_ids: Array
    proposals: Array


class Attention(NamedTuple):
    """attended: [R, QH·D], represented in ACT."""

    attended: Array
    refused: int = 0


class Output(NamedTuple):
    """y: [R, H], represented in ACT."""

    y: Array
    refused: int = 0


def heads_of(rank: int, ranks: int, kv_heads: int) -> range:
    """The KV heads that a rank holds. Raises TensorError if they cannot be split evenly.

    Clause: ASYNC-016
    Source: vLLM Neuron DFlash guide, context KV injection.
    """
    if ranks < 1 or kv_heads % ranks or not 0 <= rank < ranks:
        raise TensorError(f"rank {rank} of {ranks} for {kv_heads} KV heads, expected as many heads on each rank")
    share = kv_heads // ranks
    return range(rank * share, (rank + 1) * share)


def context_kv(
    c: Array, k_proj: Array, v_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, ranks: int,
    rank: int, profile: Profile,
) -> ContextKv:  # fmt: skip
    """The keys and values of context rows c [T, H] in all layers, for the heads of one rank.

    k_proj and v_proj are [L, KV·D, H], k_norm is [L, D]. Raises TensorError for heads that cannot be split.
    """
    layers, dim = k_norm.shape
    own = heads_of(rank, ranks, k_proj.shape[1] // dim)
    raw, values = split(num.contract(c, stacked(k_proj, v_proj, own, dim)), layers, len(own), dim)
    raw = layer.represent(raw, profile)
    finished = [finish(raw[index], k_norm[index], positions, theta, eps, profile) for index in range(layers)]
    normed, keys = (np.stack(part) for part in zip(*finished, strict=True))
    return ContextKv(raw, normed, num.round_to(keys, profile.dtypes["CTX_K"]), context.stored_value(values, profile))


def stacked(k_proj: Array, v_proj: Array, own: range, dim: int) -> Array:
    """One weight [L · 2 · E · D, H] of all layers: the keys' rows of its heads, then the values', layer by layer."""
    rows = slice(own.start * dim, own.stop * dim)
    return np.concatenate([part[rows] for both in zip(k_proj, v_proj, strict=True) for part in both])


def split(product: Array, layers: int, heads: int, dim: int) -> tuple[Array, Array]:
    """The raw keys and values [L, T, E, D] in a product [T, L · 2 · E · D] with the stacked weight.

    Clause: ASYNC-015
    Source: vLLM Neuron DFlash guide, context KV injection.
    """
    parts = product.reshape(len(product), layers, 2, heads, dim).transpose(2, 1, 0, 3, 4)
    return parts[0], parts[1]


def finish(
    raw: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Profile
) -> tuple[Array, Array]:
    """One layer's normed and rotated keys, of raw ones [T, E, D] and its own norm [D].

    Clause: ASYNC-017
    Source: vLLM Neuron DFlash guide, context KV injection.
    """
    return layer.norm_then_rope(raw, k_norm, context.rotation_positions(positions), theta, eps, profile)


def head(logits: Array, ranks: int, profile: Profile) -> Head:
    """The proposal of each row of logits [P, V], of which every rank computes its part.

    Raises TensorError for fewer ranks than one.
    """
    if ranks < 1:
        raise TensorError(f"shard.head: {ranks} ranks, expected at least 1")
    parts = vocabulary_parts(logits, ranks)
    local: Array = np.argmax(parts, axis=2)
    best = np.take_along_axis(parts, local[:, :, np.newaxis], axis=2)[:, :, 0]
    best_ids = local + parts.shape[2] * np.arange(ranks)
    return Head(best, best_ids, first_of(best, best_ids))


def vocabulary_parts(logits: Array, ranks: int) -> Array:
    """The logits [P, V] as each rank has them, [P, N, ceil(V / N)]; what is past the vocabulary loses to any logit.

    Clause: ASYNC-019
    Source: vLLM Neuron DFlash guide, draft model architecture; pegainfer-project/pegainfer pull 204.
    """
    share = -(-logits.shape[1] // ranks)
    missing = ranks * share - logits.shape[1]
    padded = np.pad(logits, [(0, 0), (0, missing)], constant_values=-np.inf)
    return padded.reshape(len(logits), ranks, share)


def first_of(best: Array, best_ids: Array) -> Array:
    """The lowest global id [P, N] among the ranks whose best logit [P, N] is the largest: [P].

    Clause: ASYNC-018
    Source: vLLM Neuron DFlash guide, draft model architecture; SGLang python/sglang/srt/speculative/dflash_worker.py.
    """
    largest = best == best.max(axis=1, keepdims=True)
    lowest: Array = np.where(largest, best_ids, np.iinfo(np.int64).max).min(axis=1)
    return lowest


def attention(
    q: Array, context_key: Array, context_value: Array, block_key: Array, block_value: Array,
    context_positions: Array, positions: Array, window: int, causal: int, ranks: int, profile: Profile,
) -> Attention:  # fmt: skip
    """Attention of q [R, QH, D] over context [C, KV, D] and block rows [R, KV, D], rank by rank.

    Raises TensorError for heads that cannot be split.
    """
    keys, values = np.concatenate([context_key, block_key]), np.concatenate([context_value, block_value])
    visible = mask.visible(positions, np.concatenate([context_positions, positions]), window, causal)
    parts = []
    for rank in range(max(ranks, 1)):
        own = list(heads_of(rank, ranks, keys.shape[1]))
        queries = queries_of(own, q.shape[1], keys.shape[1])
        parts.append(layer.attention(q[:, queries], keys[:, own], values[:, own], visible, profile))
    return Attention(np.concatenate(parts, axis=1))


def queries_of(own: list[int], heads: int, kv_heads: int) -> list[int]:
    """The query heads that read the KV heads `own`, in order.

    Clause: ASYNC-020
    Source: vLLM Neuron DFlash guide, context KV injection.
    """
    return [head for head in range(heads) if layer.kv_head(head, heads, kv_heads) in own]


def output(attended: Array, o_proj: Array, x: Array, ranks: int, profile: Profile) -> Output:
    """The residual rows x [R, H] with the output projection of attended [R, QH·D], whose columns are split over ranks.

    Raises TensorError for columns that cannot be split evenly.
    """
    columns = attended.shape[1]
    if ranks < 1 or columns % ranks:
        raise TensorError(f"shard.output: {columns} columns over {ranks} ranks, expected as many on each")
    share = columns // ranks
    cuts = [slice(rank * share, (rank + 1) * share) for rank in range(ranks)]
    return Output(
        layer.represent(reduced(x, [num.contract(attended[:, cut], o_proj[:, cut]) for cut in cuts]), profile)
    )


def reduced(x: Array, parts: list[Array]) -> Array:
    """The residual x [R, H] and the ranks' parts of the branch [R, H], each added once; not rounded.

    Clause: ASYNC-021
    Source: vLLM Neuron DFlash guide, target auxiliary hidden state extraction; lightseekorg/tokenspeed pull 472.
    """
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return x + total
