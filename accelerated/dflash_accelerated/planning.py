"""Memory: what an engine holds, and buffers that are reserved before the first request or refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, cast

import torch
from dflash_spec.errors import RequestError

from dflash_accelerated.arguments import check_integer, shown
from dflash_accelerated.graphs import Profiles
from dflash_accelerated.protocols import Capturing, Measured, Planning, Reserving
from dflash_accelerated.workspace import Multiplying

KINDS = ("weights", "cache", "workspace")
"""Of what adapters hold."""
BYTES_LIMIT = 2**80
LOWER = "lower max_context or max_batch, or take a smaller dtype"


class Memory(NamedTuple):
    """Bytes that an engine holds, as its adapters count them; an adapter that does not count adds none.

    `graphs` is the pool in which recorded forwards have what they hold between their ops: as many bytes as it was
    planned with or, where it has grown beyond that, has.
    """

    weights: int = 0
    cache: int = 0
    workspace: int = 0
    graphs: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {size(held)}" for name, held in self._asdict().items())
        return f"{parts} = {size(self.total)}"


def size(count: int) -> str:
    """A number of bytes, for people."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def held(adapters: Iterable[object]) -> Memory:
    """What these targets and drafts hold."""
    counted = [_counted(adapter) for adapter in adapters if isinstance(adapter, Measured)]
    return Memory(*(sum(each.get(name, 0) for each in counted) for name in KINDS))


def _counted(adapter: Measured) -> dict[str, int]:
    """What an adapter says it holds. Raises RequestError for anything but bytes by kind."""
    name, told = f"{type(adapter).__name__}.held_bytes()", adapter.held_bytes()
    if not isinstance(told, dict) or not told.keys() <= {*KINDS}:
        raise RequestError(f"{name} is {shown(told)}, expected a dict of bytes by {', '.join(KINDS)}")
    return {kind: check_integer(f"{name}[{kind!r}]", count, 0, BYTES_LIMIT) for kind, count in told.items()}


def _planned(adapter: Planning, lanes: int, rows: int) -> int:
    """What an adapter says it will hold. Raises RequestError for no number of bytes."""
    return check_integer(
        f"{type(adapter).__name__}.planned_bytes()", adapter.planned_bytes(lanes, rows), 0, BYTES_LIMIT
    )


def reserve(adapters: Iterable[object], lanes: int, rows: int, device: torch.device) -> None:
    """Have every adapter that can reserve the buffers of `lanes` sequences of `rows` rows.

    Raises RequestError, with the bytes that are wanted and what lowers them, where `device` has not as many.
    """
    reserving = [adapter for adapter in adapters if isinstance(adapter, Reserving)]
    wanted = sum(_planned(adapter, lanes, rows) for adapter in reserving if isinstance(adapter, Planning))
    free, have = available(device), held(reserving).cache
    if free is not None and wanted > free + have:
        raise _refusal(lanes, rows, f"{wanted} bytes ({size(wanted)})", f"{size(free)} at most on {device}")
    for adapter in reserving:
        try:
            adapter.reserve(lanes, rows)
        except (MemoryError, OverflowError, RuntimeError) as error:
            # Out of memory is a RuntimeError in PyTorch; its first line says how many bytes were asked for.
            told = str(error).splitlines() or [type(error).__name__]
            raise _refusal(lanes, rows, f"{wanted or 'more'} bytes", f"what {device} has: {told[0]}") from error


def record(adapters: Iterable[object], profiles: Profiles, asked: bool) -> bool:
    """Have the adapters record the forwards of `profiles`, all of them or, where one cannot, none; whether they do.

    Raises RequestError for one that cannot where that was `asked` for, and where the workspace does not fit.
    """
    recording = list(adapters)
    for adapter in recording:
        if not isinstance(adapter, Capturing):
            if asked:
                raise RequestError(f"graphs is True with a {type(adapter).__name__}, expected one with `capture`")
            return False
    for adapter in recording:
        try:
            cast(Capturing, adapter).capture(profiles)
        except (MemoryError, RuntimeError) as error:
            told = str(error).splitlines() or [type(error).__name__]
            wanted = f"a workspace for {profiles.batch} requests of {profiles.width} rows"
            raise RequestError(f"{wanted}, expected one that fits: {told[0]}: {LOWER}") from error
    return True


def pool_bytes(adapters: Iterable[object], rows: int, act: torch.dtype) -> int:
    """Bytes that recordings of up to `rows` rows hold, at most, between their inputs and outputs.

    They share one pool, so it is the widest one's: what an op reads and what it gives, and the logits, before and after
    they are rounded to `act`.
    """
    known = [adapter for adapter in adapters if isinstance(adapter, Multiplying)]
    heads = [product for adapter in known for product, place in adapter.products() if place == "head"]
    logits = sum(one.outputs * sum(kind.itemsize for kind in {one.dtype, act}) for one in heads)
    return rows * logits + 2 * max((adapter.working_bytes(rows, 0) for adapter in known), default=0)


def available(device: torch.device) -> int | None:
    """Bytes that can still be had on a device; None where nobody knows."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by PyTorch, for later
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type != "cpu":
        return None
    found = [_kibibytes(Path("/proc/meminfo"), "MemAvailable:"), _number(Path("/sys/fs/cgroup/memory.max"))]
    return min((each for each in found if each is not None), default=None)


def _kibibytes(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None  # no such limit


def _refusal(lanes: int, rows: int, wanted: str, expected: str) -> RequestError:
    return RequestError(f"buffers of {lanes} sequences of {rows} rows take {wanted}, expected {expected}: {LOWER}")
