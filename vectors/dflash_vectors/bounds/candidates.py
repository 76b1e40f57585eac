"""Error models of DFlash2's candidates, of the selector's rows, and of its walk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_reference import elementary, num
from dflash_spec.tensors import Array

from dflash_vectors.bounds.algebra import FUNCTION, Ledger, U, Value, contract, exact, gamma, multiply
from dflash_vectors.bounds.heads import softmax


def scores(inputs: Mapping[str, Any]) -> Value:
    """The scores [P, public] of the rows that take part, times the multiplier, and bent where there is a cap.

    A port may multiply by a rounded reciprocal of the cap; the slope of the hyperbolic tangent is at most 1.
    """
    products = contract(exact(inputs["hidden"]), inputs["head"][: inputs["public"]])
    x, cap = multiply(products, exact(np.array(inputs["multiplier"]))), inputs["softcap"]
    if cap <= 0:
        return x
    y = cap * elementary.tanh(x.v / cap)
    e = x.e + FUNCTION * x.reach
    return Value(y, e + (FUNCTION + U) * (np.abs(y) + e))


def top(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    all_scores, rows = scores(inputs), {int(id_): row for row, id_ in enumerate(inputs["global_ids"])}
    picked = np.array([[rows[int(id_)] for id_ in ids] for ids in ledger.result["candidates"]])
    unary = Value(*(np.take_along_axis(x, picked, axis=1) for x in (all_scores.v, all_scores.e)))
    ledger.stage("unary", unary, "F32")


def project(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    ledger.stage("g", contract(exact(inputs["hidden"]), inputs["projection"]), ledger.profile.dtypes["ACT"])


def edges(inputs: Mapping[str, Any], proposals: Array) -> Value:
    """The scores [P, C] of a walk that chooses `proposals`; the three factors may be multiplied in any order."""
    unary, rank = inputs["unary"], inputs["g"].shape[1]
    v, e = np.zeros(unary.shape), np.zeros(unary.shape)
    for step, before in enumerate([inputs["anchor"], *proposals[:-1]]):
        factor, successor = inputs["predecessor"][before] * inputs["g"][step], inputs["successor"]
        rows = successor[inputs["candidates"][step]]
        v[step] = unary[step] + num.contract(factor, rows)
        size = num.contract(np.abs(factor), np.abs(rows))
        e[step] = gamma(rank + 2) * size + U * (np.abs(v[step]) + gamma(rank + 2) * size)
    return Value(v, e)


def law(held: Value, temperature: float) -> Value:
    """The softmax of scores / T; a port may divide or multiply by a rounded 1/T, before or after the maximum."""
    scaled = held.v / temperature
    top_ = scaled.max(axis=-1, keepdims=True)
    off = held.e / temperature
    argument = (2 * FUNCTION + U) * (np.abs(scaled) + np.abs(top_)) + off + off.max(axis=-1, keepdims=True)
    return softmax(scaled - top_, argument, np.ones(held.v.shape, dtype=bool))


def walk(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    held = ledger.stage("scores", edges(inputs, ledger.result["proposals"]), "F32")
    if inputs["temperature"] > 0:
        ledger.stage("q", law(held, inputs["temperature"]), "F32")
    else:
        ledger.worst["q"] = np.zeros(held.v.shape)


MODELS = {"head.top": top, "selector.project": project, "selector.walk": walk}
