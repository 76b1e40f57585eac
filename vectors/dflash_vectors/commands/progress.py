"""A progress bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from dflash_vectors.style import write

REDRAW = 0.05  # seconds


class Progress:
    """`step()` once per finished item; `close()` clears the line."""

    def __init__(self, total: int, stream: TextIO | None) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._drawn = 0.0
        self._stream = stream if stream is not None and stream.isatty() else None

    def step(self, label: str) -> None:
        """One item more is done; `label` says which."""
        self._done += 1
        now = time.monotonic()
        if self._stream is None or now - self._drawn < REDRAW:
            return
        self._drawn = now
        filled = round(24 * self._done / self._total)
        line = f"{'█' * filled}{'░' * (24 - filled)} {self._done}/{self._total} {label}"
        self._write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])

    def close(self) -> None:
        """Leave a clean line behind."""
        if self._stream is not None and self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        """A terminal that is gone ends the drawing, not the run."""
        try:
            write(text, self._stream)
        except OSError:
            self._stream = None
