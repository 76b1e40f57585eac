"""Faults of Luce's chains of snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
from dflash_spec.tensors import Array

from dflash_vectors.faults import Function, fault
from dflash_vectors.faults.draft_rows import by_name

LUCE = ("luce",)
GRAPH = "Luce-Org/lucebox-hub@8305b6c server/src/qwen35/qwen35_target_graph.cpp"
RESYNC = "https://github.com/Luce-Org/lucebox-hub/commit/3c433a9"


@fault("dflash_reference.chain.overlaid", clauses=("STATE-016",), report=GRAPH, effect="output", profiles=LUCE)
def older_snapshot_wins(true: Function) -> Function:
    """Rows that are there are not overwritten."""

    def wrong(starts: Array, ends: Array, snapshots: Array) -> Array:
        offsets = np.cumsum(ends - starts) - (ends - starts)
        parts = [snapshots[at : at + n] for at, n in zip(offsets, ends - starts, strict=True)]
        return np.asarray(true(starts[::-1], ends[::-1], np.concatenate(parts[::-1])))

    return wrong


@fault("dflash_reference.chain.overlaid", clauses=("STATE-016",), report=GRAPH, effect="output", profiles=LUCE)
def position_of_the_last_snapshot(true: Function) -> Function:
    """The position is the end of the snapshot that was restored last."""
    return lambda starts, ends, snapshots: true(starts, ends, snapshots)[: int(ends[-1])]


@fault("dflash_reference.chain.overlaid", clauses=("STATE-016",), report=GRAPH, effect="output", profiles=LUCE)
def snapshots_appended(true: Function) -> Function:
    """Ranges are appended, wherever they start."""
    return lambda starts, ends, snapshots: snapshots


@fault("dflash_reference.chain.beside_the_rows", clauses=("STATE-017",), report=GRAPH, effect="output", profiles=LUCE)
def last_token_of_the_thick_kept(true: Function) -> Function:
    """Text goes on from the thick snapshot's last token."""
    return lambda thick_end, thick_token, position: (true(thick_end, thick_token, position)[0], thick_token)


@fault("dflash_reference.chain.beside_the_rows", clauses=("STATE-017",), report=GRAPH, effect="output", profiles=LUCE)
def recurrent_state_put_at_the_end(true: Function) -> Function:
    """The recurrent state is taken to stand where the rows end."""
    return lambda thick_end, thick_token, position: (position, true(thick_end, thick_token, position)[1])


@fault("dflash_reference.chain.chain", clauses=("STATE-017",), report=GRAPH, effect="output", profiles=LUCE)
def last_token_of_the_last_thin(true: Function) -> Function:
    """Every snapshot sets the last token."""

    def wrong(last_tokens: Array, **named: Any) -> Any:
        done = true(last_tokens=last_tokens, **named)
        return done if done.refused else done._replace(last_token=int(last_tokens[-1]))

    return by_name(true, wrong)


@fault("dflash_reference.chain.beside_the_rows", clauses=("STATE-017",), report=GRAPH, effect="liveness",
    profiles=LUCE,
)  # fmt: skip
def last_token_never_restored(true: Function) -> Function:
    """A thick snapshot's last token is forgotten."""
    return lambda thick_end, thick_token, position: (true(thick_end, thick_token, position)[0], -1)


@fault("dflash_reference.chain.mirrored", clauses=("STATE-018",), report=RESYNC, effect="acceptance", profiles=LUCE)
def mirror_not_read_anew(true: Function) -> Function:
    """After a restore the draft's mirror shows what it showed before."""
    return lambda position, window: (position, 0)


@fault("dflash_reference.chain.mirrored", clauses=("STATE-018",), effect="acceptance", profiles=LUCE,
    report="https://github.com/Luce-Org/lucebox-hub/commit/c470446",
)  # fmt: skip
def mirror_reads_the_first_rows(true: Function) -> Function:
    """The first rows are read, as if the window started at position 0."""
    return lambda position, window: (0, min(position, window))


@fault("dflash_reference.chain.chain", clauses=("STATE-018",), report=RESYNC, effect="acceptance", profiles=LUCE)
def mirror_reads_the_last_snapshot_alone(true: Function) -> Function:
    """Only the rows that the last snapshot brought are read."""

    def wrong(starts: Array, window: int, **named: Any) -> Any:
        done = true(starts=starts, window=window, **named)
        first = max(int(starts[-1]), done.position - window)
        return done._replace(resync=np.array([first, done.position - first]))

    return by_name(true, wrong)


@fault("dflash_reference.chain.well_formed", clauses=("STATE-019",), report=GRAPH, effect="output", profiles=LUCE)
def chain_of_any_snapshots(true: Function) -> Function:
    """Which snapshots are thick is not looked at."""

    def wrong(thick: Array, starts: Array, ends: Array, rows: int, capacity: int) -> None:
        true(np.array([1, *[0] * (len(thick) - 1)][: len(thick)]), starts, ends, rows, capacity)

    return wrong


@fault("dflash_reference.chain.well_formed", clauses=("STATE-019",), report=GRAPH, effect="output", profiles=LUCE)
def second_thick_taken(true: Function) -> Function:
    """A thick snapshot is taken for a thin one."""

    def wrong(thick: Array, starts: Array, ends: Array, rows: int, capacity: int) -> None:
        true(np.append(thick[:1], np.zeros_like(thick[1:])), starts, ends, rows, capacity)

    return wrong


@fault("dflash_reference.chain.well_formed", clauses=("STATE-019",), report=GRAPH, effect="crash", profiles=LUCE)
def ranges_past_the_cache(true: Function) -> Function:
    """A range may end past the cache."""

    def wrong(thick: Array, starts: Array, ends: Array, rows: int, capacity: int) -> None:
        true(thick, starts, ends, rows, max(capacity, int(ends.max(initial=0))))

    return wrong


@fault("dflash_reference.chain.well_formed", clauses=("STATE-019",), report=GRAPH, effect="output", profiles=LUCE)
def empty_ranges_taken(true: Function) -> Function:
    """A range without rows is skipped in silence."""

    def wrong(thick: Array, starts: Array, ends: Array, rows: int, capacity: int) -> None:
        if len(ends) and (ends == starts).any():
            return
        true(thick, starts, ends, rows, capacity)

    return wrong
