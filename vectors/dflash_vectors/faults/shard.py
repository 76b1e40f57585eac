"""Faults of split heads and vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NEURON = ("vllm-neuron",)
INJECTION = "vLLM Neuron DFlash guide, context KV injection"
LOCAL = "https://github.com/sgl-project/sglang/pull/29907"
PADDING = "https://github.com/pegainfer-project/pegainfer/pull/204"
PARTIAL = "https://github.com/lightseekorg/tokenspeed/pull/472"


@fault("dflash_reference.shard.split", clauses=("ASYNC-015",), report=INJECTION, effect="acceptance", profiles=NEURON)
def keys_and_values_exchanged(true: Function) -> Function:
    """The value columns come first in the stacked weight of whoever splits it."""
    return lambda product, layers, heads, dim: tuple(true(product, layers, heads, dim)[::-1])


@fault("dflash_reference.shard.split", clauses=("ASYNC-015",), report=INJECTION, effect="acceptance", profiles=NEURON)
def all_keys_before_all_values(true: Function) -> Function:
    """The product is split as if the keys of all layers came before the values of all."""

    def wrong(product: Array, layers: int, heads: int, dim: int) -> tuple[Array, Array]:
        parts = product.reshape(len(product), 2, layers, heads, dim).transpose(1, 2, 0, 3, 4)
        return parts[0], parts[1]

    return wrong


@fault("dflash_reference.shard.split", clauses=("ASYNC-015",), effect="acceptance", profiles=NEURON,
    report="https://github.com/local-inference-lab/vllm/pull/667",
)  # fmt: skip
def layers_write_one_buffer(true: Function) -> Function:
    """All layers are handed the buffer of the last one."""

    def wrong(product: Array, layers: int, heads: int, dim: int) -> tuple[Array, ...]:
        return tuple(np.stack([part[-1]] * layers) for part in true(product, layers, heads, dim))

    return wrong


@fault("dflash_reference.shard.split", clauses=("ASYNC-015",), report=INJECTION, effect="acceptance", profiles=NEURON)
def heads_and_channels_exchanged(true: Function) -> Function:
    """Channels are taken for heads within a layer's columns."""

    def wrong(product: Array, layers: int, heads: int, dim: int) -> tuple[Array, ...]:
        swapped = true(product, layers, dim, heads)
        return tuple(part.swapaxes(2, 3) for part in swapped)

    return wrong


@fault("dflash_reference.shard.heads_of", clauses=("ASYNC-016",), report=INJECTION, effect="output", profiles=NEURON)
def heads_of_a_rank_begin_at_its_number(true: Function) -> Function:
    """The heads of rank r begin at head r."""

    def wrong(rank: int, ranks: int, kv_heads: int) -> Any:
        own = true(rank, ranks, kv_heads)
        return range(rank, rank + len(own))

    return wrong


@fault("dflash_reference.shard.heads_of", clauses=("ASYNC-016",), report=INJECTION, effect="output", profiles=NEURON)
def every_rank_holds_the_first_heads(true: Function) -> Function:
    """The rank's offset is forgotten."""
    return lambda rank, ranks, kv_heads: true(0, ranks, kv_heads)


@fault("dflash_reference.shard.heads_of", clauses=("ASYNC-016",), report=INJECTION, effect="crash", profiles=NEURON)
def odd_head_left_out(true: Function) -> Function:
    """Heads that cannot be split evenly are left out."""
    return lambda rank, ranks, kv_heads: true(rank, ranks, kv_heads // ranks * ranks)


@fault("dflash_reference.shard.finish", clauses=("ASYNC-017",), report=INJECTION, effect="acceptance", profiles=NEURON)
def layers_normed_by_the_first_weights(true: Function) -> Function:
    """Every layer's keys are normed by the weights of the first layer."""
    first: list[Array] = []

    def wrong(raw: Array, k_norm: Array, *rest: Any) -> Any:
        first.append(k_norm)
        return true(raw, first[0], *rest)

    return wrong


@fault("dflash_reference.shard.finish", clauses=("ASYNC-017",), report=INJECTION, effect="acceptance", profiles=NEURON)
def split_keys_not_turned(true: Function) -> Function:
    """Keys are stored as the norm leaves them."""

    def wrong(*given: Any) -> tuple[Array, Array]:
        normed = true(*given)[0]
        return normed, normed

    return wrong


@fault("dflash_reference.shard.finish", clauses=("ASYNC-017",), report=INJECTION, effect="acceptance", profiles=NEURON)
def split_keys_turned_by_their_row(true: Function) -> Function:
    """Keys are turned by their place in the call instead of their position."""

    def wrong(raw: Array, k_norm: Array, positions: Array, *rest: Any) -> Any:
        return true(raw, k_norm, np.arange(len(positions)), *rest)

    return wrong


@fault("dflash_reference.shard.finish", clauses=("ASYNC-017",), report=INJECTION, effect="acceptance", profiles=NEURON)
def split_keys_not_normed(true: Function) -> Function:
    """Keys are turned as the product leaves them."""

    def wrong(raw: Array, k_norm: Array, *rest: Any) -> Any:
        size = np.sqrt((raw * raw).mean(axis=-1, keepdims=True) + rest[2])
        normed, turned = true(raw, np.ones_like(k_norm), *rest)
        return normed * size, turned * size

    return wrong


@fault("dflash_reference.shard.head", clauses=("ASYNC-018",), report=LOCAL, effect="acceptance", profiles=NEURON)
def row_within_a_rank_is_the_token(true: Function) -> Function:
    """The winning rank's own row number is returned."""

    def wrong(logits: Array, ranks: int, **rest: Any) -> Any:
        done = true(logits=logits, ranks=ranks, **rest)
        share = -(-logits.shape[1] // ranks)
        return done._replace(best_ids=done.best_ids % share, proposals=done.proposals % share)

    return by_name(true, wrong)


@fault("dflash_reference.shard.first_of", clauses=("ASYNC-018",), report=LOCAL, effect="acceptance", profiles=NEURON)
def last_rank_wins_a_tie(true: Function) -> Function:
    """Among equal logits the one that is reduced last stays."""
    return lambda best, best_ids: np.where(best == best.max(axis=1, keepdims=True), best_ids, -1).max(axis=1)


@fault("dflash_reference.shard.first_of", clauses=("ASYNC-018",), report=LOCAL, effect="acceptance", profiles=NEURON)
def first_rank_answers_alone(true: Function) -> Function:
    """The maxima of the ranks are not compared."""
    return lambda best, best_ids: best_ids[:, 0]


@fault("dflash_reference.shard.head", clauses=("ASYNC-018",), effect="acceptance", profiles=NEURON,
    report="https://github.com/sgl-project/sglang/pull/29907",
)  # fmt: skip
def tie_to_the_lowest_row_of_any_rank(true: Function) -> Function:
    """Ties go by the row within a rank, whichever rank that is."""

    def wrong(logits: Array, ranks: int, **rest: Any) -> Any:
        done = true(logits=logits, ranks=ranks, **rest)
        share = -(-logits.shape[1] // ranks)
        tied = np.where(done.best == done.best.max(axis=1, keepdims=True), done.best_ids % share, share)
        rank = np.argmin(tied, axis=1)
        return done._replace(proposals=done.best_ids[np.arange(len(rank)), rank])

    return by_name(true, wrong)


@fault("dflash_reference.shard.vocabulary_parts", clauses=("ASYNC-019",), report=PADDING, effect="crash",
    profiles=NEURON,
)  # fmt: skip
def padding_rows_are_zero(true: Function) -> Function:
    """Rows past the vocabulary have the logit of a weight of zeros."""

    def wrong(logits: Array, ranks: int) -> Array:
        parts = np.array(true(logits, ranks))
        share = parts.shape[2]
        parts.reshape(len(parts), -1)[:, logits.shape[1] : ranks * share] = 0.0
        return parts

    return wrong


@fault("dflash_reference.shard.vocabulary_parts", clauses=("ASYNC-019", "ASYNC-018"), report=LOCAL, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def last_rows_left_out(true: Function) -> Function:
    """Each rank has floor(V / N) rows, and the rest is nobody's."""
    return lambda logits, ranks: true(logits[:, : logits.shape[1] // ranks * ranks], ranks)


@fault("dflash_reference.shard.queries_of", clauses=("ASYNC-020",), report=INJECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def queries_of_ranks_dealt_out_in_turn(true: Function) -> Function:
    """A rank gets every so many query heads, whatever KV heads it holds."""

    def wrong(own: list[int], heads: int, kv_heads: int) -> list[int]:
        ranks = kv_heads // len(own)
        return list(range(own[0] // len(own), heads, ranks))

    return wrong


@fault("dflash_reference.shard.queries_of", clauses=("ASYNC-020",), report=INJECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def every_rank_has_the_first_queries(true: Function) -> Function:
    """The rank's offset into the query heads is forgotten."""

    def wrong(own: list[int], heads: int, kv_heads: int) -> Any:
        return true([head - own[0] for head in own], heads, kv_heads)

    return wrong


@fault("dflash_reference.shard.attention", clauses=("ASYNC-020",), report=INJECTION, effect="acceptance",
    profiles=NEURON,
)  # fmt: skip
def ranks_put_together_head_by_head(true: Function) -> Function:
    """The ranks' results are interleaved, one head of each in turn."""

    def wrong(q: Array, ranks: int, **rest: Any) -> Any:
        done = true(q=q, ranks=ranks, **rest)
        split = done.attended.reshape(len(q), ranks, -1, q.shape[2])
        return done._replace(attended=split.swapaxes(1, 2).reshape(len(q), -1))

    return by_name(true, wrong)


@fault("dflash_reference.shard.reduced", clauses=("ASYNC-021",), report=PARTIAL, effect="acceptance", profiles=NEURON)
def part_of_one_rank_captured(true: Function) -> Function:
    """The row is captured before the parts of the other ranks are added."""
    return lambda x, parts: true(x, parts[:1])


@fault("dflash_reference.shard.reduced", clauses=("ASYNC-021",), report=PARTIAL, effect="output", profiles=NEURON)
def residual_added_by_every_rank(true: Function) -> Function:
    """Each rank adds the residual to its part."""
    return lambda x, parts: true(len(parts) * x, parts)


@fault("dflash_reference.shard.reduced", clauses=("ASYNC-021",), report=PARTIAL, effect="acceptance", profiles=NEURON)
def parts_averaged(true: Function) -> Function:
    """The parts are averaged over the ranks."""
    return lambda x, parts: true(x, [part / len(parts) for part in parts])


@fault("dflash_reference.shard.output", clauses=("ASYNC-021",), report=PARTIAL, effect="acceptance", profiles=NEURON)
def columns_of_the_first_rank_on_all(true: Function) -> Function:
    """Every rank multiplies with the columns of the first."""

    def wrong(o_proj: Array, ranks: int, **rest: Any) -> Any:
        share = o_proj.shape[1] // ranks
        return true(o_proj=np.tile(o_proj[:, :share], ranks), ranks=ranks, **rest)

    return by_name(true, wrong)
