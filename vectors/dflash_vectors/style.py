"""How wide to write on a stream, and whether in colour."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

NARROWEST, WIDEST = 80, 120
CODES = {"red": "31;1", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


@dataclass(frozen=True)
class Style:
    """How wide to write, and whether in colour."""

    width: int = 100
    colour: bool = False

    @staticmethod
    def of(stream: TextIO) -> Style:
        """Colour on a terminal only, and never where NO_COLOR is set or the terminal is dumb."""
        if not stream.isatty():
            return Style()
        width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
        return Style(width, not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def clip(self, line: str) -> str:
        return line if len(line) <= self.width else line[: self.width - 1] + "…"

    def wrap(self, head: str, text: str, colour: str = "") -> Iterator[str]:
        """`text` after `head`, the lines after the first indented to the head's width."""
        lines = textwrap.wrap(text, self.width - len(head), break_long_words=False, break_on_hyphens=False) or [""]
        yield self.paint(head, colour) + lines[0]
        for line in lines[1:]:
            yield " " * len(head) + line
