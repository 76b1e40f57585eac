"""Split heads and vocabularies give what whole ones give."""

from typing import Any

import numpy as np
import pytest
from dflash_reference import context, draft, head, layer, shard
from dflash_spec.errors import TensorError
from dflash_spec.registry import load_profile
from dflash_vectors import inputs
from hypothesis import given, settings
from hypothesis import strategies as st

NEURON, ZLAB = load_profile("vllm-neuron"), load_profile("zlab")
HIDDEN, LAYERS, DIM = 10, 3, 4
EPS = inputs.fp32(1e-6)


def projected(kv_heads: int) -> dict[str, Any]:
    shape = (LAYERS, kv_heads * DIM, HIDDEN)
    return {
        "c": inputs.telling("shard/c", (5, HIDDEN), "F32"),
        "k_proj": inputs.weights("shard/k", shape, "F32"),
        "v_proj": inputs.weights("shard/v", shape, "F32"),
        "k_norm": inputs.norm_weights("shard/norm", (LAYERS, DIM), "F32"),
        "positions": np.array([3, 4, 9, 2, 30]),
        "theta": 1e4,
        "eps": EPS,
    }


@pytest.mark.parametrize(("kv_heads", "ranks"), [(1, 1), (4, 1), (4, 2), (4, 4), (6, 2), (6, 3)])
def test_one_product_gives_each_layer_its_own_keys_and_values(kv_heads: int, ranks: int) -> None:
    given_ = projected(kv_heads)
    parts = [shard.context_kv(**given_, ranks=ranks, rank=rank, profile=NEURON) for rank in range(ranks)]
    keys, values = (np.concatenate([getattr(part, name) for part in parts], axis=2) for name in ("key", "value"))
    assert keys.shape == (LAYERS, 5, kv_heads, DIM)
    for index in range(LAYERS):
        place = given_["positions"], given_["theta"], EPS, ZLAB
        own = context.key(given_["c"], given_["k_proj"][index], given_["k_norm"][index], *place).key
        assert keys[index].tolist() == own.tolist()
        value = context.value(given_["c"], given_["v_proj"][index], kv_heads, ZLAB).value
        assert values[index].tolist() == value.tolist()


@settings(max_examples=60)
@given(st.integers(1, 5), st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=3))
def test_a_split_head_proposes_what_the_whole_one_does_ties_included(ranks: int, rows: list[list[int]]) -> None:
    logits = np.array(rows, dtype=float)
    found = shard.head(logits, ranks, NEURON)
    assert found.proposals.tolist() == head.argmax(logits, 9, ZLAB).proposals.tolist()
    share = -(-9 // ranks)
    for rank in range(ranks):
        part = logits[:, rank * share : (rank + 1) * share]
        if part.shape[1]:
            assert found.best[:, rank].tolist() == part.max(axis=1).tolist()
            assert found.best_ids[:, rank].tolist() == (rank * share + np.argmax(part, axis=1)).tolist()


def test_padding_never_wins() -> None:
    logits = np.full((1, 5), -np.inf)
    logits[0, 4] = -9.0
    assert shard.head(logits, 3, NEURON).proposals.tolist() == [4]
    assert shard.head(np.full((1, 5), -1e30), 4, NEURON).proposals.tolist() == [0]


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(4, 2, 1), (4, 2, 2), (12, 4, 2), (6, 3, 3), (3, 3, 1)])
@pytest.mark.parametrize(("window", "causal"), [(0, 0), (3, 0), (3, 1)])
def test_attention_rank_by_rank_is_attention(heads: int, kv_heads: int, ranks: int, window: int, causal: int) -> None:
    rows, length = 3, 5
    given_: dict[str, Any] = {
        "q": inputs.telling("shard/q", (rows, heads, DIM), "F32"),
        "context_key": inputs.telling("shard/ck", (length, kv_heads, DIM), "F32"),
        "context_value": inputs.telling("shard/cv", (length, kv_heads, DIM), "F32"),
        "block_key": inputs.telling("shard/bk", (rows, kv_heads, DIM), "F32"),
        "block_value": inputs.telling("shard/bv", (rows, kv_heads, DIM), "F32"),
        "context_positions": np.arange(length), "positions": np.arange(length, length + rows),
        "window": window, "causal": causal,
    }  # fmt: skip
    whole = draft.attention(**given_, context_length=length, live=rows, profile=ZLAB).attended
    assert shard.attention(**given_, ranks=ranks, profile=NEURON).attended.tolist() == whole.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_a_row_that_is_put_together_from_parts_is_the_whole_row(ranks: int) -> None:
    given_ = {
        "attended": inputs.lattice("shard/attended", (4, 6), 0.5, 3.0),
        "o_proj": inputs.lattice("shard/o", (7, 6), 0.25, 1.0),
        "x": inputs.lattice("shard/x", (4, 7), 0.125, 8.0),
    }
    found = shard.output(**given_, ranks=ranks, profile=NEURON)
    assert found.y.tolist() == layer.output(**given_, profile=ZLAB).y.tolist()


@pytest.mark.parametrize(("rank", "ranks", "kv_heads"), [(0, 2, 3), (0, 4, 2), (2, 2, 4), (-1, 2, 4), (0, 0, 4)])
def test_heads_that_no_rank_could_hold_are_refused(rank: int, ranks: int, kv_heads: int) -> None:
    with pytest.raises(TensorError, match=f"rank {rank} of {ranks} for {kv_heads} KV heads"):
        shard.heads_of(rank, ranks, kv_heads)


def test_ranks_below_one_and_columns_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(TensorError, match="0 ranks, expected at least 1"):
        shard.head(np.zeros((1, 3)), 0, NEURON)
    for ranks in (0, 4):
        with pytest.raises(TensorError, match=f"6 columns over {ranks} ranks"):
            shard.output(np.zeros((1, 6)), np.zeros((2, 6)), np.zeros((1, 2)), ranks, NEURON)
    rows: dict[str, Any] = {
        name: np.zeros((1, 3, DIM)) for name in ("q", "context_key", "context_value", "block_key", "block_value")
    }
    for ranks in (0, 2):
        with pytest.raises(TensorError, match=f"rank 0 of {ranks} for 3 KV heads"):
            shard.attention(**rows, context_positions=np.array([0]), positions=np.array([1]), window=0, causal=0,
                            ranks=ranks, profile=NEURON)  # fmt: skip
