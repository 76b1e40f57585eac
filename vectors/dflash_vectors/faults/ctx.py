"""Faults of the context."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import commit, context, layer, num
from dflash_reference.models import Draft
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault

CONDITIONING = "NInfer docs/maintainer/dflash.md, conditioning"
APPEND = "Infernix include/infernix/ops/kv_cache_append.h"


@fault("dflash_reference.context.feature", clauses=("CTX-001",), report=CONDITIONING, effect="acceptance")
def norm_before_projection(true: Function) -> Function:
    """Each tap is normed, and the projection of the normed taps is the context row."""

    def wrong(features: Array, fc: Array, hidden_norm: Array, eps: float, profile: Profile) -> Any:
        taps = features.reshape(len(features), -1, len(hidden_norm))
        normed = context.represent_row(context.context_norm(taps, hidden_norm, eps), profile)
        row = context.represent_row(num.contract(normed.reshape(features.shape), fc), profile)
        return context.Feature(row, row)

    return wrong


@fault("dflash_reference.context.context_norm", clauses=("CTX-002",), effect="acceptance",
    report="https://github.com/charlie12345/ROCmFPX/issues/44",
)  # fmt: skip
def norm_of_the_taps_skipped(true: Function) -> Function:
    """The context norm is loaded and not applied."""
    return lambda projected, weight, eps: projected


@fault("dflash_reference.context.context_norm", clauses=("CTX-002",), effect="acceptance",
    report="https://arxiv.org/abs/2602.06036, appendix A.3, where the norm has no weight",
)  # fmt: skip
def context_norm_without_weight(true: Function) -> Function:
    """The context norm multiplies by 1."""
    return lambda projected, weight, eps: true(projected, np.ones_like(weight), eps)


@fault("dflash_reference.context.context_norm", clauses=("CTX-002",), effect="acceptance",
    report="NInfer docs/maintainer/qwen3_5-model.md, where the target's norms multiply by 1 + w",
)  # fmt: skip
def context_norm_by_one_plus_weight(true: Function) -> Function:
    """The context norm multiplies by 1 + weight, as the target's norms do."""
    return lambda projected, weight, eps: true(projected, 1.0 + weight, eps)


@fault("dflash_reference.context.context_norm", clauses=("CTX-002",), report=CONDITIONING, effect="acceptance")
def context_norm_with_eps_outside(true: Function) -> Function:
    """eps is added to the root instead of the mean square."""

    def wrong(projected: Array, weight: Array, eps: float) -> Array:
        root: Array = np.sqrt(num.mean_square(projected))[..., np.newaxis]
        return projected / (root + eps) * weight

    return wrong


@fault("dflash_reference.context.feature", clauses=("CTX-003",), effect="acceptance", profiles=("ninfer",),
    report="Infernix src/models/qwen3_5/execution/draft.cpp",
)  # fmt: skip
def projection_unrounded_before_the_norm(true: Function) -> Function:
    """Projection and norm are fused, and the projection is rounded only where it is shown."""

    def wrong(features: Array, fc: Array, hidden_norm: Array, eps: float, profile: Profile) -> Any:
        fused = context.context_norm(num.contract(features, fc), hidden_norm, eps)
        return true(features, fc, hidden_norm, eps, profile)._replace(c=context.represent_row(fused, profile))

    return wrong


@fault("dflash_reference.context.materialise", clauses=("CTX-004",), effect="acceptance",
    report="dflash 0.1.0 Qwen3DFlashAttention.forward",
)  # fmt: skip
def context_row_normed_by_each_layer(true: Function) -> Function:
    """A layer puts context rows and block rows together before its input norm instead of after it."""

    def wrong(draft: Draft, rows: context.Context, features: Array, positions: Array, profile: Profile) -> Array:
        config = draft.config
        c = context.feature(features, draft.fc, draft.hidden_norm, config.eps, profile).c
        for w, keys, values in zip(draft.layers, rows.keys, rows.values, strict=True):
            own = layer.represent(layer.rms_norm(c, w.input_norm, config.eps), profile)
            keys.append(context.key(own, w.k_proj, w.k_norm, positions, config.theta, config.eps, profile).key)
            values.append(context.value(own, w.v_proj, config.kv_heads, profile).value)
        rows.positions.append(positions)
        return c

    return wrong


@fault("dflash_reference.context.key", clauses=("CTX-005",), report=CONDITIONING, effect="acceptance")
def context_keys_not_normed(true: Function) -> Function:
    """The head norm is for the block's rows only."""

    def wrong(
        c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Profile
    ) -> Any:
        raw = true(c, k_proj, k_norm, positions, theta, eps, profile).raw
        turned = layer.rope(raw, context.rotation_positions(positions), theta, profile)
        return context.Key(raw, raw, num.round_to(turned, profile.dtypes["CTX_K"]))

    return wrong


@fault("dflash_reference.context.key", clauses=("CTX-005",), report=CONDITIONING, effect="acceptance")
def context_keys_not_rotated(true: Function) -> Function:
    """Context keys are kept as the head norm leaves them."""

    def wrong(*args: Any, **named: Any) -> Any:
        done: context.Key = true(*args, **named)
        return done._replace(key=done.normed)

    return wrong


@fault("dflash_reference.context.rotation_positions", clauses=("CTX-006",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/1dd4bc3",
)  # fmt: skip
def context_positions_relative_to_the_window(true: Function) -> Function:
    """Keys are rotated by their distance from the first row that is cached."""
    return lambda positions: positions - positions[0]


@fault("dflash_reference.context.rotation_positions", clauses=("CTX-006",), effect="acceptance",
    report="https://github.com/Luce-Org/lucebox-hub/commit/f79e15a",
)  # fmt: skip
def context_positions_counted_again(true: Function) -> Function:
    """Keys are rotated by the index of their row in this call."""
    return lambda positions: np.arange(len(positions))


@fault("dflash_reference.context.stored_value", clauses=("CTX-007",), report=APPEND, effect="acceptance",
    profiles=("ninfer",),
)  # fmt: skip
def value_rounded_once(true: Function) -> Function:
    """The product goes to FP16 without being a BF16 value first."""
    return lambda product, profile: num.round_to(product, profile.dtypes["CTX_V"])


@fault("dflash_reference.context.stored_value", clauses=("CTX-007",), report=APPEND, effect="output",
    profiles=("ninfer",),
)  # fmt: skip
def value_clipped_to_the_greatest(true: Function) -> Function:
    """A value past the range of FP16 becomes its greatest number."""
    return lambda product, profile: np.clip(true(product, profile), -65504.0, 65504.0)


@fault("dflash_reference.context.value", clauses=("CTX-008",), report=CONDITIONING, effect="acceptance")
def context_values_normed(true: Function) -> Function:
    """Values go through a head norm as keys do."""

    def wrong(c: Array, v_proj: Array, kv_heads: int, profile: Profile) -> Any:
        raw = true(c, v_proj, kv_heads, profile).raw
        return context.Value(raw, context.stored_value(layer.unit(raw, 1e-6), profile))

    return wrong


@fault("dflash_reference.context.value", clauses=("CTX-008",), effect="acceptance",
    report="https://github.com/natpate/ninfer-windows/pull/4",
)  # fmt: skip
def value_heads_interleaved(true: Function) -> Function:
    """Head h is read from every so many columns instead of from a block of columns."""

    def wrong(c: Array, v_proj: Array, kv_heads: int, profile: Profile) -> Any:
        order = np.arange(len(v_proj)).reshape(-1, kv_heads).T.reshape(-1)
        return true(c, v_proj[order], kv_heads, profile)

    return wrong


@fault("dflash_reference.commit.pending", clauses=("CTX-009",), effect="acceptance",
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def rejected_rows_become_context(true: Function) -> Function:
    """Every captured row of the verify becomes context, rows of rejected proposals too."""

    def wrong(captured: Array, frontier: int, committed: int, profile: Profile) -> Any:
        return true(captured, frontier, len(captured), profile)

    return wrong


@fault("dflash_reference.commit.pending", clauses=("CTX-009",), effect="acceptance",
    report="https://github.com/sgl-project/sglang/issues/26163",
)  # fmt: skip
def last_rows_become_context(true: Function) -> Function:
    """The right number of rows is taken from the wrong end of the verify."""

    def wrong(captured: Array, frontier: int, committed: int, profile: Profile) -> Any:
        done: commit.Pending = true(captured, frontier, committed, profile)
        return done._replace(features=captured[len(captured) - committed :])

    return wrong


@fault("dflash_reference.commit.pending", clauses=("CTX-009",), effect="acceptance",
    report="https://github.com/ggml-org/llama.cpp/issues/26478",
)  # fmt: skip
def pending_rows_one_position_late(true: Function) -> Function:
    """Committed rows are placed after the anchor instead of from it on."""

    def wrong(captured: Array, frontier: int, committed: int, profile: Profile) -> Any:
        return true(captured, frontier + 1, committed, profile)

    return wrong


@fault("dflash_reference.commit.pending", clauses=("CTX-009",), report=CONDITIONING, effect="acceptance")
def nothing_committed_leaves_the_anchor(true: Function) -> Function:
    """At least one captured row becomes context, though none was committed."""
    return lambda captured, frontier, committed, profile: true(captured, frontier, max(committed, 1), profile)
