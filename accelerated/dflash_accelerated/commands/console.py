"""What a command writes: help, an answer as it comes, progress on a terminal, and one line for what went wrong."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from dflash_spec.errors import OutputError

EXIT_DONE, EXIT_DIFFERENT, EXIT_UNUSABLE, EXIT_INTERRUPTED = 0, 1, 2, 130
REDRAW = 0.05  # seconds
BAR = 24


class Parser(argparse.ArgumentParser):
    """Prints its help on streams that lack some of its characters, or that are gone."""

    def _print_message(self, message: str, file: Any = None) -> None:
        with suppress(OSError):
            write(message, file or sys.stderr)


def write(text: str, stream: TextIO | None) -> None:
    """Write and flush text; characters that the stream cannot encode are escaped. A closed stream takes nothing.

    Raises OSError if the stream does not take it, which is then led nowhere: the interpreter would stumble over what is
    left in it once more at its end.
    """
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError:
        _lead_nowhere(stream)
        raise


def put(text: str | bytes) -> None:
    """Write a part of the answer to stdout, bytes as they are. Raises OutputError if it does not take them."""
    try:
        if isinstance(text, str):
            write(text, sys.stdout)
        elif sys.stdout is not None:
            _put_bytes(text, sys.stdout)
    except OSError as error:
        raise OutputError(f"stdout: {error.strerror}: what follows is not printed") from error


def unsaid(error: OutputError, program: str) -> int:
    """Tell what could not be written, unless its reader has left; returns the exit code for it."""
    if not isinstance(error.__cause__, BrokenPipeError):
        complain(error, program)
    return EXIT_UNUSABLE


def complain(text: object, program: str) -> None:
    """One line on stderr, if it takes any, without a code that moves a cursor."""
    told(f"{program}: {''.join(c if c.isprintable() else ' ' if c.isspace() else ascii(c)[1:-1] for c in str(text))}\n")


def told(text: str) -> None:
    """Text for people, on stderr, if it takes any."""
    with suppress(OSError):
        write(text, sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether people look at what is written there."""
    return stream is not None and not stream.closed and stream.isatty()


class Progress:
    """One line on a terminal that is drawn over again; nothing where stderr is none."""

    def __init__(self, total: int) -> None:
        """`total` items are expected."""
        self._total = max(total, 1)
        self._drawn = 0.0
        self._stream = sys.stderr if is_terminal(sys.stderr) else None

    def show(self, done: int, label: str) -> None:
        """So many items are done."""
        now = time.monotonic()
        if self._stream is None or now - self._drawn < REDRAW:
            return
        self._drawn = now
        filled = min(BAR, round(BAR * done / self._total))
        line = f"{'█' * filled}{'░' * (BAR - filled)} {label}"
        self._write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])

    def close(self) -> None:
        """Leave a clean line behind."""
        if self._stream is not None and self._drawn:
            self._write("\r\x1b[K")
        self._drawn = 0.0

    def _write(self, text: str) -> None:
        """A terminal that is gone ends the drawing, not the run."""
        try:
            write(text, self._stream)
        except OSError:
            self._stream = None


def _put_bytes(text: bytes, stream: TextIO) -> None:
    try:
        stream.buffer.write(text)
        stream.buffer.flush()
    except OSError:
        _lead_nowhere(stream)
        raise


def _lead_nowhere(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
