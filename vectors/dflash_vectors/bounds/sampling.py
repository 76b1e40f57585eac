"""Error models of the sampling pipeline: adjusted logits, filtered distributions, and drawn proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_reference import elementary, num
from dflash_spec.tensors import Array

from dflash_vectors.bounds.algebra import FLUSH, FUNCTION, Ledger, U, Value, add, exact, gamma, multiply
from dflash_vectors.bounds.heads import softmax


def occurrences(inputs: Mapping[str, Any]) -> Array:
    """How often each id counts in each row [N, V]."""
    counts = np.tile(inputs["counts"], (len(inputs["logits"]), 1)).astype(np.float64)
    for row, ids in enumerate(inputs["overlay"]):
        np.add.at(counts[row], ids[ids >= 0], 1.0)
    return counts


def adjust(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    """Two subtractions and a product; a port may fuse the product with the second."""
    count = occurrences(inputs)
    held = np.asarray(ledger.result["adjusted"])
    penalised = (count > 0) & np.isfinite(held)
    logits = exact(np.where(penalised, inputs["logits"], 0.0))
    presence = np.where(penalised, -inputs["presence"], 0.0)
    product = multiply(exact(np.where(penalised, -inputs["frequency"], 0.0)), exact(count))
    once = add(logits, exact(presence))
    twice = add(once, product)
    changed = penalised & ((presence != 0) | (product.v != 0))
    ledger.stage("adjusted", Value(np.where(changed, twice.v, held), np.where(changed, twice.e, 0.0)), "F32")
    ledger.zero("adjusted", ~changed)


def ranked(rows: Array) -> Array:
    """The rank of each id [N, V]: the largest first, the lower id first on ties."""
    order = np.argsort(-rows, axis=1, kind="stable")
    return np.argsort(order, axis=1, kind="stable")


def shifted(rows: Array, temperature: float) -> tuple[Array, Array, Array]:
    """What the exponential is taken of [N, V], how far a port's may be off, and which are finite.

    A port may divide by T or multiply by a rounded 1/T, before or after it subtracts the maximum, fused or not; the
    largest itself may be off by as much.
    """
    finite = np.isfinite(rows)
    scaled = np.where(finite, rows, 0.0) / temperature
    top = np.where(finite, scaled, -np.inf).max(axis=-1, keepdims=True)
    return np.where(finite, scaled - top, 0.0), (2 * FUNCTION + U) * (np.abs(scaled) + np.abs(top)), finite


def weighed(rows: Array, temperature: float) -> Value:
    """e^(x / T) [N, V] relative to the largest of each row, 0 at minus infinity."""
    shift, argument, finite = shifted(rows, temperature)
    weights = np.where(finite, elementary.exp(shift), 0.0)
    relative = (1 + FUNCTION) * elementary.exp(argument) - 1
    return Value(weights, np.where(finite, weights * relative + FLUSH, 0.0))


def filtered(rows: Array, temperature: float, kept: Array) -> Value:
    """The probabilities [N, V] of the `kept` [N] best of each row."""
    shift, argument, finite = shifted(rows, temperature)
    return softmax(shift, argument, finite & (ranked(rows) < kept[:, np.newaxis]))


def filter_(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    """Weights of what top-k left, probabilities of what all filters left, at the places of the support."""
    rows, temperature, result = inputs["adjusted"], inputs["temperature"], ledger.result
    width = result["weights"].shape[1]
    full = width == rows.shape[1] and not ledger.profile.axes["sampling_cap"]
    ranks = np.tile(np.arange(width), (len(rows), 1)) if full else np.argsort(-rows, axis=1, kind="stable")[:, :width]
    present = np.take_along_axis(np.isfinite(rows), ranks, axis=1)
    if full and inputs["top_k"] > 0:
        present &= ranked(rows) < inputs["top_k"]
    weights = _at(weighed(rows, temperature), ranks, present)
    ledger.stage("weights", weights, "F32")
    ledger.zero("weights", ~present)
    law = _at(filtered(rows, temperature, result["kept"]), ranks, present)
    ledger.stage("p", law, "F32")
    ledger.zero("p", law.e == 0)


def _at(value: Value, ranks: Array, present: Array) -> Value:
    v, e = (np.take_along_axis(part, ranks, axis=1) for part in (value.v, value.e))
    return Value(np.where(present, v, 0.0), np.where(present, e, 0.0))


def proposed(inputs: Mapping[str, Any], q: Array) -> Value:
    """The law [K, V] that draws each proposal; how many ids it holds is read off the reference's."""
    return filtered(inputs["logits"], inputs["temperature"], (q > 0).sum(axis=1))


def propose(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    law = proposed(inputs, np.asarray(ledger.result["q"]))
    ledger.stage("q", law, "F32")
    ledger.zero("q", law.e == 0)


def cumulative(weights: Value) -> Value:
    """The inclusive sums [S] of ranked weights [S] over their total, in any order."""
    count = len(weights.v)
    total, drift = float(num.sum_last(weights.v)), float(num.sum_last(weights.e))
    drift += gamma(count) * float(num.sum_last(weights.reach))
    sums, moved = np.cumsum(weights.v), np.cumsum(weights.e)
    moved = moved + gamma(count) * (sums + moved)
    share = sums / total
    e = (moved + share * drift) / (total - drift)
    return Value(share, e + FUNCTION * (share + e))


MODELS = {"proc.adjust": adjust, "proc.filter": filter_, "proc.propose": propose}
