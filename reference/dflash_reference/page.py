"""Pages: where a row of a paged cache goes, and where it must not go. A slot of -1 is written nowhere."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

PAGE = 64
"""Slots of a page in NInfer."""
NULL_PAGE = 0
"""The page of vLLM that belongs to nobody."""
NOWHERE = -1


class Slots(NamedTuple):
    """slots: [T] int64."""

    slots: Array
    refused: int = 0


class Pools(NamedTuple):
    """exists: whether there is a full pool. layers: [F] int64, the full layers. bytes: of the pool."""

    exists: int
    layers: Array
    bytes: int


class Clamped(NamedTuple):
    """slots: [T] int64."""

    slots: Array


class Writes(NamedTuple):
    """slots: [T] int64, -1 for a row that is not written."""

    slots: Array


class Scattered(NamedTuple):
    """pool_next: [N, X], represented in CTX_K."""

    pool_next: Array
    refused: int = 0


class Lookahead(NamedTuple):
    """pages and added: [R] int64."""

    pages: Array
    added: Array


def slots(table: Array, positions: Array, rotary: Array, profile: Profile) -> Slots:
    """The slots of tokens [T] of one request whose pages are table [M]. Raises TensorError for one without a page.

    Clause: PAGE-001
    Source: NInfer docs/maintainer/dflash.md, storage; Infernix include/infernix/ops/kv_cache_append.h.
    """
    index = cache_index(positions, rotary)
    return Slots(page_of(table, index // PAGE) * PAGE + index % PAGE)


def cache_index(positions: Array, rotary: Array) -> Array:
    """The number that a token's slot is computed from: how many tokens lie before it, [T].

    Clause: PAGE-002
    Source: NInfer docs/maintainer/dflash.md, conditioning; vllm-project/vllm-ascend pull 9340.
    """
    return positions


def page_of(table: Array, columns: Array) -> Array:
    """The pages of columns [T] of a table [M]. Raises TensorError for a column or a page that is not there.

    Clause: PAGE-003
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    for row, column in enumerate(columns):
        if not 0 <= column < len(table) or table[column] < 0:
            raise TensorError(
                f"page.slots: row {row} needs page {column} of a table {table.tolist()}, expected one of it"
            )
    return table[columns]


def pools(windows: Array, pages: int, kv_heads: int, head_dim: int, profile: Profile) -> Pools:
    """The full pool of a draft whose layers have these windows [L], 0 for a full layer.

    Clause: PAGE-004
    Source: NInfer docs/maintainer/dflash.md, storage.
    """
    layers = np.flatnonzero(windows == 0)
    return Pools(int(len(layers) > 0), layers, len(layers) * pages * PAGE * (2 + 2) * kv_heads * head_dim)


def slots_clamped(table: Array, requests: Array, positions: Array, block_size: int, profile: Profile) -> Clamped:
    """The slot of each row by its request and position, in pages of `block_size` slots.

    Raises TensorError for a negative position, or a request without a row in table [R, M].
    """
    _check_rows("page.slots_clamped", table, requests, positions, block_size)
    return Clamped(clamped(table, requests, positions, block_size))


def clamped(table: Array, requests: Array, positions: Array, block_size: int) -> Array:
    """Slots [T]; a position past the table reads its last column.

    Clause: PAGE-005
    Source: vLLM Neuron DFlash guide, paged KV integration.
    """
    columns = np.minimum(positions // block_size, table.shape[1] - 1)
    slots: Array = table[requests, columns] * block_size + positions % block_size
    return slots


def writes(
    table: Array, requests: Array, positions: Array, limits: Array, block_size: int, max_length: int, profile: Profile
) -> Writes:
    """Where each row is written: its slot, or -1. What stands in a row of no request is not looked at.

    Raises TensorError for a negative position, or a request without a row in table [R, M].
    """
    owned = has_request(requests)
    requests, positions = np.where(owned, requests, 0), np.where(owned, positions, 0)
    _check_rows("page.writes", table, requests, positions, block_size)
    found = clamped(table, requests, positions, block_size)
    inside = in_table(positions, table.shape[1] * block_size, max_length)
    written = owned & kept(positions, limits[requests]) & inside & has_page(found // block_size)
    return Writes(np.where(written, found, NOWHERE))


def has_request(requests: Array) -> Array:
    """Which rows [T] belong to a request; -1 is padding.

    Clause: PAGE-006
    Source: vLLM Neuron DFlash guide, paged KV integration.
    """
    return requests >= 0


def kept(positions: Array, limits: Array) -> Array:
    """Which positions [T] lie before the limits [T] of their requests.

    Clause: PAGE-007
    Source: vllm-project/vllm vllm/v1/worker/gpu/spec_decode/dflash/speculator.py; vllm-project/vllm pull 41703.
    """
    return positions < limits


def in_table(positions: Array, covered: int, max_length: int) -> Array:
    """Which positions [T] lie within what a row of the table covers, and within the longest sequence.

    Clause: PAGE-008
    Source: vLLM Neuron DFlash guide, paged KV integration; vllm-project/vllm pull 16087.
    """
    within: Array = positions < min(covered, max_length)
    return within


def has_page(pages: Array) -> Array:
    """Which pages [T] belong to a request at all.

    Clause: PAGE-009
    Source: vllm-project/vllm vllm/v1/worker/gpu/spec_decode/dflash/speculator.py; local-inference-lab/vllm pull 24.
    """
    given: Array = pages != NULL_PAGE
    return given


def scatter(pool: Array, packed: Array, column: int, slots: Array, profile: Profile) -> Scattered:
    """The pool [N, X] after rows of packed [T, W] were written to slots [T]; the pool given is not changed.

    Raises TensorError for a slot outside the pool, one that two rows name, or columns outside W.

    Clause: PAGE-011
    Source: Infernix include/infernix/ops/kv_cache_append.h; vllm-project/vllm
    vllm/v1/worker/gpu/spec_decode/dflash/speculator.py.
    """
    written = slots != NOWHERE
    named = slots[written]
    if ((named < 0) | (named >= len(pool))).any() or len(set(named.tolist())) != len(named):
        raise TensorError(
            f"page.scatter: slots {slots.tolist()}, expected -1, or others from 0 to {len(pool) - 1}, once"
        )
    after = pool.copy()
    after[named] = unpacked(packed, column, pool.shape[1])[written]
    return Scattered(after)


def unpacked(packed: Array, column: int, width: int) -> Array:
    """Columns `column` to `column + width - 1` of packed [T, W]. Raises TensorError if they are not all there.

    Clause: PAGE-010
    Source: NInfer docs/maintainer/dflash.md, storage; natpate/ninfer-windows pull 4.
    """
    if not 0 <= column <= packed.shape[1] - width:
        raise TensorError(f"page.scatter: column {column}, expected 0 to {packed.shape[1] - width}")
    return packed[:, column : column + width]


def lookahead(
    lengths: Array, computed: Array, held: Array, drafts: int, block_size: int, profile: Profile
) -> Lookahead:  # fmt: skip
    """The pages that requests of these lengths [R] own in a step that drafts, and how many they get for it.

    Raises TensorError if a request has computed more tokens than it has, or drafts or block_size are below 1.
    """
    if drafts < 1 or block_size < 1 or (computed > lengths).any():
        raise TensorError(
            f"page.lookahead: {computed.tolist()} computed of {lengths.tolist()} tokens, {drafts} drafts, pages of "
            f"{block_size}, expected at most all of them, and at least 1 draft and slot"
        )
    pages = pages_of(lengths + slots_ahead(computed, drafts), block_size)
    return Lookahead(pages, np.maximum(pages - held, 0))


def slots_ahead(computed: Array, drafts: int) -> Array:
    """How many slots after its tokens a request needs, whatever it has computed [R] before this step: [R].

    Clause: PAGE-013
    Source: vllm-project/vllm pull 41971.
    """
    return np.full(len(computed), drafts + 1)


def pages_of(slots: Array, block_size: int) -> Array:
    """The pages that hold so many slots [R]: [R].

    Clause: PAGE-012
    Source: vllm-project/vllm pull 43733; vllm-project/vllm pull 42971.
    """
    return -(-slots // block_size)


def _check_rows(where: str, table: Array, requests: Array, positions: Array, block_size: int) -> None:
    if block_size < 1 or (positions < 0).any() or ((requests < 0) | (requests >= len(table))).any():
        raise TensorError(
            f"{where}: requests {requests.tolist()} at {positions.tolist()} in pages of {block_size}, expected "
            f"requests below {len(table)}, positions from 0 on, and pages"
        )
