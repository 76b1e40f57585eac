"""RoPE in PyTorch: full head, split halves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dflash_accelerated.numerics import Numerics
from dflash_accelerated.ops.rounding import narrow


class Tables(NamedTuple):
    """Cosines and sines of R positions, each [R, D/2] in the compute dtype."""

    cos: Tensor
    sin: Tensor


def tables(positions: Tensor, theta: float, head_dim: int, numerics: Numerics) -> Tables:
    """The tables for `positions` [R] (absolute, any integer dtype) and heads of `head_dim` = D channels.

    The angle of pair j is position · theta^(-2j/D). Profile axis `rope_table`: `ideal` takes it in float64; `fp32`
    rounds the inverse frequency and then the product to FP32, which at position 262,143 is off by up to 2⁻⁵ radians
    and is what a draft trained with transformers has seen.

    Clauses: DRAFT-005, CTX-006. Source: NInfer docs/maintainer/dflash.md; transformers 5.24.0 Qwen3RotaryEmbedding.
    """
    pairs = torch.arange(head_dim // 2, dtype=torch.float64, device=positions.device)
    inverse = torch.pow(torch.tensor(theta, dtype=torch.float64, device=positions.device), -2.0 * pairs / head_dim)
    if numerics.profile.axes["rope_table"] == "fp32":
        angles = (positions.to(torch.float32)[:, None] * inverse.to(torch.float32)).to(torch.float64)
        held = (narrow(part, torch.float32) for part in (angles.cos(), angles.sin()))
    else:
        angles = positions.to(torch.float64)[:, None] * inverse
        held = (part for part in (angles.cos(), angles.sin()))
    cos, sin = (narrow(part, numerics.compute) for part in held)
    return Tables(cos, sin)


class Turns:
    """The tables of positions from 0 on, computed when they are first needed and kept."""

    def __init__(self, theta: float, head_dim: int, numerics: Numerics, device: torch.device) -> None:
        self._form = (theta, head_dim, numerics)
        self.held = tables(torch.arange(0, device=device), *self._form)
        """Those that there are."""
        self._count = 0

    @property
    def held_bytes(self) -> int:
        return sum(part.nbytes for part in self.held)

    def planned_bytes(self, count: int) -> int:
        """Bytes of the tables of positions [0, count)."""
        pairs = self.held.cos.shape[1]
        return 2 * pairs * max(count, self._count) * self.held.cos.itemsize

    def reserve(self, count: int) -> None:
        """Have those of positions [0, count)."""
        if count > self._count:
            self.held = tables(torch.arange(count, device=self.held.cos.device), *self._form)
            self._count = count

    def reach(self, end: int) -> bool:
        """Have those of positions below `end`, and some more where they had to be made anew: whether they were."""
        short = end > self._count
        if short:
            self.reserve(max(end, 2 * self._count))
        return short

    def at(self, positions: Tensor) -> Tables:
        """Those of `positions` I64 [R], which they reach."""
        return Tables(*(part[positions] for part in self.held))


def rotate(x: Tensor, turn: Tables, numerics: Numerics) -> Tensor:
    """Rotate channel j with channel j + D/2: x [R, heads, D] at the tables' R positions, result ACT [R, heads, D].

    Clauses: DRAFT-004, DRAFT-005. Source: NInfer docs/maintainer/dflash.md.
    """
    return numerics.activation(turned(x, turn))


def turned(x: Tensor, turn: Tables) -> Tensor:
    """The same, not rounded to `act`: in the tables' dtype.

    Clauses: CTX-011, DRAFT-015. Source: Infernix include/infernix/ops/context_kv_materialize.h, rmsnorm_rope.h.
    """
    first, second = x.to(turn.cos.dtype).chunk(2, dim=-1)
    cos, sin = turn.cos[:, None], turn.sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
