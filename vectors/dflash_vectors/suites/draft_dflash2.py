"""DFlash2's layer steps between its convolutions: heads and SwiGLU of prepared rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

WIDTH = 8
RAW = ("q_raw", "k_raw", "v")


def _signs(
    key: str, positions: list[int], heads: int, kv: int, size: int, *, theta: float = 100.0, norm: Array | None = None
) -> dict[str, Any]:
    """Rows of ±1, and projections that pick single channels: all raw heads have one magnitude."""
    return {
        "prepared": tiny.signs(f"{key}/prepared", (len(positions), WIDTH)),
        "q_proj": tiny.picking(f"{key}/q", heads * size, WIDTH, [0.5] * heads),
        "k_proj": tiny.picking(f"{key}/k", kv * size, WIDTH, [0.5] * kv),
        "v_proj": tiny.picking(f"{key}/v", kv * size, WIDTH, [0.25] * kv),
        "q_norm": np.full(size, 1.5) if norm is None else norm,
        "k_norm": np.full(size, 2.5) if norm is None else norm[::-1].copy(),
        "positions": np.array(positions),
        "theta": theta,
        "eps": inputs.fp32(1e-6),
    }


def _scaled(key: str) -> dict[str, Any]:
    """Rows of ±8 and ±1/4: a norm would make them equal."""
    given = _signs(key, [5, 6, 7], 3, 1, 4)
    given["prepared"] = given["prepared"] * np.array([[8.0], [0.25], [1.0]])
    return given


def _ordinary(profile: Profile) -> dict[str, Any]:
    act, weight, hidden = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], tiny.HIDDEN
    queries, keys = tiny.HEADS * tiny.HEAD_DIM, tiny.KV_HEADS * tiny.HEAD_DIM
    return {
        "prepared": inputs.telling("draft2/prepared", (5, hidden), act) * 4.0,
        "q_proj": inputs.weights("draft2/q", (queries, hidden), weight),
        "k_proj": inputs.weights("draft2/k", (keys, hidden), weight),
        "v_proj": inputs.weights("draft2/v", (keys, hidden), weight),
        "q_norm": tiny.bold_norm("draft2/q_norm", tiny.HEAD_DIM, weight),
        "k_norm": tiny.bold_norm("draft2/k_norm", tiny.HEAD_DIM, weight),
        "positions": np.array([1021, 1022, 1023, 1024, 1025]),
        "theta": 10000.0,
        "eps": inputs.fp32(1e-6),
    }


@suite("draft2.qkv")
def qkv(profile: Profile) -> Iterator[Case]:
    """Rows of several scales, ordinary ones, and in BF16 the two roundings and the one that is not."""
    turned = {"q": "DRAFT-006", "k": "DRAFT-006"}
    yield Case(
        "rows-as-they-are", ("DRAFT-016", "DRAFT-006"), _scaled("draft2/scaled"),
        catches="the prepared rows are normed again",
        effect="acceptance", exact=RAW, blame=turned,
    )  # fmt: skip
    yield Case(
        "ordinary", ("DRAFT-016", "DRAFT-006"), _ordinary(profile),
        catches="a head, a row or a projection is taken for another",
        effect="acceptance", blame=turned,
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "raw-heads-rounded", ("DRAFT-015",), _tied_heads(),
            catches="the head norm reads queries and keys before they are rounded",
            effect="acceptance", exact=(*RAW, "q", "k"),
        )  # fmt: skip
        yield Case(
            "normed-heads-not-rounded", ("DRAFT-015",), _cancelling(),
            catches="queries and keys are rounded between head norm and rotation, as DFlash's are",
            effect="acceptance", exact=RAW,
        )  # fmt: skip


def _tied_heads() -> dict[str, Any]:
    """Raw channels of 257, which round to 256, among 256 of both signs: the head norm then divides by 256."""
    size = 10
    given = _signs("draft2/tied", [0, 0], 2, 1, size)
    given["prepared"] = np.ones((2, WIDTH)) * np.array([[1.0], [-1.0]])
    for name, heads in (("q_proj", 2), ("k_proj", 1)):
        weights = np.zeros((heads * size, WIDTH))
        weights[:, 0] = 256.0 * tiny.signs(f"draft2/tied/{name}", (heads * size,))
        weights[3::size, 1] = np.sign(weights[3::size, 0])
        given[name] = weights
    norm = np.where(np.arange(size) % 3 == 0, 1.9921875, 0.99609375)
    return given | {"q_norm": norm, "k_norm": norm, "eps": 2.0**-20}


def _cancelling() -> dict[str, Any]:
    """Pairs of nearly equal channels at position 183, where cosine and sine are nearly equal: little is left of them.

    What a rounding before the rotation does to the channels is then large against the query or key.
    """
    half = 1.0 + (2 * np.arange(3) + 1) * 2.0**-7
    given = _signs("draft2/cancelling", [183], 2, 1, 6, theta=1.0, norm=np.concatenate([half, half + 2.0**-7]))
    given["prepared"] = np.ones_like(given["prepared"])
    for name in ("q_proj", "k_proj"):
        given[name] = np.abs(given[name])
    return given | {"k_norm": given["q_norm"] + 2.0**-5, "eps": inputs.fp32(0.0173)}


@suite("draft2.mlp")
def mlp(profile: Profile) -> Iterator[Case]:
    """SwiGLU of rows of several scales."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    shape = (tiny.INNER, tiny.HIDDEN)
    rows = inputs.telling("draft2/mlp/prepared", (4, tiny.HIDDEN), act)
    for slug, clauses, prepared, catches in (
        ("rows-as-they-are", ("DRAFT-016", "DRAFT-010"), rows * np.array([[4.0], [0.25], [1.0], [2.0]]),
         "the prepared rows are normed again"),
        ("gate-and-up", ("DRAFT-010", "DRAFT-016"), rows, "gate and up are exchanged, or SiLU is applied to up"),
        ("large-gates", ("DRAFT-010", "DRAFT-016"), rows * 16.0, "SiLU overflows for large negative gates"),
    ):  # fmt: skip
        yield Case(
            slug, clauses,
            {
                "prepared": prepared,
                "gate_proj": inputs.weights("draft2/mlp/gate", shape, weight),
                "up_proj": inputs.weights("draft2/mlp/up", shape, weight),
            },
            catches=catches, effect="acceptance",
        )  # fmt: skip
