"""What is measured in a run, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from dflash_accelerated.kernels import Choice
from dflash_spec.errors import UnsupportedError

from dflash_vectors.bench import memory, ours, pairs, slope, speedup, timing
from dflash_vectors.bench.figures import Figure, Report
from dflash_vectors.bench.harness import Clock, Plan
from dflash_vectors.bench.pairs import Pair
from dflash_vectors.bench.peer import Peer
from dflash_vectors.bench.products import Bare
from dflash_vectors.bench.timing import Party

Job = tuple[str, Callable[[], None]]
"""What is measured next, and what measures it and adds it to the report."""


@dataclass(frozen=True)
class Asked:
    """What a run is asked for."""

    parts: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    plan: Plan
    rounds: int
    kernels: Choice
    device: torch.device
    threads: int
    chunk: int | None
    peer: bool
    geometry: str

    @property
    def room(self) -> int:
        """Tokens that are decoded after the longest context at most: sixteen a round."""
        return 16 * self.plan.turns * (self.plan.calls + 1) + 64

    @property
    def clock(self) -> Clock:
        return Clock(settle=partial(torch.cuda.synchronize, self.device)) if self.device.type == "cuda" else Clock()

    def wants(self, *parts: str) -> bool:
        return bool(set(parts) & set(self.parts))


def check(asked: Asked, pair: Pair) -> None:
    """Raise UnsupportedError for a context that the pair has no positions for."""
    most, longest = pairs.longest(pair), max(asked.contexts)
    if longest + asked.room > most:
        raise UnsupportedError(
            f"context {longest:,} and {asked.room:,} tokens after it, expected at most {most:,}, the pair's positions"
        )


def loaded(asked: Asked, pair: Pair, peer: bool) -> Party:
    """The pair, loaded by everyone. Raises UnsupportedError where the peer is wanted and is not installed."""
    check(asked, pair)
    longest = max(asked.contexts) + asked.room
    engine = ours.load(pair, kernels=asked.kernels, device=asked.device, chunk=asked.chunk, longest=longest)
    beside = Peer(pair, asked.device) if peer else None
    return Party(pair, engine, beside, Bare.of(engine), asked.clock, asked.device)


def jobs(asked: Asked, pair: Pair, scratch: Path | None, report: Report) -> Iterator[Job]:
    """All that is measured of a pair. `scratch` is a folder for a second one, where the pair is planted."""
    if set(asked.parts) - {"memory"}:
        party = loaded(asked, pair, asked.peer and asked.wants("step", "round", "slope", "prefill"))
        yield from _timed(asked, party, report)
        del party
    if asked.wants("slope") and scratch is not None:
        yield from _local(asked, pair, scratch, report)
    if asked.wants("memory"):
        yield "memory", lambda: report.memory.append(
            memory.measured(pair, asked.rounds, asked.kernels, asked.threads, str(asked.device))
        )  # fmt: skip


def _timed(asked: Asked, party: Party, report: Report) -> Iterator[Job]:
    figures, plan, first = report.figures, asked.plan, asked.contexts[0]

    def add(measure: Callable[[Party, int, Plan], Figure], context: int) -> None:
        figures.append(measure(party, context, plan))

    measures = {"step": timing.step, "round": timing.round_, "prefill": timing.prefill}
    for context in asked.contexts:
        for name, measure in measures.items():
            if asked.wants(name) or (asked.wants("slope") and name != "prefill"):
                yield f"{name} at {context}", partial(add, measure, context)
    if asked.wants("batch"):
        at = party.pair.backend, first, 1
        timed = {each.what for each in figures if (each.backend, each.context, each.batch) == at}
        left = [(what, size) for size in asked.batches for what in ("step", "round") if size > 1 or what not in timed]
        yield "batches", lambda: figures.extend(timing.batches(party, first, left, plan))
    if asked.wants("slope") and len(asked.contexts) > 1:
        yield "slope", lambda: report.slopes.extend(slope.slopes(party, figures, plan))
    if asked.wants("speedup"):
        yield "speed-up", lambda: report.speedups.append(speedup.measured(party, first, plan))


def _local(asked: Asked, pair: Pair, scratch: Path, report: Report) -> Iterator[Job]:
    """A pair whose draft layers are all local, at contexts that fill the window and go beyond."""
    windows = pairs.local_windows(asked.geometry)
    contexts = (max(windows) + 128, *(each for each in asked.contexts if each > max(windows) + 128))
    if len(contexts) < 2:
        return
    all_local = pairs.make(scratch / "local" / pair.backend, pair.backend, asked.geometry, windows)
    party = loaded(asked, all_local, peer=False)
    yield "local draft", lambda: report.locals.append(slope.local(party, max(windows), contexts, asked.plan))
