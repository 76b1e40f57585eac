"""Which mistake gives what was recorded: states that only a wrong engine is in, and the known faults.

Where a stage differs, the reference computes it once more for each suspect, in a lane that stands where the round
began: with a state that a certain mistake would have left, or with a known fault in its rules. What then agrees with
the recorded stage within its bound is named, and its rule is blamed. A verdict never rests on this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dflash_reference import target as target_model
from dflash_reference.models import Draft2
from dflash_spec.tensors import Array

from dflash_vectors import faults
from dflash_vectors.faults import Function, patched
from dflash_vectors.replay.findings import Finding, Guess, Trail
from dflash_vectors.replay.lanes import Chunk, History, Lane, Lanes
from dflash_vectors.trace import Round, Trace

PATIENCE = 10.0  # seconds for all suspects of a finding
MOST = 3  # suspects that are named

MODULES = {
    "stage.features": ("target", "tap", "layer", "num"),
    "stage.c": ("context", "layer", "num"),
    "stage.layer": ("context", "layer", "mask", "block", "draft", "draft2", "conv", "num"),
    "stage.hidden": ("draft", "layer", "num"),
    "stage.logits": ("head", "num"),
    "stage.candidates": ("head", "num"),
    "stage.unary": ("head", "num"),
    "stage.g": ("selector", "num"),
    "stage.scores": ("selector", "num"),
    "stage.q": ("selector", "processing", "filters", "num"),
    "stage.target": ("target", "tap", "layer", "num"),
    "decision.proposals": ("head", "selector", "processing", "rng", "engine", "num"),
    "decision.accepted": ("law", "processing", "rng", "filters", "penalties", "engine", "target", "layer"),
    "decision.licensed": ("law", "processing", "rng", "filters", "penalties", "engine", "target", "layer"),
}
"""The modules of the reference whose faults may show first at a place, by the beginning of its name."""


@dataclass(frozen=True)
class Scene:
    """The round in which something differs, and the one before it."""

    round: Round
    previous: Round | None


Spoil = Callable[[Lane, Scene], AbstractContextManager[Any] | None]


@dataclass(frozen=True)
class Suspect:
    """A state that a mistake leaves. `spoil` brings it about in a lane, and returns what must hold while the stage is
    computed; None where the mistake would change nothing here."""

    guess: Guess
    places: tuple[str, ...]
    spoil: Spoil


def named(finding: Finding, lanes: Lanes, trace: Trace) -> Finding:
    """The finding with the suspects that fit it, and blamed on the first one's rule."""
    trail = finding.trail
    if trail is None:
        return finding
    history, number = lanes.history, finding.round
    scene = Scene(trace.round(max(number, 0)), trace.round(number - 1) if number > 0 else None)
    start = Lane(lanes.pair, History(history.ids, history.chunks[:-1]))
    start.reach()
    start.catch_up()
    found: list[tuple[float, Guess]] = []
    deadline = time.monotonic() + PATIENCE
    for off, guess in _tried(finding, trail, scene, start, history):
        if np.isfinite(off):
            found.append((off, guess))
        if time.monotonic() > deadline:
            break
    best: list[Guess] = []
    for _, guess in sorted(found, key=lambda each: each[0]):  # stable: states before faults, faults by name
        if not any(guess.clauses == other.clauses for other in best):
            best.append(guess)
    if not best:
        return finding
    # A tensor tells mistakes apart by many numbers, but one token may come of many of them.
    sure = finding.place.startswith("stage") or len(best) == 1
    return replace(finding, guesses=tuple(best[:MOST]), clause=best[0].clauses[0] if sure else finding.clause)


def _tried(
    finding: Finding, trail: Trail, scene: Scene, start: Lane, history: History
) -> Iterator[tuple[float, Guess]]:
    """Every suspect of a place, and how far what it gives is from what was recorded."""
    for suspect in STATES:
        if finding.place.startswith(suspect.places):
            lane = start.copy(history)
            holding = suspect.spoil(lane, scene)
            if holding is not None:
                yield _off(trail, lane, holding), suspect.guess
    modules = {module for place, held in MODULES.items() if finding.place.startswith(place) for module in held}
    if not isinstance(start.pair.draft, Draft2):
        modules -= {"draft2", "conv", "selector"}
    base = start.pair.profile.base or start.pair.profile.name
    for fault in faults.all_faults():
        module = fault.target.removeprefix("dflash_reference.").partition(".")[0]
        if module in modules and base in fault.profiles:
            guess = Guess(fault.name, f"{fault.story} ({fault.report})", fault.clauses)
            yield _off(trail, start.copy(history), faults.applied(fault)), guess


def _off(trail: Trail, lane: Lane, holding: AbstractContextManager[Any]) -> float:
    try:
        with np.errstate(all="ignore"), holding:
            return trail.off(trail.again(lane))
    except Exception:  # a fault may break anything; what it breaks is not what was recorded
        return np.inf


def _rejected_rows(lane: Lane, scene: Scene) -> int:
    """Let the target keep the rows of the proposals that the previous round rejected: how many these are."""
    previous = scene.previous
    if previous is None or previous.kept == len(previous.verified):
        return 0
    ids = lane.history.ids
    before = lane.copy(History(ids[: len(ids) - previous.kept], []))
    before.verify(previous.verified)
    lane.cache, lane.spoiled = before.cache, True
    return len(previous.verified) - previous.kept


def rejected_rows_before_the_new(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The new rows keep their positions, and see those that were not cut back."""
    stale = _rejected_rows(lane, scene)
    if not stale:
        return None

    def seeing(true: Function) -> Function:
        return lambda positions, length: true(positions + stale, length)

    def extending(true: Function) -> Function:
        def extend(model: Any, cache: Any, ids: Array, profile: Any) -> Array:
            positions, residuals = cache.length - stale + np.arange(len(ids)), [model.embedding[ids]]
            for w, keys, values, window in zip(
                model.layers, cache.keys, cache.values, model.config.windows, strict=True
            ):
                given = w, residuals[-1], keys, values, positions, window, model.config, profile
                residuals.append(target_model.decoder_layer(*given))
            return np.stack(residuals)

        return extend

    stack = ExitStack()
    stack.enter_context(patched("dflash_reference.target.up_to_itself", seeing))
    stack.enter_context(patched("dflash_reference.target.extend", extending))
    return stack


def rejected_rows_counted(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The new rows come after those that were not cut back, in position too."""
    return nullcontext() if _rejected_rows(lane, scene) else None


def late_context(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The rows of the last commit are not context yet."""
    lane.history = History(lane.history.ids, lane.history.chunks[:-1])
    return nullcontext()


def rejected_rows_in_context(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The rows of rejected proposals became context with the others."""
    captured = None if scene.previous is None else scene.previous.stages.get("target.features")
    if captured is None or scene.previous is None or len(captured.values) == scene.previous.kept:
        return None
    start = lane.history.chunks[-1].start
    rows = captured.values.astype(np.float64)
    chunk = Chunk(start, start + len(rows), rows, None)
    lane.history = History(lane.history.ids, [*lane.history.chunks[:-1], chunk])
    return nullcontext()


def _stale_slots(lane: Lane, positions: list[int]) -> bool:
    """Let the local layers keep, for these positions, the rows a window before: whether there are any."""
    lane.catch_up()
    moved = False
    for window, keys, values in zip(
        lane.pair.draft.config.windows, lane.context.keys, lane.context.values, strict=True
    ):
        for position in positions if window else ():
            if position >= window:
                keys.view[position] = keys.view[position - window]
                values.view[position] = values.view[position - window]
                moved = True
    return moved


def stale_slots(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The rows of the last commit were written nowhere."""
    chunk = lane.history.chunks[-1]
    return nullcontext() if _stale_slots(lane, list(range(chunk.start, chunk.stop))) else None


def slots_of_the_round_before(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The rows of the last commit went to the slots of the commit before it, from its first one on."""
    if len(lane.history.chunks) < 2:
        return None
    before, chunk = lane.history.chunks[-2:]
    lane.catch_up()
    rows = slice(chunk.start, chunk.stop)
    new = [(keys.view[rows].copy(), values.view[rows].copy()) for keys, values in
           zip(lane.context.keys, lane.context.values, strict=True)]  # fmt: skip
    if not _stale_slots(lane, list(range(chunk.start, chunk.stop))):
        return None
    went = slice(before.start, before.start + chunk.stop - chunk.start)
    for window, keys, values, rows_ in zip(
        lane.pair.draft.config.windows, lane.context.keys, lane.context.values, new, strict=True
    ):
        if window:
            keys.view[went], values.view[went] = rows_
    return nullcontext()


def stale_slot(which: int) -> Spoil:
    """One row of the last commit did not reach its slot: the `which`-th of it, or from its end."""

    def spoil(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
        chunk = lane.history.chunks[-1]
        if not -(chunk.stop - chunk.start) <= which < chunk.stop - chunk.start:
            return None
        return nullcontext() if _stale_slots(lane, [range(chunk.start, chunk.stop)[which]]) else None

    return spoil


def _turned(lane: Lane, shift: int) -> AbstractContextManager[Any]:
    """Every row that is computed now is turned as if it stood `shift` positions before its own."""
    return patched(
        "dflash_reference.layer.rope_table",
        lambda true: lambda positions, *rest: true(np.maximum(positions - shift, 0), *rest),
    )


def restarted_positions(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The last commit's rows and the block count their positions from 0."""
    shift = lane.history.chunks[-1].start
    return _turned(lane, shift) if shift else None


def rows_shifted(shift: int) -> Spoil:
    """The rows of the last commit stand `shift` positions after their own."""

    def spoil(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
        *before, chunk = lane.history.chunks
        lane.append(lane.context_rows(chunk), shift + np.arange(chunk.start, chunk.stop))
        lane.history = History(lane.history.ids, before)
        return nullcontext()

    return spoil


def shifted_positions(shift: int) -> Spoil:
    """The rows that are computed now stand `shift` positions before their own."""
    return lambda lane, scene: _turned(lane, shift)


def restarted_verify(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The verify pass counts its positions from 0."""
    lane.reach()
    return _turned(lane, lane.history.frontier)


def stale_anchor(lane: Lane, scene: Scene) -> AbstractContextManager[Any] | None:
    """The block begins with the anchor of the round before."""
    if scene.previous is None or scene.previous.anchor == scene.round.anchor:
        return None
    anchor = scene.previous.anchor

    def beginning(true: Function) -> Function:
        return lambda _anchor, *rest: true(anchor, *rest)

    return patched("dflash_reference.block.block_ids", beginning)


TARGET, LAYER = ("stage.target", "decision."), ("stage.layer",)


def _suspect(name: str, spoil: Spoil, places: tuple[str, ...], story: str, *clauses: str) -> Suspect:
    return Suspect(Guess(name, story, clauses), places, spoil)


STATES = (
    _suspect("rejected-rows-visible", rejected_rows_before_the_new, TARGET,
             "The target still sees rows of proposals that the round before rejected.", "COMMIT-002", "STATE-013"),
    _suspect("rejected-rows-counted", rejected_rows_counted, TARGET,
             "The target still holds rows that the round before rejected, and goes on after them.", "COMMIT-002"),
    _suspect("context-late", late_context, LAYER,
             "The rows of the last commit were not context yet when the draft read it.", "CTX-010"),
    _suspect("rejected-rows-in-context", rejected_rows_in_context, LAYER,
             "Rows of rejected proposals became context too.", "CTX-009", "STATE-013"),
    _suspect("positions-restarted", restarted_positions, LAYER,
             "The last commit's rows, and the block, are turned as if the sequence began with them.", "CTX-006"),
    *(_suspect("positions-off-by-one", shifted_positions(shift), LAYER,
               "The last commit's rows, and the block, are turned one position off their own.", "CTX-006")
      for shift in (1, -1)),
    *(_suspect("context-rows-off-by-one", rows_shifted(shift), LAYER,
               "The last commit's rows became context one position off their own.", "CTX-009") for shift in (1, -1)),
    _suspect("verify-positions-restarted", restarted_verify, TARGET,
             "The verify pass counts its positions from 0.", "BLK-006"),
    *(_suspect("verify-positions-off-by-one", shifted_positions(shift), TARGET,
               "The verify pass stands one position off.", "BLK-006") for shift in (1, -1)),
    _suspect("anchor-of-the-round-before", stale_anchor, LAYER,
             "The block begins with the anchor of the round before.", "BLK-001"),
    _suspect("slots-of-the-round-before", slots_of_the_round_before, LAYER,
             "A ring's rows of the last commit went to the slots of the commit before.", "RING-009", "CTX-013"),
    _suspect("stale-slots", stale_slots, LAYER,
             "A ring's slots of the last commit still hold the rows a window before.", "CTX-013", "RING-009"),
    *(_suspect("stale-slot", stale_slot(which), LAYER,
               "One slot of a ring still holds the row a window before.", "CTX-013", "RING-005")
      for which in (-1, 0, 1, 2, -2)),
)  # fmt: skip
