"""A case at the sizes of a geometry, described before its values are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from dflash_spec.registry import Profile, load_clauses, load_ops
from dflash_spec.tensors import STORED, Array

from dflash_vectors import inputs

Plant = Callable[[dict[str, Array], Mapping[str, Any], str], None]
"""Changes values in place, given the scalars and the case's key; what it leaves is represented again."""

CODEBOOKS = ("predecessor", "successor")
PROJECTIONS = ("projection", "weight", "head", "fc")


@dataclass(frozen=True)
class Sized:
    """One case before its values are made. `rows` and `weights` map inputs to shapes, `scalars` to values."""

    op: str
    slug: str
    clauses: tuple[str, ...]
    rows: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, Any]
    plant: Plant | None = None

    def holds(self, profile: Profile) -> bool:
        """Whether the case is one of the profile's."""
        return all(profile.name in load_clauses()[clause].profiles for clause in self.clauses)

    def size(self, profile: Profile) -> int:
        """Bytes of the inputs, which are nearly all of the file."""
        items = {"rows": STORED[profile.dtypes["ACT"]].itemsize, "weights": STORED[profile.dtypes["WEIGHT"]].itemsize}
        return sum(prod(shape) * item for kind, item in items.items() for shape in getattr(self, kind).values())

    def count(self) -> int:
        """Values of the inputs that are made."""
        return sum(prod(shape) for shapes in (self.rows, self.weights) for shape in shapes.values())

    def work(self) -> int:
        """Multiply-adds of the op, up to a small factor."""
        if self.op == "draft.attention":
            rows, heads, size = self.rows["q"]
            return 2 * rows * heads * size * (self.rows["context_key"][0] + rows)
        return max(shape[0] for shape in self.rows.values()) * sum(map(prod, self.weights.values()))

    def values(self, key: str, profile: Profile) -> dict[str, Array]:
        """Every input by name, from the keyed hash alone."""
        dtypes = {spec.name: spec.dtype_for(profile) for spec in load_ops()[self.op].inputs}
        shapes = {**self.rows, **self.weights}
        made = {name: _values(f"{key}/{name}", name, shape, dtypes[name]) for name, shape in shapes.items()}
        if self.plant is not None:
            self.plant(made, self.scalars, key)
            made = {name: inputs.represent(made.pop(name), dtypes[name]) for name in shapes}
        return {**made, **self.scalars}


def _values(key: str, name: str, shape: tuple[int, ...], dtype: str) -> Array:
    if name.endswith("_proj") or name in PROJECTIONS:
        return inputs.weights(key, shape, dtype)
    if name in CODEBOOKS:
        return inputs.normal_like(key, shape, float(shape[-1]) ** -0.25, dtype)
    if name.endswith("norm"):
        return inputs.norm_weights(key, shape, dtype)
    return inputs.normal_like(key, shape, 1.0, dtype)
