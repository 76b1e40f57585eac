"""The target's side of sampling: its processed distribution, its argmax, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.errors import RequestError, TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import arguments, elementary, num


class Distribution(NamedTuple):
    """support: [N, S] int64 ids in draw order, -1 past the support. p: [N, S], represented in F32."""

    support: Array
    p: Array


class Greedy(NamedTuple):
    """tokens: [N] int64."""

    tokens: Array


class Draw(NamedTuple):
    """tokens: [N] int64."""

    tokens: Array


def public_columns(logits: Array, public: int) -> Array:
    """The logits [N, public] of the ids that take part, of [N, V].

    Raises TensorError unless 1 <= public <= V and each row has a finite logit and no NaN or +infinity.

    Clause: PROC-001
    Source: Infernix include/infernix/ops/sampling.h.
    """
    if not 1 <= public <= logits.shape[1]:
        raise TensorError(f"public is {public}, expected 1 to {logits.shape[1]}, the columns of the logits")
    kept = logits[:, :public]
    for row, largest in enumerate(kept.max(axis=1)):
        if not np.isfinite(largest):
            raise TensorError(f"logits row {row}: the largest is {largest}, expected a finite number")
    return kept


def greedy(logits: Array, public: int, profile: Profile) -> Greedy:
    """The argmax of each row of logits [N, V], the lowest id on exact ties; nothing is drawn.

    Clause: PROC-002
    Source: Infernix include/infernix/ops/sampling.h.
    """
    rows = public_columns(logits, public)
    return Greedy(np.argmax(rows == rows.max(axis=1, keepdims=True), axis=1))


def capped(rows: Array, cap: int) -> Array:
    """The ids of the `cap` largest entries of each row, largest first and lower id first on ties: [N, V] -> [N, S].

    Clause: PROC-004
    Source: Infernix include/infernix/ops/sampling.h.
    """
    return np.argsort(-rows, axis=1, kind="stable")[:, :cap]


def tempered(logits: Array, temperature: float) -> Array:
    """e^(logit / T - largest / T) of each row: [N, S] -> [N, S], the largest 1.

    Clause: PROC-003
    Source: dflash 0.1.0 _sampling_probs; Infernix src/ops/kernel/sampling_device.cuh.
    """
    scaled = logits / temperature
    return elementary.exp(scaled - scaled.max(axis=1, keepdims=True))


def distribution(logits: Array, temperature: float, public: int, profile: Profile) -> Distribution:
    """The distribution of each row of logits [N, V] at a temperature above 0.

    With a sampling cap the support is in rank order; without one it is every public id in ascending order.
    Raises RequestError for another temperature, and for one that is not a normal number of F32.
    """
    if not temperature > 0:
        raise RequestError(f"proc.distribution: temperature {temperature}, expected a number above 0")
    arguments.temperature(temperature)
    rows = public_columns(logits, public)
    cap = profile.axes["sampling_cap"]
    support = capped(rows, cap) if cap else np.tile(np.arange(public), (len(rows), 1))
    chosen = np.take_along_axis(rows, support, axis=1)
    powers = tempered(chosen, temperature)
    p = num.round_to(powers / num.sum_last(powers)[:, np.newaxis], "F32")
    return Distribution(np.where(np.isneginf(chosen), -1, support) if cap else support, p)


def rank(weights: Sequence[Any], goal: Any) -> int:
    """The first rank whose inclusive cumulative weight exceeds `goal`, else the last rank with a weight above 0.

    Takes floats or Fractions. Raises TensorError if no weight is above 0.

    Clause: PROC-005
    Source: Infernix src/ops/kernel/sampling_device.cuh.
    """
    cumulative, last = 0, -1
    for index, weight in enumerate(weights):
        cumulative = cumulative + weight
        if goal < cumulative:
            return index
        last = index if weight > 0 else last
    if last < 0:
        raise TensorError(f"a draw from {len(weights)} weights, expected one above 0")
    return last


def draw(support: Array, p: Array, u: Array, profile: Profile) -> Draw:
    """One token per row from support [N, S] with probabilities p [N, S] and uniforms u [N]."""
    return Draw(np.array([ids[rank(row, goal)] for ids, row, goal in zip(support, p, u, strict=True)], dtype=np.int64))
