"""Folders that hold what is being written until it is whole, and what it replaces until that can go."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder within `parent`, removed in the end; what killed writers left under this prefix goes first."""
    _sweep(parent, prefix)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{prefix}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what killed runs left: folders of writers that are no longer alive."""
    for left in parent.glob(f"{prefix}*-*"):
        writer = left.name[len(prefix) :].split("-")[0]
        if writer.isdigit() and not _alive(int(writer)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
