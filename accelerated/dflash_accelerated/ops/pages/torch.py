"""Pages in PyTorch: a table gives a request its pages, a slot is a row of the pool, -1 is nowhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dflash_spec.errors import TensorError
from torch import Tensor

PAGE = 64
"""Slots of a page in NInfer."""
NULL_PAGE = 0
NOWHERE = -1


def slots(table: Tensor, positions: Tensor) -> Tensor:
    """Slots I64 [T] of one request's tokens, by how many stand before each; its pages are table [M].

    Raises TensorError for one without a page.

    Clauses: PAGE-001, PAGE-002, PAGE-003. Source: Infernix include/infernix/ops/kv_cache_append.h.
    """
    columns = torch.div(positions, PAGE, rounding_mode="floor")
    inside = (columns >= 0) & (columns < len(table))
    pages = torch.where(inside, table[columns.clamp(0, len(table) - 1)], -1) if len(table) else columns * 0 - 1
    if bool((pages < 0).any()):
        raise TensorError(f"positions {positions.tolist()} of pages {table.tolist()}, expected a page for each")
    return pages * PAGE + positions % PAGE


def pool_bytes(windows: Sequence[int], pages: int, kv_heads: int, head_dim: int) -> tuple[list[int], int]:
    """The full layers, and the bytes of their pool, two each for keys and values.

    Clause: PAGE-004. Source: NInfer docs/maintainer/dflash.md, storage.
    """
    layers = [layer for layer, window in enumerate(windows) if not window]
    return layers, len(layers) * pages * PAGE * (2 + 2) * kv_heads * head_dim


def clamped_slots(table: Tensor, requests: Tensor, positions: Tensor, size: int) -> Tensor:
    """Slots I64 [T] of rows by request and position in pages of `size`; past its table a request has its last page.

    Raises TensorError for a negative position or a request that table [R, M] has not.

    Clause: PAGE-005. Source: vLLM Neuron DFlash guide, paged KV integration.
    """
    known = (requests >= 0) & (requests < len(table)) & (positions >= 0)
    if size < 1 or not bool(known.all()):
        raise TensorError(f"requests {requests.tolist()} at {positions.tolist()}, expected some of {len(table)} from 0")
    columns = torch.div(positions, size, rounding_mode="floor").clamp(max=table.shape[1] - 1)
    return table[requests, columns] * size + positions % size


def writes(
    table: Tensor, requests: Tensor, positions: Tensor, limits: Tensor, size: int, max_length: int
) -> Tensor:  # fmt: skip
    """Slots I64 [T] that rows are written to, -1 where none is: no request, at its limit, past table or sequence, or on
    the null page. Raises TensorError as `clamped_slots`.

    Clauses: PAGE-006 to PAGE-009. Source: vLLM Neuron DFlash guide; vllm-project/vllm
    vllm/v1/worker/gpu/spec_decode/dflash/speculator.py.
    """
    owned = requests >= 0
    own, at = torch.where(owned, requests, 0), torch.where(owned, positions, 0)
    found = clamped_slots(table, own, at, size)
    end = limits[own].clamp(max=min(max_length, table.shape[1] * size))
    paged = torch.div(found, size, rounding_mode="floor") != NULL_PAGE
    return torch.where(owned & (at < end) & paged, found, NOWHERE)


def scatter(pool: Tensor, packed: Tensor, column: int, slots: Tensor) -> Tensor:
    """The pool [N, X] with X columns of packed [T, W] from `column` on in `slots` I64 [T].

    Raises TensorError for a slot outside the pool or named twice, or columns that are not there.

    Clauses: PAGE-010, PAGE-011. Source: Infernix include/infernix/ops/kv_cache_append.h.
    """
    written = slots != NOWHERE
    named = slots[written]
    if bool(((named < 0) | (named >= len(pool))).any()) or len(set(named.tolist())) != len(named):
        raise TensorError(f"slots {slots.tolist()}, expected -1, or each of {len(pool)} at most once")
    if not 0 <= column <= packed.shape[1] - pool.shape[1]:
        raise TensorError(f"columns from {column} on, expected {pool.shape[1]} of {packed.shape[1]}")
    return pool.index_copy(0, named, packed[written, column : column + pool.shape[1]])


def lookahead(
    lengths: Tensor, computed: Tensor, held: Tensor, drafts: int, size: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The pages I64 [R] for `lengths` and the K + 1 slots of a block after them, and how many of these are new.

    What was `computed` before the step does not matter. Raises TensorError where that is more than the length.

    Clauses: PAGE-012, PAGE-013. Source: vllm-project/vllm pulls 41971, 42971, 43733.
    """
    if drafts < 1 or size < 1 or bool((computed > lengths).any()):
        raise TensorError(f"{computed.tolist()} computed of {lengths.tolist()}, {drafts} drafts, pages of {size} slots")
    pages = torch.div(lengths + drafts + 1 + size - 1, size, rounding_mode="floor")
    return pages, (pages - held).clamp(min=0)
