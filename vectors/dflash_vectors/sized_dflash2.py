"""What DFlash2 adds at the sizes of a geometry: convolutions, one layer's rings, the head in parts, and the selector.

The head of an official target has more rows than memory should hold at once. Its parts are indexed heads, whose ids
are global; only the last has padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dflash_spec.geometry import DFlash2Sizes, Geometry
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.sized_case import Sized

NEW_ROWS = 64
HEAD_ROWS = 1 << 14
"""The most rows of one part of the head: at 5120 channels, 640 MiB in float64."""
QUIET = 2.0**-4
"""Scale of the head's rows against its candidates' scores: candidates lead by more than a long sum may be off."""
LEAST, STEP = 3.5, 0.5
"""Score of the last candidate, about, and how much better each other one is than the next."""


def plan(g: Geometry) -> Iterator[Sized]:
    """The cases of a DFlash2 geometry; none of a DFlash one."""
    if g.dflash2 is None:
        return
    yield from _convolutions(g, g.dflash2)
    if any(g.windows):
        yield _rings(g, max(g.windows))
    yield from _head(g, g.dflash2)
    rows, rank = g.block_size - 1, g.dflash2.selector_rank
    hidden, projection = {"hidden": (rows, g.hidden_size)}, {"projection": (rank, g.hidden_size)}
    yield Sized("selector.project", "rows", ("SEL-006",), hidden, projection, {})
    yield _walk(g, g.dflash2)


def _convolutions(g: Geometry, sizes: DFlash2Sizes) -> Iterator[Sized]:
    h, taps, groups = g.hidden_size, sizes.conv_taps, g.hidden_size // sizes.conv_group
    rows = max(1, NEW_ROWS // g.block_size) * g.block_size
    base, scalars = {"base": (2, taps, h)}, {"group": sizes.conv_group, "block_rows": g.block_size}
    weights = {"norm": (h,), **base, "projection": (2 * taps * groups, h)}
    yield Sized(
        "conv.prepare", "blocks", ("CONV-001", "CONV-002"), {"x": (rows, h)}, weights,
        {**scalars, "eps": inputs.fp32(g.eps)},
    )  # fmt: skip
    for slug, width in (("attention", g.heads * g.head_dim), ("mlp", g.intermediate_size)):
        given = {"branch": (rows, width), "finish_delta": (rows, taps, groups), "residual": (rows, h)}
        yield Sized("conv.finish", slug, ("CONV-005", "CONV-001"), given, {"weight": (h, width), **base}, scalars)


def _rings(g: Geometry, capacity: int) -> Sized:
    """One layer and two lanes: one whose rows go round the end of its ring, one that ends where the positions do."""
    h, kv, columns = g.hidden_size, g.kv_heads * g.head_dim, min(NEW_ROWS // 2, capacity)
    counts = np.array([columns, max(1, columns - 5)])
    frontiers = np.array([(g.max_positions // capacity - 1) * capacity - columns // 2, g.max_positions - counts[1]])
    reached = np.arange(columns)
    ring = (2, 1, capacity, g.kv_heads, g.head_dim)
    scalars = {
        "positions": np.where(reached < counts[:, None], frontiers[:, None] + reached, -1), "counts": counts,
        "lanes": np.array([1, 0]), "frontiers": frontiers, "theta": inputs.fp32(g.theta), "eps": inputs.fp32(g.eps),
    }  # fmt: skip
    weights = {f"{role}_{side}_proj": (1, kv, h) for role in ("context", "query") for side in "kv"}
    return Sized(
        "context.materialize", f"ring-{capacity}", ("CTX-013", "CTX-011"),
        {"c": (2, columns, h), "ring_key": ring, "ring_value": ring}, {**weights, "k_norm": (1, g.head_dim)}, scalars,
    )  # fmt: skip


def _head(g: Geometry, sizes: DFlash2Sizes) -> Iterator[Sized]:
    """Parts of the head of nearly one size."""
    parts = -(-g.vocab_size // HEAD_ROWS)
    rows = -(-g.vocab_size // parts)
    for number in range(parts):
        ids = np.arange(number * rows, min((number + 1) * rows, g.vocab_size))
        public = min(len(ids), g.public - number * rows)
        slots = max(1, min(g.block_size - 1, public // sizes.selector_top_k))
        scalars = {
            "global_ids": ids, "public": public, "top": min(sizes.selector_top_k, public),
            "multiplier": inputs.fp32(sizes.output_multiplier), "softcap": inputs.fp32(sizes.softcap),
        }  # fmt: skip
        yield Sized(
            "head.top", f"part-{number}", ("HEAD-005", "HEAD-006"), {"hidden": (slots, g.hidden_size)},
            {"head": (len(ids), g.hidden_size)}, scalars, lead,
        )  # fmt: skip


def lead(values: dict[str, Array], scalars: Mapping[str, Any], key: str) -> None:
    """Give each hidden row its own candidates, spread over the part, its first and last public rows among them.

    The first padding row would beat them all.
    """
    hidden, head, public, top = values["hidden"], values["head"], scalars["public"], scalars["top"]
    head *= QUIET
    order = np.argsort(inputs.hashes(f"{key}/candidates", (public,)), kind="stable")
    edges = [public - 1, 0]
    order = np.concatenate([edges, order[~np.isin(order, edges)]])[: len(hidden) * top].reshape(len(hidden), top)
    towards = hidden / hidden.shape[1]
    for slot, places in enumerate(order):
        for rank, place in enumerate(places):
            head[place] += (LEAST + STEP * (top - 1 - rank)) * towards[slot]
    head[public : public + 1] += 2 * (LEAST + STEP * top) * towards[0]


def _walk(g: Geometry, sizes: DFlash2Sizes) -> Sized:
    rows, count, rank = g.block_size - 1, sizes.selector_top_k, sizes.selector_rank
    order = np.argsort(inputs.hashes(f"{g.name}/walk", (g.public,)), kind="stable")
    ids = order[np.arange(rows * count) % g.public].reshape(rows, count)
    scalars = {"candidates": ids, "anchor": g.public - 1, "temperature": 0.0, "u": np.zeros(rows)}
    return Sized(
        "selector.walk", "greedy", ("SEL-001", "SEL-002"), {"unary": (rows, count), "g": (rows, rank)},
        dict.fromkeys(("predecessor", "successor"), (g.vocab_size, rank)), scalars,
    )  # fmt: skip
