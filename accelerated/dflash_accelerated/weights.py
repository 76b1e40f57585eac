"""Published folders as PyTorch tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.errors import CheckpointError
from torch import Tensor

from dflash_accelerated.numerics import DTYPES


class Folder(Mapping[str, Tensor]):
    """The tensors of a folder in the file's dtypes, each read when it is asked for and not kept."""

    def __init__(self, checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """A folder that holds exactly `shapes`. Raises CheckpointError."""
        checkpoint.check(shapes)
        self._checkpoint, self._names = checkpoint, tuple(shapes)

    def __getitem__(self, name: str) -> Tensor:
        """One tensor, its bits as they stand in the file. Raises CheckpointError where the file has shrunk."""
        entry, path = self._checkpoint.entries[name], self._checkpoint.paths[name]
        size = entry.end - entry.start
        with path.open("rb") as file:
            file.seek(entry.start)
            content = np.fromfile(file, np.uint8, size)
        if len(content) != size:
            raise CheckpointError(f"{path}: tensor {name!r}: {len(content)} bytes, expected {size}")
        return torch.from_numpy(content).view(DTYPES[entry.dtype]).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
