"""Acceptance and correction in C."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_accelerated.native import empty, kernels, rows_of
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.acceptance.chains import Chains
from dflash_accelerated.ops.acceptance.laws import SparseLaw
from dflash_accelerated.ops.acceptance.torch import Verdict
from dflash_accelerated.ops.filters import Distribution


def verdict(
    chains: Chains, drawn_from: SparseLaw, law: Distribution, refused: Tensor | None, accept: Tensor, ends: Tensor,
    numerics: Numerics,
) -> Verdict:  # fmt: skip
    """As the torch function, for laws in FP32. A proposal that a law of all ids has no place for is rejected.

    Raises IndexError for fewer rows of `drawn_from` than there are proposals.
    """
    proposals, accept, ends = chains.proposals.contiguous(), accept.contiguous(), ends.contiguous()
    p, q = rows_of(law.p.float()), rows_of(drawn_from.q.float())
    support, ids = (None if part is None else rows_of(part) for part in (law.support, drawn_from.ids))
    if q.shape[0] < chains.tested.shape[0] or (ids is not None and ids.shape != q.shape):
        raise IndexError(f"a law of {list(q.shape)} for {chains.tested.shape[0]} proposals, expected a row for each")
    requests, width = proposals.shape
    made = Verdict(empty((requests, width + 1), torch.int64), empty(requests, torch.int64))
    rest = empty((requests, p.shape[1]), torch.float64)
    read = (proposals, chains.counts, chains.first, support, p, ids, q, refused, accept, ends, rest, *made)
    axes = numerics.profile.axes
    kernels().verdict(
        *(None if each is None else each.data_ptr() for each in read), requests, width,
        p.shape[1], 0 if support is None else support.stride(0), p.stride(0),
        q.shape[1], 0 if ids is None else ids.stride(0), q.stride(0),
        axes["accept_test"] == "covered_or_strict", axes["zero_residual"] == "top_token", torch.get_num_threads(),
    )  # fmt: skip
    return made
