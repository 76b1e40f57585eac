"""How wide to write on a stream, and whether in colour."""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

NARROWEST, WIDEST = 80, 120
CODES = {"red": "31;1", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
STAND_INS = {"─": "-", "–": "-", "−": "-", "·": ".", "…": "...", "≤": "<=", "×": "x", "█": "#", "░": "."}


def printable(text: object) -> str:
    """Text that came from outside, as it may be printed: on one line, and without a code that moves a cursor.

    White space becomes a space; any other character that is not printable, and half a surrogate pair, is escaped.
    """
    return "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(STAND_INS.get(c) or c.encode("unicode_escape").decode("ascii") for c in lost), error.end


codecs.register_error("dflash-stand-in", _stand_in)


def write(text: str, stream: TextIO | None) -> None:
    """Write and flush text, with stand-ins for characters that the stream cannot encode.

    Raises OSError if the stream does not take it; the stream is then led nowhere, or the interpreter would stumble
    over what is left in it once more at its end. A stream that is closed takes nothing.
    """
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "dflash-stand-in").decode(encoding))
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        raise


def complain(text: object, program: str = "dflash-check-vectors") -> None:
    """One line on stderr, if it takes any."""
    with suppress(OSError):
        write(f"{program}: {printable(text)}\n", sys.stderr)


@dataclass(frozen=True)
class Style:
    """How wide to write, and whether in colour."""

    width: int = 100
    colour: bool = False

    @staticmethod
    def of(stream: TextIO | None) -> Style:
        """Colour on a terminal only, and never where NO_COLOR is set or the terminal is dumb."""
        if stream is None or not stream.isatty():
            return Style()
        width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)
        return Style(width, not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour else text

    def clip(self, line: str) -> str:
        return line if len(line) <= self.width else line[: self.width - 1] + "…"

    def wrap(self, head: str, text: str, colour: str = "") -> Iterator[str]:
        """`text` after `head`, the lines after the first indented to the head's width."""
        lines = textwrap.wrap(
            printable(text), self.width - len(head), break_long_words=False, break_on_hyphens=False
        ) or [""]
        yield self.paint(head, colour) + lines[0]
        for line in lines[1:]:
            yield " " * len(head) + line
