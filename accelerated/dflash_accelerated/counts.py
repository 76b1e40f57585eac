"""How often each request has emitted each token, for its penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_accelerated.lanes import Lanes
from dflash_accelerated.transfers import listed


class TokenCounts:
    """Counts I32 [lanes, public]: a request with penalties has a lane for as long as it runs.

    Clause: PROC-017. Source: Infernix src/models/qwen3_5/program/prefill.cpp, decode.cpp.
    """

    def __init__(self, public: int, device: torch.device, lanes: int = 0) -> None:
        """`lanes` lanes for ids [0, public). There are more only if more such requests are open at once."""
        self.held = torch.zeros(lanes, public, dtype=torch.int32, device=device)
        self._lanes = Lanes(lanes)

    def take(self, emitted: Sequence[int] = ()) -> int:
        """A lane that holds the counts of the tokens `emitted`; a request's prompt is none of them."""
        if not self._lanes.free:
            more = max(1, self._lanes.count)
            self.held = torch.cat((self.held, self.held.new_empty((more, self.held.shape[1]))))
            self._lanes.add(more)
        lane = self._lanes.take()
        self.held[lane] = 0
        self.add([lane] * len(emitted), emitted)
        return lane

    def copy(self, lane: int, other: int) -> None:
        """Have another lane hold the counts of this one."""
        self.held[other] = self.held[lane]

    def give(self, lane: int) -> None:
        """Give a lane back."""
        self._lanes.give(lane)

    def add(self, lanes: Sequence[int], tokens: Sequence[int]) -> None:
        """Count `tokens`, each in the lane at its place."""
        places = (listed(part, torch.int64, self.held.device) for part in (lanes, tokens))
        self.held.index_put_(tuple(places), torch.ones((), dtype=torch.int32, device=self.held.device), accumulate=True)

    def rows(self, lanes: Sequence[int]) -> Tensor:
        """The counts I32 [N, public] of one lane a row."""
        return self.held[listed(lanes, torch.int64, self.held.device)]
