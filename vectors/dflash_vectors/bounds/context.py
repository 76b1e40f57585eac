"""Error models of contractions alone and of the context ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_vectors.bounds.algebra import Ledger, contract, exact, heads, rms_norm, rope


def contraction(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    ledger.stage("y", contract(exact(inputs["x"]), inputs["w"]), "F32")


def feature(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act = ledger.profile.dtypes["ACT"]
    projected = ledger.stage("projected", contract(exact(inputs["features"]), inputs["fc"]), act)
    ledger.stage("c", rms_norm(projected, inputs["hidden_norm"], inputs["eps"]), act)


def key(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act, table = ledger.profile.dtypes["ACT"], ledger.profile.axes["rope_table"]
    raw = contract(exact(inputs["c"]), inputs["k_proj"])
    raw = ledger.stage("raw", heads(raw, inputs["k_norm"].shape[0]), act)
    normed = ledger.stage("normed", rms_norm(raw, inputs["k_norm"], inputs["eps"]), act)
    ledger.stage("key", rope(normed, inputs["positions"], inputs["theta"], table), ledger.profile.dtypes["CTX_K"])


def value(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    dtypes, projection = ledger.profile.dtypes, inputs["v_proj"]
    projected = heads(contract(exact(inputs["c"]), projection), projection.shape[0] // inputs["kv_heads"])
    ledger.stage("raw", projected, dtypes["ACT"])
    detour = dtypes["ACT"] if dtypes["CTX_V"] != dtypes["ACT"] else None
    ledger.stage("value", projected, dtypes["CTX_V"], detour=detour)


MODELS = {
    "num.contract": contraction,
    "context.feature": feature,
    "context.key": key,
    "context.value": value,
}
