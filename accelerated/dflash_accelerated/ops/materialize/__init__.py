"""Context keys and values of all layers, from one projection into the buffers that the layers read."""

from collections.abc import Sequence

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.attention import Seat
from dflash_accelerated.ops.materialize.torch import (
    ContextWeights,
    Keys,
    Materializer,
    Raw,
    keys,
    project,
    store,
    values,
    write,
)

__all__ = [
    "ContextWeights", "Keys", "Materializer", "Raw", "keys", "materializer", "project", "store", "values", "write"
]  # fmt: skip


def materializer(
    weights: ContextWeights, seats: Sequence[Seat], staged: bool, eps: float, numerics: Numerics
) -> Materializer:
    """The materializer with the kernels that `numerics` names: as `Materializer` says."""
    if numerics.kernels == "native":
        from dflash_accelerated.ops.materialize.native import NativeMaterializer

        return NativeMaterializer(weights, seats, staged, eps, numerics)
    return Materializer(weights, seats, staged, eps, numerics)
