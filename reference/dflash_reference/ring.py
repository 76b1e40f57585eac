"""DFlash2's context rings: each lane keeps the last S rows of every layer, position p in slot p mod S."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference import context
from dflash_reference.names import Position


class Materialized(NamedTuple):
    """key and value: the rings [lanes, L, S, KV, D] afterwards, in CTX_K and CTX_V. frontiers_next: [B] int64."""

    key: Array
    value: Array
    frontiers_next: Array


class Payload(NamedTuple):
    """bytes: of one state's ring image."""

    bytes: int


def materialize(
    c: Array, positions: Array, counts: Array, lanes: Array,
    context_k_proj: Array, context_v_proj: Array, query_k_proj: Array, query_v_proj: Array,
    k_norm: Array, theta: float, eps: float, ring_key: Array, ring_value: Array, frontiers: Array, profile: Profile,
) -> Materialized:  # fmt: skip
    """Append the first counts[b] of rows c[b] [W, H], at positions[b] [W], to the ring of lanes[b].

    Projections [L, KV·D, H] are given in both roles, k_norm is [L, D], the rings [lanes, L, S, KV, D]; they are not
    changed in place. Raises TensorError for a count, a lane or a position that does not fit.
    """
    key, value, frontiers_next = ring_key.copy(), ring_value.copy(), frontiers.copy()
    _check(positions, counts, lanes, frontiers, len(key))
    weights = role(context_k_proj, query_k_proj), role(context_v_proj, query_v_proj)
    for b in np.flatnonzero(counts):
        rows, at = live(c[b], positions[b], int(counts[b]))
        kept, frontiers_next[b] = last_window(len(rows), Position(int(frontiers[b])), key.shape[2])
        rows, at = rows[kept], at[kept]
        for index, (k_proj, v_proj, norm) in enumerate(zip(*weights, k_norm, strict=True)):
            slots = slots_of(at, key.shape[2])
            key[lanes[b], index, slots] = context.fused_key(rows, k_proj, norm, at, theta, eps, profile)
            value[lanes[b], index, slots] = context.value(rows, v_proj, key.shape[3], profile).value
    return Materialized(key, value, frontiers_next)


def role(context_role: Array, query_role: Array) -> Array:
    """The weights that project context rows, of the two roles in which a layer's projection is stored.

    Clause: CTX-015
    Source: NInfer docs/maintainer/dflash.md, conditioning.
    """
    return context_role


def live(c: Array, positions: Array, count: int) -> tuple[Array, Array]:
    """The first `count` of the rows c [W, H] and of their positions [W]; what comes after them is never read.

    Clause: CTX-012
    Source: Infernix include/infernix/ops/context_kv_materialize.h.
    """
    return c[:count], positions[:count]


def last_window(count: int, frontier: Position, capacity: int) -> tuple[slice, Position]:
    """Which of `count` rows a ring of `capacity` slots keeps, and the context frontier after all of them.

    Clause: CTX-014
    Source: NInfer docs/maintainer/dflash.md, conditioning; Infernix src/models/qwen3_5/execution/draft.cpp.
    """
    return slice(max(0, count - capacity), count), Position(frontier + count)


def slots_of(positions: Array, capacity: int) -> Array:
    """The slot of each position [T] in a ring of `capacity` slots: [T].

    Clause: CTX-013
    Source: Infernix include/infernix/ops/context_kv_materialize.h; src/core/cyclic_kv_cache.h.
    """
    return positions % capacity


def payload(layers: int, kv_heads: int, head_dim: int, window: int, drafts: int, profile: Profile) -> Payload:
    """Bytes of one state's ring image: `window` slots of two-byte keys and two-byte values; `drafts` = K is no factor.

    Clause: RING-001
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    return Payload(layers * (2 + 2) * kv_heads * head_dim * window)


def _check(positions: Array, counts: Array, lanes: Array, frontiers: Array, rings: int) -> None:
    columns = positions.shape[1]
    for b, (count, lane) in enumerate(zip(counts, lanes, strict=True)):
        if not 0 <= count <= columns:
            raise TensorError(f"context.materialize: counts[{b}] is {count}, expected 0 to {columns}, the columns")
        if count and not 0 <= lane < rings:
            raise TensorError(f"context.materialize: lanes[{b}] is {lane}, expected 0 to {rings - 1}")
        if (positions[b, :count] != frontiers[b] + np.arange(count)).any():
            raise TensorError(
                f"context.materialize: positions[{b}] {positions[b, :count].tolist()}, expected {count} consecutive "
                f"ones from the context frontier {frontiers[b]} on"
            )
    written = lanes[counts > 0].tolist()
    if len(set(written)) != len(written):
        raise TensorError(f"context.materialize: lanes {written}, expected a ring of its own for each row")
