"""Error models of what is split over ranks: the same as of the whole, since a sum may be formed in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.bounds import layers
from dflash_vectors.bounds.algebra import Ledger, Value, contract, exact, rms_norm, rope


def _of_rank(inputs: Mapping[str, Any], name: str) -> Value:
    """The products of c with the rank's rows of a projection of every layer: [L, T, E, D]."""
    weights: Array = inputs[name]
    count, dim = inputs["k_norm"].shape
    share = weights.shape[1] // inputs["ranks"]
    own = weights[:, inputs["rank"] * share : (inputs["rank"] + 1) * share]
    products = [contract(exact(inputs["c"]), weight) for weight in own]
    shape = (count, len(inputs["c"]), share // dim, dim)
    return Value(*(np.stack([getattr(p, part) for p in products]).reshape(shape) for part in ("v", "e")))


def context_kv(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    dtypes, table = ledger.profile.dtypes, ledger.profile.axes["rope_table"]
    raw = ledger.stage("raw", _of_rank(inputs, "k_proj"), dtypes["ACT"])
    norms = inputs["k_norm"][:, np.newaxis, np.newaxis, :]
    normed = ledger.stage("normed", rms_norm(raw, norms, inputs["eps"]), dtypes["ACT"])
    ledger.stage("key", rope(normed, inputs["positions"], inputs["theta"], table), dtypes["CTX_K"])
    ledger.stage("value", _of_rank(inputs, "v_proj"), dtypes["CTX_V"])


def attention(inputs: Mapping[str, Any], ledger: Ledger) -> None:
    everything = {"context_length": len(inputs["context_key"]), "live": len(inputs["q"])}
    layers.draft_attention({**inputs, **everything}, ledger)


MODELS = {"shard.context_kv": context_kv, "shard.attention": attention, "shard.output": layers.output}
