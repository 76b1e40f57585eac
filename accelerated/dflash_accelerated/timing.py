"""How long each stage of a round took, on the host's clock."""

from __future__ import annotations

from time import perf_counter
from typing import Literal, NamedTuple

Stage = Literal["prefill", "propose", "verify", "decide", "commit"]
"""What a round spends its time on, in order; `StageTimes` says what belongs to each."""


class StageTimes(NamedTuple):
    """Seconds of the host's clock that one joint round took, and how many `requests` shared it.

    `prefill` reads a prompt; `propose` makes pending features context and runs the draft; `verify` runs the target;
    `decide` asks grammars, accepts, corrects and draws; `commit` scans for stops, rolls back and counts. Nothing waits
    for a device to measure it: there, the host waits for the proposals in `propose`, and for the target in `decide`.
    """

    prefill: float = 0.0
    propose: float = 0.0
    verify: float = 0.0
    decide: float = 0.0
    commit: float = 0.0
    requests: int = 1

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.prefill + self.propose + self.verify + self.decide + self.commit


class Clock:
    """Stages that follow each other: `lap` ends one and begins the next."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._began = perf_counter()

    def lap(self, stage: Stage) -> None:
        """All time since the last call was spent on `stage`."""
        now = perf_counter()
        self._spent[stage] = self._spent.get(stage, 0.0) + now - self._began
        self._began = now

    def times(self, requests: int = 1) -> StageTimes:
        """What was spent so far, in a round that `requests` shared."""
        return StageTimes(**self._spent, requests=requests)
