"""DFlash2's convolution: each branch reads and returns rows that are mixed with the row before them.

A branch is attention or MLP. It has an input side 0 and an output side 1. A coefficient is a learned base per channel
and an increment per group of channels, which the branch's normed input projects for both sides at once. Rows of several
blocks may be flattened into one array; block_rows is the row count of each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import layer, num

INPUT, OUTPUT = range(2)


class Prepared(NamedTuple):
    """prepared: [R, H] and finish_delta: [R, taps, G], represented in ACT."""

    prepared: Array
    finish_delta: Array


class Finished(NamedTuple):
    """residual_next: [R, H], represented in ACT."""

    residual_next: Array


def prepare(
    x: Array, norm: Array, base: Array, projection: Array, group: int, block_rows: int, eps: float, profile: Profile
) -> Prepared:
    """The branch's input rows from residual rows x [R, H], and the increments of its output side.

    base [2, taps, H], projection [2·taps·G, H]. Raises TensorError where groups or blocks do not fit.
    """
    _check("conv.prepare", x, group, block_rows)
    n = layer.rms_norm(x, norm, eps)
    delta = increments(num.contract(n, projection), base.shape[1], x.shape[1] // group)
    mixed = convolve(n, base[INPUT], delta[:, INPUT], group, block_rows)
    return Prepared(represent_prepared(mixed, profile), represent_increments(delta[:, OUTPUT], profile))


def finish(
    branch: Array, weight: Array, base: Array, finish_delta: Array, residual: Array, group: int, block_rows: int,
    profile: Profile,
) -> Finished:  # fmt: skip
    """The residual rows after the branch: residual [R, H] plus the mixed projection of branch [R, C] by weight [H, C].

    Raises TensorError where groups or blocks do not fit.

    Clause: CONV-005
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers.
    """
    _check("conv.finish", residual, group, block_rows)
    mixed = convolve(num.contract(branch, weight), base[OUTPUT], finish_delta, group, block_rows)
    return Finished(layer.represent(residual + mixed, profile))


def convolve(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
    """The sum over taps of (base + delta) · row: z [R, H], base [taps, H], delta [R, taps, G] -> [R, H], not rounded.

    Clause: CONV-001
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers; dflash 0.1.0 _grouped_dynamic_convolve.
    """
    coefficients = base + np.repeat(delta, group, axis=-1)
    total = np.zeros_like(z)
    for tap in range(len(base)):
        total = total + coefficients[:, tap] * rows_before(z, steps_back(tap), block_rows)
    return total


def increments(projected: Array, taps: int, groups: int) -> Array:
    """The kernel projection's columns [R, 2·taps·G] by side, tap and group: [R, 2, taps, G].

    Clause: CONV-002
    Source: Infernix include/infernix/ops/dynamic_grouped_conv.h; natpate/ninfer-windows pull 4.
    """
    return projected.reshape(len(projected), 2, taps, groups)


def steps_back(tap: int) -> int:
    """How many rows before a row the tap reads: tap 0 the row itself.

    Clause: CONV-003
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers.
    """
    return tap


def rows_before(z: Array, steps: int, block_rows: int) -> Array:
    """For each row of z [R, H] the row `steps` before it in its own block, zero where the block has none: [R, H].

    Clause: CONV-004
    Source: NInfer docs/maintainer/dflash.md, DFlash2 layers.
    """
    blocks = z.reshape(-1, block_rows, z.shape[1])
    earlier = np.zeros_like(blocks)
    earlier[:, steps:] = blocks[:, : max(block_rows - steps, 0)]
    return earlier.reshape(z.shape)


def represent_increments(delta: Array, profile: Profile) -> Array:
    """Round the output side's increments to ACT, as they are kept until the branch ends; any shape.

    Clause: CONV-006
    Source: Infernix include/infernix/ops/dynamic_grouped_conv.h.
    """
    return num.round_to(delta, profile.dtypes["ACT"])


def represent_prepared(mixed: Array, profile: Profile) -> Array:
    """Round the branch's input rows to ACT: the first rounding after the residual row, any shape.

    Clause: CONV-007
    Source: Infernix include/infernix/ops/dynamic_grouped_conv.h.
    """
    return num.round_to(mixed, profile.dtypes["ACT"])


def _check(where: str, rows: Array, group: int, block_rows: int) -> None:
    if group < 1 or rows.shape[1] % group:
        raise TensorError(f"{where}: {rows.shape[1]} channels, expected a multiple of the group width {group}")
    if block_rows < 1 or len(rows) % block_rows:
        raise TensorError(f"{where}: {len(rows)} rows, expected a multiple of the block's {block_rows}")
