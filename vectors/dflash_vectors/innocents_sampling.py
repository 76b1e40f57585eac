"""Innocent variants of the sampling pipeline: penalties, filters and their sums in FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import num, penalties
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function

F32 = np.float32


def fused_penalties(true: Function) -> Function:
    """frequency · c is not rounded before it is subtracted, as a fused multiply-add leaves it."""

    def penalised(rows: Array, occurred: Array, presence: float, frequency: float) -> Array:
        once = penalties.less(rows, np.full(rows.shape, presence))
        twice = penalties.less(once, frequency * num.round_to(occurred, "F32"))
        return np.where(occurred > 0, twice, rows)

    return penalised


def _exact(*given: Any) -> bool:
    """Whether the arguments are exact fractions, which FP32 arithmetic leaves alone."""
    return any(np.asarray(value).dtype == object for value in given)


def scan_of_weights(true: Function) -> Function:
    """One scan in FP32: the weight against min-p's share of the best, the running sum against top-p's of the total."""

    def kept(weights: Array, min_p: Any, top_p: Any) -> int:
        if _exact(weights, min_p, top_p):
            return int(true(weights, min_p, top_p))
        narrow, cumulative = weights.astype(F32), F32(0)
        total = _in_order(narrow)
        for rank, weight in enumerate(narrow):
            if min_p > 0 and weight < F32(min_p) * narrow[0]:
                return rank
            cumulative = cumulative + weight
            if top_p < 1 and cumulative >= F32(top_p) * total:
                return rank + 1
        return len(narrow)

    return kept


def mass_before(true: Function) -> Function:
    """A token is kept while the FP32 probability before it is below top-p, as the authors' package has it."""

    def kept(weights: Array, min_p: Any, top_p: Any) -> int:
        if _exact(weights, min_p, top_p):
            return int(true(weights, min_p, top_p))
        end = int(true(weights, min_p, 1.0))
        shares = weights.astype(F32) / _in_order(weights.astype(F32))
        before = np.cumsum(shares, dtype=F32) - shares
        return min(end, max(1, int((before < F32(top_p)).sum()))) if top_p < 1 else end

    return kept


def _in_order(terms: Array) -> F32:
    total = F32(0)
    for term in terms:
        total = F32(total + term)
    return total


def reciprocal_sums(true: Function) -> Function:
    """Weights are multiplied by the rounded reciprocal of their FP32 sum."""

    def renormalised(weights: Array) -> Array:
        if _exact(weights):
            return np.asarray(true(weights))
        narrow = weights.astype(F32)
        sums = np.array([F32(1) / _in_order(row) for row in narrow.reshape(-1, narrow.shape[-1])], F32)
        product: Array = (narrow * sums.reshape((*narrow.shape[:-1], 1))).astype(np.float64)
        return product

    return renormalised
