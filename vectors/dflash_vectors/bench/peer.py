"""The authors' package beside us: its own loop on its own models, timed where a round begins.

Its loop runs to the end of an answer, and its own timing wants CUDA. So a hook stands where the loop calls the draft
(or, in plain decoding, the target): the time from one call to the next is a whole round. After a turn of rounds the
hook lets the other parties take theirs, and the loop's clock stands still meanwhile.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from dflash_spec.errors import UnsupportedError

from dflash_vectors.bench.harness import Call, Clock, Plan, quiet
from dflash_vectors.bench.pairs import Pair

ENDLESS = 4096
"""Tokens that the loop is asked for; it is left before."""


class _Enough(Exception):
    """Every turn was taken."""


class _Marks:
    """A forward hook that measures from call to call, in turns."""

    def __init__(self, plan: Plan, clock: Clock, others: Call, skip: int) -> None:
        """`others` runs after each turn. The first `skip` calls begin no round: a plain loop's prompt."""
        self._plan, self._clock, self._others, self._skip = plan, clock, others, skip
        self._last: float | None = None
        self._current: list[float] = []
        self.began = 0.0
        self.calls: list[float] = []
        self.turns: list[float] = []
        self.second: float | None = None

    def begin(self) -> None:
        """The loop starts to read the prompt."""
        self.began = self._clock.now()

    def __call__(self, *_: Any) -> None:
        if self._skip:
            self._skip -= 1
            return
        now = self._clock.now()
        if self._last is not None:
            self._current.append(now - self._last)
            self.second = self.second or now
        if len(self._current) > self._plan.calls:  # the first one found its caches cold
            self.calls += self._current[1:]
            self.turns.append(statistics.median(self._current[1:]))
            self._current = []
            with torch.inference_mode(False):
                self._others()
            if len(self.turns) == self._plan.turns:
                raise _Enough
        self._last = self._clock.now()


class Peer:
    """The package's models of a pair, and its loop."""

    def __init__(self, pair: Pair, device: torch.device) -> None:
        """Raises UnsupportedError where the package is not installed."""
        for name, wanted in (("transformers", "transformers"), ("dflash", "--no-deps dflash==0.1.0")):
            if find_spec(name) is None:
                raise UnsupportedError(f"the peer needs {name}, which is not installed: pip install {wanted}")
        from dflash.model import DFlash2DraftModel, DFlashDraftModel
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        from dflash_vectors.peers.modules import quietly

        bars: Any = logging
        bars.disable_progress_bar()
        kind = DFlash2DraftModel if pair.backend == "dflash2" else DFlashDraftModel
        with quietly():
            target: Any = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.bfloat16)
            draft: Any = kind.from_pretrained(pair.draft, dtype=torch.bfloat16)
        self.target, self.draft = target.to(device), draft.to(device)
        self.target.eval()
        self.draft.eval()

    def steps(self, prompt: Sequence[int], plan: Plan, clock: Clock, others: Call) -> list[float]:
        """Median seconds of a plain step, turn by turn; `others` runs between the turns."""
        marks = _Marks(plan, clock, others, skip=1)
        self._run(prompt, marks, self.target, 1)
        return marks.turns

    def rounds(self, prompt: Sequence[int], plan: Plan, clock: Clock, others: Call) -> tuple[list[float], float]:
        """The same of a block round; and the seconds of the prompt, which are all until the second round less one."""
        marks = _Marks(plan, clock, others, skip=0)
        self._run(prompt, marks, self.draft, None)
        prefill = (marks.second or marks.began) - marks.began - statistics.median(marks.calls)
        return marks.turns, prefill

    def prefill(self, prompt: Sequence[int], clock: Clock) -> float:
        """Seconds that a prompt takes, its draft's context included."""
        return self.rounds(prompt, Plan(1, 2), clock, lambda: None)[1]

    def _run(self, prompt: Sequence[int], marks: _Marks, hooked: Any, block_size: int | None) -> None:
        from dflash.model import dflash_generate

        ids = torch.as_tensor(prompt, dtype=torch.long, device=self.target.device)[None]
        handle = hooked.register_forward_pre_hook(marks)
        try:
            with quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # the package uses an argument's older name
                marks.begin()
                dflash_generate(self.draft, self.target, ids, ENDLESS, None, block_size=block_size)
        except _Enough:
            return
        finally:
            handle.remove()
        raise UnsupportedError(f"the peer's answer ended before {marks._plan.turns} turns, expected it to go on")
