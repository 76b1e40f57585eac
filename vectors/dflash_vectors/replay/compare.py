"""One recorded stage against the reference's: its dtype, its rows, and every element against its bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from dflash_spec.errors import TensorError
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array, Tensor

from dflash_vectors.cases import Expected
from dflash_vectors.checker import compare_tensor
from dflash_vectors.replay.findings import Trail
from dflash_vectors.replay.stages import Own
from dflash_vectors.verdict import Divergence

ROLES = {"logits": "LOGIT", "target.logits": "LOGIT", "unary": "F32", "scores": "F32", "q": "F32"}
"""What a stage is held in, where it is not ACT."""

ENOUGH = 2.0
"""A bound that is so many times what a stage is off by need not be known better."""

LOOSE = 16.0
"""A suspected mistake may be off by so many bounds, and by so much less than the right computation is."""


class Compared(NamedTuple):
    """`bounds`: how far the furthest element is off, in bounds of its own; for a spread, at most so far, where that is
    below 1 / ENOUGH."""

    divergence: Divergence | None
    bounds: float
    trail: Trail | None = None


def dtype_of(name: str, profile: Profile) -> str:
    """The dtype that a stage has in a profile."""
    role = ROLES.get(name, "ACT")
    return profile.dtypes.get(role, role)


def held(name: str, tensor: Tensor, dtype: str) -> Tensor | str:
    """The tensor as `dtype`; where it is stored in a wider one, its values must be of this one. Else what is wrong."""
    if tensor.dtype == dtype:
        return tensor
    try:
        return Tensor.of(dtype, tensor.values, name)
    except TensorError:
        return f"stored as {tensor.dtype}, with values that are not {dtype}, as the profile holds this stage"


def compare_stage(own: Own, tensor: Tensor, profile: Profile) -> Compared:
    """The recorded `tensor`, of which rows past the reference's are dead, against the stage as the reference has it."""
    label, true = f"stage.{own.name}", own.value.true
    dtype = dtype_of(own.name, profile)
    if len(tensor.shape) == true.ndim and len(tensor.values) > len(true):
        tensor = Tensor(tensor.dtype, tensor.values[: len(true)])
    if tensor.shape != true.shape:
        problem = f"shape {list(tensor.shape)}, expected {list(true.shape)} at least in rows"
        return Compared(Divergence(label, problem), np.inf)
    got = held(label, tensor, dtype)
    if isinstance(got, str):
        return Compared(Divergence(label, got), np.inf)
    off = distance(true, got.values)
    bound = own.bound
    if bound is None:
        bound = np.full(true.shape, own.value.spread(ENOUGH * float(off.max(initial=0.0))))
    with np.errstate(divide="ignore", invalid="ignore"):
        furthest = float(np.where(off == 0, 0.0, off / bound).max(initial=0.0))
    expected = Expected("stages", own.name, Tensor.of(dtype, true), "bounded", bound)
    found = compare_tensor(expected, got)
    if found is None:
        return Compared(None, furthest)

    def from_recorded(other: Array) -> float:
        """A mistake has roundings of its own, and so more room than a right engine; but it must explain most of it."""
        gap = distance(other, got.values) if other.shape == true.shape else np.full(1, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            bounds = float(np.where(gap == 0, 0.0, gap / bound).max(initial=0.0))
        return bounds if bounds <= LOOSE and float(gap.max()) * LOOSE <= float(off.max()) else np.inf

    return Compared(found, furthest, Trail(own.again, from_recorded))


def distance(expected: Array, got: Array) -> Array:
    """|got - expected|; 0 for equal infinities and infinite where only one is finite or either is NaN."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return np.where(got == expected, 0.0, np.where(np.isfinite(gap), gap, np.inf))
