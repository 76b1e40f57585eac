"""Faults of pages: slots, pools, what must not be written, packed rows, pages ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import page
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER, NEURON, BOTH = ("ninfer",), ("vllm-neuron",), ("ninfer", "vllm-neuron")
STORAGE = "NInfer docs/maintainer/dflash.md, storage"
GUIDE = "vLLM Neuron DFlash guide, paged KV integration"
ROTARY = "https://github.com/vllm-project/vllm-ascend/pull/9340"
BEYOND = "https://github.com/vllm-project/vllm/pull/16087"
SHARED = "https://github.com/vllm-project/vllm/pull/42971"
REJECTED = "https://github.com/vllm-project/vllm/pull/41703"
NULL = "https://github.com/local-inference-lab/vllm/pull/24"
PITCH = "https://github.com/natpate/ninfer-windows/pull/4"


@fault("dflash_reference.page.page_of", clauses=("PAGE-001",), report=STORAGE, effect="output", profiles=NINFER)
def pages_taken_to_follow_one_another(true: Function) -> Function:
    """The first page is looked up, the others are taken to follow it."""

    def wrong(table: Array, columns: Array) -> Array:
        true(table, columns)
        pages: Array = table[0] + columns
        return pages

    return wrong


@fault("dflash_reference.page.slots", clauses=("PAGE-001",), report=STORAGE, effect="output", profiles=NINFER)
def page_of_the_next_token(true: Function) -> Function:
    """The page is that of position p + 1, the place in it that of p."""

    def wrong(table: Array, positions: Array, **rest: Any) -> Any:
        columns = np.minimum((positions + 1) // page.PAGE, len(table) - 1)
        done = true(table=table, positions=positions, **rest)
        return done._replace(slots=table[columns] * page.PAGE + done.slots % page.PAGE)

    return by_name(true, wrong)


@fault("dflash_reference.page.slots", clauses=("PAGE-001",), report=STORAGE, effect="output", profiles=NINFER)
def slots_of_a_page_from_its_end(true: Function) -> Function:
    """A page is filled from its last slot down."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(slots=done.slots // page.PAGE * page.PAGE + page.PAGE - 1 - done.slots % page.PAGE)

    return by_name(true, wrong)


@fault("dflash_reference.page.cache_index", clauses=("PAGE-002",), report=ROTARY, effect="output", profiles=NINFER)
def slot_of_the_rotary_position(true: Function) -> Function:
    """The slot is computed from the position that turns the key."""
    return lambda positions, rotary: rotary


@fault("dflash_reference.page.cache_index", clauses=("PAGE-002",), effect="output", profiles=NINFER,
    report="https://github.com/vllm-project/vllm/issues/54498",
)  # fmt: skip
def slots_run_on_from_the_first_rotary_position(true: Function) -> Function:
    """Slots are consecutive from the rotary position of the first row on."""
    return lambda positions, rotary: true(positions, rotary) - positions[:1] + rotary[:1]


@fault("dflash_reference.page.page_of", clauses=("PAGE-003",), report=BEYOND, effect="output", profiles=NINFER)
def wild_columns_read(true: Function) -> Function:
    """A column outside the table is clamped into it, and a page of -1 is a page."""
    return lambda table, columns: table[np.clip(columns, 0, len(table) - 1)]


@fault("dflash_reference.page.page_of", clauses=("PAGE-003",), report=BEYOND, effect="output", profiles=NINFER)
def missing_page_written(true: Function) -> Function:
    """The table's width is checked, its entries are not."""

    def wrong(table: Array, columns: Array) -> Array:
        true(np.abs(table), columns)
        return table[columns]

    return wrong


@fault("dflash_reference.page.pools", clauses=("PAGE-004",), report=STORAGE, effect="crash", profiles=NINFER)
def pool_for_every_draft(true: Function) -> Function:
    """There is a pool of all layers whether one is full or not."""

    def wrong(windows: Array, **rest: Any) -> Any:
        return true(windows=np.zeros_like(windows), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.page.pools", clauses=("PAGE-004",), report=STORAGE, effect="crash", profiles=NINFER)
def pool_of_all_layers_where_one_is_full(true: Function) -> Function:
    """A draft with a full layer pages its local ones too."""

    def wrong(windows: Array, **rest: Any) -> Any:
        return true(windows=np.zeros_like(windows) if (windows == 0).any() else windows, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.page.pools", clauses=("PAGE-004",), report=STORAGE, effect="crash", profiles=NINFER)
def pool_bytes_in_32_bits(true: Function) -> Function:
    """The size of the pool wraps at 2^32."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(bytes=done.bytes % 2**32)

    return by_name(true, wrong)


@fault("dflash_reference.page.pools", clauses=("PAGE-004",), report=STORAGE, effect="crash", profiles=NINFER)
def pool_of_keys_alone(true: Function) -> Function:
    """Values are not counted."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(bytes=done.bytes // 2)

    return by_name(true, wrong)


@fault("dflash_reference.page.clamped", clauses=("PAGE-005",), report=GUIDE, effect="output", profiles=NEURON)
def flat_table_read_past_its_row(true: Function) -> Function:
    """The column is not clamped, so that the flat table gives the next request's pages."""

    def wrong(table: Array, requests: Array, positions: Array, block_size: int) -> Array:
        flat = np.append(table, np.zeros(int(positions.max(initial=0)) + 1, dtype=table.dtype))
        pages = flat[requests * table.shape[1] + positions // block_size]
        slots: Array = pages * block_size + positions % block_size
        return slots

    return wrong


@fault("dflash_reference.page.clamped", clauses=("PAGE-005",), report=GUIDE, effect="output", profiles=NEURON)
def position_clamped_instead_of_its_page(true: Function) -> Function:
    """A position past the table becomes the table's last one, place in the page and all."""

    def wrong(table: Array, requests: Array, positions: Array, block_size: int) -> Any:
        return true(table, requests, np.minimum(positions, table.shape[1] * block_size - 1), block_size)

    return wrong


@fault("dflash_reference.page.clamped", clauses=("PAGE-005",), report=GUIDE, effect="output", profiles=NEURON)
def pages_of_the_first_request(true: Function) -> Function:
    """Every row reads the first request's pages."""
    return lambda table, requests, positions, block_size: true(table, requests * 0, positions, block_size)


@fault("dflash_reference.page.clamped", clauses=("PAGE-005",), report=GUIDE, effect="output", profiles=NEURON)
def clamped_to_the_width_of_the_table(true: Function) -> Function:
    """The column is clamped to M instead of M - 1, the first page of the next request."""

    def wrong(table: Array, requests: Array, positions: Array, block_size: int) -> Array:
        columns = np.minimum(positions // block_size, table.shape[1])
        flat = np.append(table, 0)
        slots: Array = flat[requests * table.shape[1] + columns] * block_size + positions % block_size
        return slots

    return wrong


@fault("dflash_reference.page.writes", clauses=("PAGE-006",), report=GUIDE, effect="output", profiles=NEURON)
def padding_belongs_to_the_first_request(true: Function) -> Function:
    """Rows of no request are written as the first one's."""

    def wrong(requests: Array, positions: Array, **rest: Any) -> Any:
        return true(requests=np.maximum(requests, 0), positions=np.maximum(positions, 0), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.page.writes", clauses=("PAGE-006",), report=GUIDE, effect="output", profiles=NEURON)
def padding_belongs_to_the_last_request(true: Function) -> Function:
    """Row -1 of the table is the last request's."""

    def wrong(table: Array, requests: Array, positions: Array, **rest: Any) -> Any:
        last = np.where(requests < 0, len(table) - 1, requests)
        return true(table=table, requests=last, positions=np.maximum(positions, 0), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.page.kept", clauses=("PAGE-007",), report=REJECTED, effect="acceptance", profiles=NEURON)
def rejected_rows_written(true: Function) -> Function:
    """Every row of the verify is injected."""
    return lambda positions, limits: np.ones_like(positions, dtype=bool)


@fault("dflash_reference.page.kept", clauses=("PAGE-007",), report=REJECTED, effect="acceptance", profiles=NEURON)
def first_rejected_row_written(true: Function) -> Function:
    """The row at the limit is written too."""
    return lambda positions, limits: positions <= limits


@fault("dflash_reference.page.writes", clauses=("PAGE-007",), effect="acceptance", profiles=NEURON,
    report="https://github.com/vllm-project/vllm/pull/45100",
)  # fmt: skip
def limits_of_the_first_request(true: Function) -> Function:
    """Every request ends where the first one does."""
    return by_name(true, lambda limits, **rest: true(limits=np.full_like(limits, limits[0]), **rest))


@fault("dflash_reference.page.in_table", clauses=("PAGE-008",), report=BEYOND, effect="output", profiles=NEURON)
def end_of_the_table_not_looked_at(true: Function) -> Function:
    """Positions past the table are written where the clamped lookup points."""
    return lambda positions, covered, max_length: positions < max_length


@fault("dflash_reference.page.in_table", clauses=("PAGE-008",), report=BEYOND, effect="output", profiles=NEURON)
def longest_sequence_not_looked_at(true: Function) -> Function:
    """Drafts past the longest sequence are written as long as the table has pages."""
    return lambda positions, covered, max_length: positions < covered


@fault("dflash_reference.page.in_table", clauses=("PAGE-008",), report=BEYOND, effect="acceptance", profiles=NEURON)
def last_position_not_written(true: Function) -> Function:
    """The last position of a sequence counts as past it."""
    return lambda positions, covered, max_length: true(positions + 1, covered, max_length)


@fault("dflash_reference.page.has_page", clauses=("PAGE-009",), report=NULL, effect="output", profiles=NEURON)
def null_page_written(true: Function) -> Function:
    """Page 0 is a page like any other."""
    return lambda pages: np.ones_like(pages, dtype=bool)


@fault("dflash_reference.page.has_page", clauses=("PAGE-009",), effect="output", profiles=NEURON,
    report="https://github.com/vllm-project/vllm-ascend/pull/16745",
)  # fmt: skip
def only_a_page_of_minus_one_is_missing(true: Function) -> Function:
    """An evicted page is looked for by -1, and the table has 0."""
    return lambda pages: pages >= 0


@fault("dflash_reference.page.unpacked", clauses=("PAGE-010",), report=PITCH, effect="acceptance", profiles=BOTH)
def packed_rows_copied_flat(true: Function) -> Function:
    """Rows are copied as if they were X wide, not W."""

    def wrong(packed: Array, column: int, width: int) -> Array:
        true(packed, column, width)
        flat = packed.reshape(-1)[column : column + len(packed) * width]
        return np.pad(flat, (0, len(packed) * width - len(flat))).reshape(-1, width)

    return wrong


@fault("dflash_reference.page.unpacked", clauses=("PAGE-010",), report=PITCH, effect="acceptance", profiles=BOTH)
def packed_columns_from_the_first_on(true: Function) -> Function:
    """The queries' columns are taken for the keys'."""
    return lambda packed, column, width: true(packed, 0, width)


@fault("dflash_reference.page.scatter", clauses=("PAGE-011",), effect="output", profiles=BOTH,
    report="vllm-project/vllm vllm/v1/worker/gpu/spec_decode/dflash/speculator.py",
)  # fmt: skip
def slot_minus_one_is_the_last(true: Function) -> Function:
    """Slot -1 counts from the pool's end."""

    def wrong(pool: Array, packed: Array, column: int, slots: Array, **rest: Any) -> Any:
        done = true(pool=pool, packed=packed, column=column, slots=slots, **rest)
        after = done.pool_next.copy()
        after[slots] = packed[:, column : column + pool.shape[1]]
        return done._replace(pool_next=after)

    return by_name(true, wrong)


@fault("dflash_reference.page.scatter", clauses=("PAGE-011",), report=SHARED, effect="output", profiles=BOTH)
def unnamed_slots_cleared(true: Function) -> Function:
    """The pool is filled anew: rows of other requests are lost."""
    return by_name(true, lambda pool, **rest: true(pool=np.zeros_like(pool), **rest))


@fault("dflash_reference.page.scatter", clauses=("PAGE-011",), report=SHARED, effect="acceptance", profiles=BOTH)
def rows_packed_by_those_written(true: Function) -> Function:
    """The n-th slot that is named gets row n, though rows without a slot stand before it."""

    def wrong(packed: Array, slots: Array, **rest: Any) -> Any:
        named = slots[slots >= 0]
        return true(packed=packed[: len(named)], slots=named, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.page.slots_ahead", clauses=("PAGE-012",), effect="output", profiles=NEURON,
    report="https://github.com/vllm-project/vllm/pull/43733",
)  # fmt: skip
def slots_for_the_drafts_alone(true: Function) -> Function:
    """K slots are reserved, and none for the bonus before them."""
    return lambda computed, drafts: true(computed, drafts) - 1


@fault("dflash_reference.page.pages_of", clauses=("PAGE-012",), report=SHARED, effect="output", profiles=NEURON)
def table_a_page_short_at_a_boundary(true: Function) -> Function:
    """The count of slots is divided and cut, so that a page that is begun does not count."""
    return lambda slots, block_size: slots // block_size


@fault("dflash_reference.page.pages_of", clauses=("PAGE-012",), report=SHARED, effect="liveness", profiles=NEURON)
def a_page_more_than_is_begun(true: Function) -> Function:
    """Where the last slot ends a page, the next page is taken too."""
    return lambda slots, block_size: slots // block_size + 1


@fault("dflash_reference.page.lookahead", clauses=("PAGE-012",), effect="liveness", profiles=NEURON,
    report="https://github.com/vllm-project/vllm/issues/55800",
)  # fmt: skip
def pages_held_are_asked_for_again(true: Function) -> Function:
    """Admission counts all pages of a request as new ones, and waits for room that is not needed."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(added=done.pages)

    return by_name(true, wrong)


@fault("dflash_reference.page.slots_ahead", clauses=("PAGE-013",), effect="output", profiles=NEURON,
    report="https://github.com/vllm-project/vllm/pull/41971",
)  # fmt: skip
def no_slots_ahead_in_the_first_step(true: Function) -> Function:
    """A request that has computed nothing yet gets pages for its prompt alone."""
    return lambda computed, drafts: np.where(computed == 0, 0, true(computed, drafts))


@fault("dflash_reference.page.lookahead", clauses=("PAGE-013", "PAGE-012"), report=SHARED, effect="output",
    profiles=NEURON,
)  # fmt: skip
def block_goes_to_the_pages_that_are_held(true: Function) -> Function:
    """A step never adds pages for its block: the first one writes into a page that others share."""

    def wrong(lengths: Array, block_size: int, **rest: Any) -> Any:
        done = true(lengths=lengths, block_size=block_size, **rest)
        pages = page.pages_of(lengths, block_size)
        return done._replace(pages=pages, added=np.maximum(pages - rest["held"], 0))

    return by_name(true, wrong)
