"""What every command shares: help, what it prints, and files that it is to write.

A stream or a file that does not take what is written is told in one line, never by a traceback. A reader that has left,
as `head` does, wants no more and no word about it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dflash_spec.errors import OutputError

from dflash_vectors.style import complain, write
from dflash_vectors.verdict import EXIT_INTERRUPTED, EXIT_UNUSABLE


class Parser(argparse.ArgumentParser):
    """Prints its help on streams that lack some of its characters too."""

    def _print_message(self, message: str, file: Any = None) -> None:
        with suppress(OSError):
            write(message, file or sys.stderr)


def say(text: str) -> None:
    """Print a line. Raises OutputError if stdout does not take it."""
    _put(text + "\n", "what follows is not printed")


def printed(text: str, code: int, program: str, lost: str) -> int:
    """Print all that a run has to say; returns its exit code, or that of a run which could not say it.

    `lost` says what is not printed then.
    """
    try:
        _put(text, lost)
    except OutputError as error:
        return unsaid(error, program) if code != EXIT_INTERRUPTED else code
    return code


def unsaid(error: OutputError, program: str) -> int:
    """Tell what could not be written, unless its reader has left; returns the exit code for it."""
    if not isinstance(error.__cause__, BrokenPipeError):
        complain(error, program)
    return EXIT_UNUSABLE


def _put(text: str, lost: str) -> None:
    try:
        write(text, sys.stdout)
    except OSError as error:
        raise OutputError(f"stdout: {error.strerror}: {lost}") from error


def writable_file(path: Path) -> None:
    """Raise OutputError that says why a file cannot be written there: before the work, not after. Touches nothing."""
    if os.path.isdir(path):
        raise OutputError(f"{path}: is a folder, expected the name of a file")
    if not _is_there(path, path):
        if not _is_there(path, path.parent):
            raise OutputError(f"{path}: {path.parent} is not there, expected a folder: a mistyped one is not made")
        _room(path, path.parent)
    elif not os.access(path, os.W_OK):
        raise OutputError(f"{path}: cannot be written to")


def write_file(path: Path, text: str) -> None:
    """Write a file that `writable_file` found nothing against. Raises OutputError."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def writable_folder(path: Path) -> None:
    """Raise OutputError that says why nothing can be written into a folder, or why it cannot be made."""
    _room(path, path)


@contextmanager
def made_folders(path: Path) -> Iterator[None]:
    """Within, `path` and folders above it may be made. Where that ends with an error, those that are empty go again."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def _room(path: Path, folder: Path) -> None:
    """Raise OutputError about `path` unless `folder`, or the nearest one above that is there, can be written to."""
    near = next((above for above in (folder, *folder.parents) if _is_there(path, above)), Path())
    if not os.path.isdir(near):
        raise OutputError(f"{path}: {near} is no folder")
    if not os.access(near, os.W_OK | os.X_OK):
        raise OutputError(f"{path}: {near} cannot be written to")


def _is_there(path: Path, near: Path) -> bool:
    try:
        os.lstat(near)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    return True
