"""Faults of the choice between argmax and draw, and of top-k, min-p and top-p: all of them change what is emitted."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import elementary, filters
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault, patched
from dflash_vectors.inputs import represent

SAMPLING = "Infernix include/infernix/ops/sampling.h"
DEVICE = "Infernix src/ops/kernel/sampling_device.cuh"
PACKAGE = "dflash 0.1.0 _sampling_probs"
APRIL = "z-lab/dflash@44947fb dflash/model.py"
ORDER = "https://github.com/sgl-project/sglang/pull/36173"
ALL_NAN = "https://github.com/vllm-project/vllm/pull/50183"
SENTINEL = "https://github.com/avifenesh/memra/issues/87"
KEYED, PUBLISHED, OLD = ("ninfer",), ("zlab",), ("zlab-2026-04",)


@fault(
    "dflash_reference.processing.is_greedy", clauses=("PROC-002", "PROC-021"), effect="output",
    report="https://github.com/EricLBuehler/mistral.rs/pull/2424", profiles=(*KEYED, *PUBLISHED, *OLD),
)  # fmt: skip
def greedy_at_every_temperature(true: Function) -> Function:
    """A sampled request gets the argmax."""
    return lambda temperature, profile: True


@fault(
    "dflash_reference.processing.is_greedy", clauses=("PROC-002",), effect="crash",
    report="https://github.com/sgl-project/sglang/pull/23296",
)  # fmt: skip
def sampled_at_every_temperature(true: Function) -> Function:
    """A greedy request among sampled ones is divided by its temperature of 0."""
    return lambda temperature, profile: False


@fault("dflash_reference.processing.is_greedy", clauses=("PROC-002",), report=APRIL, effect="output")
def low_temperature_taken_for_0(true: Function) -> Function:
    """Temperatures below 1e-5 are greedy, as they were in an earlier revision."""
    return lambda temperature, profile: temperature < 1e-5


@fault("dflash_reference.processing.is_greedy", clauses=("PROC-002",), report=SAMPLING, effect="output", profiles=KEYED)
def greedy_at_0_alone(true: Function) -> Function:
    """A temperature below 0 is sampled at, and the least likely token wins."""
    return lambda temperature, profile: temperature == 0


@fault("dflash_reference.processing.is_greedy", clauses=("PROC-021",), report=PACKAGE, effect="output", profiles=OLD)
def greedy_at_0_as_later(true: Function) -> Function:
    """Only temperature 0 is greedy, as in the later package."""
    return lambda temperature, profile: temperature <= 0


@fault("dflash_reference.processing.is_greedy", clauses=("PROC-021",), report=APRIL, effect="output", profiles=OLD)
def another_threshold_of_greedy(true: Function) -> Function:
    """The threshold is 1e-6."""
    return lambda temperature, profile: temperature < 1e-6


@fault("dflash_reference.arguments.filters", clauses=("PROC-021",), report=PACKAGE, effect="output", profiles=OLD)
def later_filters_accepted(true: Function) -> Function:
    """Filters that this revision does not have are taken, as in the later package."""
    return lambda top_k, min_p, top_p, profile: (top_k, min_p, top_p)


@fault("dflash_reference.processing.choose", clauses=("PROC-010",), report=SAMPLING, effect="output", profiles=KEYED)
def argmax_of_logits_in_bf16(true: Function) -> Function:
    """Penalised logits are rounded to BF16 before the argmax, and tie."""
    return lambda adjusted, temperature, profile: true(represent(adjusted, "BF16"), temperature, profile)


@fault(
    "dflash_reference.processing.choose", clauses=("PROC-010",), effect="output", profiles=KEYED,
    report="https://github.com/Avarok-Cybersecurity/atlas/issues/245",
)  # fmt: skip
def forbidden_argmax_taken(true: Function) -> Function:
    """A forbidden id competes as though nothing had lowered it."""
    return lambda adjusted, temperature, profile: true(
        np.where(np.isneginf(adjusted), 1e4, adjusted), temperature, profile
    )


@fault("dflash_reference.processing.sampleable", clauses=("PROC-022",), report=SENTINEL, effect="crash")
def broken_rows_sampled(true: Function) -> Function:
    """A row is sampled whatever it holds: comparisons with NaN leave index 0 or a sentinel."""
    return lambda rows: rows


@fault("dflash_reference.processing.sampleable", clauses=("PROC-022",), report=ALL_NAN, effect="crash")
def nan_taken_for_minus_infinity(true: Function) -> Function:
    """A NaN is replaced by minus infinity and the rest of its row is sampled; a row of nothing yields id 0."""
    return lambda rows: np.where(np.isnan(rows), -np.inf, rows)


@fault("dflash_reference.processing.sampleable", clauses=("PROC-022",), report=SAMPLING, effect="crash")
def nothing_finite_yields_a_token(true: Function) -> Function:
    """A row of minus infinity counts as equal logits, and its first id wins."""
    return lambda rows: true(np.where(rows.max(axis=1, keepdims=True) == -np.inf, 0.0, rows))


@fault("dflash_reference.processing.sampleable", clauses=("PROC-022",), report=SAMPLING, effect="output")
def plus_infinity_taken_for_the_winner(true: Function) -> Function:
    """An overflow is cut to the largest finite number, and wins."""
    return lambda rows: true(np.where(np.isposinf(rows), np.finfo(np.float32).max, rows))


@fault("dflash_reference.filters.size_up_to", clauses=("PROC-011",), report=SAMPLING, effect="output", profiles=KEYED)
def top_k_not_cut_at_twenty(true: Function) -> Function:
    """A top_k above 20 keeps as many."""
    return lambda cap, top_k: top_k if top_k >= 1 else cap


@fault("dflash_reference.filters.size_up_to", clauses=("PROC-011",), report=SAMPLING, effect="output", profiles=KEYED)
def top_k_of_0_keeps_one(true: Function) -> Function:
    """A top_k of 0 or below is raised to 1."""
    return lambda cap, top_k: min(max(top_k, 1), cap)


@fault("dflash_reference.filters.size_up_to", clauses=("PROC-011",), report=SAMPLING, effect="output", profiles=KEYED)
def top_k_of_0_keeps_everything(true: Function) -> Function:
    """A top_k of 0 keeps every id, as in the authors' package."""
    return lambda cap, top_k: 2**31 if top_k == 0 else true(cap, top_k)


@fault(
    "dflash_reference.filters.size_up_to", clauses=("PROC-011",), effect="output", profiles=KEYED,
    report="https://github.com/vllm-project/vllm/issues/9834",
)  # fmt: skip
def top_k_ignored(true: Function) -> Function:
    """Every request gets twenty candidates."""
    return lambda cap, top_k: cap


@fault("dflash_reference.filters.size_up_to", clauses=("PROC-011",), report=SAMPLING, effect="output", profiles=KEYED)
def top_k_of_nineteen_taken_for_twenty(true: Function) -> Function:
    """The largest top_k below the cap is taken for none."""
    return lambda cap, top_k: top_k if 1 <= top_k < cap - 1 else cap


@fault(
    "dflash_reference.filters.size_or_all", clauses=("PROC-012",), report=PACKAGE, effect="output", profiles=PUBLISHED
)
def published_top_k_capped(true: Function) -> Function:
    """At most twenty ids are kept, as NInfer does."""
    return lambda top_k, columns: min(true(top_k, columns), 20)


@fault(
    "dflash_reference.filters.size_or_all", clauses=("PROC-012",), report=PACKAGE, effect="output", profiles=PUBLISHED
)
def published_top_k_of_0_keeps_one(true: Function) -> Function:
    """A top_k of 0 is raised to 1."""
    return lambda top_k, columns: max(top_k, 1)


@fault(
    "dflash_reference.filters.size_or_all", clauses=("PROC-012",), report=PACKAGE, effect="output", profiles=PUBLISHED
)
def published_top_k_one_short(true: Function) -> Function:
    """The k-th largest logit is the limit, and falls to it."""
    return lambda top_k, columns: top_k - 1 if 1 < top_k < columns else true(top_k, columns)


@fault(
    "dflash_reference.processing.supported", clauses=("PROC-012",), report=PACKAGE, effect="output", profiles=PUBLISHED
)
def published_top_k_keeps_ties(true: Function) -> Function:
    """Every logit is kept that is not below the k-th largest, so that equal ones are more than k."""

    def wrong(adjusted: Array, temperature: float, top_k: int, *rest: Any) -> Any:
        if 0 < top_k < adjusted.shape[1]:
            top_k = int((adjusted >= np.sort(adjusted, axis=1)[:, -top_k, np.newaxis]).sum(axis=1).max())
        return true(adjusted, temperature, top_k, *rest)

    return wrong


@fault(
    "dflash_reference.filters.size_or_all", clauses=("PROC-012",), report=PACKAGE, effect="crash", profiles=PUBLISHED
)
def top_k_above_the_vocabulary_fails(true: Function) -> Function:
    """More candidates than there are ids are asked for."""

    def wrong(top_k: int, columns: int) -> int:
        if top_k > columns:
            raise IndexError(f"top_k {top_k} of {columns}")
        return int(true(top_k, columns))

    return wrong


@fault("dflash_reference.filters.min_p_end", clauses=("PROC-013",), report=DEVICE, effect="output", profiles=KEYED)
def min_p_drops_what_is_on_the_limit(true: Function) -> Function:
    """A candidate whose weight is exactly the limit is dropped."""
    return lambda weights, min_p: next(
        (rank for rank, weight in enumerate(weights) if rank and weight <= min_p * weights[0]), len(weights)
    )


@fault("dflash_reference.filters.min_p_end", clauses=("PROC-013",), report=DEVICE, effect="output", profiles=KEYED)
def min_p_as_a_probability(true: Function) -> Function:
    """The limit is a probability, not a share of the best candidate's."""
    return lambda weights, min_p: (
        true(weights, 0.0)
        if min_p == 0
        else max(1, next((rank for rank, weight in enumerate(weights) if weight < min_p * weights.sum()), len(weights)))
    )


@fault("dflash_reference.filters.min_p_end", clauses=("PROC-013",), report=DEVICE, effect="output", profiles=KEYED)
def min_p_ignored(true: Function) -> Function:
    """Min-p is accepted in the request, and dropped."""
    return lambda weights, min_p: len(weights)


@fault("dflash_reference.filters.min_p_end", clauses=("PROC-013",), report=DEVICE, effect="output", profiles=KEYED)
def min_p_keeps_the_first_below(true: Function) -> Function:
    """The first candidate below the limit is still kept, as the one that crosses top-p is."""
    return lambda weights, min_p: min(true(weights, min_p) + 1, len(weights))


@fault("dflash_reference.filters.top_p_end", clauses=("PROC-014",), report=PACKAGE, effect="output")
def crossing_candidate_dropped(true: Function) -> Function:
    """The candidate at which the mass is reached is dropped."""
    return lambda weights, top_p, whole: true(weights, top_p, whole) - (top_p < 1)


@fault("dflash_reference.filters.top_p_end", clauses=("PROC-014",), report=DEVICE, effect="output", profiles=KEYED)
def mass_must_be_exceeded(true: Function) -> Function:
    """A cumulative weight that equals the mass goes on by one candidate."""

    def wrong(weights: Array, top_p: float, whole: float) -> int:
        cumulative = 0.0
        for rank, weight in enumerate(weights if top_p < 1 else ()):
            cumulative += weight
            if cumulative > top_p * whole:
                return rank + 1
        return len(weights)

    return wrong


@fault(
    "dflash_reference.filters.top_p_end", clauses=("PROC-014",), effect="output",
    report="https://github.com/vllm-project/vllm/issues/9834",
)  # fmt: skip
def top_p_not_applied_in_verification(true: Function) -> Function:
    """Top-p is applied outside speculation only."""
    return lambda weights, top_p, whole: len(weights)


@fault("dflash_reference.processing.supported", clauses=("PROC-014",), report=PACKAGE, effect="crash")
def peaked_row_keeps_nothing(true: Function) -> Function:
    """A candidate that alone exceeds the mass is dropped with the rest, and 0 is divided by 0."""

    def kept(real: Function) -> Function:
        return lambda weights, min_p, top_p: (
            0 if top_p < 1 and weights[0] > top_p * filters.total(weights) else real(weights, min_p, top_p)
        )

    def wrong(*given: Any) -> Any:
        with patched("dflash_reference.filters.kept", kept), np.errstate(invalid="ignore"):
            return true(*given)

    return wrong


@fault("dflash_reference.processing.supported", clauses=("PROC-015",), report=ORDER, effect="output")
def mass_of_the_whole_vocabulary(true: Function) -> Function:
    """Top-p measures its mass before top-k, over every id, as another engine does."""

    def wrong(adjusted: Array, temperature: float, *rest: Any) -> Any:
        totals = iter(
            float(elementary.exp((row[np.isfinite(row)] - row.max()) / temperature).sum()) for row in adjusted
        )
        with patched("dflash_reference.filters.total", lambda real: lambda weights: next(totals)):
            return true(adjusted, temperature, *rest)

    return wrong


@fault("dflash_reference.filters.kept", clauses=("PROC-015",), report=DEVICE, effect="output", profiles=KEYED)
def mass_after_min_p(true: Function) -> Function:
    """Top-p measures what min-p left."""

    def wrong(weights: Array, min_p: float, top_p: float) -> int:
        end = filters.min_p_end(weights, min_p)
        return int(true(weights[:end], 0.0, top_p))

    return wrong


@fault("dflash_reference.processing.supported", clauses=("PROC-015",), report=DEVICE, effect="output")
def mass_at_temperature_1(true: Function) -> Function:
    """Top-p is applied before the temperature."""

    def wrong(adjusted: Array, temperature: float, top_k: int, min_p: float, top_p: float, profile: Any) -> Any:
        kept = true(adjusted, 1.0, top_k, min_p, top_p, profile).kept
        ranks = np.argsort(np.argsort(-adjusted, axis=1, kind="stable"), axis=1, kind="stable")
        left = np.where(ranks < kept[:, np.newaxis], adjusted, -np.inf)
        weights = true(adjusted, temperature, top_k, min_p, 1.0, profile).weights
        return true(left, temperature, top_k, 0.0, 1.0, profile)._replace(weights=weights)

    return wrong


@fault("dflash_reference.filters.renormalised", clauses=("PROC-016",), report=PACKAGE, effect="output")
def weights_not_divided(true: Function) -> Function:
    """The kept weights are taken for probabilities as they are."""
    return lambda weights: weights


@fault("dflash_reference.processing.supported", clauses=("PROC-016",), report=PACKAGE, effect="output")
def mass_before_the_filters(true: Function) -> Function:
    """Probabilities are those of the softmax before top-p, with what it took away missing."""

    def wrong(adjusted: Array, temperature: float, top_k: int, min_p: float, top_p: float, profile: Any) -> Any:
        done = true(adjusted, temperature, top_k, min_p, top_p, profile)
        before = done.weights / done.weights.sum(axis=1, keepdims=True)
        return done._replace(p=np.where(done.p > 0, represent(before, "F32"), 0.0))

    return wrong


@fault("dflash_reference.processing.capped", clauses=("PROC-004",), report=SAMPLING, effect="output", profiles=KEYED)
def candidates_ranked_in_bf16(true: Function) -> Function:
    """Penalised logits are ranked by their BF16 values, which tie."""
    return lambda rows, cap: true(represent(rows, "BF16"), cap)
