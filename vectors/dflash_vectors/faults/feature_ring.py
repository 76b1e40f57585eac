"""Faults of Luce's feature ring: layout, rounding, captures, rejections, windows, positions, mirrors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_reference import feature_ring, num
from dflash_reference.names import Position
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

LUCE = ("luce",)
RING = "Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp"
CAPTURE = "Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp"
GRAPH = "Luce-Org/lucebox-hub@8305b6c server/src/draft/draft_graph.cpp"
RESYNC = "https://github.com/Luce-Org/lucebox-hub/commit/3c433a9"


@fault("dflash_reference.feature_ring.append", clauses=("RING-010",), report=RING, effect="acceptance", profiles=LUCE)
def features_lie_row_by_row_of_the_ring(true: Function) -> Function:
    """Feature i of all positions lies together, feature by feature."""

    def wrong(ring: Array, rows: Array, capacity: int, **rest: Any) -> Any:
        flat = ring.reshape(rows.shape[1], capacity).T.reshape(-1)
        done = true(ring=flat, rows=rows, capacity=capacity, **rest)
        return done._replace(ring_next=done.ring_next.reshape(capacity, rows.shape[1]).T.reshape(-1))

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.offset", clauses=("RING-010",), report=RING, effect="acceptance", profiles=LUCE)
def features_begin_at_the_slot_itself(true: Function) -> Function:
    """The slot is taken for the element, without the factor X."""
    return lambda position, capacity, width: position % capacity


@fault("dflash_reference.feature_ring.represent", clauses=("RING-011",), report=RING, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def features_cut_to_bf16(true: Function) -> Function:
    """The lower half of the FP32 code is dropped."""

    def wrong(features: Array) -> Array:
        codes = np.asarray(features, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return codes.view(np.float32).astype(np.float64)

    return wrong


@fault("dflash_reference.feature_ring.represent", clauses=("RING-011",), report=RING, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def features_rounded_half_up(true: Function) -> Function:
    """Half an ulp is added to the code before it is cut, so that ties go away from zero."""

    def wrong(features: Array) -> Array:
        codes = np.asarray(features, dtype=np.float32).view(np.uint32)
        special = (codes >> np.uint32(23)) & np.uint32(0xFF) == 0xFF
        rounded = np.where(special, codes, codes + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32).astype(np.float64)

    return wrong


@fault("dflash_reference.feature_ring.represent", clauses=("RING-011",), effect="acceptance", profiles=LUCE,
    report="https://github.com/Luce-Org/lucebox-hub/commit/5f8356d",
)  # fmt: skip
def features_held_in_fp16(true: Function) -> Function:
    """The ring holds FP16: large features become infinite and small ones zero."""
    return lambda features: num.round_to(num.round_to(features, "F16"), "BF16")


@fault("dflash_reference.feature_ring.runs", clauses=("RING-012",), report=CAPTURE, effect="crash", profiles=LUCE)
def capture_split_once(true: Function) -> Function:
    """A capture has a part before the wrap and one after it, however long that one is."""

    def wrong(start: int, count: int, capacity: int) -> Iterator[tuple[int, int]]:
        before = min(capacity - start % capacity, count)
        yield 0, before
        if count > before:
            yield before, count - before

    return wrong


@fault("dflash_reference.feature_ring.runs", clauses=("RING-012",), effect="crash", profiles=LUCE,
    report="https://github.com/Anbeeld/beellama.cpp/issues/27",
)  # fmt: skip
def capture_not_split(true: Function) -> Function:
    """A capture goes to neighbouring slots in one piece."""
    return lambda start, count, capacity: iter([(0, count)] if count else [])


@fault("dflash_reference.feature_ring.runs", clauses=("RING-012",), report=CAPTURE, effect="acceptance", profiles=LUCE)
def second_part_dropped(true: Function) -> Function:
    """What a capture has after the wrap is not copied."""
    return lambda start, count, capacity: iter(list(true(start, count, capacity))[:1])


@fault("dflash_reference.feature_ring.runs", clauses=("RING-012",), report=CAPTURE, effect="acceptance", profiles=LUCE)
def older_rows_copied_last(true: Function) -> Function:
    """The parts of a capture are copied in the other order."""
    return lambda start, count, capacity: reversed(list(true(start, count, capacity)))


@fault("dflash_reference.feature_ring.append", clauses=("RING-012",), report=CAPTURE, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def second_part_repeats_the_first(true: Function) -> Function:
    """The part after the wrap is read from the beginning of the capture."""

    def wrong(rows: Array, start: int, capacity: int, **rest: Any) -> Any:
        cut = min(capacity - start % capacity, len(rows))
        doubled = np.concatenate([rows[:cut], rows[: len(rows) - cut]])
        return true(rows=doubled, start=start, capacity=capacity, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.live_interval", clauses=("RING-013",), effect="acceptance", profiles=LUCE,
    report="https://github.com/ml-explore/mlx-swift-lm/pull/584",
)  # fmt: skip
def cut_ring_held_for_full(true: Function) -> Function:
    """After a rejection the last `capacity` rows before the frontier count as live."""

    def wrong(frontier: int, written: int, capacity: int) -> tuple[int, int]:
        return tuple(true(frontier, frontier, capacity))

    return wrong


@fault("dflash_reference.feature_ring.live_interval", clauses=("RING-013",), effect="acceptance", profiles=LUCE,
    report="https://github.com/ml-explore/mlx-swift-lm/issues/424",
)  # fmt: skip
def rejected_rows_stay_live(true: Function) -> Function:
    """The cut does nothing once the ring has wrapped, and nobody looks at its result."""

    def wrong(frontier: int, written: int, capacity: int) -> tuple[int, int]:
        return tuple(true(frontier if written <= capacity else written, written, capacity))

    return wrong


@fault("dflash_reference.feature_ring.live_interval", clauses=("RING-013",), report=RING, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def oldest_row_lives_a_row_longer(true: Function) -> Function:
    """The live interval begins at written - capacity - 1."""

    def wrong(frontier: int, written: int, capacity: int) -> tuple[int, int]:
        true(frontier, written, capacity)
        first = max(0, written - capacity - 1)
        return first, max(0, frontier - first)

    return wrong


@fault("dflash_reference.feature_ring.window", clauses=("RING-014",), report=RING, effect="acceptance", profiles=LUCE)
def overwritten_rows_read(true: Function) -> Function:
    """Nobody asks whether a verify pass has overwritten the oldest rows of the window."""

    def wrong(frontier: int, written: int, **rest: Any) -> Any:
        return true(frontier=frontier, written=frontier, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.window", clauses=("RING-014",), effect="acceptance", profiles=LUCE,
    report="https://github.com/vllm-project/vllm/pull/41703",
)  # fmt: skip
def window_ends_at_the_last_row_written(true: Function) -> Function:
    """The window is that before the end of the verify pass: rejected rows count as context."""
    return by_name(true, lambda frontier, written, **rest: true(frontier=written, written=written, **rest))


@fault("dflash_reference.feature_ring.window", clauses=("RING-014",), report=RING, effect="acceptance", profiles=LUCE)
def window_in_the_order_of_slots(true: Function) -> Function:
    """The window is the ring from slot 0 on."""

    def wrong(ring: Array, capacity: int, **rest: Any) -> Any:
        done = true(ring=ring, capacity=capacity, **rest)
        return done._replace(features=ring.reshape(capacity, -1)[: len(done.features)])

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.window", clauses=("RING-014",), effect="acceptance", profiles=LUCE,
    report="https://github.com/ARahim3/mlx-dspark/issues/33",
)  # fmt: skip
def window_always_whole(true: Function) -> Function:
    """A window has all its rows, though the frontier is nearer than that."""

    def wrong(window: int, frontier: int, **rest: Any) -> Any:
        done = true(window=window, frontier=frontier, **rest)
        missing = np.zeros((max(0, window - frontier), done.features.shape[1]))
        return done._replace(features=np.concatenate([missing, done.features]))

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.widen", clauses=("RING-015",), report=RING, effect="acceptance", profiles=LUCE)
def features_widened_through_fp16(true: Function) -> Function:
    """The projection reads FP16, which large features overflow."""
    return lambda features: num.round_to(true(features), "F16")


@fault("dflash_reference.feature_ring.widen", clauses=("RING-015",), report=RING, effect="acceptance", profiles=LUCE)
def subnormal_features_flushed(true: Function) -> Function:
    """Subnormal features become zero."""

    def wrong(features: Array) -> Array:
        wide = np.asarray(true(features))
        return np.where(np.abs(wide) < 2.0**-126, np.copysign(0.0, wide), wide)

    return wrong


@fault("dflash_reference.feature_ring.widen", clauses=("RING-015",), report=RING, effect="acceptance", profiles=LUCE)
def infinite_features_clipped(true: Function) -> Function:
    """Infinite features become the greatest FP32 number."""
    greatest = float(np.finfo(np.float32).max)
    return lambda features: np.clip(true(features), -greatest, greatest)


@fault("dflash_reference.feature_ring.positions", clauses=("RING-016",), report=GRAPH, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def block_keeps_its_absolute_positions(true: Function) -> Function:
    """Context keys count from the window, block rows from the sequence."""

    def wrong(frontier: int, width: int, **rest: Any) -> Any:
        absolute = frontier + np.arange(width)
        return true(frontier=frontier, width=width, **rest)._replace(block=absolute, queries=absolute)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.positions", clauses=("RING-016",), report=GRAPH, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def queries_count_from_zero(true: Function) -> Function:
    """Queries lie at 0 to B - 1."""
    return by_name(true, lambda width, **rest: true(width=width, **rest)._replace(queries=np.arange(width)))


@fault("dflash_reference.feature_ring.positions", clauses=("RING-016",), effect="acceptance", profiles=LUCE,
    report="https://github.com/Luce-Org/lucebox-hub/commit/1dd4bc3",
)  # fmt: skip
def context_keeps_its_absolute_positions(true: Function) -> Function:
    """Context keys and block rows alike are turned by their positions in the sequence."""

    def wrong(frontier: int, **rest: Any) -> Any:
        shift = true(frontier=frontier, **rest)
        before = frontier - len(shift.context)
        return feature_ring.Positions(*(part + before for part in shift))

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.positions", clauses=("RING-016",), report=GRAPH, effect="acceptance",
    profiles=LUCE,
)  # fmt: skip
def block_behind_a_whole_window(true: Function) -> Function:
    """The block begins at the window's size, though the context is shorter."""

    def wrong(window: int, width: int, **rest: Any) -> Any:
        block = window + np.arange(width)
        return true(window=window, width=width, **rest)._replace(block=block, queries=block)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), report=RESYNC, effect="acceptance", profiles=LUCE)
def mirror_not_synchronised(true: Function) -> Function:
    """The mirror keeps what it held before the restore."""
    return by_name(true, lambda mirror, **rest: true(mirror=mirror, **rest)._replace(mirror_next=mirror))


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), effect="acceptance", profiles=LUCE,
    report="https://github.com/Luce-Org/lucebox-hub/commit/c470446",
)  # fmt: skip
def mirror_gets_the_last_row_alone(true: Function) -> Function:
    """After a restore only the newest position is copied."""

    def wrong(start: int, count: int, **rest: Any) -> Any:
        true(start=start, count=count, **rest)
        return true(start=start + max(0, count - 1), count=min(count, 1), **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), report=RING, effect="acceptance", profiles=LUCE)
def slots_copied_to_slots(true: Function) -> Function:
    """Slot s of the ring goes to slot s of the mirror, though the two are of different sizes."""

    def wrong(capacity: int, mirror: Array, mirror_capacity: int, start: int, count: int, **rest: Any) -> Any:
        sizes = {"capacity": capacity, "mirror": mirror, "mirror_capacity": mirror_capacity}
        done = true(start=start, count=count, **sizes, **rest)
        after, width = mirror.copy(), len(rest["ring"]) // capacity
        for position in range(start, start + count):
            slot = position % capacity % mirror_capacity
            after[slot * width : (slot + 1) * width] = feature_ring.row_of(rest["ring"], Position(position), capacity)
        return done._replace(mirror_next=after)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), effect="acceptance", profiles=LUCE,
    report="Luce-Org/lucebox-hub@8305b6c server/src/common/dflash_feature_ring.cpp, snapshot of the first slots",
)  # fmt: skip
def first_slots_taken_for_the_first_positions(true: Function) -> Function:
    """A snapshot is read from slot 0 on, as if the ring had never wrapped."""

    def wrong(ring: Array, capacity: int, start: int, count: int, **rest: Any) -> Any:
        turned = np.roll(ring.reshape(capacity, -1), start % capacity, axis=0).reshape(-1)
        return true(ring=turned, capacity=capacity, start=start, count=count, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), report=RESYNC, effect="acceptance", profiles=LUCE)
def rows_of_another_lap_copied(true: Function) -> Function:
    """Nobody asks whether the ring still holds a position, or holds it yet."""

    def wrong(start: int, count: int, written: int, **rest: Any) -> Any:
        return true(start=start, count=count, written=start + count, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), report=RING, effect="acceptance", profiles=LUCE)
def last_rows_of_too_many_copied(true: Function) -> Function:
    """Of more positions than the mirror has slots the last are copied, as if the rest had been."""

    def wrong(mirror_capacity: int, start: int, count: int, **rest: Any) -> Any:
        kept = min(count, mirror_capacity)
        return true(mirror_capacity=mirror_capacity, start=start + count - kept, count=kept, **rest)

    return by_name(true, wrong)


@fault("dflash_reference.feature_ring.sync", clauses=("RING-017",), report=RESYNC, effect="acceptance", profiles=LUCE)
def rest_of_the_mirror_cleared(true: Function) -> Function:
    """A synchronisation clears the slots that it does not fill."""
    return by_name(true, lambda mirror, **rest: true(mirror=np.zeros_like(mirror), **rest))
