"""The processed distribution in C."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dflash_accelerated.native import empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.filters import torch as plainly
from dflash_accelerated.ops.filters.torch import Distribution
from dflash_accelerated.settings import SettingRows

MOST = 64
"""Candidates that the kernel has room for, where a profile caps them."""


def distribution(scores: Tensor, rows: SettingRows, numerics: Numerics) -> Distribution:
    """As the torch function: softmax(score / T) of what a row's filters leave, scores FP32 [N, V].

    A greedy row's probabilities mean nothing where a profile has no cap, and a refused row's never do.
    """
    cap, (count, vocabulary) = int(numerics.profile.axes["sampling_cap"]), scores.shape
    width = min(rows.width or vocabulary, vocabulary) if cap else vocabulary
    if not width or (cap and width > MOST):
        return plainly.distribution(scores, rows, replace(numerics, kernels="torch"))
    scores = rows_of(scores)
    settings = [each.contiguous() for each in (rows.greedy, rows.temperature, rows.top_k, rows.top_p, rows.min_p)]
    support = empty((count, width), torch.int64) if cap else None
    law = Distribution(support, empty((count, width), torch.float32))
    kernels().distribution(
        scores.data_ptr(), *(each.data_ptr() for each in settings),
        None if support is None else support.data_ptr(), law.p.data_ptr(),
        count, vocabulary, scores.stride(0), width, cap, rows.some_filtered, torch.get_num_threads(),
    )  # fmt: skip
    return law
