"""The candidate path in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.head import Candidates
from dflash_accelerated.ops.selector.torch import Path, Selector


def walk(
    candidates: Candidates, g: Tensor, selector: Selector, anchors: Tensor, temperatures: Tensor, uniforms: Tensor,
    numerics: Numerics,
) -> Path:  # fmt: skip
    """As the torch function: the candidates [B, K, C] of B requests, each conditioned on the token chosen before.

    Raises IndexError for a candidate or an anchor that the codebooks have no row for.
    """
    ids, unary, g = candidates.ids.contiguous(), candidates.unary.contiguous(), g.contiguous()
    anchors, temperatures, uniforms = anchors.contiguous(), temperatures.contiguous(), uniforms.contiguous()
    predecessor, successor = rows_of(selector.predecessor), rows_of(selector.successor)
    (requests, steps, count), (vocabulary, rank) = ids.shape, predecessor.shape
    tokens = empty((requests, steps), torch.int64)
    path = Path(torch.empty_like(unary), tokens, torch.empty_like(unary))
    read = (ids, unary, g, predecessor, successor, anchors, temperatures, uniforms)
    unknown = kernels().walk(
        *(each.data_ptr() for each in (*read, *path)), requests, steps, count, rank, vocabulary,
        predecessor.stride(0), successor.stride(0), CODES[g.dtype], CODES[predecessor.dtype],
        numerics.profile.axes["walk_fallback"] == "last_rank", torch.get_num_threads(),
    )  # fmt: skip
    if unknown:
        raise IndexError(f"walk: a candidate or an anchor without a row, expected ids below {vocabulary}")
    return path
