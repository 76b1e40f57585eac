"""Proposals that the authors' package draws above temperature 0, and the law of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF = float("inf")
ALMOST_ONE = 1.0 - 2.0**-24
WIDTH = 37


def _rows(key: str, rows: int, step: float = 0.1875) -> Array:
    """Logits of which no two in a row are equal."""
    order = np.argsort(inputs.hashes(key, (rows, WIDTH)), axis=1, kind="stable").argsort(axis=1, kind="stable")
    return (order - WIDTH // 2) * step


def _given(logits: Array, u: Sequence[float], temperature: float = 0.7, top_k: int = 0, top_p: float = 1.0) -> Any:
    return {
        "logits": logits,
        "temperature": inputs.fp32(temperature),
        "top_k": top_k,
        "top_p": inputs.fp32(top_p),
        "u": inputs.represent(np.array(u), "F32"),
    }


@suite("proc.propose", profiles=("zlab",))
def propose(profile: Profile) -> Iterator[Case]:
    """Each slot's own row and uniform, at temperatures and through filters."""

    def one(slug: str, why: str, given: Any, **more: Any) -> Case:
        return Case(slug, ("PROC-020",), given, catches=why, **{"effect": "output", **more})

    rows, u = _rows("propose/rows", 4), (0.1875, 0.71, 0.46, 0.9375)
    for slug, temperature in (("0-4", 0.4), ("0-7", 0.7), ("1-6", 1.6)):
        yield one(
            f"temperature-{slug}", "the draft draws at temperature 1, or the law is that of another temperature",
            _given(rows, u, temperature),
        )  # fmt: skip
    raw = "the law is the softmax of raw logits, and not what drew"
    for slug, filters in (
        ("top-k", {"top_k": 3}), ("top-p", {"top_p": 0.6}), ("top-k-and-top-p", {"top_k": 5, "top_p": 0.8}),
        ("top-k-of-one", {"top_k": 1}),
    ):  # fmt: skip
        yield one(slug, raw, _given(rows, u, 1.3, **filters))
    yield one(
        "outside-the-nucleus", "proposals are drawn from the whole vocabulary, though the law claims the filters",
        _given(rows * 0.25, (0.93, 0.03, 0.97, 0.5), 1.6, top_k=6, top_p=0.7),
    )  # fmt: skip
    same = np.repeat(rows[:1], 5, axis=0)
    yield one(
        "own-uniform-in-each-slot", "all slots of a round draw with one uniform, or with their neighbour's",
        _given(same, (0.52, 0.03, 0.98, 0.2, 0.77), 1.6),
    )  # fmt: skip
    yield one(
        "own-row-in-each-slot", "every slot draws from the first row", _given(rows, (0.625,) * 4, 1.1),
        effect="acceptance",
    )  # fmt: skip
    yield one("one-slot", "a block of one proposal is not sampled", _given(rows[:1], (0.3125,), 1.6))
    four = np.full((4, WIDTH), -INF)
    four[:, [5, 11, 24, 30]] = 2.0
    yield one(
        "uniforms-on-edges", "u = 0 draws an id without a chance, or a uniform on an edge goes to the id before",
        _given(four, (0.0, 0.25, 0.5 - 2.0**-24, ALMOST_ONE)), tags=("tie",),
    )  # fmt: skip
