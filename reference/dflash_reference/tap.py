"""Taps: which tensors of the target condition the draft."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_reference.names import LayerId


class Concat(NamedTuple):
    """features: [T, n·H] float64, represented in ACT."""

    features: Array


def boundary(layer: LayerId) -> int:
    """The residual boundary that tap `layer` reads: the complete output of that block; boundary 0 is the embedding.

    Clause: TAP-001
    Source: NInfer docs/maintainer/dflash.md, conditioning; dflash 0.1.0 extract_context_feature.
    """
    return layer + 1


def concat(residuals: Array, ids: Array, profile: Profile) -> Concat:
    """The taps of every row, side by side in recorded order: residuals [B, T, H], ids [n] -> [T, n·H].

    Raises TensorError if an id names a block that the B boundaries do not have.

    Clause: TAP-002
    Source: NInfer docs/maintainer/dflash.md, conditioning.
    """
    blocks = residuals.shape[0] - 1
    for slot, id_ in enumerate(ids):
        if not 0 <= id_ < blocks:
            raise TensorError(f"tap.concat: ids[{slot}] is {id_}, expected 0 to {blocks - 1}")
    order = np.array([boundary(LayerId(int(id_))) for id_ in ids], dtype=np.int64)
    rows, channels = residuals.shape[1:]
    return Concat(residuals[order].swapaxes(0, 1).reshape(rows, len(order) * channels))
