"""Error models of split heads: a rank's bounds are those that its heads have in the whole."""

import numpy as np
import pytest
from dflash_spec.registry import load_profile
from dflash_vectors import inputs
from dflash_vectors.bounds import bounds_of
from dflash_vectors.run import execute

NEURON, ZLAB = load_profile("vllm-neuron"), load_profile("zlab")
LAYERS, KV, DIM, HIDDEN = 2, 4, 6, 10


def projected():
    shape = (LAYERS, KV * DIM, HIDDEN)
    return {
        "c": inputs.telling("bounds/c", (3, HIDDEN), "F32"),
        "k_proj": inputs.weights("bounds/k", shape, "F32"),
        "v_proj": inputs.weights("bounds/v", shape, "F32"),
        "k_norm": inputs.norm_weights("bounds/norm", (LAYERS, DIM), "F32"),
        "positions": np.array([2, 700, 41]),
        "theta": 1e4,
        "eps": inputs.fp32(1e-6),
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_keys_and_values_of_a_rank_may_be_off_as_those_of_each_layer_may(rank):
    given = projected() | {"ranks": 2, "rank": rank}
    found = bounds_of("shard.context_kv", given, execute("shard.context_kv", given, NEURON), NEURON)
    own = slice(rank * KV // 2, (rank + 1) * KV // 2)
    for index in range(LAYERS):
        key = {name: given[name] for name in ("c", "positions", "theta", "eps")}
        key |= {"k_proj": given["k_proj"][index], "k_norm": given["k_norm"][index]}
        value = {"c": given["c"], "v_proj": given["v_proj"][index], "kv_heads": KV}
        keys = bounds_of("context.key", key, execute("context.key", key, ZLAB), ZLAB)
        values = bounds_of("context.value", value, execute("context.value", value, ZLAB), ZLAB)
        for name in ("raw", "normed", "key"):
            np.testing.assert_array_equal(found[name][index], keys[name][:, own])
        np.testing.assert_array_equal(found["value"][index], values["value"][:, own])


def test_attention_and_the_residual_row_may_be_off_as_without_ranks():
    rows, context = 2, 3
    given = {
        "q": inputs.telling("bounds/q", (rows, KV, DIM), "F32"),
        "context_key": inputs.telling("bounds/ck", (context, KV, DIM), "F32"),
        "context_value": inputs.telling("bounds/cv", (context, KV, DIM), "F32"),
        "block_key": inputs.telling("bounds/bk", (rows, KV, DIM), "F32"),
        "block_value": inputs.telling("bounds/bv", (rows, KV, DIM), "F32"),
        "context_positions": np.arange(context),
        "positions": np.arange(context, context + rows),
        "window": 0,
        "causal": 0,
    }
    split = given | {"ranks": 2}
    whole = given | {"context_length": context, "live": rows}
    found = bounds_of("shard.attention", split, execute("shard.attention", split, NEURON), NEURON)
    expected = bounds_of("draft.attention", whole, execute("draft.attention", whole, ZLAB), ZLAB)
    np.testing.assert_array_equal(found["attended"], expected["attended"])
    row = {
        "attended": inputs.telling("bounds/attended", (2, 6), "F32"),
        "o_proj": inputs.weights("bounds/o", (5, 6), "F32"),
        "x": inputs.telling("bounds/x", (2, 5), "F32"),
    }
    off = bounds_of("shard.output", row | {"ranks": 3}, execute("shard.output", row | {"ranks": 3}, NEURON), NEURON)
    plain = bounds_of("draft.output", row, execute("draft.output", row, ZLAB), ZLAB)
    np.testing.assert_array_equal(off["y"], plain["y"])
    assert (off["y"] > 0).all()
