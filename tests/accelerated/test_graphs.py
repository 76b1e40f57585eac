"""Recordings without a device: which are kept, what they may read, and what is reserved or refused for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_accelerated import Engine, planning
from dflash_accelerated.graphs import Captured, CudaCapture, Graphs, Profiles, Room, Tensors
from dflash_accelerated.kernels import resolve_kernels
from dflash_accelerated.memory import KvPool, check_reserved
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Spans, StaticSpans
from dflash_accelerated.planning import record, reserve
from dflash_accelerated.protocols import Segment
from dflash_spec.errors import RequestError, StateError
from dflash_spec.registry import load_profile
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.accelerated import pretended

CPU = torch.device("cpu")
Load = Callable[..., Engine]


def again(body: Callable[[], Tensors]) -> Captured:
    return Captured(body(), body)


PROFILES = Profiles(3, 5, (2, 0), again)


def scaled(spans: Spans, x: Tensor, factor: Tensor) -> Tensors:
    """Rows by their request's factor, plus their positions."""
    width = len(x) // len(factor)
    return (x * factor.repeat_interleave(width) + spans.positions,)


def graphs(kept: int = 9) -> Graphs:
    takes = [Room(15, torch.float32), Room(3, torch.float32)]
    return Graphs(PROFILES, (1, 5), CPU, takes, [Room(15, torch.float32)], kept)


def test_replays_of_one_shape_read_new_inputs_and_leave_earlier_results_alone() -> None:
    held, made = graphs(), []
    for at, starts in enumerate([(3, 9), (0, 2), (7, 7)]):
        spans = Spans((at, 1), starts, (5, 5), CPU)
        x, factor = torch.arange(10.0) + at, torch.tensor([2.0, 3.0 + at])
        (found,) = held.run("scaled", spans, (5, 5), [[x[:5], x[5:]], factor], scaled)
        made.append((found, scaled(spans, x, factor)[0]))
    assert held.count == 1
    assert all(torch.equal(found, wanted) for found, wanted in made)


def test_rows_that_do_not_live_have_positions_and_the_others_their_own_first_row() -> None:
    seen: list[Tensor] = []

    def body(spans: Spans, x: Tensor, factor: Tensor) -> Tensors:
        seen.append(torch.cat((spans.table.flatten(), spans.positions, x.to(torch.int64))))
        return (x,)

    spans = Spans((4, 2), (7, 0), (2, 1), CPU)
    graphs().run("short", spans, (3, 3), [[torch.tensor([1.0, 2.0]), torch.tensor([3.0])], torch.ones(2)], body)
    assert seen[-1].tolist() == [4, 7, 2, 0, 2, 0, 1, 3, 7, 8, 9, 0, 1, 2, 1, 2, 0, 3, 0, 0]


def test_the_least_recently_used_recording_goes_first() -> None:
    held, bodies = graphs(kept=2), []

    def run(kind: str) -> None:
        def body(spans: Spans, x: Tensor, factor: Tensor) -> Tensors:
            bodies.append(kind)
            return (x,)

        held.run(kind, Spans((0,), (0,), (1,), CPU), (1,), [torch.zeros(1), torch.ones(1)], body)

    for kind in "abacab":  # c puts b out, and b then c
        run(kind)
    assert held.count == 2
    assert bodies == [*"aabbaccabb"]  # a recording runs the body, and then its replay does
    held.clear()
    assert held.count == 0


def test_only_profiles_fit() -> None:
    held = graphs()
    fitting = [(5,), (1, 1, 1), (5, 5, 5)]
    assert all(held.fits(counts) for counts in fitting)
    assert not any(held.fits(counts) for counts in [(4,), (5, 1), (1, 5), (5,) * 4, (6,)])
    assert held.holds([0, 5, 3])
    assert not held.holds([6])
    assert not held.holds([1] * 4)
    with pytest.raises(StateError, match=r"\[16\] in a buffer of 15 elements"):
        held.run("wide", Spans((0,), (0,), (16,), CPU), (16,), [torch.zeros(16), torch.ones(1)], scaled)


def test_spans_on_the_device_refuse_what_the_host_does_not_know() -> None:
    spans = Spans((2, 0), (3, 8), (2, 3), CPU)
    static = StaticSpans(spans.table, spans.counts)
    assert static.positions.tolist() == spans.positions.tolist() == [3, 4, 8, 9, 10]
    assert static.places.tolist() == spans.places.tolist()
    assert static.firsts == spans.firsts == (0, 2)
    static.table[:, 1] += 4
    assert static.positions.tolist() == [7, 8, 12, 13, 14]
    for read in (lambda: static.lanes, lambda: static.starts, lambda: static.end, lambda: list(static)):
        with pytest.raises(StateError, match="spans that are on the device"):
            read()


def test_a_forward_that_reads_lanes_on_the_host_cannot_be_recorded(random_pair: Path, load: Load) -> None:
    """PyTorch's attention does: nothing is recorded that would keep the lanes of its first call."""
    engine: Any = load(random_pair, kernels="torch", draft_tokens=4, max_batch=3, max_context=30)
    engine.target.capture(PROFILES)
    segment = Segment(engine.target.open(20), torch.tensor([3, 1, 4, 1, 5]))
    with pytest.raises(StateError, match="spans that are on the device"):
        engine.target.forward([segment], (2, 0), "all")


@pytest.mark.parametrize("graphs", [True, 1, "yes"])
def test_graphs_are_refused_where_there_are_none(random_pair: Path, load: Load, graphs: object) -> None:
    expected = "a CUDA device with kernels 'triton'" if graphs is True else "expected True, False or None"
    with pytest.raises(RequestError, match=expected):
        load(random_pair, graphs=graphs, max_context=20)


def test_kernels_run_on_the_current_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert {resolve_kernels("auto", torch.device(name)) for name in ("cuda", "cuda:1")} == {"triton"}
    with pytest.raises(RequestError, match=r"device is cuda:0, expected cuda:1, .*torch\.cuda\.set_device"):
        resolve_kernels("auto", torch.device("cuda:0"))


def test_adapters_that_cannot_record_are_refused_where_that_is_asked_for() -> None:
    record([object()], PROFILES, asked=False)
    with pytest.raises(RequestError, match="graphs is True with a object, expected one with `capture`"):
        record([object()], PROFILES, asked=True)


def test_a_workspace_that_does_not_fit_is_refused() -> None:
    class Full:
        def capture(self, profiles: Profiles) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    with pytest.raises(RequestError, match=r"3 requests of 5 rows, .*: CUDA out of memory\.: lower max_context"):
        record([Full()], PROFILES, asked=False)


def test_the_workspace_is_one_set_of_buffers_for_the_widest_profile(
    random_pair: Path, random_pair2: Path, load: Load
) -> None:
    """In FP32: 15 rows, 3 requests, hidden 36, two taps, vocabulary 67, and of DFlash2 16 candidates a row."""
    rows, requests, table = 15, 3, 3 * 16
    target = table + rows * 8 + rows * (2 * 36 + 67) * 4
    appending = table + rows * 2 * 36 * 4
    blocks = {random_pair: table + rows * 8 + rows * 36 * 4}
    blocks[random_pair2] = table + 2 * rows * 8 + requests * (8 + 4) + rows * 4 + rows * 16 * (8 + 4)
    for folder, block in blocks.items():
        engine: Any = load(folder, draft_tokens=4, max_batch=3, max_context=30)
        before = engine.memory()
        record((engine.target, engine.draft), PROFILES, asked=True)
        after = engine.memory()
        assert after.workspace - before.workspace == target + appending + block
        assert after.weights == before.weights


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that a recording makes on the pretended device, the most there are at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[int] = []
        self._live: dict[int, tuple[set[int], int]] = {}
        self._recording = False

    def capture(self, body: Callable[[], Tensors]) -> Tensors:
        self._live.clear()
        self._recording = True
        self.most.append(0)
        try:
            return body()
        finally:
            self._recording = False

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if self._recording:
            read = {_storage(part) for part in tree_leaves((given, named)) if isinstance(part, Tensor)}
            for part in tree_leaves(made):
                if isinstance(part, Tensor) and part.device == pretended.META:
                    self._count(part, read)
        return made

    def _count(self, part: Tensor, read: set[int]) -> None:
        """Take in what is no part of a tensor that was there before the recording."""
        place = _storage(part)
        if place in self._live or place not in read:
            self._live.setdefault(place, (set(), part.untyped_storage().nbytes()))[0].add(id(part))
            weakref.finalize(part, self._drop, place, id(part))
            self.most[-1] = max(self.most[-1], sum(size for _, size in self._live.values()))

    def _drop(self, place: int, holder: int) -> None:
        holders, _ = self._live.get(place, ({holder}, 0))
        holders.discard(holder)
        if not holders:
            self._live.pop(place, None)


def _storage(part: Tensor) -> int:
    return int(part.untyped_storage()._cdata)


@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
@pytest.mark.parametrize(
    ("profile", "dtype"), [("zlab", torch.float32), ("zlab", torch.bfloat16), ("ninfer", torch.bfloat16)]
)
@pytest.mark.parametrize(("vocabulary", "above"), [(pretended.VOCABULARY, 1.5), (2048, 2.25)])
def test_the_pool_of_recordings_is_planned_and_counted(
    vocabulary: int, above: float, profile: str, dtype: torch.dtype, second: bool
) -> None:
    """At the sizes of an 8B pair, whose logits take most, and where layers do: by no less than the widest recording
    holds, and by not much more."""
    held = Held()
    with pretended.device(lambda *launch: None, held.capture), held:
        engine: Any = pretended.load(profile, dtype, second, vocabulary)
        planned = engine.memory().graphs
        pretended.play(engine, 8, 3)
        engine.decode_plain([1, 2], 4, stop_ids=[])
    assert len(held.most) == 4  # an append, a block, a verify pass and a plain step
    assert max(held.most) <= planned <= above * max(held.most)
    assert engine.memory().total == sum(engine.memory()) > planned
    engine._pool.held_bytes = planned + 5
    assert engine.memory().graphs == planned + 5


def test_the_pool_is_as_large_as_pytorch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, bool]] = []

    def snapshot(pool: object, include_traces: bool) -> list[dict[str, int]]:
        asked.append((pool, include_traces))
        return [{"total_size": 7, "allocated_size": 0}, {"total_size": 20, "allocated_size": 3}]

    for name, instead in (("graph_pool_handle", lambda: (3, 1)), ("Stream", str), ("memory_snapshot", snapshot)):
        monkeypatch.setattr(torch.cuda, name, instead)
    assert CudaCapture(torch.device("cuda:0")).held_bytes == 27
    assert asked == [((3, 1), False)]


def test_an_engine_without_recordings_has_no_pool(random_engine: Engine) -> None:
    assert random_engine.memory().graphs == 0


@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_what_is_planned_is_what_is_held_and_is_refused_before_it_is_asked_for(
    random_pair: Path, random_pair2: Path, load: Load, monkeypatch: pytest.MonkeyPatch, second: bool
) -> None:
    folder = random_pair2 if second else random_pair
    engine: Any = load(folder, draft_tokens=4, max_batch=3, max_context=31)
    adapters = (engine.target, engine.draft)
    planned = [adapter.planned_bytes(3, 32) for adapter in adapters]
    assert planned == [adapter.held_bytes()["cache"] for adapter in adapters]
    monkeypatch.setattr(planning, "available", lambda device: sum(planned) - 1)
    monkeypatch.setattr(KvPool, "reserve", lambda *arguments: pytest.fail("asked for"))
    with pytest.raises(RequestError, match=f"3 sequences of 32 rows take {sum(planned)} bytes"):
        load(folder, draft_tokens=4, max_batch=3, max_context=31)
    monkeypatch.undo()
    monkeypatch.setattr(planning, "available", lambda device: 0)
    reserve(adapters, 3, 32, CPU)  # what is held already takes nothing more


def test_what_pytorch_keeps_of_a_gpu_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading leaves it much that nothing uses."""
    for name, amount in (("mem_get_info", (10, 90)), ("memory_reserved", 60), ("memory_allocated", 45)):
        monkeypatch.setattr(torch.cuda, name, lambda device, amount=amount: amount)
    assert planning.available(torch.device("cuda")) == 10 + 60 - 45


def test_buffers_that_may_move_are_not_recorded() -> None:
    pool = KvPool(1, 1, 2, Numerics.of(load_profile("zlab")), CPU)
    with pytest.raises(StateError, match="expected `reserve` before"):
        check_reserved(pool)
    pool.reserve(1, 3)
    check_reserved(pool)
