"""Which candidates of a row the filters leave: top-k's count, and the ends that min-p and top-p set to a ranked row.

Weights stand in rank order, best first, and are floats or Fractions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import num


def size(top_k: int, columns: int, profile: Profile) -> int:
    """How many of `columns` candidates top-k leaves."""
    cap = profile.axes["sampling_cap"]
    return min(size_up_to(cap, top_k) if cap else size_or_all(top_k, columns), columns)


def size_up_to(cap: int, top_k: int) -> int:
    """top_k from 1 up to the cap, and the cap for every other value, those below 1 among them.

    Clause: PROC-011
    Source: Infernix include/infernix/ops/sampling.h.
    """
    return top_k if 1 <= top_k < cap else cap


def size_or_all(top_k: int, columns: int) -> int:
    """top_k, and every candidate where it is 0.

    Clause: PROC-012
    Source: dflash 0.1.0 _sampling_probs.
    """
    return top_k or columns


def kept(weights: Array, min_p: Any, top_p: Any) -> int:
    """How many of the ranked weights [S] min-p and top-p leave together: 1 at least."""
    end = min_p_end(weights, min_p)
    return max(1, top_p_end(weights[:end], top_p, total(weights)))


def min_p_end(weights: Array, min_p: Any) -> int:
    """How many of the ranked weights [S] stand before the first that is less than min_p times the best.

    Top-p counts none of those after the end.

    Clause: PROC-013
    Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    return next((rank for rank, weight in enumerate(weights) if weight < min_p * weights[0]), len(weights))


def top_p_end(weights: Array, top_p: Any, whole: Any) -> int:
    """How many of the ranked weights [S] it takes to reach top_p times `whole`; all of them where top_p is 1.

    Clause: PROC-014
    Source: Infernix src/ops/kernel/sampling_device.cuh; dflash 0.1.0 _sampling_probs.
    """
    cumulative = 0
    for rank, weight in enumerate(weights if top_p < 1 else ()):
        cumulative = cumulative + weight
        if cumulative >= top_p * whole:
            return rank + 1
    return len(weights)


def total(weights: Array) -> Any:
    """What top-p takes its share of: the weights [S] that top-k left, min-p or not.

    Clause: PROC-015
    Source: Infernix src/ops/kernel/sampling_device.cuh; dflash 0.1.0 _sampling_probs; sgl-project/sglang pull 36173.
    """
    return mass(weights)


def renormalised(weights: Array) -> Array:
    """Weights [..., S], 0 where a filter took them away, over their own sum.

    Clause: PROC-016
    Source: Infernix src/ops/kernel/sampling_device.cuh; dflash 0.1.0 _sampling_probs.
    """
    shares: Array = weights / np.expand_dims(mass(weights), -1)
    return shares


def mass(weights: Array) -> Any:
    """The sum over the last axis, [..., S] -> [...]; that of Fractions is exact."""
    return weights.sum(axis=-1) if weights.dtype == object else num.sum_last(weights)
