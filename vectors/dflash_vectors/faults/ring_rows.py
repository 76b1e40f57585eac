"""Faults of rings without weights: slots, live rows, chunks, the order of reading, rounds, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_reference import ring_rows
from dflash_reference.names import Position
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

NINFER, LUCE = ("ninfer",), ("luce",)
STORAGE = "NInfer docs/maintainer/dflash.md, storage"
CONDITIONING = "NInfer docs/maintainer/dflash.md, conditioning"
CYCLIC = "Infernix src/core/cyclic_kv_cache.h"
WRAP = "https://github.com/Anbeeld/beellama.cpp/issues/27"
REWIND = "https://github.com/osaurus-ai/vmlx-swift/pull/281"
TRIM = "https://github.com/ml-explore/mlx-swift-lm/pull/584"


@fault("dflash_reference.ring_rows.slot_of", clauses=("RING-002",), report=WRAP, effect="output", profiles=NINFER)
def placeholder_gets_the_last_slot(true: Function) -> Function:
    """Position -1 is taken modulo the capacity like any other."""
    return lambda positions, capacity: positions % capacity


@fault("dflash_reference.ring_rows.slot_of", clauses=("RING-002",), report=WRAP, effect="crash", profiles=NINFER)
def only_one_wrap_handled(true: Function) -> Function:
    """The capacity is subtracted once from a position past it."""

    def wrong(positions: Array, capacity: int) -> Array:
        true(positions, capacity)
        return np.where(positions >= capacity, positions - capacity, positions)

    return wrong


@fault("dflash_reference.ring_rows.slot_of", clauses=("RING-002",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def capacity_taken_for_a_power_of_two(true: Function) -> Function:
    """The slot is the position and (capacity - 1)."""

    def wrong(positions: Array, capacity: int) -> Array:
        true(positions, capacity)
        masked: Array = positions & (capacity - 1)
        return masked

    return wrong


@fault("dflash_reference.ring_rows.slot_of", clauses=("RING-002",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def ring_of_one_slot_fewer(true: Function) -> Function:
    """The ring wraps at S - 1."""
    return lambda positions, capacity: true(positions, max(1, capacity - 1))


@fault("dflash_reference.ring_rows.slot_of", clauses=("RING-002",), report=REWIND, effect="crash", profiles=NINFER)
def first_position_of_a_lap_past_the_end(true: Function) -> Function:
    """The cursor stands behind the last slot once the ring is full, and wraps only after it has written there."""

    def wrong(positions: Array, capacity: int) -> Array:
        slots = np.asarray(true(positions, capacity))
        return np.where((slots == 0) & (positions > 0), capacity, slots)

    return wrong


@fault("dflash_reference.ring_rows.live_interval", clauses=("RING-003",), effect="acceptance", profiles=NINFER,
    report="https://github.com/ml-explore/mlx-lm/issues/1914",
)  # fmt: skip
def nothing_is_ever_evicted(true: Function) -> Function:
    """All rows ever appended count as live."""
    return lambda frontier, capacity: (true(frontier, capacity)[0], frontier)


@fault("dflash_reference.ring_rows.live_interval", clauses=("RING-003",), effect="acceptance", profiles=NINFER,
    report="https://github.com/huggingface/transformers/issues/37574",
)  # fmt: skip
def full_ring_a_row_short(true: Function) -> Function:
    """A full ring counts S - 1 rows, as if the next row's slot were free already."""

    def wrong(frontier: int, capacity: int) -> tuple[int, int]:
        first, length = true(frontier, capacity)
        return (first + 1, length - 1) if length == capacity else (first, length)

    return wrong


@fault("dflash_reference.ring_rows.live_interval", clauses=("RING-003",), effect="acceptance", profiles=NINFER,
    report="https://github.com/Anbeeld/beellama.cpp/issues/47",
)  # fmt: skip
def one_row_more_than_the_ring_has(true: Function) -> Function:
    """The live interval begins at F - S - 1."""

    def wrong(frontier: int, capacity: int) -> tuple[int, int]:
        true(frontier, capacity)
        first = max(0, frontier - capacity - 1)
        return first, frontier - first

    return wrong


@fault("dflash_reference.ring_rows.live_interval", clauses=("RING-003",), report=STORAGE, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def live_rows_counted_from_the_lap(true: Function) -> Function:
    """Only the rows since the ring last wrapped are live."""

    def wrong(frontier: int, capacity: int) -> tuple[int, int]:
        true(frontier, capacity)
        first = frontier // capacity * capacity
        return first, frontier - first

    return wrong


@fault("dflash_reference.ring_rows.check_start", clauses=("RING-004",), effect="acceptance", profiles=NINFER,
    report="https://github.com/ggml-org/llama.cpp/issues/26478",
)  # fmt: skip
def chunk_taken_wherever_it_starts(true: Function) -> Function:
    """Nobody looks at where a chunk starts."""
    return lambda start, frontier: None


@fault("dflash_reference.ring_rows.check_start", clauses=("RING-004",), effect="acceptance", profiles=NINFER,
    report="https://github.com/Luce-Org/lucebox-hub/commit/f79e15a",
)  # fmt: skip
def chunk_taken_over_live_rows(true: Function) -> Function:
    """Only a gap is refused: a prompt that is fed again from the start is appended behind itself."""
    return lambda start, frontier: true(max(start, frontier), frontier)


@fault("dflash_reference.ring_rows.stored", clauses=("RING-005",), effect="crash", profiles=NINFER,
    report="https://github.com/Avarok-Cybersecurity/atlas/pull/844",
)  # fmt: skip
def chunk_of_any_length_written_in_one_piece(true: Function) -> Function:
    """A chunk is copied to neighbouring slots, whatever its length."""

    def wrong(ring: Array, rows: Array, frontier: int) -> Array:
        after, at = ring.copy(), frontier % len(ring)
        after[at : at + len(rows)] = rows
        return after

    return wrong


@fault("dflash_reference.ring_rows.stored", clauses=("RING-005",), effect="acceptance", profiles=NINFER,
    report="Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp",
)  # fmt: skip
def chunk_split_once(true: Function) -> Function:
    """What is left of a chunk at the wrap goes to the first slots, and what is left then is dropped."""

    def wrong(ring: Array, rows: Array, frontier: int) -> Array:
        after, at = ring.copy(), frontier % len(ring)
        before = min(len(ring) - at, len(rows))
        after[at : at + before] = rows[:before]
        rest = rows[before : before + len(ring)]
        after[: len(rest)] = rest
        return after

    return wrong


@fault("dflash_reference.ring_rows.stored", clauses=("RING-005",), report=CONDITIONING, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def first_rows_of_a_chunk_stay(true: Function) -> Function:
    """Of a chunk longer than the ring the first S rows are stored."""
    return lambda ring, rows, frontier: true(ring, rows[: len(ring)], frontier)


@fault("dflash_reference.ring_rows.stored", clauses=("RING-005",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def slots_without_a_row_cleared(true: Function) -> Function:
    """The ring is filled anew by every chunk."""
    return lambda ring, rows, frontier: true(np.zeros_like(ring), rows, frontier)


@fault("dflash_reference.ring_rows.stored", clauses=("RING-005",), report=REWIND, effect="acceptance", profiles=NINFER)
def full_ring_begins_at_slot_zero(true: Function) -> Function:
    """A chunk on a full ring begins at the first slot, wherever the cursor stood."""
    return lambda ring, rows, frontier: true(ring, rows, frontier if frontier < len(ring) else 0)


@fault("dflash_reference.ring_rows.append", clauses=("RING-005",), effect="acceptance", profiles=NINFER,
    report="https://github.com/sgl-project/sglang/pull/34924",
)  # fmt: skip
def frontier_not_moved(true: Function) -> Function:
    """The chunk is stored and the frontier stays, so that nothing is evicted."""
    return by_name(true, lambda frontier, **rest: true(frontier=frontier, **rest)._replace(frontier_next=frontier))


@fault("dflash_reference.ring_rows.append", clauses=("RING-005",), report=CONDITIONING, effect="acceptance",
    profiles=NINFER,
)  # fmt: skip
def frontier_moved_by_the_ring_at_most(true: Function) -> Function:
    """A chunk longer than the ring moves the frontier by what was stored of it."""

    def wrong(ring: Array, rows: Array, frontier: int, **rest: Any) -> Any:
        done = true(ring=ring, rows=rows, frontier=frontier, **rest)
        return done._replace(frontier_next=frontier + min(len(rows), len(ring)))

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.gather", clauses=("RING-006",), report=TRIM, effect="acceptance", profiles=NINFER)
def rows_in_the_order_of_slots(true: Function) -> Function:
    """Rows are read from slot 0 on, and given the positions of the live ones in order."""

    def wrong(ring: Array, frontier: int, **rest: Any) -> Any:
        done = true(ring=ring, frontier=frontier, **rest)
        return done._replace(rows=ring[: len(done.rows)])

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.gather", clauses=("RING-006",), report=STORAGE, effect="acceptance", profiles=NINFER)
def whole_ring_read(true: Function) -> Function:
    """All slots are read, written or not."""

    def wrong(ring: Array, frontier: int, **rest: Any) -> Any:
        return true(ring=ring, frontier=max(frontier, len(ring)), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.gather", clauses=("RING-006",), report=TRIM, effect="acceptance", profiles=NINFER)
def newest_row_first(true: Function) -> Function:
    """The rows come in descending order of positions, the positions in ascending order."""

    def wrong(**given: Any) -> Any:
        done = true(**given)
        return done._replace(rows=done.rows[::-1])

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.gather", clauses=("RING-009",), effect="acceptance", profiles=NINFER,
    report="https://github.com/Luce-Org/lucebox/pull/664",
)  # fmt: skip
def read_slots_of_the_first_round(true: Function) -> Function:
    """A captured graph keeps the read slots of the first round with so many rows, while the written ones move on."""
    captured: dict[int, Array] = {}

    def wrong(ring: Array, frontier: int, **rest: Any) -> Any:
        done = true(ring=ring, frontier=frontier, **rest)
        slots = captured.setdefault(len(done.rows), done.positions % len(ring))
        return done._replace(rows=ring[slots])

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.stored", clauses=("RING-009",), effect="acceptance", profiles=NINFER,
    report="https://github.com/spiritbuun/buun-llama-cpp/issues/116",
)  # fmt: skip
def written_slots_of_the_first_round(true: Function) -> Function:
    """A captured graph writes to the slots of the first round with so many rows."""
    captured: dict[int, int] = {}

    def wrong(ring: Array, rows: Array, frontier: int) -> Any:
        return true(ring, rows, captured.setdefault(len(rows), frontier))

    return wrong


@fault("dflash_reference.ring_rows.rounds", clauses=("RING-009",), report=CYCLIC, effect="acceptance", profiles=NINFER)
def window_read_before_its_own_round(true: Function) -> Function:
    """A round reads what the round before left, since its own rows are still on their way."""

    def wrong(ring: Array, rows: Array, counts: Array, frontier: int, **rest: Any) -> Any:
        done = true(ring=ring, rows=rows, counts=counts, frontier=frontier, **rest)
        before = ring_rows.gather(ring, Position(frontier), **rest).rows
        last = len(done.windows) - done.counted[-1]
        windows = np.concatenate([before, done.windows[:last]])
        return ring_rows.Rounds(np.concatenate([[len(before)], done.counted[:-1]]), windows)

    return by_name(true, wrong)


@fault("dflash_reference.ring_rows.capacity_of_committed_rows", clauses=("RING-007",), report=STORAGE, effect="crash",
    profiles=NINFER,
)  # fmt: skip
def committed_ring_grows_with_the_block(true: Function) -> Function:
    """The ring has room for the block's rows, which it never holds."""
    return lambda window, width: true(window, width) + width


@fault("dflash_reference.ring_rows.capacity_of_committed_rows", clauses=("RING-007",), report=STORAGE,
    effect="acceptance", profiles=NINFER,
)  # fmt: skip
def committed_ring_of_the_visible_rows(true: Function) -> Function:
    """The ring has S - 1 slots, as many rows as a query sees."""
    return lambda window, width: true(window, width) - 1


@fault("dflash_reference.ring_rows.capacity_of_verified_rows", clauses=("RING-008",), effect="acceptance",
    profiles=LUCE, report="Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp",
)  # fmt: skip
def verified_ring_as_large_as_the_window(true: Function) -> Function:
    """The ring has as many slots as the draft reads rows, and verify writes it."""
    return lambda window, width: window


@fault("dflash_reference.ring_rows.capacity_of_verified_rows", clauses=("RING-008",), effect="crash", profiles=LUCE,
    report="https://github.com/ml-explore/mlx-swift-lm/issues/474",
)  # fmt: skip
def verified_ring_without_the_anchor(true: Function) -> Function:
    """The ring has room for the drafts of a verify pass, and not for the anchor before them."""
    return lambda window, width: true(window, width) - 1
