"""Error models of the layer ops that draft and target share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_reference import elementary, num
from dflash_spec.tensors import Array

from dflash_vectors.bounds.algebra import (
    FLUSH,
    FUNCTION,
    Ledger,
    U,
    Value,
    add,
    contract,
    exact,
    gamma,
    heads,
    may_round,
    mean,
    multiply,
    rms_norm,
    rope,
    silu,
)

EXPONENTIALS = 3
"""Exponentials that may meet in one softmax weight: its own, and rescalings of a running maximum."""


def qkv(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act, table = ledger.profile.dtypes["ACT"], ledger.profile.axes["rope_table"]
    width = inputs["q_norm"].shape[0]
    n = ledger.stage("n", rms_norm(exact(inputs["x"]), inputs["input_norm"], inputs["eps"]), act)
    raw = {
        side: ledger.stage(f"{side}_raw", heads(contract(n, inputs[f"{side}_proj"]), width), act) for side in ("q", "k")
    }
    for side in ("q", "k"):
        weight = inputs[f"{side}_norm"]
        normed = ledger.stage(f"{side}_normed", rms_norm(raw[side], weight, inputs["eps"]), act)
        ledger.stage(side, rope(normed, inputs["positions"], inputs["theta"], table), act)
    ledger.stage("v", heads(contract(n, inputs["v_proj"]), width), act)


def softmax_mean(scores: Value, values: Array, narrow: str) -> Value:
    """softmax(scores [R, n]) · values [n, D]; a port may hold the weights in `narrow` for the product."""
    top = scores.v.max(axis=-1, keepdims=True)
    shift = scores.v - top
    weights = elementary.exp(shift)
    argument = scores.e + 2 * U * (np.abs(scores.v) + np.abs(top))
    relative = (1 + EXPONENTIALS * (FUNCTION + U)) * elementary.exp(argument) - 1
    result = mean(Value(weights, weights * relative + FLUSH), values)
    if narrow == "F32":
        return result
    total = num.sum_last(weights)[..., None]
    return Value(result.v, result.e + may_round_weights(weights, values, narrow) / total)


def may_round_weights(weights: Array, values: Array, dtype: str) -> Array:
    held = may_round(Value(weights, np.zeros_like(weights)), dtype)
    return num.contract(held.e, np.abs(values).T)


def attend(q: Array, keys: Array, values: Array, seen: Array, narrow: str) -> Value:
    """Attention of q [R, QH, D] over keys and values [N, KV, D] where seen [R, N] -> [R, QH·D].

    A row that sees nothing is exactly zero.
    """
    rows, query_heads, size = q.shape
    v, e = np.zeros((rows, query_heads, size)), np.zeros((rows, query_heads, size))
    scale = 1 / np.sqrt(float(size))
    for row in range(rows):
        if not seen[row].any():
            continue
        near, far = keys[seen[row]], values[seen[row]]
        for head in range(query_heads):
            group = head // (query_heads // keys.shape[1])
            product = contract(exact(q[row, head][None]), near[:, group])
            score = Value(product.v * scale, product.e * scale + gamma(3) * product.reach * scale)
            result = softmax_mean(score, far[:, group], narrow)
            v[row, head], e[row, head] = result.v[0], result.e[0]
    return Value(v.reshape(rows, -1), e.reshape(rows, -1))


def visible(query: Array, key: Array, window: int, causal: bool) -> Array:
    """Which keys (positions [N]) each query (positions [R]) sees, [R, N]; window 0 is a full layer."""
    distance = np.asarray(query)[:, None] - np.asarray(key)[None, :]
    seen = np.ones_like(distance, dtype=bool) if window == 0 else np.abs(distance) < window
    return seen & (distance >= 0) if causal else seen


def draft_attention(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    length, live, rows = inputs["context_length"], inputs["live"], inputs["q"].shape[0]
    positions = inputs["positions"][:live]
    keys = np.concatenate([inputs["context_key"][:length], inputs["block_key"][:live]])
    values = np.concatenate([inputs["context_value"][:length], inputs["block_value"][:live]])
    places = np.concatenate([inputs["context_positions"][:length], positions])
    seen = visible(positions, places, inputs["window"], bool(inputs["causal"]))
    attended = attend(inputs["q"][:live], keys, values, seen, ledger.profile.dtypes["ACT"])
    dead = [(0, rows - live), (0, 0)]
    padded = Value(np.pad(attended.v, dead), np.pad(attended.e, dead))
    ledger.stage("attended", padded, ledger.profile.dtypes["ACT"])
    ledger.zero("attended", np.broadcast_to(np.arange(rows)[:, None] >= live, padded.v.shape))


def target_attention(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    length, act = inputs["length"], ledger.profile.dtypes["ACT"]
    seen = visible(inputs["positions"], np.arange(length), inputs["window"], causal=True)
    attended = attend(inputs["q"], inputs["key"][:length], inputs["value"][:length], seen, act)
    ledger.stage("attended", attended, act)


def output(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act = ledger.profile.dtypes["ACT"]
    branch = may_round(contract(exact(inputs["attended"]), inputs["o_proj"]), act)
    ledger.stage("y", add(exact(inputs["x"]), branch), act)


def mlp(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act = ledger.profile.dtypes["ACT"]
    m = ledger.stage("m", rms_norm(exact(inputs["y"]), inputs["post_norm"], inputs["eps"]), act)
    gate = may_round(contract(m, inputs["gate_proj"]), act)
    up = may_round(contract(m, inputs["up_proj"]), act)
    product = ledger.stage("product", multiply(may_round(silu(gate), act), up), act)
    branch = may_round(contract(product, inputs["down_proj"]), act)
    ledger.stage("x_next", add(exact(inputs["y"]), branch), act)


def final(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    norm = rms_norm(exact(inputs["x"][1:]), inputs["norm"], inputs["eps"])
    ledger.stage("hidden", norm, ledger.profile.dtypes["ACT"])


MODELS = {
    "draft.qkv": qkv,
    "draft.attention": draft_attention,
    "draft.output": output,
    "draft.mlp": mlp,
    "draft.final": final,
    "target.attention": target_attention,
}
