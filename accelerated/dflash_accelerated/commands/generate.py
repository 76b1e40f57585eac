"""generate: decode a prompt with a pair of published folders.

Only the way in: it loads PyTorch, which takes long enough to be interrupted meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130


@contextmanager
def signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Within, `handler` is called for what ends a program; a signal that is ignored (by nohup, say) stays ignored."""
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number in numbers if before[number] != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])


def leave(number: int, frame: FrameType | None) -> None:
    """End at once, as an interrupted program does."""
    os._exit(EXIT_INTERRUPTED)  # nothing has begun yet, and an exception within an import may be lost or rewritten


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, decode, print; returns the exit code that `--help` documents."""
    try:
        with signals(leave):
            from dflash_accelerated.commands import generating
        with signals(signal.default_int_handler):
            return generating.run(argv)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
