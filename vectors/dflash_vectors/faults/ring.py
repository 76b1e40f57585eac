"""Faults of the context rings of DFlash2."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import layer, num, ring
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER = ("ninfer",)
CONTRACT = "Infernix include/infernix/ops/context_kv_materialize.h"
CYCLIC = "Infernix src/core/cyclic_kv_cache.h"
DRAFT = "Infernix src/models/qwen3_5/execution/draft.cpp"
CONDITIONING = "NInfer docs/maintainer/dflash.md, conditioning"
STORAGE = "NInfer docs/maintainer/dflash.md, storage"


@fault("dflash_reference.context.fused_key", clauses=("CTX-011",), report=DRAFT, effect="acceptance", profiles=NINFER)
def raw_context_key_rounded(true: Function) -> Function:
    """The raw key is rounded to BF16 before the head norm, as DFlash's is."""

    def wrong(
        c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Any
    ) -> Array:
        raw = num.round_to(layer.split_heads(num.contract(c, k_proj), len(k_norm), "k_proj"), "BF16")
        turned = layer.fused_norm_and_rope(raw, k_norm, positions, theta, eps, profile)
        return num.round_to(turned, profile.dtypes["CTX_K"])

    return wrong


@fault("dflash_reference.context.fused_key", clauses=("CTX-011",), report=DRAFT, effect="acceptance", profiles=NINFER)
def normed_context_key_rounded(true: Function) -> Function:
    """The normed key is rounded to BF16 before it is rotated, as DFlash's is."""

    def wrong(
        c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Any
    ) -> Array:
        raw = layer.split_heads(num.contract(c, k_proj), len(k_norm), "k_proj")
        normed = num.round_to(layer.head_norm(raw, k_norm, eps), "BF16")
        return num.round_to(layer.rope(normed, positions, theta, profile), profile.dtypes["CTX_K"])

    return wrong


@fault("dflash_reference.context.fused_key", clauses=("CTX-011",), report=CONTRACT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def context_key_left_in_fp32(true: Function) -> Function:
    """The key is stored unrounded."""

    def wrong(
        c: Array, k_proj: Array, k_norm: Array, positions: Array, theta: float, eps: float, profile: Any
    ) -> Array:
        raw = layer.split_heads(num.contract(c, k_proj), len(k_norm), "k_proj")
        return num.round_to(layer.fused_norm_and_rope(raw, k_norm, positions, theta, eps, profile), "F32")

    return wrong


@fault("dflash_reference.ring.live", clauses=("CTX-012",), report=CONTRACT, effect="output", profiles=NINFER)
def garbage_columns_written(true: Function) -> Function:
    """Every column is written, to the slot that its garbage position names."""
    return lambda c, positions, count: (c, positions)


@fault("dflash_reference.ring.live", clauses=("CTX-012",), report=DRAFT, effect="acceptance", profiles=NINFER)
def zeroed_columns_written_to_the_last_slot(true: Function) -> Function:
    """Columns past the count are zero and repeat the last live position, and are written there."""

    def wrong(c: Array, positions: Array, count: int) -> tuple[Array, Array]:
        rows, at = np.nan_to_num(c), positions.copy()
        rows[count:], at[count:] = 0.0, positions[count - 1]
        return rows, at

    return wrong


@fault("dflash_reference.ring.live", clauses=("CTX-012",), report=CONTRACT, effect="acceptance", profiles=NINFER)
def last_column_left_out(true: Function) -> Function:
    """The count is taken for the last index."""
    return lambda c, positions, count: true(c, positions, count - 1)


@fault("dflash_reference.ring.materialize", clauses=("CTX-012",), effect="output", profiles=NINFER,
    report="https://github.com/local-inference-lab/vllm/pull/24",
)  # fmt: skip
def idle_row_clears_a_slot(true: Function) -> Function:
    """A row without columns writes zeros to the slot of its frontier, in some ring."""

    def wrong(counts: Array, lanes: Array, frontiers: Array, **named: Any) -> Any:
        done = true(counts=counts, lanes=lanes, frontiers=frontiers, **named)
        for b in np.flatnonzero(counts == 0):
            place = int(np.clip(lanes[b], 0, len(done.key) - 1)), slice(None), frontiers[b] % done.key.shape[2]
            done.key[place] = done.value[place] = 0.0
        return done

    return by_name(true, wrong)


@fault("dflash_reference.ring.slots_of", clauses=("CTX-013",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def ring_of_the_visible_rows_alone(true: Function) -> Function:
    """The ring wraps after S - 1 rows, which is how many a query can see."""
    return lambda positions, capacity: true(positions, max(capacity - 1, 1))


@fault("dflash_reference.ring.slots_of", clauses=("CTX-013",), effect="crash", profiles=NINFER,
    report="https://github.com/Anbeeld/beellama.cpp/issues/27",
)  # fmt: skip
def ring_wraps_one_row_late(true: Function) -> Function:
    """Position S goes past the last slot."""

    def wrong(positions: Array, capacity: int) -> Array:
        slots = np.asarray(true(positions, capacity))
        return np.where((slots == 0) & (positions > 0), capacity, slots)

    return wrong


@fault("dflash_reference.ring.slots_of", clauses=("CTX-013",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def full_ring_stays_at_its_last_slot(true: Function) -> Function:
    """Once the ring is full, every row goes to the last slot."""
    return lambda positions, capacity: np.minimum(positions, capacity - 1)


@fault("dflash_reference.ring.slots_of", clauses=("CTX-013",), effect="acceptance", profiles=NINFER,
    report="https://github.com/osaurus-ai/vmlx-swift/pull/281",
)  # fmt: skip
def slots_counted_from_the_chunk(true: Function) -> Function:
    """The first row of a chunk goes to slot 0."""
    return lambda positions, capacity: true(positions - positions[:1], capacity)


@fault("dflash_reference.ring.materialize", clauses=("CTX-013",), effect="output", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/pull/45100",
)  # fmt: skip
def ring_of_the_place_in_the_batch(true: Function) -> Function:
    """Row b of the batch writes to ring b."""
    return by_name(true, lambda lanes, **named: true(lanes=np.arange(len(lanes)), **named))


@fault("dflash_reference.ring.materialize", clauses=("CTX-013",), effect="output", profiles=NINFER,
    report="https://github.com/vllm-project/vllm-ascend/pull/16745",
)  # fmt: skip
def other_rings_cleared(true: Function) -> Function:
    """Rings that get nothing come back empty."""

    def wrong(counts: Array, lanes: Array, **named: Any) -> Any:
        done = true(counts=counts, lanes=lanes, **named)
        other = np.setdiff1d(np.arange(len(done.key)), lanes[counts > 0])
        done.key[other] = done.value[other] = 0.0
        return done

    return by_name(true, wrong)


@fault("dflash_reference.ring.materialize", clauses=("CTX-013",), report=CONTRACT, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def whole_ring_rewritten(true: Function) -> Function:
    """Slots of the written ring that get no row are cleared."""

    def wrong(counts: Array, ring_key: Array, ring_value: Array, lanes: Array, **named: Any) -> Any:
        emptied = [np.array(held) for held in (ring_key, ring_value)]
        for held in emptied:
            held[lanes[counts > 0]] = 0.0
        return true(counts=counts, lanes=lanes, ring_key=emptied[0], ring_value=emptied[1], **named)

    return by_name(true, wrong)


@fault("dflash_reference.ring.last_window", clauses=("CTX-014",), report=DRAFT, effect="acceptance", profiles=NINFER)
def first_rows_of_a_long_chunk_kept(true: Function) -> Function:
    """Of a chunk longer than the ring the first S rows are stored."""
    return lambda count, frontier, capacity: (slice(0, min(count, capacity)), true(count, frontier, capacity)[1])


@fault("dflash_reference.ring.last_window", clauses=("CTX-014",), effect="acceptance", profiles=NINFER,
    report="https://github.com/Blaizzy/mlx-vlm/pull/2096",
)  # fmt: skip
def frontier_moves_by_what_is_stored(true: Function) -> Function:
    """The context frontier moves by at most S rows."""

    def wrong(count: int, frontier: int, capacity: int) -> tuple[slice, int]:
        kept, _ = true(count, frontier, capacity)
        return kept, frontier + min(count, capacity)

    return wrong


@fault("dflash_reference.ring.last_window", clauses=("CTX-014",), report=DRAFT, effect="acceptance", profiles=NINFER)
def older_rows_overwrite_newer_ones(true: Function) -> Function:
    """A long chunk is written in parallel, and the oldest row of each slot comes last."""
    return lambda count, frontier, capacity: (slice(None, None, -1), true(count, frontier, capacity)[1])


@fault("dflash_reference.ring.last_window", clauses=("CTX-014",), report=DRAFT, effect="crash", profiles=NINFER)
def frontier_left_where_it_was(true: Function) -> Function:
    """The caller is expected to move the context frontier, and does not."""
    return lambda count, frontier, capacity: (true(count, frontier, capacity)[0], frontier)


@fault("dflash_reference.ring.role", clauses=("CTX-015",), report=CONDITIONING, effect="acceptance", profiles=NINFER)
def query_role_projects_the_context(true: Function) -> Function:
    """Context rows are projected by the weights of the query role."""
    return lambda context_role, query_role: query_role


@fault("dflash_reference.ring.role", clauses=("CTX-004",), report=CONTRACT, effect="acceptance", profiles=NINFER)
def layers_share_the_first_projection(true: Function) -> Function:
    """One fused projection is sliced without the layer's offset."""

    def wrong(context_role: Array, query_role: Array) -> Array:
        held = np.asarray(true(context_role, query_role))
        return np.broadcast_to(held[:1], held.shape)

    return wrong


@fault("dflash_reference.context.rotation_positions", clauses=("CTX-006",), effect="acceptance", profiles=NINFER,
    report="https://github.com/spiritbuun/buun-llama-cpp/issues/32",
)  # fmt: skip
def context_keys_turned_by_their_slot(true: Function) -> Function:
    """Keys are rotated by where they lie in a ring of four slots."""
    return lambda positions: positions % 4


@fault("dflash_reference.ring.payload", clauses=("RING-001",), report=STORAGE, effect="crash", profiles=NINFER)
def ring_grows_with_the_drafts(true: Function) -> Function:
    """The ring keeps the block's rows too."""

    def wrong(layers: int, kv_heads: int, head_dim: int, window: int, drafts: int, profile: Any) -> Any:
        return true(layers, kv_heads, head_dim, window + drafts + 1, drafts, profile)

    return wrong


@fault("dflash_reference.ring.payload", clauses=("RING-001",), report=STORAGE, effect="crash", profiles=NINFER)
def ring_of_keys_alone(true: Function) -> Function:
    """Values are not counted."""
    return by_name(true, lambda **sizes: ring.Payload(true(**sizes).bytes // 2))


@fault("dflash_reference.ring.payload", clauses=("RING-001",), report=STORAGE, effect="crash", profiles=NINFER)
def ring_payload_in_32_bits(true: Function) -> Function:
    """The product wraps at 2^32."""
    return by_name(true, lambda **sizes: ring.Payload(true(**sizes).bytes % 2**32))


@fault("dflash_reference.ring.payload", clauses=("RING-001",), report=STORAGE, effect="crash", profiles=NINFER)
def ring_without_its_hidden_slot(true: Function) -> Function:
    """Only the S - 1 rows that a query can see are counted."""

    def wrong(layers: int, kv_heads: int, head_dim: int, window: int, drafts: int, profile: Any) -> Any:
        return true(layers, kv_heads, head_dim, window - 1, drafts, profile)

    return wrong
