"""Faults of the grouped dynamic convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import conv, layer, num
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

PORT = "https://github.com/natpate/ninfer-windows/pull/4"
CONTRACT = "Infernix include/infernix/ops/dynamic_grouped_conv.h"
LAYERS = "NInfer docs/maintainer/dflash.md, DFlash2 layers"
PACKAGE = "dflash 0.1.0 _grouped_dynamic_convolve"
FLATTENED = "https://github.com/sgl-project/sglang/issues/26163"


@fault("dflash_reference.conv.convolve", clauses=("CONV-001",), report=PORT, effect="acceptance")
def increments_of_interleaved_groups(true: Function) -> Function:
    """Channel h takes the increments of group h mod G instead of floor(h / group)."""

    def wrong(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        spread = np.tile(delta, (1, 1, group))
        return np.asarray(true(z, base, spread, 1, block_rows))

    return wrong


@fault("dflash_reference.conv.convolve", clauses=("CONV-001",), report=CONTRACT, effect="acceptance")
def base_shared_by_a_group(true: Function) -> Function:
    """All channels of a group take the base of its first channel."""

    def wrong(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        return np.asarray(true(z, np.repeat(base[:, ::group], group, axis=1), delta, group, block_rows))

    return wrong


@fault("dflash_reference.conv.convolve", clauses=("CONV-001",), report=LAYERS, effect="acceptance")
def increment_scales_the_base(true: Function) -> Function:
    """The coefficient is base · increment instead of their sum."""

    def wrong(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        coefficients = base * np.repeat(delta, group, axis=-1)
        return np.asarray(true(z, np.zeros_like(base), coefficients, 1, block_rows))

    return wrong


@fault("dflash_reference.conv.convolve", clauses=("CONV-001",), report=LAYERS, effect="acceptance")
def increments_left_out(true: Function) -> Function:
    """The convolution is static: only its base is used."""
    return lambda z, base, delta, group, block_rows: true(z, base, np.zeros_like(delta), group, block_rows)


@fault("dflash_reference.conv.convolve", clauses=("CONV-001",), report=PORT, effect="acceptance")
def increments_of_the_first_row_for_all(true: Function) -> Function:
    """Every row of the block is mixed by the anchor's increments."""
    return lambda z, base, delta, group, block_rows: true(
        z, base, np.broadcast_to(delta[:1], delta.shape), group, block_rows
    )


@fault("dflash_reference.conv.increments", clauses=("CONV-002",), report=PORT, effect="acceptance")
def tap_and_group_exchanged(true: Function) -> Function:
    """Rows of the kernel projection are read as (side, group, tap)."""

    def wrong(projected: Array, taps: int, groups: int) -> Array:
        return projected.reshape(len(projected), 2, groups, taps).transpose(0, 1, 3, 2)

    return wrong


@fault("dflash_reference.conv.increments", clauses=("CONV-002",), report=CONTRACT, effect="acceptance")
def side_and_tap_exchanged(true: Function) -> Function:
    """Rows of the kernel projection are read as (tap, side, group)."""

    def wrong(projected: Array, taps: int, groups: int) -> Array:
        return projected.reshape(len(projected), taps, 2, groups).transpose(0, 2, 1, 3)

    return wrong


@fault("dflash_reference.conv.increments", clauses=("CONV-002",), report=CONTRACT, effect="acceptance")
def sides_exchanged(true: Function) -> Function:
    """The input side takes the output side's increments and hands on its own."""
    return lambda projected, taps, groups: true(projected, taps, groups)[:, ::-1]


@fault("dflash_reference.conv.increments", clauses=("CONV-002",), report=PORT, effect="acceptance")
def token_and_channel_exchanged(true: Function) -> Function:
    """The projection is laid out channel by channel and read row by row."""
    return lambda projected, taps, groups: true(projected.T.reshape(projected.shape), taps, groups)


@fault("dflash_reference.conv.steps_back", clauses=("CONV-003",), report=PACKAGE, effect="acceptance")
def taps_reversed(true: Function) -> Function:
    """Tap 0 multiplies the row before and tap 1 the row itself, as a correlation from the oldest row on does."""
    return lambda tap: {0: 1, 1: 0}.get(tap, tap)


@fault("dflash_reference.conv.rows_before", clauses=("CONV-003",), report=PACKAGE, effect="acceptance")
def convolution_looks_forward(true: Function) -> Function:
    """Tap 1 reads the row after."""
    return lambda z, steps, block_rows: true(z[::-1], steps, block_rows)[::-1]


@fault("dflash_reference.conv.rows_before", clauses=("CONV-004",), report=FLATTENED, effect="acceptance")
def convolution_over_a_block_boundary(true: Function) -> Function:
    """Blocks that are flattened into one array are convolved as one sequence."""
    return lambda z, steps, block_rows: true(z, steps, len(z))


@fault("dflash_reference.conv.rows_before", clauses=("CONV-004",), report=CONTRACT, effect="acceptance")
def convolution_wraps_around_the_block(true: Function) -> Function:
    """Before a block's first row comes its last one, as circular shifts have it."""

    def wrong(z: Array, steps: int, block_rows: int) -> Array:
        return np.roll(z.reshape(-1, block_rows, z.shape[1]), steps, axis=1).reshape(z.shape)

    return wrong


@fault("dflash_reference.conv.rows_before", clauses=("CONV-004",), report=CONTRACT, effect="acceptance")
def first_row_repeated_before_the_block(true: Function) -> Function:
    """The block is padded with its first row instead of with zeros."""

    def wrong(z: Array, steps: int, block_rows: int) -> Array:
        blocks = z.reshape(-1, block_rows, z.shape[1])
        source = np.maximum(np.arange(block_rows) - steps, 0)
        return blocks[:, source].reshape(z.shape)

    return wrong


@fault("dflash_reference.conv.finish", clauses=("CONV-005",), report=LAYERS, effect="acceptance")
def input_sides_base_at_the_output(true: Function) -> Function:
    """The output side uses base[0]."""
    return by_name(true, lambda base, **named: true(base=base[::-1], **named))


@fault("dflash_reference.conv.prepare", clauses=("CONV-005",), report=LAYERS, effect="acceptance")
def increments_projected_before_the_norm(true: Function) -> Function:
    """The output side's increments are projected from the residual row instead of from its norm."""

    def wrong(x: Array, base: Array, projection: Array, group: int, profile: Any, **named: Any) -> Any:
        done = true(x=x, base=base, projection=projection, group=group, profile=profile, **named)
        delta = conv.increments(num.contract(x, projection), base.shape[1], x.shape[1] // group)
        return done._replace(finish_delta=conv.represent_increments(delta[:, 1], profile))

    return by_name(true, wrong)


@fault("dflash_reference.conv.represent_increments", clauses=("CONV-006",), report=CONTRACT, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def output_increments_unrounded(true: Function) -> Function:
    """The output side's increments stay in FP32 until the branch ends."""
    return lambda delta, profile: num.round_to(delta, "F32")


@fault("dflash_reference.conv.represent_increments", clauses=("CONV-006",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/triton-lang/triton, whose interpreter cuts where a GPU rounds",
)  # fmt: skip
def output_increments_cut(true: Function) -> Function:
    """FP32 becomes BF16 by dropping the low half."""
    return lambda delta, profile: (
        (delta.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    )


@fault("dflash_reference.conv.prepare", clauses=("CONV-007",), effect="acceptance", profiles=("ninfer",),
    report="Infernix src/models/qwen3_5/execution/draft.cpp (version 1 route)",
)  # fmt: skip
def norm_rounded_inside_prepare(true: Function) -> Function:
    """The normed row is rounded to BF16 before it is projected and convolved, as DFlash's is."""

    def wrong(
        x: Array, norm: Array, base: Array, projection: Array, group: int, block_rows: int, eps: float, profile: Any
    ) -> Any:
        n = layer.represent(layer.rms_norm(x, norm, eps), profile)
        delta = conv.increments(num.contract(n, projection), base.shape[1], x.shape[1] // group)
        mixed = conv.convolve(n, base[0], delta[:, 0], group, block_rows)
        return conv.Prepared(conv.represent_prepared(mixed, profile), conv.represent_increments(delta[:, 1], profile))

    return wrong


@fault("dflash_reference.conv.increments", clauses=("CONV-007",), report=CONTRACT, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def input_increments_rounded(true: Function) -> Function:
    """The kernel projection is a BF16 product, so the input side's increments are rounded too."""
    return lambda projected, taps, groups: true(num.round_to(projected, "BF16"), taps, groups)


@fault("dflash_reference.conv.convolve", clauses=("CONV-007",), effect="acceptance", profiles=("ninfer",),
    report="https://github.com/gittensor-ai-lab/sparkinfer/pull/728",
)  # fmt: skip
def coefficients_rounded(true: Function) -> Function:
    """Base and increment are added in BF16."""

    def wrong(z: Array, base: Array, delta: Array, group: int, block_rows: int) -> Array:
        coefficients = num.round_to(base + np.repeat(delta, group, axis=-1), "BF16")
        return np.asarray(true(z, np.zeros_like(base), coefficients, 1, block_rows))

    return wrong


@fault("dflash_reference.conv.represent_prepared", clauses=("CONV-007",), report=CONTRACT, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def prepared_row_unrounded(true: Function) -> Function:
    """The prepared row stays in FP32."""
    return lambda mixed, profile: num.round_to(mixed, "F32")


@fault("dflash_reference.conv.finish", clauses=("CONV-008",), report=LAYERS, effect="acceptance")
def residual_left_out(true: Function) -> Function:
    """The convolved output replaces the residual row."""
    return by_name(true, lambda residual, **named: true(residual=np.zeros_like(residual), **named))


@fault("dflash_reference.conv.finish", clauses=("CONV-008",), report=LAYERS, effect="acceptance")
def residual_convolved_too(true: Function) -> Function:
    """The residual is added before the convolution instead of after it."""

    def wrong(branch: Array, weight: Array, base: Array, finish_delta: Array, residual: Array, **named: Any) -> Any:
        rows = num.contract(branch, weight) + residual
        mixed = conv.convolve(rows, base[1], finish_delta, named["group"], named["block_rows"])
        return conv.Finished(layer.represent(mixed, named["profile"]))

    return by_name(true, wrong)
