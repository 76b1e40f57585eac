"""A vector set on disk: files, index and ledger, written whole or not at all.

`index.json` lists the cases of the set. `ledger.json` is kept beside it for the committed set and freezes what each
id means: an id, once taken, keeps its bytes for ever, and a changed vector takes a new id.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from dflash_spec.errors import TensorFileError
from dflash_spec.files import write_atomic

from dflash_vectors.build import SET_LIMIT, Vector, build
from dflash_vectors.cases import CASE_ID, ENTRY_KEYS, read_json
from dflash_vectors.errors import BuildError, LedgerError
from dflash_vectors.scratch import scratch
from dflash_vectors.suite import Case

PROCESSES = 2
WATCH_SECONDS = 0.5
INDEX, LEDGER = "index.json", "ledger.json"
AT_WORKING_DIRECTORY, EXCHANGE = -100, 2
"""Arguments of renameat2(2)."""


def workers(processes: int) -> ProcessPoolExecutor:
    """A pool whose processes end with the one that made it, however that ends."""
    return ProcessPoolExecutor(processes, initializer=_follow, initargs=(os.getpid(),))


def _follow(parent: int) -> None:
    """End this process soon after its parent: a worker of a killed run would wait for work for ever.

    An interrupt from the keyboard reaches the whole group; it is the parent's to answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def build_all(cases: Iterable[Case], expected: bool = True, processes: int = PROCESSES) -> Iterator[Vector]:
    """The vectors of `cases`, in their order, as they are ready; one process builds each when it is asked for."""
    if processes < 2:
        yield from (build(case, expected) for case in cases)
        return
    with workers(processes) as pool:
        yield from pool.map(partial(build, expected=expected), cases, chunksize=2)


def index_bytes(vectors: Iterable[Vector]) -> bytes:
    """The index of a set. Equal sets give equal bytes."""
    return _index({vector.id: vector.entry for vector in vectors})


def _index(cases: Mapping[str, Mapping[str, Any]]) -> bytes:
    return (json.dumps({"cases": cases}, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def check_size(vectors: Iterable[Vector]) -> int:
    """The bytes of a set. Raises BuildError if it is larger than what may be committed."""
    total = sum(len(vector.content) for vector in vectors)
    if total > SET_LIMIT:
        raise BuildError(f"the set has {total} bytes, expected at most {SET_LIMIT}")
    return total


def read_ledger(path: Path) -> dict[str, str]:
    """id -> sha256 of every vector that was ever committed; empty if there is no file yet. Raises LedgerError."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise LedgerError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise LedgerError(f"{path}: expected an object of ids and sha256 texts")
    return data


def extend_ledger(ledger: Mapping[str, str], vectors: Iterable[Vector], accept_new: bool) -> bytes:
    """The ledger with the new ids of a set.

    Raises LedgerError for a frozen id whose content changed, and for a new id unless `accept_new` is set.
    """
    grown = dict(ledger)
    new, changed = [], []
    for vector in vectors:
        frozen = grown.setdefault(vector.id, vector.entry["sha256"])
        if vector.id not in ledger:
            new.append(vector.id)
        elif frozen != vector.entry["sha256"]:
            changed.append(vector.id)
    if changed:
        raise LedgerError(
            f"{len(changed)} vectors changed under an id that is frozen: {', '.join(changed)}; "
            "give a changed case a new slug, so that reports that name the old id keep their meaning"
        )
    if new and not accept_new:
        raise LedgerError(f"{len(new)} vectors are not in the ledger: {', '.join(new)}; --accept-new freezes them")
    return (json.dumps(grown, indent=1, sort_keys=True) + "\n").encode()


def write_set(folder: Path, vectors: Iterable[Vector], ledger: bytes | None = None) -> None:
    """Replace `folder` by the set in one step; vectors may come from an iterator and are not kept.

    A link is followed, and what it leads to is replaced. Raises TensorFileError, and changes nothing, where
    `writable` refuses or the disk does not take the set.
    """
    folder = writable(folder)
    try:
        _write(folder, vectors, ledger)
    except OSError as error:
        raise TensorFileError(f"{folder}: cannot be written: {error.strerror or error}") from error


def writable(folder: Path) -> Path:
    """The folder that a set may take the place of, links followed. Raises TensorFileError that says why it may not.

    A folder is replaced only if there is nothing in it that its own index does not name: whatever else lies there
    would be lost.
    """
    try:
        real = folder.resolve()
        if folder.is_symlink() and not real.exists():
            raise TensorFileError(f"{folder}: a link to {real}, where nothing is")
        if Path.cwd().is_relative_to(real):
            raise TensorFileError(f"{folder}: the working directory lies in it, so it is not replaced")
        near = next(path for path in (real, *real.parents) if path.exists())
        if not near.is_dir():
            raise TensorFileError(f"{folder}: {near} is a file, expected a folder")
        if near == real and any(real.iterdir()):
            _refuse_strangers(folder, real)
        holder = near if near != real else real.parent
        if not os.access(holder, os.W_OK | os.X_OK):
            raise TensorFileError(f"{folder}: {holder} cannot be written to")
    except (OSError, RuntimeError) as error:
        raise TensorFileError(f"{folder}: cannot be read: {error}") from error
    return real


def _refuse_strangers(folder: Path, real: Path) -> None:
    """Raise TensorFileError if the folder has no index of this format, or holds anything that this does not name."""
    index = real / INDEX
    if not index.is_file():
        raise TensorFileError(f"{folder}: has files but no {INDEX}: not a vector set, so it is not replaced")
    data = read_json(index)
    cases = data.get("cases") if isinstance(data, dict) and set(data) == {"cases"} else None
    if not isinstance(cases, dict) or not all(_is_entry(id_, entry) for id_, entry in cases.items()):
        raise TensorFileError(f"{index}: not the index of a vector set, so {folder} is not replaced")
    named = {real / INDEX, real / LEDGER, *(real / entry["path"] for entry in cases.values())}
    named |= {path.parent for path in named} - {real}
    for path in sorted(real.rglob("*")):
        if path not in named or path.is_symlink():
            raise TensorFileError(
                f"{folder}: holds {path.relative_to(real)}, which {INDEX} does not name, so it is not replaced"
            )


def _is_entry(id_: str, entry: Any) -> bool:
    """Whether a member of an index's cases has the form that this module writes."""
    if not CASE_ID.fullmatch(id_) or not isinstance(entry, dict) or set(entry) != set(ENTRY_KEYS):
        return False
    if not all(isinstance(entry[key], kind) for key, kind in ENTRY_KEYS.items()):
        return False
    folder, _, name = entry["path"].partition("/")
    return bool(folder.isalnum() and name == f"{id_}.safetensors")


def _write(folder: Path, vectors: Iterable[Vector], ledger: bytes | None) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent, f".{folder.name}-writing-") as written:
        entries = {}
        for vector in vectors:
            write_atomic(written / vector.path, vector.content)
            entries[vector.id] = vector.entry
        if ledger is not None:
            write_atomic(written / LEDGER, ledger)
        write_atomic(written / INDEX, _index(entries))
        written.chmod(0o755)
        # Something may have been put there while the vectors were built.
        writable(folder)
        _replace(written, folder)


def _replace(new: Path, folder: Path) -> None:
    """Put `new` where `folder` is; what `folder` held ends at `new`."""
    if not folder.exists():
        new.rename(folder)
        return
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is not None:
        paths = (AT_WORKING_DIRECTORY, os.fsencode(new), AT_WORKING_DIRECTORY, os.fsencode(folder))
        if exchange(*paths, EXCHANGE) == 0:
            return
    # Without an exchange in one step there is a moment without a set, but never one with half a set.
    old = new.with_name(f"{new.name}-old")
    folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old)


def differences(folder: Path, vectors: Iterable[Vector], whole: bool = True) -> list[str]:
    """What keeps the set in `folder` from being these vectors, or from holding them if not `whole`, in lines."""
    lines, entries = [], {}
    for vector in vectors:
        entries[vector.id] = vector.entry
        path = folder / vector.path
        if not path.is_file():
            lines.append(f"{vector.id}: missing")
        elif path.read_bytes() != vector.content:
            lines.append(f"{vector.id}: differs from what is generated now")
    if not whole:
        return lines
    known = {entry["path"] for entry in entries.values()}
    for path in sorted(folder.rglob("*.safetensors")):
        if path.relative_to(folder).as_posix() not in known:
            lines.append(f"{path.relative_to(folder)}: no case generates it")
    index = folder / INDEX
    if not lines and (not index.is_file() or index.read_bytes() != _index(entries)):
        lines.append("index.json: differs from what is generated now")
    return lines
