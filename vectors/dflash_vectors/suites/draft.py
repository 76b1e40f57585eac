"""Single steps of a draft layer. Sizes and weights of a case are such that faults of other rules cannot show in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite


@suite("draft.embed")
def embed(profile: Profile) -> Iterator[Case]:
    """Rows whose scale is far from 1, with the table's first and last among them."""
    table = inputs.telling("draft/embed", (tiny.VOCABULARY, tiny.HIDDEN), profile.dtypes["WEIGHT"]) * 0.125
    for slug, ids, catches in (
        ("anchor-and-masks", [17, 52, 52, 52], "rows are normed, or scaled by the square root of the hidden size"),
        ("edges-of-the-table", [0, 52, 1, 51], "ids count from 1, or the last row is out of reach"),
        ("one-row", [8], "a single row loses its row axis"),
    ):
        yield Case(
            slug, ("DRAFT-001",), {"embedding": table, "ids": np.array(ids)}, catches=catches, effect="acceptance"
        )


def _rows(key: str, profile: Profile, positions: list[int], eps: float, scale: float = 1.0) -> dict[str, Any]:
    """Rows and projections of ordinary values, with norm weights far from 1."""
    act, weight, hidden = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], tiny.HIDDEN
    queries, keys = tiny.HEADS * tiny.HEAD_DIM, tiny.KV_HEADS * tiny.HEAD_DIM
    own = inputs.telling(f"{key}/x", (len(positions), hidden), "F32")
    return {
        "x": inputs.represent(own * scale, act),
        "input_norm": tiny.bold_norm(f"{key}/input_norm", hidden, weight),
        "q_proj": inputs.weights(f"{key}/q", (queries, hidden), weight),
        "k_proj": inputs.weights(f"{key}/k", (keys, hidden), weight),
        "v_proj": inputs.weights(f"{key}/v", (keys, hidden), weight),
        "q_norm": tiny.bold_norm(f"{key}/q_norm", tiny.HEAD_DIM, weight),
        "k_norm": tiny.bold_norm(f"{key}/k_norm", tiny.HEAD_DIM, weight),
        "positions": np.array(positions),
        "theta": 10000.0,
        "eps": inputs.fp32(eps),
    }


def _apart(profile: Profile) -> dict[str, Any]:
    """Heads whose raw rows differ eightfold in scale."""
    given, size = _rows("qkv/apart", profile, [0], 1e-6), tiny.HEAD_DIM
    for name, heads in (("q_proj", tiny.HEADS), ("k_proj", tiny.KV_HEADS)):
        scale = np.repeat(8.0 ** (np.arange(heads) % 3 - 1), size)[:, None]
        given[name] = inputs.represent(given[name] * scale, profile.dtypes["WEIGHT"])
    return given


def _signs(
    key: str, positions: list[int], heads: int, kv: int, size: int, *, theta: float = 100.0, norm: Array | None = None
) -> dict[str, Any]:
    """Rows of ±1 and projections that pick single channels: all raw heads have one magnitude, and no rounding shows."""
    width = 8
    return {
        "x": tiny.signs(f"{key}/x", (len(positions), width)),
        "input_norm": np.full(width, 2.0),
        "q_proj": tiny.picking(f"{key}/q", heads * size, width, [0.5] * heads),
        "k_proj": tiny.picking(f"{key}/k", kv * size, width, [0.5] * kv),
        "v_proj": tiny.picking(f"{key}/v", kv * size, width, [0.25] * kv),
        "q_norm": np.full(size, 1.5) if norm is None else norm,
        "k_norm": np.full(size, 2.5) if norm is None else norm[::-1].copy(),
        "positions": np.array(positions),
        "theta": theta,
        "eps": inputs.fp32(1e-6),
    }


@suite("draft.qkv")
def qkv(profile: Profile) -> Iterator[Case]:
    """Layer norm and head norm at position 0, where nothing turns; rotation on heads that need no rounding."""
    bfloat = profile.name == "ninfer"
    raw = {"q_raw": "DRAFT-012", "k_raw": "DRAFT-012"} if bfloat else {}
    rounded = ("DRAFT-012",) if bfloat else ()
    yield Case(
        "heads-apart", ("DRAFT-003", "DRAFT-002", *rounded), _apart(profile),
        catches="the head norm's mean runs over all heads, or values are normed too",
        effect="acceptance", blame={"n": "DRAFT-002", **raw},
    )  # fmt: skip
    for slug, eps, scale, catches in (
        ("row-norm", 1e-6, 1.0, "the layer norm multiplies by 1 or by 1 + weight, or its mean leaves channels out"),
        ("row-norm-eps", 0.5, 0.5, "eps is added outside the root, or to the sum instead of the mean"),
    ):
        yield Case(
            slug, ("DRAFT-002", "DRAFT-003", *rounded), _rows(f"qkv/{slug}", profile, [0, 0, 0], eps, scale),
            catches=catches, effect="acceptance", blame={"q_normed": "DRAFT-003", "k_normed": "DRAFT-003", **raw},
        )  # fmt: skip
    yield from _rotations()
    if bfloat:
        yield Case(
            "middle-frequencies-far", ("DRAFT-005", "DRAFT-002"),
            _signs("qkv/middle", [262143 - 7 * step for step in range(12)], 2, 1, 64, theta=1e7),
            catches="angles are FP32 products of position and frequency",
            effect="acceptance", blame={"n": "DRAFT-002"},
        )  # fmt: skip
        yield from _roundings(profile)


def _rotations() -> Iterator[Case]:
    ramp = np.array([0.25, 3.0, -1.5, 4.0, 0.5, 2.0])
    for slug, clause, given, catches in (
        ("all-channels", "DRAFT-005",
         tiny.mirrored(_signs("qkv/all", [3, 17], 2, 1, 4, theta=1.0), "q_proj", "k_proj"),
         "only the first half of the head's channels is rotated"),
        ("halves", "DRAFT-004", _signs("qkv/halves", [1, 2, 5], 3, 1, 6),
         "channel j is paired with channel j + 1 instead of j + D/2"),
        ("norm-first", "DRAFT-006", _signs("qkv/norm-first", [2, 3, 9], 2, 2, 6, norm=ramp),
         "queries and keys are rotated before the head norm"),
        ("whole-head-frequencies", "DRAFT-005", _signs("qkv/angles", [5, 90, 700, 701, 2], 6, 2, 10, theta=1e4),
         "pair j turns by theta^(-j/D), or by a frequency of another head size"),
        ("whole-head-far", "DRAFT-005", _signs("qkv/far", [262128, 262143], 2, 1, 10, theta=1e7),
         "the angle loses its fraction at large positions, or positions are cut"),
    ):  # fmt: skip
        yield Case(slug, (clause, "DRAFT-002"), given, catches=catches, effect="acceptance", blame={"n": "DRAFT-002"})


def _roundings(profile: Profile) -> Iterator[Case]:
    yield Case(
        "rounded-before-head-norm", ("DRAFT-012", "DRAFT-002"), _tied_heads(),
        catches="the head norm reads queries and keys before they are rounded",
        effect="acceptance", exact=("n", "q_raw", "k_raw", "q_normed", "k_normed", "v"),
        blame={"n": "DRAFT-002"},
    )  # fmt: skip
    yield Case(
        "rounded-before-projection", ("DRAFT-012", "DRAFT-002"), _tied_rows(),
        catches="the projections read the normed row before it is rounded",
        effect="acceptance", exact=("n", "q_raw", "k_raw", "v"), blame={"n": "DRAFT-002"},
    )  # fmt: skip
    turned = _rows("qkv/turned", profile, [1, 7, 40, 41, 250], 1e-6)
    yield Case(
        "rounded-before-rotation", ("DRAFT-012", "DRAFT-002", "DRAFT-003"), turned,
        catches="the rotation reads queries and keys that the head norm has not rounded",
        effect="acceptance", blame={"n": "DRAFT-002", "q_normed": "DRAFT-003", "k_normed": "DRAFT-003"},
    )  # fmt: skip


def _tied_heads() -> dict[str, Any]:
    """Raw channels of 257, which round to 256, among 256 of both signs: the head norm then divides by 256."""
    size, width = 10, 8
    given = _signs("qkv/tied-heads", [0, 0], 2, 1, size)
    given["x"] = np.ones((2, width)) * np.array([[1.0], [-1.0]])
    given["input_norm"] = np.ones(width)
    for name, heads in (("q_proj", 2), ("k_proj", 1)):
        weights = np.zeros((heads * size, width))
        weights[:, 0] = 256.0 * tiny.signs(f"qkv/tied-heads/{name}", (heads * size,))
        weights[3::size, 1] = np.sign(weights[3::size, 0])
        given[name] = weights
    norm = np.where(np.arange(size) % 3 == 0, 1.9921875, 0.99609375)
    return given | {"q_norm": norm, "k_norm": norm, "eps": 2.0**-20}


def _tied_rows() -> dict[str, Any]:
    """Rows whose norm is just below ±w before it is rounded, and projections of them that tie at 259.

    259 lies between 258 and 260 and goes to the even code 260; the unrounded row gives a little less, so 258.
    """
    given = _signs("qkv/tied-rows", [0, 0, 0], 2, 1, 6)
    width = given["x"].shape[1]
    given["input_norm"] = np.where(np.arange(width) % 2, 1.0, 2.0)
    for name in ("q_proj", "k_proj", "v_proj"):
        rows = len(given[name])
        weights = np.zeros((rows, width))
        channels = np.arange(rows) % (width // 2)
        weights[np.arange(rows), 2 * channels] = 128.0
        weights[np.arange(rows), 2 * channels + 1] = 3.0
        given[name] = weights
    given["x"][:, 1::2] = given["x"][:, 0::2]
    return given | {"eps": 2.0**-10}


@suite("draft.output")
def output(profile: Profile) -> Iterator[Case]:
    """Lattice products, exact in both profiles, and ordinary values."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    width = tiny.HEADS * tiny.HEAD_DIM
    yield Case(
        "lattice", ("DRAFT-009",),
        {
            "attended": inputs.lattice("output/lattice/a", (5, width), 1.0, 1.0),
            "o_proj": inputs.lattice("output/lattice/o", (tiny.HIDDEN, width), 0.5, 0.5),
            "x": inputs.lattice("output/lattice/x", (5, tiny.HIDDEN), 0.5, 30.0),
        },
        catches="the residual is left out, is another row, or heads are concatenated in another order",
        effect="acceptance", exact=("y",),
    )  # fmt: skip
    yield Case(
        "ordinary", ("DRAFT-009",),
        {
            "attended": inputs.telling("output/ordinary/a", (3, width), act),
            "o_proj": inputs.weights("output/ordinary/o", (tiny.HIDDEN, width), weight),
            "x": inputs.telling("output/ordinary/x", (3, tiny.HIDDEN), act) * 4.0,
        },
        catches="the residual is added after a norm, or the branch is scaled",
        effect="acceptance",
    )  # fmt: skip


def _mlp(key: str, profile: Profile, rows: int = 5, gain: float = 1.0, eps: float = 1e-6) -> dict[str, Any]:
    """Rows between 1 and 2 in magnitude, and a branch well below them, so that its last bits do not reach the sum."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    y = inputs.uniform(f"mlp/{key}/y", (rows, tiny.HIDDEN), 1.0, 2.0, act)
    return {
        "y": y * tiny.signs(f"mlp/{key}/signs", y.shape),
        "post_norm": tiny.bold_norm(f"mlp/{key}/norm", tiny.HIDDEN, weight),
        "gate_proj": inputs.weights(f"mlp/{key}/gate", (tiny.INNER, tiny.HIDDEN), weight, gain),
        "up_proj": inputs.weights(f"mlp/{key}/up", (tiny.INNER, tiny.HIDDEN), weight),
        "down_proj": inputs.weights(f"mlp/{key}/down", (tiny.HIDDEN, tiny.INNER), weight, 0.1 / gain),
        "eps": inputs.fp32(eps),
    }


@suite("draft.mlp")
def mlp(profile: Profile) -> Iterator[Case]:
    """Gates small and large, a norm with a large eps, a branch of zeros, and in BF16 the rounded product."""
    both, blame = ("DRAFT-010", "DRAFT-002"), {"m": "DRAFT-002"}
    yield Case(
        "gate-and-up", both, _mlp("gate-and-up", profile),
        catches="gate and up are exchanged, or SiLU is applied to up or to the product",
        effect="acceptance", blame=blame,
    )  # fmt: skip
    yield Case(
        "large-gates", both, _mlp("large-gates", profile, rows=3, gain=8.0),
        catches="SiLU overflows for large negative gates, or GELU or ReLU stands in for it",
        effect="acceptance", blame=blame,
    )  # fmt: skip
    none = _mlp("residual-row", profile, rows=3)
    none["down_proj"] = np.zeros_like(none["down_proj"])
    yield Case(
        "residual-row", both, none,
        catches="the branch is added to the normed row",
        effect="acceptance", exact=("x_next",), blame=blame,
    )  # fmt: skip
    yield Case(
        "row-norm-eps", ("DRAFT-002", "DRAFT-010"), _mlp("row-norm-eps", profile, rows=2, eps=0.5),
        catches="eps is added outside the root, or the weight is left out or raised by 1",
        effect="acceptance", blame={"product": "DRAFT-010", "x_next": "DRAFT-010"},
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "rounded-product", ("DRAFT-012", "DRAFT-002"), _tied_product(),
            catches="down_proj reads the product before it is rounded",
            effect="acceptance", exact=("m", "product", "x_next"), blame=blame,
        )  # fmt: skip


def _tied_product() -> dict[str, Any]:
    """Gates of 32 and more, where SiLU is the identity, and products of 257, 259 and 771 that BF16 does not hold."""
    width, inner = 4, 6
    gate, up = np.zeros((inner, width)), np.zeros((inner, width))
    gate[:, 0], up[:, 0] = 64.0, [257 / 64, 4.0, 259 / 64, 4.0, 771 / 64, 2.0]
    up[:, 1] = up[:, 0] - inputs.represent(up[:, 0], "BF16")
    up[:, 0] -= up[:, 1]
    down = np.zeros((width, inner))
    down[0, :2], down[1, 2:4], down[2, 4:], down[3] = (1.0, -1.0), (1.0, -1.0), (1.0, -2.0), 0.0
    return {
        "y": np.array([[1.0, 1.0, -1.0, 1.0], [1.0, 1.0, 1.0, -1.0]]),
        "post_norm": np.ones(width),
        "gate_proj": gate,
        "up_proj": up,
        "down_proj": down,
        "eps": 2.0**-20,
    }


@suite("draft.final")
def final(profile: Profile) -> Iterator[Case]:
    """Rows that differ from one another, and a block whose two rows are equal, where only the norm can be wrong."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    norm = tiny.bold_norm("final/norm", tiny.HIDDEN, weight)
    rows = inputs.telling("final/rows", (6, tiny.HIDDEN), act) * 2.0
    for slug, clause, x, eps, catches in (
        (
            "equal-rows",
            "DRAFT-002",
            rows[[2, 2]] * 0.25,
            0.5,
            "eps is added outside the root, or the weight is left out",
        ),
        ("mask-rows", "DRAFT-011", rows, 1e-6, "the anchor's row gives the first proposal: all are shifted by one"),
        ("one-proposal", "DRAFT-011", rows[[4, 1]], 1e-6, "the anchor's row is the one that is kept"),
    ):
        yield Case(
            slug, (clause,), {"x": x, "norm": norm, "eps": inputs.fp32(eps)}, catches=catches, effect="acceptance"
        )
