"""Vectors of the draft's ops at the sizes of a geometry, official ones included: generated on demand, never committed.

A kernel that is right at 24 channels may still be wrong at 5120: tiles, strides and 32-bit offsets only show there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from dflash_spec.geometry import Geometry
from dflash_spec.registry import Profile

from dflash_vectors import inputs, sized_dflash2
from dflash_vectors.sized_case import Sized
from dflash_vectors.suite import Case, check_case

ROWS = 3
"""Context rows of an op that treats each row by itself."""
BEYOND = 5
"""Context rows past the widest window, so that the oldest are out of sight."""
FULL_CONTEXT = 61
"""Context rows where every layer is full."""
SPEED = 3e8
"""Multiply-adds a second of reference and error model together, measured on one core; for the estimate alone."""
VALUES = 6e6
"""Values made, checked and written a second, likewise."""


def _layer(g: Geometry) -> Iterator[Sized]:
    h, inner, d, q, kv = g.hidden_size, g.intermediate_size, g.head_dim, g.heads * g.head_dim, g.kv_heads * g.head_dim
    block, far = g.block_size, g.max_positions - g.block_size
    rope = {"theta": inputs.fp32(g.theta), "eps": inputs.fp32(g.eps)}
    eps = {"eps": rope["eps"]}
    features = {"features": (ROWS, len(g.taps) * h)}
    weights = {"fc": (h, len(g.taps) * h), "hidden_norm": (h,)}
    yield Sized("context.feature", "row", ("CTX-001", "CTX-002"), features, weights, eps)
    context = {"positions": far - ROWS + np.arange(ROWS), **rope}
    yield Sized(
        "context.key", "far", ("CTX-005", "CTX-006"), {"c": (ROWS, h)}, {"k_proj": (kv, h), "k_norm": (d,)}, context
    )
    yield Sized("context.value", "row", ("CTX-008",), {"c": (ROWS, h)}, {"v_proj": (kv, h)}, {"kv_heads": g.kv_heads})
    weights = {
        "input_norm": (h,),
        "q_proj": (q, h),
        "k_proj": (kv, h),
        "v_proj": (kv, h),
        "q_norm": (d,),
        "k_norm": (d,),
    }
    scalars = {"positions": far + np.arange(block), **rope}
    yield Sized("draft.qkv", "far", ("DRAFT-002", "DRAFT-003", "DRAFT-004"), {"x": (block, h)}, weights, scalars)
    for window in sorted(set(g.windows)):
        yield _attention(g, window)
    attended = {"attended": (block, q), "x": (block, h)}
    yield Sized("draft.output", "rows", ("DRAFT-009",), attended, {"o_proj": (h, q)}, {})
    mlp = {"post_norm": (h,), "gate_proj": (inner, h), "up_proj": (inner, h), "down_proj": (h, inner)}
    yield Sized("draft.mlp", "rows", ("DRAFT-010",), {"y": (block, h)}, mlp, eps)
    yield Sized("draft.final", "rows", ("DRAFT-011",), {"x": (block, h)}, {"norm": (h,)}, eps)


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
    slug = f"window-{window}" if window else "full"
    return Sized("draft.attention", slug, ("DRAFT-007", "DRAFT-008"), rows, {}, scalars)


def plan(geometry: Geometry) -> list[Sized]:
    """What would be generated at a geometry, before anything is."""
    return [*_layer(geometry), *sized_dflash2.plan(geometry)]


def cost(geometry: Geometry, cases: list[Sized], profiles: list[Profile]) -> str:
    """What generating these cases of a geometry takes, in a line."""
    wanted = [(case, profile) for profile in profiles for case in cases if case.holds(profile)]
    size = sum(case.size(profile) for case, profile in wanted)
    seconds = sum(case.work() / SPEED + case.count() / VALUES for case, _ in wanted)
    return f"{geometry.name}: {len(wanted)} vectors, {size / 2**20:.0f} MiB, about {seconds:.0f} s"


def sized_cases(geometry: Geometry, cases: list[Sized], profile: Profile) -> Iterator[Case]:
    """These cases of a geometry with their values, each made when it is asked for: one may take gigabytes."""
    name = re.sub("[^a-z0-9]+", "-", geometry.name)
    for sized in cases:
        if not sized.holds(profile):
            continue
        case = Case(
            f"{name}-{sized.slug}", sized.clauses, sized.values(f"{geometry.name}/{sized.op}/{sized.slug}", profile),
            catches="a kernel that is right for small sizes reads or adds wrongly at these", effect="acceptance",
            geometry=geometry.name, op=sized.op, profile=profile.name,
        )  # fmt: skip
        check_case(case)
        yield case
