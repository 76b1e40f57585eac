"""Error models of what DFlash2 adds to a layer: convolution, prepared rows, and the rings that context rows go into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.bounds.algebra import (
    Ledger,
    Value,
    add,
    contract,
    exact,
    gamma,
    heads,
    may_round,
    multiply,
    rms_norm,
    rope,
    silu,
)


def part(x: Value, place: Any) -> Value:
    """The elements of `x` at an index."""
    return Value(x.v[place], x.e[place])


def rows_before(x: Value, steps: int, block_rows: int) -> Value:
    """Row i - steps of x [R, H] for each row i, exactly zero where that is in an earlier block."""
    source = np.arange(len(x.v)) - steps
    inside = (np.arange(len(x.v)) % block_rows >= steps)[:, None]
    return Value(np.where(inside, x.v[source], 0.0), np.where(inside, x.e[source], 0.0))


def convolve(z: Value, base: Array, delta: Value, group: int, block_rows: int) -> Value:
    """The sum over taps of (base + delta) · row; base and delta may be added first, or multiply the row one by one.

    z [R, H], base [taps, H], delta [R, taps, G].
    """
    taps = len(base)
    v, e, size = (np.zeros_like(z.v) for _ in range(3))
    for tap in range(taps):
        increment = Value(*(np.repeat(x[:, tap], group, axis=-1) for x in (delta.v, delta.e)))
        row, coefficient = rows_before(z, tap, block_rows), base[tap] + increment.v
        v += coefficient * row.v
        e += increment.e * row.reach + np.abs(coefficient) * row.e
        size += (np.abs(base[tap]) + increment.reach) * row.reach
    return Value(v, e + gamma(2 * taps + 1) * size)


def prepare(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act, base = ledger.profile.dtypes["ACT"], inputs["base"]
    n = rms_norm(exact(inputs["x"]), inputs["norm"], inputs["eps"])
    projected = contract(n, inputs["projection"])
    shape = (len(n.v), 2, base.shape[1], n.v.shape[1] // inputs["group"])
    delta = Value(projected.v.reshape(shape), projected.e.reshape(shape))
    mixed = convolve(n, base[0], part(delta, (slice(None), 0)), inputs["group"], inputs["block_rows"])
    ledger.stage("prepared", mixed, act)
    ledger.stage("finish_delta", part(delta, (slice(None), 1)), act)


def finish(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act = ledger.profile.dtypes["ACT"]
    z = may_round(contract(exact(inputs["branch"]), inputs["weight"]), act)
    mixed = convolve(z, inputs["base"][1], exact(inputs["finish_delta"]), inputs["group"], inputs["block_rows"])
    ledger.stage("residual_next", add(exact(inputs["residual"]), mixed), act)


def qkv(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    """A port may hold FP32 between norm and rotation, which is the rounding that the norm counts anyway."""
    act, table = ledger.profile.dtypes["ACT"], ledger.profile.axes["rope_table"]
    width, rows = len(inputs["q_norm"]), exact(inputs["prepared"])
    raw = {
        side: ledger.stage(f"{side}_raw", heads(contract(rows, inputs[f"{side}_proj"]), width), act) for side in "qk"
    }
    for side in "qk":
        normed = rms_norm(raw[side], inputs[f"{side}_norm"], inputs["eps"])
        ledger.stage(side, rope(normed, inputs["positions"], inputs["theta"], table), act)
    ledger.stage("v", heads(contract(rows, inputs["v_proj"]), width), act)


def mlp(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    act, rows = ledger.profile.dtypes["ACT"], exact(inputs["prepared"])
    gate = may_round(contract(rows, inputs["gate_proj"]), act)
    up = may_round(contract(rows, inputs["up_proj"]), act)
    ledger.stage("product", multiply(may_round(silu(gate), act), up), act)


def written(inputs: Mapping[str, Any]) -> Iterator[tuple[Array, Array, tuple[int, Array]]]:
    """Of each lane that gets rows: the rows, their positions, and the ring and slots that they are written to."""
    capacity = inputs["ring_key"].shape[2]
    for b in np.flatnonzero(inputs["counts"]):
        kept = slice(max(0, int(inputs["counts"][b]) - capacity), int(inputs["counts"][b]))
        at = inputs["positions"][b, kept]
        yield inputs["c"][b, kept], at, (int(inputs["lanes"][b]), at % capacity)


def materialize(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    """What is not written keeps what it holds: no error is allowed there."""
    dtypes, table = ledger.profile.dtypes, ledger.profile.axes["rope_table"]
    key, value = (Value(np.array(inputs[f"ring_{side}"]), np.zeros(inputs[f"ring_{side}"].shape))
                  for side in ("key", "value"))  # fmt: skip
    touched = np.zeros(key.v.shape, dtype=bool)
    for rows, at, (lane, slots) in written(inputs):
        for index, norm in enumerate(inputs["k_norm"]):
            place, width = (lane, index, slots), len(norm)
            raw = heads(contract(exact(rows), inputs["context_k_proj"][index]), width)
            turned = rope(rms_norm(raw, norm, inputs["eps"]), at, inputs["theta"], table)
            projected = heads(contract(exact(rows), inputs["context_v_proj"][index]), width)
            for held, new in ((key, turned), (value, projected)):
                held.v[place], held.e[place] = new.v, new.e
            touched[place] = True
    ledger.stage("key", key, dtypes["CTX_K"])
    ledger.stage("value", value, dtypes["CTX_V"], detour=dtypes["ACT"] if dtypes["CTX_V"] != dtypes["ACT"] else None)
    for name in ("key", "value"):
        ledger.zero(name, ~touched)


MODELS = {
    "conv.prepare": prepare,
    "conv.finish": finish,
    "draft2.qkv": qkv,
    "draft2.mlp": mlp,
    "context.materialize": materialize,
}
