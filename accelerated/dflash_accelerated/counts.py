"""How often each request has emitted each token, for its penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenCounts:
    """Counts I32 [lanes, public]: a request with penalties has a lane for as long as it runs.

    There are as many lanes as such requests have been open at once.

    Clause: PROC-017. Source: Infernix src/models/qwen3_5/program/prefill.cpp, decode.cpp.
    """

    def __init__(self, public: int, device: torch.device) -> None:
        """No lane yet, for ids [0, public)."""
        self.held = torch.zeros(0, public, dtype=torch.int32, device=device)
        self._free: list[int] = []

    def take(self, emitted: Sequence[int] = ()) -> int:
        """A lane that holds the counts of the tokens `emitted`; a request's prompt is none of them."""
        if not self._free:
            lanes = len(self.held)
            more = max(1, lanes)
            self.held = torch.cat((self.held, self.held.new_empty((more, self.held.shape[1]))))
            self._free = list(range(lanes, lanes + more))
        lane = self._free.pop(0)
        self.held[lane] = 0
        self.add([lane] * len(emitted), emitted)
        return lane

    def give(self, lane: int) -> None:
        """Give a lane back."""
        self._free.append(lane)

    def add(self, lanes: Sequence[int], tokens: Sequence[int]) -> None:
        """Count `tokens`, each in the lane at its place."""
        places = (torch.tensor(part, dtype=torch.int64, device=self.held.device) for part in (lanes, tokens))
        self.held.index_put_(tuple(places), torch.ones((), dtype=torch.int32, device=self.held.device), accumulate=True)

    def rows(self, lanes: Sequence[int]) -> Tensor:
        """The counts I32 [N, public] of one lane a row."""
        return self.held[torch.tensor(lanes, device=self.held.device)]
