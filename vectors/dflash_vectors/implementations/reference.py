"""The reference as an implementation: its cell in the table says `self`, because it wrote the vectors."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from dflash_reference import operations
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import Array

from dflash_vectors.run import execute


class Reference:
    """Answers every op that is a function of its inputs, with all of its stages: it has no randomness of its own."""

    def __init__(self, profile: str) -> None:
        self._profile = load_profile(profile)

    def describe(self) -> dict[str, Any]:
        return {
            "name": "reference",
            "version": version("dflash-oracle"),
            "profile": self._profile.name,
            "ops": sorted(set(operations.OPERATIONS) & set(load_ops())),
            "note": "self",
        }

    def run(self, op: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """Stages, as `stage.<name>`, and outputs. Raises what the reference raises."""
        values = execute(op, {name: plain(value) for name, value in inputs.items()}, self._profile)
        declared = load_ops()[op]
        return {name if declared.find("outputs", name) else f"stage.{name}": v for name, v in values.items()}


def plain(value: Array) -> Any:
    """float64 for floats, integers as they are, a Python number for a scalar: what the reference takes."""
    wide = value.astype(np.float64) if value.dtype.kind == "f" else value
    return wide.item() if wide.ndim == 0 else wide


def create(profile: str) -> Reference:
    """The reference in a profile. Raises SpecDataError if there is no such profile."""
    return Reference(profile)
