"""The products of a model, each with its weight in the layout that the chosen kernels read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dflash_accelerated.native import Packed
from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.linear import library
from dflash_accelerated.ops.linear.torch import DenseWeight


class Held(Protocol):
    """A weight [m, n] that multiplies rows x [R, n]."""

    @property
    def dense(self) -> Tensor:
        """The weight itself."""

    @property
    def held_bytes(self) -> int:
        """Bytes of the layout."""

    def multiply(self, x: Tensor) -> Tensor:
        """The product [R, m], in the weight's dtype."""

    def multiply_and_add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual [R, m] + product, rounded once at most."""


class Product:
    """`linear` of one weight [m, n], or of several that read one input, joined in their order.

    The weight is held once: as it is, in the matrix library's layout where PyTorch's kernels run and the library
    multiplies BF16, or packed for the kernels in C.

    Clause: NUM-006. Source: NInfer op-development.md.
    """

    def __init__(self, weights: Sequence[Tensor], numerics: Numerics, adds: bool = False) -> None:
        """`weights` [m, n] each, in the compute dtype; `adds` says that it is asked for by `plus`."""
        joined = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.outputs, self.inputs = joined.shape
        self.dtype, self.adds = joined.dtype, adds
        self.held = _held(joined, numerics)

    @property
    def native(self) -> Packed | None:
        """What kernels in C are given; None where the weight is not packed for them."""
        return getattr(self.held, "reference", None)

    @property
    def weight(self) -> Tensor:
        """The joined weight [m, n]: made anew unless it is held as it is."""
        return self.held.dense

    @property
    def held_bytes(self) -> int:
        return self.held.held_bytes

    def make_ready(self, counts: Collection[int]) -> int:
        """Have the matrix library make its kernels for so many rows: how many it has then."""
        return self.held.make_ready(counts, self.adds) if isinstance(self.held, library.LibraryWeight) else 0

    def __call__(self, x: Tensor) -> Tensor:
        """The product of rows x [R, n]: [R, m] in the weight's dtype."""
        return self.held.multiply(x)

    def plus(self, x: Tensor, residual: Tensor, numerics: Numerics) -> Tensor:
        """residual + product, rounded to `act`: x [R, n], residual ACT [R, m].

        The product is not rounded to `act` before the sum; the library and the kernels in C add before they round at
        all.

        Clauses: DRAFT-009, DRAFT-012. Source: NInfer docs/maintainer/dflash.md.
        """
        return numerics.activation(self.held.multiply_and_add(x, residual))


def _held(weight: Tensor, numerics: Numerics) -> Held:
    if numerics.kernels == "native":
        from dflash_accelerated.ops.linear.native import PackedWeight

        return PackedWeight(weight, numerics.act)
    if numerics.kernels == "torch" and library.multiplies(weight):
        return library.LibraryWeight(weight)
    return DenseWeight(weight)
