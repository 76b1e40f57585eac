"""Faults of the taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dflash_reference import layer, target
from dflash_reference.models import Target
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault


@fault("dflash_reference.tap.boundary", clauses=("TAP-001",), effect="acceptance",
    report="https://github.com/microsoft/onnxruntime-genai/pull/2538",
)  # fmt: skip
def tap_on_entering_the_block(true: Function) -> Function:
    """Tap l is the residual that enters block l."""
    return lambda layer: layer


@fault("dflash_reference.tap.boundary", clauses=("TAP-001",), effect="crash",
    report="https://github.com/NVIDIA/Model-Optimizer/pull/2149",
)  # fmt: skip
def tap_ids_shifted_twice(true: Function) -> Function:
    """Ids that are block numbers are taken for one-based ones' successors: the block after is tapped."""
    return lambda layer: layer + 2


@fault("dflash_reference.tap.concat", clauses=("TAP-002",), report="NInfer docs/maintainer/dflash.md, conditioning",
    effect="acceptance",
)  # fmt: skip
def slices_sorted_by_id(true: Function) -> Function:
    """The taps are concatenated in ascending order, in which the target's blocks run."""
    return lambda residuals, ids, profile: true(residuals, np.sort(ids), profile)


@fault("dflash_reference.tap.concat", clauses=("TAP-002",), report="NInfer docs/maintainer/dflash.md, conditioning",
    effect="acceptance",
)  # fmt: skip
def slices_past_the_fifth_sorted(true: Function) -> Function:
    """Five taps keep their order, as most drafts have five; more are appended in ascending order."""
    return lambda residuals, ids, profile: true(residuals, np.append(ids[:5], np.sort(ids[5:])), profile)


@fault("dflash_reference.target.captured", clauses=("TAP-003",), effect="acceptance",
    report="https://github.com/sgl-project/sglang/issues/32204",
)  # fmt: skip
def last_tap_after_the_final_norm(true: Function) -> Function:
    """The tap of the last block is the row that the head reads."""

    def wrong(model: Target, residuals: Array, taps: Sequence[int], profile: Profile) -> Any:
        normed = layer.represent(layer.rms_norm(residuals[-1], model.norm, model.config.eps), profile)
        return true(model, np.concatenate([residuals[:-1], normed[np.newaxis]]), taps, profile)

    return wrong


@fault("dflash_reference.target.prefill", clauses=("TAP-004",), effect="acceptance",
    report="https://github.com/Blaizzy/mlx-vlm/pull/2096",
)  # fmt: skip
def features_of_the_last_chunk_only(true: Function) -> Function:
    """Taps are captured while the last chunk runs, and earlier rows of the context stay empty."""

    def wrong(model: Target, cache: Any, ids: Array, chunks: Sequence[int], *rest: Any) -> Any:
        done: target.Prefill = true(model, cache, ids, chunks, *rest)
        features = done.features.copy()
        features[: -chunks[-1]] = 0.0
        return done._replace(features=features)

    return wrong
