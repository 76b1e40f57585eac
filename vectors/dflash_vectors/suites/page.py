"""Pages: slots of positions, what must not be written, packed rows, and the pages that a block needs ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.rows import NAN, canaries, tagged
from dflash_vectors.suite import Case, suite

NINFER, NEURON = ("ninfer",), ("vllm-neuron",)
WILD = "a row is written to a slot of another request, of an old page, or outside the pool"


def _slots(table: Sequence[int], positions: Sequence[int], rotary: Sequence[int] | None = None) -> dict[str, Any]:
    turned = positions if rotary is None else rotary
    return {"table": np.array(table), "positions": np.array(positions), "rotary": np.array(turned)}


@suite("page.slots", profiles=NINFER)
def slots(profile: Profile) -> Iterator[Case]:
    """Around page ends, in tables out of order; rotary positions of images; and tokens without a page."""
    for slug, table, positions in (
        ("around-a-page-end", [5, 2, 9], [62, 63, 64, 65]),
        ("whole-table-out-of-order", [7, 0, 3], [0, 63, 64, 127, 128, 191]),
        ("last-slot-of-the-table", [4, 1], [127]),
        ("far-out", list(range(40, 8, -1)), [2047, 1984, 1983]),
        ("one-page", [6], [0, 1, 63]),
    ):
        yield Case(
            slug, ("PAGE-001",), _slots(table, positions),
            catches="pages are of another size, are taken to follow one another, or end a slot early",
            effect="output",
        )  # fmt: skip
    for slug, positions, rotary in (
        ("image-rows-repeat", [60, 61, 62, 63, 64, 65, 66], [60, 61, 61, 61, 61, 62, 63]),
        ("rotary-positions-jump", [3, 4, 5], [3, 90, 91]),
        ("rotary-positions-lag", [126, 127, 128], [63, 64, 65]),
    ):
        yield Case(
            slug, ("PAGE-002",), _slots([5, 2, 9], positions, rotary),
            catches="the slot is computed from the rotary position, and rows of an image overwrite one another",
            effect="output",
        )  # fmt: skip
    for slug, table, positions in (
        ("past-the-table", [5, 2], [127, 128]),
        ("before-the-first", [5, 2], [3, -1]),
        ("page-not-given", [5, -1, 2], [63, 64]),
    ):
        yield Case(slug, ("PAGE-003",), _slots(table, positions), catches=WILD, effect="output")


@suite("page.pools", profiles=NINFER)
def pools(profile: Profile) -> Iterator[Case]:
    """DFlash2's five local layers, DFlash's with a full one, full ones alone, and a pool past 2^31 bytes."""
    for slug, windows, pages, kv_heads, head_dim in (
        ("five-local-layers", [2048] * 5, 512, 8, 128),
        ("four-local-layers-and-a-full-one", [2048] * 4 + [0], 512, 8, 128),
        ("full-layers-between", [0, 7, 0, 7], 3, 2, 6),
        ("full-layers-alone", [0, 0, 0], 5, 2, 4),
        ("no-pages", [0, 7], 0, 2, 6),
        ("past-2-31", [0] * 5, 4096, 8, 128),
    ):
        yield Case(
            slug, ("PAGE-004",),
            {"windows": np.array(windows), "pages": pages, "kv_heads": kv_heads, "head_dim": head_dim},
            catches="a pool is planned for local layers, or for every layer where one is full",
            effect="crash",
        )  # fmt: skip


TABLE = np.array([[7, 3, 12], [4, 9, 5], [11, 6, 2]])


@suite("page.slots_clamped", profiles=NEURON)
def clamped(profile: Profile) -> Iterator[Case]:
    """Three requests, inside their tables, at the end of them and past it."""
    for slug, requests, positions, block_size in (
        ("three-requests", [0, 0, 1, 1, 2], [3, 4, 4, 7, 11], 4),
        ("last-slot-of-the-table", [0, 1, 2], [14, 14, 14], 5),
        ("first-position-past-the-table", [0, 1, 2], [15, 15, 15], 5),
        ("far-past-the-table", [0, 2, 1], [23, 41, 1000], 4),
        ("one-slot-a-page", [2, 1, 0], [0, 2, 5], 1),
    ):
        yield Case(
            slug, ("PAGE-005",),
            {"table": TABLE, "requests": np.array(requests), "positions": np.array(positions),
             "block_size": block_size},
            catches="a position past the table reads the next request's pages, or wraps to the first page",
            effect="output",
        )  # fmt: skip


def _writes(
    requests: Sequence[int], positions: Sequence[int], limits: Sequence[int], table: Any = TABLE, block_size: int = 4,
    max_length: int = 12,
) -> dict[str, Any]:  # fmt: skip
    return {
        "table": np.array(table), "requests": np.array(requests), "positions": np.array(positions),
        "limits": np.array(limits), "block_size": block_size, "max_length": max_length,
    }  # fmt: skip


@suite("page.writes", profiles=NEURON)
def writes(profile: Profile) -> Iterator[Case]:
    """Padding, rejected rows, ends of tables and sequences, evicted pages: one at a time."""
    for slug, requests, positions in (
        ("trailing-padding", [0, 0, 1, -1, -1], [2, 3, 5, 0, 0]),
        ("padding-between", [0, -1, 1, 2], [2, 7, 5, 1]),
        ("padding-with-garbage", [1, 2, -1], [4, 8, -1]),
        ("padding-alone", [-1, -1], [0, 3]),
    ):
        yield Case(
            slug, ("PAGE-006",), _writes(requests, positions, [12, 12, 12]),
            catches="padding rows write to slot 0 of the first request, or into the last request's pages",
            effect="output",
        )  # fmt: skip
    for slug, requests, positions, limits in (
        ("two-of-four-rejected", [0] * 4, [6, 7, 8, 9], [8, 12, 12]),
        ("all-rejected-but-the-first", [1] * 4, [3, 4, 5, 6], [12, 4, 12]),
        ("all-accepted", [2] * 4, [5, 6, 7, 8], [12, 12, 9]),
        ("two-requests-with-limits-of-their-own", [0, 0, 0, 1, 1, 1], [2, 3, 4, 2, 3, 4], [3, 4, 12]),
    ):
        yield Case(
            slug, ("PAGE-007",), _writes(requests, positions, limits),
            catches="rows of rejected tokens are injected as context, or the last kept row is not",
            effect="acceptance",
        )  # fmt: skip
    for slug, positions, block_size, max_length in (
        ("block-past-the-table", [10, 11, 12, 13, 14], 4, 100),
        ("block-past-the-longest-sequence", [8, 9, 10, 11], 4, 10),
        ("block-from-two-before-the-end", [13, 14, 15, 16, 17], 5, 15),
        ("up-to-the-end-alone", [12, 13, 14], 5, 15),
    ):
        yield Case(
            slug, ("PAGE-008",), _writes([1] * len(positions), positions, [100] * 3, TABLE, block_size, max_length),
            catches="drafts past the end alias the table's last page and overwrite live rows",
            effect="output",
        )  # fmt: skip
    for slug, table, positions in (
        ("evicted-pages-in-front", [[0, 0, 12]], [1, 6, 8, 11]),
        ("page-never-given", [[7, 3, 0]], [7, 8]),
        ("page-zero-of-two-requests", [[0, 3, 12], [0, 9, 5]], [0, 3, 4]),
    ):
        last = len(table) - 1
        yield Case(
            slug, ("PAGE-009",), _writes([0, *[last] * (len(positions) - 1)], positions, [12] * len(table), table),
            catches="context of evicted positions is written to the null page, which every request's table names",
            effect="output",
        )  # fmt: skip


def _scatter(slots: Sequence[int], pool: int, width: int, pitch: int, column: int) -> dict[str, Any]:
    """Packed rows in which every other column is poison, as is every row that is not written."""
    packed = np.full((len(slots), pitch), NAN)
    packed[:, column : column + width] = tagged(range(len(slots)), width)
    packed[np.array(slots) < 0] = NAN
    return {"pool": canaries(pool, width), "packed": packed, "column": column, "slots": np.array(slots, dtype=np.int64)}


@suite("page.scatter", profiles=("ninfer", "vllm-neuron"))
def scatter(profile: Profile) -> Iterator[Case]:
    """Packed queries, keys and values; rows without a slot."""
    for slug, slots, width, pitch, column in (
        ("keys-between-queries-and-values", [3, 8, 5], 4, 12, 4),
        ("values-at-the-end", [2, 0], 3, 11, 8),
        ("rows-of-their-own", [6, 1, 4], 5, 5, 0),
    ):
        yield Case(
            slug, ("PAGE-010",), _scatter(slots, 10, width, pitch, column),
            catches="rows are copied as if they lay side by side: all but the first begin in the row before",
            effect="acceptance",
        )  # fmt: skip
    for slug, slots in (
        ("rejected-and-padding-rows", [4, 5, -1, -1, 9, -1]),
        ("no-row-at-all", [-1, -1, -1]),
        ("no-rows", []),
        ("first-and-last-slot", [9, -1, 0]),
    ):
        yield Case(
            slug, ("PAGE-011",), _scatter(slots, 10, 3, 3, 0),
            catches="slot -1 is taken for the pool's last slot, or unnamed slots are cleared",
            effect="output",
        )  # fmt: skip


@suite("page.lookahead", profiles=NEURON)
def lookahead(profile: Profile) -> Iterator[Case]:
    """Blocks whose last slot ends a page, or begins one; first steps; several requests."""
    for slug, clause, lengths, computed, held, drafts, block_size in (
        ("last-slot-ends-a-page", "PAGE-012", [6, 22], [5, 21], [1, 2], 9, 16),
        ("last-slot-begins-a-page", "PAGE-012", [7, 23], [6, 22], [1, 2], 9, 16),
        ("one-draft-fewer-would-do", "PAGE-012", [23, 12], [20, 11], [2, 1], 3, 8),
        ("pages-enough", "PAGE-012", [9, 30], [8, 26], [5, 9], 4, 8),
        ("block-longer-than-a-page", "PAGE-012", [5], [4], [2], 15, 4),
        ("first-step-of-whole-pages", "PAGE-013", [16], [0], [0], 9, 16),
        ("first-step-that-ends-a-page", "PAGE-013", [32, 6], [0, 0], [0, 0], 9, 16),
        ("first-step-beside-a-later-one", "PAGE-013", [8, 12], [0, 11], [0, 2], 3, 4),
        ("first-step-with-pages-held", "PAGE-013", [20], [0], [5], 7, 4),
    ):
        yield Case(
            slug, (clause,),
            {"lengths": np.array(lengths), "computed": np.array(computed), "held": np.array(held), "drafts": drafts,
             "block_size": block_size},
            catches="the table is a page short where a block crosses into it, and keys go to a page of others",
            effect="output", blame={"added": clause},
        )  # fmt: skip
