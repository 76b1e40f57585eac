"""Vectors of the draft's ops at the sizes of a geometry, official ones included: generated on demand, never committed.

A kernel that is right at 24 channels may still be wrong at 5120: tiles, strides and 32-bit offsets only show there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from dflash_spec.geometry import Geometry
from dflash_spec.registry import Profile
from dflash_spec.tensors import STORED, Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, check_case

ROWS = 3
"""Context rows of an op that treats each row by itself."""
BEYOND = 5
"""Context rows past the widest window, so that the oldest are out of sight."""
FULL_CONTEXT = 61
"""Context rows where every layer is full."""
SPEED = 2.5e7
"""Multiply-adds a second of reference and error model together, measured on one core; for the estimate alone."""

CLAUSES = {
    "context.feature": ("CTX-001", "CTX-002"),
    "context.key": ("CTX-005", "CTX-006"),
    "context.value": ("CTX-008",),
    "draft.qkv": ("DRAFT-002", "DRAFT-003", "DRAFT-004"),
    "draft.attention": ("DRAFT-007", "DRAFT-008"),
    "draft.output": ("DRAFT-009",),
    "draft.mlp": ("DRAFT-010",),
    "draft.final": ("DRAFT-011",),
}


@dataclass(frozen=True)
class Sized:
    """One case before its values are made. `rows` and `weights` map inputs to shapes, `scalars` to values."""

    op: str
    slug: str
    rows: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, tuple[int, ...]]
    scalars: Mapping[str, Any]

    def size(self, profile: Profile) -> int:
        """Bytes of the inputs, which are nearly all of the file."""
        items = {"rows": STORED[profile.dtypes["ACT"]].itemsize, "weights": STORED[profile.dtypes["WEIGHT"]].itemsize}
        return sum(prod(shape) * item for kind, item in items.items() for shape in getattr(self, kind).values())

    def work(self) -> int:
        """Multiply-adds of the op, up to a small factor."""
        if self.op == "draft.attention":
            rows, heads, size = self.rows["q"]
            return 2 * rows * heads * size * (self.rows["context_key"][0] + rows)
        return max(shape[0] for shape in self.rows.values()) * sum(map(prod, self.weights.values()))


def _layer(g: Geometry) -> Iterator[Sized]:
    h, inner, d, q, kv = g.hidden_size, g.intermediate_size, g.head_dim, g.heads * g.head_dim, g.kv_heads * g.head_dim
    block, far = g.block_size, g.max_positions - g.block_size
    rope = {"theta": inputs.fp32(g.theta), "eps": inputs.fp32(g.eps)}
    eps = {"eps": rope["eps"]}
    features = {"features": (ROWS, len(g.taps) * h)}
    yield Sized("context.feature", "row", features, {"fc": (h, len(g.taps) * h), "hidden_norm": (h,)}, eps)
    context = {"positions": far - ROWS + np.arange(ROWS), **rope}
    yield Sized("context.key", "far", {"c": (ROWS, h)}, {"k_proj": (kv, h), "k_norm": (d,)}, context)
    yield Sized("context.value", "row", {"c": (ROWS, h)}, {"v_proj": (kv, h)}, {"kv_heads": g.kv_heads})
    weights = {
        "input_norm": (h,),
        "q_proj": (q, h),
        "k_proj": (kv, h),
        "v_proj": (kv, h),
        "q_norm": (d,),
        "k_norm": (d,),
    }
    yield Sized("draft.qkv", "far", {"x": (block, h)}, weights, {"positions": far + np.arange(block), **rope})
    for window in sorted(set(g.windows)):
        yield _attention(g, window)
    yield Sized("draft.output", "rows", {"attended": (block, q), "x": (block, h)}, {"o_proj": (h, q)}, {})
    mlp = {"post_norm": (h,), "gate_proj": (inner, h), "up_proj": (inner, h), "down_proj": (h, inner)}
    yield Sized("draft.mlp", "rows", {"y": (block, h)}, mlp, eps)
    yield Sized("draft.final", "rows", {"x": (block, h)}, {"norm": (h,)}, eps)


def _attention(g: Geometry, window: int) -> Sized:
    block, kv = g.block_size, (g.kv_heads, g.head_dim)
    length = min(window + BEYOND if window else FULL_CONTEXT, g.max_positions - block)
    first = g.max_positions - block - length
    rows = {
        "q": (block, g.heads, g.head_dim), "context_key": (length, *kv), "context_value": (length, *kv),
        "block_key": (block, *kv), "block_value": (block, *kv),
    }  # fmt: skip
    scalars = {
        "context_positions": first + np.arange(length), "context_length": length,
        "positions": first + length + np.arange(block), "live": block, "window": window, "causal": 0,
    }  # fmt: skip
    return Sized("draft.attention", f"window-{window}" if window else "full", rows, {}, scalars)


def plan(geometry: Geometry) -> list[Sized]:
    """What would be generated at a geometry, before anything is."""
    return list(_layer(geometry))


def cost(geometry: Geometry, cases: list[Sized], profiles: list[Profile]) -> str:
    """What generating these cases of a geometry takes, in a line."""
    size = sum(case.size(profile) for case in cases for profile in profiles)
    seconds = sum(case.work() for case in cases) * len(profiles) / SPEED
    return f"{geometry.name}: {len(cases) * len(profiles)} vectors, {size / 2**20:.0f} MiB, about {seconds:.0f} s"


def _values(key: str, name: str, shape: tuple[int, ...], profile: Profile) -> Array:
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    if name.endswith("_proj") or name == "fc":
        return inputs.weights(key, shape, weight)
    if name.endswith("norm"):
        return inputs.norm_weights(key, shape, weight)
    return inputs.normal_like(key, shape, 1.0, act)


def sized_cases(geometry: Geometry, cases: list[Sized], profile: Profile) -> Iterator[Case]:
    """These cases of a geometry with their values, each made when it is asked for: one may take gigabytes."""
    name = re.sub("[^a-z0-9]+", "-", geometry.name)
    for sized in cases:
        key = f"{geometry.name}/{sized.op}/{sized.slug}"
        shapes = {**sized.rows, **sized.weights}
        values = {n: _values(f"{key}/{n}", n, shape, profile) for n, shape in shapes.items()}
        case = Case(
            f"{name}-{sized.slug}", CLAUSES[sized.op], {**values, **sized.scalars},
            catches="a kernel that is right for small sizes reads or adds wrongly at these", effect="acceptance",
            geometry=geometry.name, op=sized.op, profile=profile.name,
        )  # fmt: skip
        check_case(case)
        yield case
