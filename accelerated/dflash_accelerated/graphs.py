"""Forwards that are recorded once for each shape and then replayed: CUDA graphs, which cost the host one launch.

A forward has a host part (checks, lengths, which lanes) and a device part, a function of tensors alone. What changes
between two replays of the device part (ids, lanes, starts, settings) is copied into tensors that stay where they are;
what it gives is copied out of such tensors, because the next replay overwrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from dflash_spec.errors import RequestError, StateError
from torch import Tensor

from dflash_accelerated.arguments import shown
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Spans, StaticSpans
from dflash_accelerated.transfers import listed

WARM_UPS = 2
"""Runs before a capture: they compile kernels and have libraries reserve what they need."""

KEPT = 64
"""How many recordings of one forward are kept; the least recently used one goes first."""

Tensors = tuple[Tensor, ...]
Given = Tensor | Sequence[Tensor]
"""An input: a tensor, or the rows of each request, which go to its own first row."""


class Captured(NamedTuple):
    """What a recording gives, in tensors that stay where they are, and what computes it anew."""

    outputs: Tensors
    replay: Callable[[], object]


class Capture(Protocol):
    """Records a computation on tensors that stay where they are."""

    def __call__(self, body: Callable[[], Tensors]) -> Captured:
        """`body` may run several times, and gives the same then."""


class CudaCapture:
    """Captures CUDA graphs, which share one pool of memory: none of them runs while another does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def held_bytes(self) -> int:
        """Of the pool, as PyTorch has them from the device."""
        parts = torch.cuda.memory_snapshot(self._pool, include_traces=False)  # type: ignore[no-untyped-call]
        return sum(part["total_size"] for part in parts)

    def __call__(self, body: Callable[[], Tensors]) -> Captured:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    body()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads of the process may go on reserving memory of their own.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                outputs = body()
        return Captured(outputs, graph.replay)


class Profiles(NamedTuple):
    """The shapes that are recorded: 1 to `batch` requests of `width` rows each, or of one. `taps` are the draft's."""

    batch: int
    width: int
    taps: tuple[int, ...]
    capture: Capture

    @property
    def rows(self) -> int:
        """Of the widest."""
        return self.batch * self.width


class Recording(NamedTuple):
    """Where inputs go, what was recorded, and the recording. Tensors that it reads live as long as this."""

    inputs: list[Tensor]
    body: Callable[[], Tensors]
    captured: Captured


class Room(NamedTuple):
    """A buffer: so many elements in the widest profile."""

    elements: int
    dtype: torch.dtype


class Graphs:
    """The recordings of one forward, and its workspace: one set of buffers, of which each profile uses the beginning.

    The workspace is reserved here. What a recording needs between its inputs and outputs is the capture's own, one pool
    for all of them.
    """

    def __init__(
        self, profiles: Profiles, widths: Sequence[int], device: torch.device, takes: Sequence[Room],
        gives: Sequence[Room], kept: int = KEPT,
    ) -> None:  # fmt: skip
        """`widths` are the rows of a request in this forward; `takes` and `gives` its inputs and outputs, in order."""
        self.batch, self.widths = profiles.batch, frozenset(widths)
        self._capture, self._kept = profiles.capture, kept
        self._table = torch.zeros(profiles.batch, 4, dtype=torch.int32, device=device)
        self._inputs, self._outputs = (
            [torch.zeros(room.elements, dtype=room.dtype, device=device) for room in rooms] for rooms in (takes, gives)
        )
        self._held: dict[Hashable, Recording] = {}

    @property
    def held_bytes(self) -> int:
        """Of the workspace."""
        return self._table.nbytes + sum(part.nbytes for part in (*self._inputs, *self._outputs))

    @property
    def count(self) -> int:
        """How many recordings there are."""
        return len(self._held)

    @property
    def width(self) -> int:
        """The most rows of a request."""
        return max(self.widths)

    def holds(self, counts: Sequence[int]) -> bool:
        """Whether requests of so many rows fit into a profile, which has further rows that are not live."""
        return len(counts) <= self.batch and max(counts) <= self.width

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether requests of so many rows are one of the profiles."""
        return len(counts) <= self.batch and counts[0] in self.widths and counts.count(counts[0]) == len(counts)

    def clear(self) -> None:
        """Forget all recordings, because a buffer that they read has moved."""
        self._held.clear()

    def run(
        self, kind: Hashable, spans: Spans, counts: Sequence[int], given: Sequence[Given],
        body: Callable[..., Tensors],
    ) -> Tensors:  # fmt: skip
        """What `body(spans, *inputs)` gives, recorded at the first call for this `kind` and these `counts`.

        `counts` are the rows that a request takes up, `spans` those that live. The body is the same for equal kinds, a
        function of its arguments' tensors and of buffers that do not move, and may run again.
        """
        firsts = (0, *accumulate(counts[:-1]))
        rows = [(lane, start, live, first) for (lane, start, live, _), first in zip(spans, firsts, strict=True)]
        table = self._table[: len(rows)]
        table.copy_(listed(rows, torch.int32, table.device))
        key = (kind, tuple(counts))
        held = self._held.pop(key, None)
        inputs = held.inputs if held else self._views(given, sum(counts))
        for into, part in zip(inputs, given, strict=True):
            _fill(into, part, firsts)
        if held is None:
            while len(self._held) >= self._kept:
                del self._held[next(iter(self._held))]
            held = self._record(StaticSpans(table, counts), inputs, body)
        self._held[key] = held
        held.captured.replay()
        return tuple(part.clone() for part in held.captured.outputs)

    def _views(self, given: Sequence[Given], rows: int) -> list[Tensor]:
        """The beginnings of the buffers, in the inputs' shapes."""
        shapes = [part.shape if isinstance(part, Tensor) else (rows, *part[0].shape[1:]) for part in given]
        return [_begin(flat, shape) for flat, shape in zip(self._inputs, shapes, strict=True)]

    def _record(self, spans: StaticSpans, inputs: list[Tensor], body: Callable[..., Tensors]) -> Recording:
        def run() -> Tensors:
            made = body(spans, *inputs)
            into = tuple(_begin(flat, part.shape) for flat, part in zip(self._outputs, made, strict=True))
            for own, part in zip(into, made, strict=True):
                own.copy_(part)
            return into

        return Recording(inputs, run, self._capture(run))


def _begin(flat: Tensor, shape: Sequence[int]) -> Tensor:
    """The beginning of a buffer in this shape. Raises StateError for one that was planned too small."""
    size = torch.Size(shape).numel()
    if size > len(flat):
        raise StateError(f"{list(shape)} in a buffer of {len(flat)} elements, expected at most as many")
    return flat[:size].view(shape)


def _fill(into: Tensor, given: Given, firsts: Sequence[int]) -> None:
    if isinstance(given, Tensor):
        into.copy_(given)
        return
    for first, part in zip(firsts, given, strict=True):
        into[first : first + len(part)].copy_(part)


def resolve_graphs(graphs: object, device: torch.device, numerics: Numerics) -> bool:
    """Whether forwards are recorded: as asked for, or with None wherever they can be.

    That is on CUDA with Triton's kernels. Raises RequestError where they are asked for and cannot be.
    """
    if graphs is not None and not isinstance(graphs, bool):
        raise RequestError(f"graphs is {shown(graphs)}, expected True, False or None")
    able = device.type == "cuda" and numerics.kernels == "triton"
    if graphs and not able:
        found = f"device {device} with kernels {numerics.kernels!r}"
        raise RequestError(f"graphs is True on {found}, expected a CUDA device with kernels 'triton'")
    return able and graphs is not False
