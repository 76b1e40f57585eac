"""The grouped dynamic convolution in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.layers import ConvWeights
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.dispatch import dispatched
from dflash_accelerated.ops.linear import Product
from dflash_accelerated.ops.rms_norm import normed

INPUT, OUTPUT = range(2)


class Prepared(NamedTuple):
    """A branch's input ACT [R, H], and the increments of its output side ACT [R, taps, G]."""

    prepared: Tensor
    finish_delta: Tensor


def slots(counts: Sequence[int], device: torch.device) -> Tensor:
    """The place I64 [R] of each row in its own block, for blocks of `counts` rows, one after another."""
    return torch.cat([torch.arange(count, device=device) for count in counts])


def prepare(x: Tensor, norm: Tensor, weights: ConvWeights, slot: Tensor, eps: float, numerics: Numerics) -> Prepared:
    """The norm of rows x ACT [R, H], its increments, and the input side; `slot` I64 [R] is a row's place in its block.

    Only the two results are rounded to `act`.

    Clauses: CONV-001 to CONV-007, DRAFT-002. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/dynamic_grouped_conv.h; dflash 0.1.0 _grouped_dynamic_convolve.
    """
    n = normed(x, norm, eps, numerics)
    delta = weights.projection(n).view(x.shape[0], 2, weights.base.shape[1], -1)
    mixed = convolve(n, weights.base[INPUT], delta[:, INPUT], slot, None, numerics)
    return Prepared(mixed, numerics.activation(delta[:, OUTPUT]))


def finish(
    branch: Tensor, weight: Product, base: Tensor, finish_delta: Tensor, residual: Tensor, slot: Tensor,
    numerics: Numerics,
) -> Tensor:  # fmt: skip
    """residual + the output side of weight · branch: ACT [R, H].

    `branch` ACT [R, C], `weight` [H, C], `base` [2, taps, H], `finish_delta` ACT [R, taps, G] of `prepare`, `residual`
    ACT [R, H] as it entered the branch.

    Clauses: CONV-001, CONV-003 to CONV-006, CONV-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/dynamic_grouped_conv.h; dflash 0.1.0 _grouped_dynamic_convolve.
    """
    return convolve(weight(branch), base[OUTPUT], finish_delta.to(base.dtype), slot, residual, numerics)


@dispatched("native", "triton")
def convolve(
    z: Tensor, base: Tensor, delta: Tensor, slot: Tensor, residual: Tensor | None, numerics: Numerics
) -> Tensor:
    """The sum over taps t of (base[t] + delta[:, t]) · z[row - t], nothing before slot 0, and the residual: ACT [R, H].

    z [R, H], base [taps, H] and delta [R, taps, G] in the compute dtype: each increment serves H / G neighbouring
    channels. `slot` I64 [R] is a row's place in its block, `residual` ACT [R, H] or None.

    Clauses: CONV-003 to CONV-006, CONV-008. Source: NInfer docs/maintainer/dflash.md; Infernix
    include/infernix/ops/dynamic_grouped_conv.h; dflash 0.1.0 _grouped_dynamic_convolve.
    """
    rows, taps, groups = delta.shape
    grouped = z.view(rows, groups, -1)
    total = (base[0].view(groups, -1) + delta[:, 0, :, None]) * grouped
    places = torch.arange(rows, device=z.device)
    for tap in range(1, taps):
        before = grouped[(places - tap).clamp(min=0)].masked_fill((slot < tap)[:, None, None], 0.0)
        total = total + (base[tap].view(groups, -1) + delta[:, tap, :, None]) * before
    mixed = total.view(rows, -1)
    return numerics.activation(mixed if residual is None else residual.to(mixed.dtype) + mixed)
