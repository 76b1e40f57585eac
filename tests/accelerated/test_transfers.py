"""What rounds copy between host and device, and that a recorded forward copies nothing and asks the host nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from dflash_accelerated.graphs import Tensors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.accelerated import pretended

ENGINES = [
    ("zlab", torch.float32, False), ("zlab", torch.bfloat16, True),
    ("ninfer", torch.bfloat16, False), ("ninfer", torch.bfloat16, True),
]  # fmt: skip


class Watch(TorchDispatchMode):
    """Notes reads of the host, other copies that it waits for, copies that are queued, and any that is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.waits: list[str] = []
        self.queued: list[str] = []
        self.recorded: list[str] = []
        self.rounding = False
        """Whether a product may have rounded parts of a sum."""
        self._recording = False

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if function is torch.ops.aten.mm.default:
            self.rounding |= torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        places = {part.device for part in tree_leaves((given, named, made)) if isinstance(part, Tensor)}
        if len(places) > 1:
            queued = (named or {}).get("non_blocking") or (function is torch.ops.aten.copy_.default and given[2:])
            self.note(self.queued if queued else self.waits, str(function))
        return made

    def note(self, where: list[str], what: str) -> None:
        (self.recorded if self._recording else where).append(what)

    def capture(self, body: Callable[[], Tensors]) -> Tensors:
        self._recording = True
        try:
            return body()
        finally:
            self._recording = False


@contextmanager
def watched() -> Iterator[Watch]:
    """Within it engines on the pretended device are looked at: ops, tensors made of lists, and reads of the host."""
    watch, make, take = Watch(), torch.tensor, Tensor.__getitem__

    def launch(kernel: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert {part.device for part in given if isinstance(part, Tensor)} == {pretended.META}, kernel.__name__

    def listed(*given: Any, **named: Any) -> Tensor:
        if torch.device(named.get("device") or "cpu") == pretended.META:
            watch.note(watch.waits, "torch.tensor")
        return make(*given, **named)

    def taken(tensor: Tensor, at: Any) -> Tensor:
        parts = at if isinstance(at, tuple) else (at,)
        if tensor.device == pretended.META and any(isinstance(part, list | range) for part in parts):
            watch.note(watch.waits, "an index that is a list")
        return take(tensor, at)

    with pretended.device(launch, watch.capture):
        read = Tensor.tolist

        def told(tensor: Tensor) -> Any:
            if tensor.device == pretended.META:
                watch.note(watch.reads, "tolist")
            return read(tensor)

        with (
            patch.object(torch, "tensor", listed), patch.object(Tensor, "__getitem__", taken),
            patch.object(Tensor, "tolist", told), watch,
        ):  # fmt: skip
            yield watch


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("profile", "dtype", "second"), ENGINES)
def test_a_round_waits_for_its_proposals_and_for_its_decision(
    profile: str, dtype: torch.dtype, second: bool, temperature: float
) -> None:
    """Else the host waits for nothing, once a round of these requests has been; and recorded forwards never do."""
    with watched() as watch:
        engine: Any = pretended.load(profile, dtype, second)
        tickets = [
            engine.submit(engine.request([3, 1, 4], 90, seed=at, stop_ids=[], temperature=temperature))
            for at in range(3)
        ]
        counts = []
        for _ in range(5):
            watch.reads.clear()
            watch.waits.clear()
            assert engine.step().keys() == set(tickets)
            counts.append((len(watch.reads), list(watch.waits)))
        assert counts[2:] == [(2, [])] * 3
        engine.decode_plain([2, 7], 5, temperature=temperature, stop_ids=[])
        assert watch.recorded == []
        assert not watch.rounding
        graphs = (engine.target._graphs, engine.draft._appending, engine.draft._proposing)
        assert [each.count for each in graphs] == [2, 1, 1]  # of the target a verify pass and a plain step


@pytest.mark.parametrize("temperature", [0.0, 0.7], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("profile", "dtype", "second"), ENGINES)
def test_rounds_near_the_ends_of_their_requests_read_no_more(
    profile: str, dtype: torch.dtype, second: bool, temperature: float
) -> None:
    """Blocks are shorter there, or wider than what is verified, and some of the requests have none."""
    with watched() as watch:
        engine: Any = pretended.load(profile, dtype, second)
        for left in range(5):
            budget = 2 * (pretended.DRAFTS + 1) + 1 + left
            engine.submit(engine.request([3, 1, 4], budget, stop_ids=[], temperature=temperature))
        engine.step()
        watch.reads.clear()
        for made in iter(engine.step, {}):
            assert len(watch.reads) == 1 + any(each.proposals for each in made.values())
            watch.reads.clear()
