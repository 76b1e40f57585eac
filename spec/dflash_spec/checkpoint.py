"""Checkpoint folders in the published format: one `model.safetensors`, or shards named by an index."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np

from dflash_spec import files
from dflash_spec.config.folder import Held, check_tensors
from dflash_spec.errors import CheckpointError, TensorFileError
from dflash_spec.tensors import FLOATS, Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@contextmanager
def _as_checkpoint_error() -> Iterator[None]:
    """Every complaint about a file of the folder is a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except TensorFileError as error:
        raise CheckpointError(str(error)) from error


def _shard(folder: Path, name: object, where: Path) -> Path:
    """The file of the folder that an index names; raises CheckpointError where the name leaves the folder.

    Names are judged, not what they resolve to: download caches link every file of a folder to a store outside it.
    """
    if not isinstance(name, str) or not name:
        raise CheckpointError(f"{where}: found {name!r}, expected a file name")
    _check_name(name, where)
    parts = PureWindowsPath(name)
    if parts.anchor or ".." in parts.parts:
        raise CheckpointError(f"{where}: found {name!r}, expected a file inside the folder")
    return folder / name


def _check_name(name: str, where: Path) -> None:
    """Raise CheckpointError where no file can have this name: NUL ends a name, and half a pair is not UTF-8."""
    if "\0" in name:
        raise CheckpointError(f"{where}: found {name!r}, expected a file name without NUL")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise CheckpointError(f"{where}: found {name!r}, expected a file name without lone surrogates")


def _weight_map(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index."""
    where = folder / INDEX
    try:
        data = json.loads(where.read_bytes().decode("utf-8"), object_pairs_hook=files.unique_members)
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not JSON: {error}") from error
    entries = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{where}: weight_map: found {type(entries).__name__}, expected tensor names and files")
    return {name: _shard(folder, file, where) for name, file in entries.items()}


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder. Headers are read on opening, values when asked for.

    `entries` maps a tensor's name to its header entry, `paths` to its file.
    """

    folder: Path
    entries: Mapping[str, files.Entry]
    paths: Mapping[str, Path]

    @staticmethod
    def open(folder: Path) -> Checkpoint:
        """Open `folder`. Raises CheckpointError: no such file, a damaged one, or shards that belie the index."""
        folder = Path(folder)
        with _as_checkpoint_error():
            if (folder / INDEX).exists():
                return _open_sharded(folder)
            path = folder / SINGLE
            entries = files.read_entries(path)
            return Checkpoint(folder, entries, dict.fromkeys(entries, path))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.entries)

    def read(self, name: str) -> Tensor:
        """One tensor. Raises CheckpointError where it is missing or its file has changed or shrunk."""
        if name not in self.entries:
            raise CheckpointError(f"{self.folder}: tensor {name!r}: found nothing, expected a tensor")
        with _as_checkpoint_error():
            return files.read_tensors(self.paths[name], frozenset({name}))[name]

    def check(
        self, expected: Mapping[str, tuple[int, ...]], dtypes: Collection[str] = FLOATS, finite: bool = True
    ) -> None:
        """Raise CheckpointError unless the folder holds exactly `expected` (name -> shape).

        Missing, unexpected and misshapen tensors, a dtype outside `dtypes`, and, where `finite`, NaN or an infinity.
        """
        found = {name: Held(entry.dtype, entry.shape) for name, entry in self.entries.items()}
        check_tensors(
            {name: tuple(shape) for name, shape in expected.items()},
            found,
            lambda name: str(self.paths.get(name, self.folder)),
            dtypes,
        )
        for name in expected if finite else ():
            self._check_finite(name, f"{self.paths[name]}: tensor {name!r}")

    def _check_finite(self, name: str, where: str) -> None:
        values = self.read(name).values
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            place = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(values)))
            raise CheckpointError(f"{where}: found {values[place]} at {list(place)}, expected a finite value")


def _open_sharded(folder: Path) -> Checkpoint:
    """A folder with an index. Raises CheckpointError where a shard lacks a tensor, or has one that the index omits."""
    paths = _weight_map(folder)
    entries = {}
    for path in sorted(set(paths.values())):
        found = files.read_entries(path)
        listed = {name for name, file in paths.items() if file == path}
        for name in sorted(listed - found.keys()):
            raise CheckpointError(f"{path}: tensor {name!r}: found nothing, expected what {INDEX} names")
        for name in sorted(found.keys() - listed):
            raise CheckpointError(f"{path}: tensor {name!r}: found a tensor that {INDEX} does not place here, "
                                  "expected none")  # fmt: skip
        entries.update(found)
    return Checkpoint(folder, entries, paths)
