"""Error models of logits and of the sampling distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_reference import elementary, num
from dflash_spec.tensors import Array

from dflash_vectors.bounds.algebra import FLUSH, FUNCTION, Ledger, U, Value, contract, exact, gamma, rms_norm


def head_logits(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    logits = contract(exact(inputs["hidden"]), inputs["head"])
    ledger.stage("logits", logits, ledger.profile.dtypes["LOGIT"])


def target_logits(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    norm = rms_norm(exact(inputs["x"]), inputs["norm"], inputs["eps"])
    hidden = ledger.stage("hidden", norm, ledger.profile.dtypes["ACT"])
    ledger.stage("logits", contract(hidden, inputs["head"]), ledger.profile.dtypes["LOGIT"])


def distribution(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    """The softmax of logit / T over the support that the reference chose.

    A port may divide, multiply by a rounded 1/T, and subtract the maximum before or after that.
    """
    support = np.asarray(ledger.result["support"])
    chosen = np.take_along_axis(inputs["logits"], np.where(support >= 0, support, 0), axis=-1)
    kept = (support >= 0) & np.isfinite(chosen)
    scaled = np.where(kept, chosen, 0.0) / inputs["temperature"]
    top = np.where(kept, scaled, -np.inf).max(axis=-1, keepdims=True)
    argument = (2 * FUNCTION + U) * (np.abs(scaled) + np.abs(top))
    ledger.stage("p", softmax(scaled - top, argument, kept), "F32")
    ledger.zero("p", ~kept)


def softmax(shift: Array, argument: Array, kept: Array) -> Value:
    """e^shift over its sum, of what is kept of the last axis; `argument` is how far each shift may be off."""
    weights = np.where(kept, elementary.exp(np.where(kept, shift, 0.0)), 0.0)
    relative = (1 + FUNCTION) * elementary.exp(argument) - 1
    error = np.where(kept, weights * relative + FLUSH, 0.0)
    total = num.sum_last(weights)[..., None]
    drift = num.sum_last(error)[..., None] + gamma(shift.shape[-1]) * num.sum_last(weights + error)[..., None]
    p = weights / total
    e = (error + p * drift) / (total - drift)
    return Value(p, np.where(kept, e + FUNCTION * (p + e), 0.0))


MODELS = {
    "head.logits": head_logits,
    "target.logits": target_logits,
    "proc.distribution": distribution,
}
