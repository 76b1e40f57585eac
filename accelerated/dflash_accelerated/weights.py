"""Published folders as PyTorch tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from dflash_spec.checkpoint import Checkpoint
from dflash_spec.tensors import Tensor as Stored
from torch import Tensor

from dflash_accelerated.numerics import DTYPES


def to_torch(stored: Stored) -> Tensor:
    """`stored` in its own dtype, in memory of its own."""
    tensor = torch.from_numpy(stored.values.copy())
    return tensor.to(DTYPES.get(stored.dtype, tensor.dtype))


def load(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Every tensor of a folder that holds exactly `shapes`, in the file's dtypes. Raises CheckpointError."""
    checkpoint.check(shapes)
    return {name: to_torch(checkpoint.read(name)) for name in shapes}
