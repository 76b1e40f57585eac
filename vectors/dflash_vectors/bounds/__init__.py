"""Bounds: how far a correct port may be from the reference, element by element (docs/bounds.md derives them)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors.bounds import candidates, context, dflash2, heads, layers, sampling, shards
from dflash_vectors.bounds.algebra import Ledger

SAFETY = 2.0
"""A bound is this multiple of the worst case of the error model."""

Model = Callable[[Mapping[str, Any], Ledger], None]
MODELS: dict[str, Model] = {
    **context.MODELS, **layers.MODELS, **heads.MODELS, **dflash2.MODELS, **candidates.MODELS, **sampling.MODELS,
    **shards.MODELS,
}  # fmt: skip


def bounds_of(op: str, inputs: Mapping[str, Any], result: Mapping[str, Array], profile: Profile) -> dict[str, Array]:
    """float64 bounds of every bounded stage and output of `op`, shaped like them.

    `inputs` and `result` are what the reference read and returned. Raises ModelError where the model's own
    value and the reference's differ by more than the model allows.
    """
    ledger = Ledger(op, result, profile)
    MODELS[op](inputs, ledger)
    return {name: SAFETY * worst for name, worst in ledger.worst.items()}
