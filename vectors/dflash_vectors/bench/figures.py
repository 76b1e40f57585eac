"""What was measured, and what the project asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_vectors.bench.harness import Spread, ratio

OURS, PEER, BARE = "engine", "peer", "bare"
LIMITS: dict[tuple[str, int, str], float] = {
    ("step", 256, PEER): 0.55, ("step", 6000, PEER): 0.30, ("round", 256, PEER): 0.50, ("round", 6000, PEER): 0.35,
    ("prefill", 256, PEER): 0.9, ("prefill", 2048, PEER): 0.9, ("prefill", 6000, PEER): 0.9,
    ("step", 256, BARE): 1.3, ("round", 256, BARE): 1.3,
}  # fmt: skip
"""At most this ratio, by what is measured, the context, and beside what; batches are asked the same."""
READS_LIMIT = 2.0
"""Growth with the context over the time of the attention's own work."""
LOCAL_LIMIT = 1.1
"""Time of a local draft past its window, over the time at it: no growth, and the noise of a measurement."""
MEMORY_LIMIT = 1.1
"""Peak memory over weights and planned buffers."""
KEPT_LIMIT = 1 << 20
"""Bytes by which thousands of rounds may grow: what an allocator rounds up to, far below a row a round."""


@dataclass(frozen=True)
class Target:
    """Something that the project asks for, and what was found."""

    what: str
    found: float
    limit: float

    @property
    def met(self) -> bool:
        return self.found <= self.limit

    def record(self) -> dict[str, Any]:
        return {"what": self.what, "found": self.found, "limit": self.limit, "met": self.met}


@dataclass(frozen=True)
class Figure:
    """One thing that was timed: seconds of each party, turn by turn."""

    what: str
    backend: str
    context: int
    batch: int
    seconds: Mapping[str, Sequence[float]]

    @property
    def spreads(self) -> dict[str, Spread]:
        return {party: Spread.of(turns) for party, turns in self.seconds.items()}

    @property
    def ratios(self) -> dict[str, Spread]:
        """The engine's time over each other party's."""
        ours = self.seconds[OURS]
        return {party: ratio(ours, turns) for party, turns in self.seconds.items() if party != OURS}

    @property
    def name(self) -> str:
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.backend} {self.what} at {self.context:,}{batch}"

    def targets(self) -> list[Target]:
        """What is asked of it."""
        found = []
        for party, spread in self.ratios.items():
            limit = LIMITS.get((self.what, self.context, party))
            if limit is not None:
                found.append(Target(f"{self.name}, over {party}", spread.median, limit))
        return found

    def record(self) -> dict[str, Any]:
        return {
            "what": self.what, "backend": self.backend, "context": self.context, "batch": self.batch,
            "seconds": {party: spread.record() for party, spread in self.spreads.items()},
            "ratios": {party: spread.record() for party, spread in self.ratios.items()},
        }  # fmt: skip


@dataclass(frozen=True)
class Slope:
    """How the time of a step or round grows from the shortest context to the longest.

    `read` and `flops` are what attention reads and computes more at the longest, `reading` the seconds that such a read
    takes here, and `attending` how many seconds more its bare products take, in the faster of BF16 and FP32.
    """

    what: str
    backend: str
    contexts: tuple[int, int]
    grown: dict[str, float]
    read: int
    flops: int
    reading: float
    attending: float

    def targets(self) -> list[Target]:
        """Growth is at most twice what attention's reads take, or of a round its products, whichever takes longer.

        A round's many rows share what they read. A library multiplies one row so slowly that a step held against that
        would always pass.
        """
        floor = self.reading if self.what == "step" else max(self.reading, self.attending)
        what = f"{self.backend} {self.what}: growth {self.contexts[0]:,} to {self.contexts[1]:,}, over attention's own"
        return [Target(what, self.grown[OURS] / floor, READS_LIMIT)]

    def record(self) -> dict[str, Any]:
        return {
            "what": self.what, "backend": self.backend, "contexts": list(self.contexts), "grown": self.grown,
            "read_bytes": self.read, "flops": self.flops, "reading": self.reading, "attending": self.attending,
        }  # fmt: skip


@dataclass(frozen=True)
class Local:
    """Seconds of the draft alone, all of whose layers are local, by context; the first context fills the window."""

    backend: str
    window: int
    seconds: dict[int, list[float]]

    def targets(self) -> list[Target]:
        first, *_, last = self.seconds
        found = ratio(self.seconds[last], self.seconds[first]).median
        return [Target(f"{self.backend} local draft at {last:,}, over {first:,}", found, LOCAL_LIMIT)]

    def record(self) -> dict[str, Any]:
        timed = {str(context): Spread.of(turns).record() for context, turns in self.seconds.items()}
        return {"backend": self.backend, "window": self.window, "seconds": timed}


@dataclass(frozen=True)
class Memory:
    """Bytes of a fresh process: `peak` above what imports take, `planned` by what, and held after so many `rounds`."""

    backend: str
    peak: int
    planned: dict[str, int]
    held: list[tuple[int, int]]

    def targets(self) -> list[Target]:
        found = [
            Target(
                f"{self.backend} peak memory, over weights and buffers", self.peak / max(1, self.total), MEMORY_LIMIT
            )
        ]
        if len(self.held) > 2:
            (first, before), (last, after) = self.held[1], self.held[-1]
            what = f"{self.backend} growth in MiB, rounds {first:,} to {last:,}"
            found.append(Target(what, max(0, after - before) / 2**20, KEPT_LIMIT / 2**20))
        return found

    @property
    def total(self) -> int:
        return sum(self.planned.values())

    def record(self) -> dict[str, Any]:
        return {"backend": self.backend, "peak": self.peak, "planned": self.planned, "held": self.held}


@dataclass(frozen=True)
class Level:
    """One prompt's rounds: how often each count was accepted, and the speed-up over plain steps, turn by turn."""

    text: str
    counts: dict[int, int]
    step: list[float]
    round: list[float]

    @property
    def accepted(self) -> float:
        """Mean accepted proposals of a round."""
        return sum(count * times for count, times in self.counts.items()) / max(1, sum(self.counts.values()))

    @property
    def speedup(self) -> Spread:
        """Tokens a second, over plain decoding's."""
        return ratio(self.step, self.round).scaled(self.accepted + 1)

    def record(self) -> dict[str, Any]:
        counts = {str(count): times for count, times in sorted(self.counts.items())}
        return {"text": self.text, "counts": counts, "accepted": self.accepted, "speedup": self.speedup.record()}


@dataclass(frozen=True)
class Speedup:
    """Speed-up as a function of what is accepted."""

    backend: str
    context: int
    levels: list[Level]

    @property
    def cost(self) -> float:
        """A round over a step: the tokens that a round must give to be worth it."""
        return Spread.of([value for each in self.levels for value in _over(each.round, each.step)]).median

    @property
    def break_even(self) -> float:
        """Mean accepted proposals at which speculation and plain decoding are equally fast."""
        return self.cost - 1

    def model(self, accepted: float) -> float:
        """The speed-up that a mean accepted count should give."""
        return (accepted + 1) / self.cost

    def record(self) -> dict[str, Any]:
        return {
            "backend": self.backend, "context": self.context, "round_over_step": self.cost,
            "break_even": self.break_even, "levels": [each.record() for each in self.levels],
        }  # fmt: skip


def _over(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    return [above / below for above, below in zip(upper, lower, strict=True)]


@dataclass
class Report:
    """All that a run has measured so far."""

    machine: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    slopes: list[Slope] = field(default_factory=list)
    locals: list[Local] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    speedups: list[Speedup] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    judged: bool = True
    interrupted: bool = False
    failed: bool = False

    def targets(self) -> list[Target]:
        """What is asked and what was found; nothing where the pair or the plan is not the one that it is asked of."""
        if not self.judged:
            return []
        parts: list[Figure | Slope | Local | Memory]
        parts = [*self.figures, *self.slopes, *self.locals, *self.memory]
        return [target for part in parts for target in part.targets()]

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "format": "dflash-bench", "version": 1, "interrupted": self.interrupted, "failed": self.failed,
            "machine": self.machine,
            "figures": [each.record() for each in self.figures], "slopes": [each.record() for each in self.slopes],
            "local_draft": [each.record() for each in self.locals],
            "memory": [each.record() for each in self.memory],
            "speedup": [each.record() for each in self.speedups],
            "targets": [each.record() for each in self.targets()], "remarks": self.remarks,
        }  # fmt: skip
