"""The best logit of each row and the best candidates in C."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import torch
from torch import Tensor

from dflash_accelerated.native import CODES, empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.head import torch as plainly
from dflash_accelerated.ops.head.torch import Best, Candidates
from dflash_accelerated.ops.linear import Product

MOST = 64
"""Candidates that the kernel has room for."""


def best(scores: Tensor, public: int, numerics: Numerics) -> Best:
    """As the torch function: the largest of the first `public` logits [P, V] of each row, and its lowest id."""
    scores = rows_of(scores)
    rows = scores.shape[0]
    tops, ids = empty(rows, scores.dtype), empty(rows, torch.int64)
    kernels().greatest(
        scores.data_ptr(), tops.data_ptr(), ids.data_ptr(), rows, public, scores.stride(0), CODES[scores.dtype],
        torch.get_num_threads(),
    )  # fmt: skip
    return Best(tops, ids)


def chosen(scores: Tensor, public: int, numerics: Numerics) -> list[int]:
    """As the torch function: the best id of each row of logits [P, V], -1 where its score is no finite number."""
    scores = rows_of(scores)
    rows = scores.shape[0]
    ids = (ctypes.c_int64 * rows)()
    kernels().choose(
        scores.data_ptr(), ids, rows, public, scores.stride(0), CODES[scores.dtype], True, torch.get_num_threads()
    )
    return ids[:]


def top(
    hidden: Tensor, head: Product, global_ids: Tensor, multiplier: float, softcap: float, count: int,
    numerics: Numerics,
) -> Candidates:  # fmt: skip
    """As the torch function: the `count` best of the head's first V rows, V ids in `global_ids`, for hidden [P, H].

    More than 64 candidates, and more than there are ids, are PyTorch's matter.
    """
    if not 0 < count <= min(MOST, len(global_ids)):
        plain = replace(numerics, kernels="torch")
        return plainly.top(hidden, head, global_ids, multiplier, softcap, count, plain)
    scores, global_ids = rows_of(head(hidden)), global_ids.contiguous()
    if softcap > 0:
        scores, multiplier = plainly.limited(scores[:, : len(global_ids)], multiplier, softcap), 1.0
    rows = scores.shape[0]
    made = Candidates(empty((rows, count), torch.int64), empty((rows, count), torch.float32))
    kernels().top(
        scores.data_ptr(), global_ids.data_ptr(), made.ids.data_ptr(), made.unary.data_ptr(),
        rows, len(global_ids), scores.stride(0), count, CODES[scores.dtype], multiplier, torch.get_num_threads(),
    )  # fmt: skip
    return made
