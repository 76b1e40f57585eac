"""The target's sampling pipeline: distribution at a temperature, greedy token, inverse-CDF draw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF = float("inf")
ALMOST_ONE = 1.0 - 2.0**-24


def _rows(key: str, shape: tuple[int, int], dtype: str) -> Array:
    """Logits in [-6, 6] of which no two in a row are equal."""
    order = np.argsort(inputs.hashes(key, shape), axis=1, kind="stable").argsort(axis=1, kind="stable")
    return inputs.represent((order - shape[1] // 2) * 0.1875, dtype)


@suite("proc.distribution")
def distribution(profile: Profile) -> Iterator[Case]:
    """Temperatures, padding, short supports, and logits that overflow a careless exponential."""
    dtype = profile.dtypes["LOGIT"]
    yield Case(
        "three-logits", ("PROC-003",),
        {"logits": np.array([[2.0, 1.0, -1.0]]), "temperature": inputs.fp32(0.7), "public": 3},
        catches="the temperature is ignored, inverted, or applied after the exponential",
        effect="output",
    )  # fmt: skip
    rows = _rows("proc/rows", (3, 61), dtype)
    for name, temperature in (("0-3", 0.3), ("0-7", 0.7), ("1", 1.0), ("1-5", 1.5)):
        yield Case(
            f"temperature-{name}", ("PROC-003",),
            {"logits": rows, "temperature": inputs.fp32(temperature), "public": 61},
            catches="the temperature is ignored, inverted, or applied after the exponential",
            effect="output",
        )  # fmt: skip
    for slug, step, temperature in (("temperature-0-001", 0.1875 * 2.0**-9, 0.001), ("temperature-100", 12.0, 100.0)):
        yield Case(
            slug, ("PROC-003",),
            {"logits": rows / 0.1875 * step, "temperature": inputs.fp32(temperature), "public": 61},
            catches="the temperature is kept within limits that nobody asked for, or taken for 0",
            effect="output",
        )  # fmt: skip
    padded = rows.copy()
    padded[:, 53:] = 40.0
    yield Case(
        "padding-above-public", ("PROC-001",), {"logits": padded, "temperature": inputs.fp32(0.7), "public": 53},
        catches="padding rows of the vocabulary take probability",
        effect="output",
    )  # fmt: skip
    few = padded[:, 46:]
    yield Case(
        "fewer-public-than-the-cap", ("PROC-001",), {"logits": few, "temperature": 1.0, "public": 7},
        catches="a vocabulary smaller than the cap is filled up with padding rows",
        effect="output",
    )  # fmt: skip
    yield Case(
        "large-logits", ("PROC-003",),
        {"logits": inputs.represent(rows + 320.0, dtype), "temperature": inputs.fp32(0.3), "public": 61},
        catches="the largest logit is not subtracted and the exponential overflows",
        effect="crash", tags=("tie",),
    )  # fmt: skip
    yield Case(
        "peaked", ("PROC-003",), {"logits": _peaked(), "temperature": inputs.fp32(0.7), "public": 31},
        catches="probabilities that underflow to 0 become NaN or a floor",
        effect="output", tags=("tie",),
    )  # fmt: skip
    yield Case(
        "all-equal", ("PROC-003",), {"logits": np.full((1, 43), -3.25), "temperature": 1.5, "public": 41},
        catches="equal logits get unequal probabilities",
        effect="output", tags=("tie",),
    )  # fmt: skip


def _peaked() -> Array:
    """One logit 200 above all others: exp(-200 / T) is 0 in FP32."""
    rows = np.full((2, 33), -100.0)
    rows[0, 30], rows[1, 0] = 100.0, 100.0
    return rows


@suite("proc.distribution", profiles=("ninfer",))
def capped(profile: Profile) -> Iterator[Case]:
    """The twenty largest logits, in rank order."""
    yield Case(
        "rank-order", ("PROC-004",), {"logits": np.array([[1.0, 3.0, -2.0, 3.0]]), "temperature": 1.0, "public": 4},
        catches="the support is in order of id, or equal logits in descending order of id",
        effect="output", tags=("tie",),
    )  # fmt: skip
    ties = "equal logits at the cap are cut by a sort that does not keep the lower id"
    boundary = _rows("proc/boundary", (1, 47), "BF16")
    order = np.argsort(-boundary[0], kind="stable")
    boundary[0, order[17:25]] = boundary[0, order[19]]
    yield Case(
        "ties-at-the-cap", ("PROC-004",), {"logits": boundary, "temperature": 1.0, "public": 47},
        catches=ties, effect="output", tags=("tie",),
    )  # fmt: skip
    yield Case(
        "all-tied", ("PROC-004",), {"logits": np.full((1, 59), 2.5), "temperature": 1.0, "public": 57},
        catches=ties, effect="output", tags=("tie",),
    )  # fmt: skip
    zeros = np.full((1, 29), -4.0)
    zeros[0, [3, 11, 19, 28]] = [0.0, -0.0, 0.0, -0.0]
    yield Case(
        "tied-zero-signs", ("PROC-004",), {"logits": zeros, "temperature": 1.0, "public": 29},
        catches="an integer sort key puts +0 above -0", effect="output", tags=("tie",),
    )  # fmt: skip
    for slug, public in (("just-below-the-cap", 19), ("just-the-cap", 20), ("just-above-the-cap", 21)):
        yield Case(
            slug, ("PROC-004",),
            {"logits": _rows("proc/cap", (2, 23), "BF16"), "temperature": 1.0, "public": public},
            catches="the support has 19 or 21 entries",
            effect="output",
        )  # fmt: skip
    yield Case(
        "mass-of-the-cap", ("PROC-004", "PROC-003"),
        {"logits": _rows("proc/mass", (2, 101), "BF16") * 0.125, "temperature": 1.0, "public": 101},
        catches="probabilities are normalised over the whole vocabulary and not over the support",
        effect="output",
    )  # fmt: skip


@suite("proc.greedy")
def greedy(profile: Profile) -> Iterator[Case]:
    """The target's argmax: padding and ties."""
    rows = _rows("proc/greedy", (4, 53), profile.dtypes["LOGIT"])
    yield Case(
        "plain", ("PROC-002",), {"logits": rows, "public": 53},
        catches="rows of the batch are mixed, or the smallest logit wins", effect="output",
    )  # fmt: skip
    yield Case(
        "last-public-row", ("PROC-001",), {"logits": np.array([[-2.0, 3.0, 4.0]]), "public": 2},
        catches="the public count is off by one", effect="output",
    )  # fmt: skip
    padded = rows.copy()
    padded[:, 47:] = 99.0
    yield Case(
        "padding-above-public", ("PROC-001",), {"logits": padded, "public": 47},
        catches="a padding row of the vocabulary is emitted", effect="output",
    )  # fmt: skip
    for slug, row, public in (
        ("tie-apart", [1.0, 6.5, -2.0, 6.5, 6.5], 5),
        ("tie-all-equal", [-0.75] * 39, 39),
        ("tie-zero-signs", [-1.0, -0.0, 0.0, -0.0], 4),
        ("tie-with-padding", [0.0, 3.0, 3.0, 3.0], 3),
    ):
        yield Case(
            slug, ("PROC-002",), {"logits": np.array([row]), "public": public},
            catches="an exact tie goes to a higher id", effect="output", tags=("tie",),
        )  # fmt: skip
    low = np.append(-(2.0 ** np.array([33.0, 34.0, 31.0, 32.0, 35.0])), [6.0, 6.0])[None]
    yield Case(
        "padding-above-far-below", ("PROC-001",), {"logits": low, "public": 5},
        catches="padding rows are given -1e9 instead of being left out, and win", effect="output",
    )  # fmt: skip
    yield Case(
        "only-last-finite", ("PROC-002",), {"logits": np.array([[-INF] * 34 + [-77.0]]), "public": 35},
        catches="idle lanes that carry index 0 win over a finite logit", effect="output",
    )  # fmt: skip


@suite("proc.draw")
def draw(profile: Profile) -> Iterator[Case]:
    """Uniforms on and beside the edges of the cumulative sum; every sum here is exact in FP32."""
    four = (0.5, 0.25, 0.125, 0.125)
    edge = "a uniform equal to the cumulative sum picks the rank before"
    yield _draw("edge", (0.5, 0.5), 0.5, edge)
    yield _draw("inside-first", (0.5, 0.5), 0.25, "the rank is one late")
    for rank, end in enumerate((0.5, 0.75, 0.875)):
        yield _draw(f"at-end-of-rank-{rank}", four, end, edge)
        yield _draw(
            f"below-end-of-rank-{rank}", four, end - 2.0**-24, "the uniform is coarser, or the rank is one late"
        )
    yield _draw("inside-last", four, 0.96875, "ranks are counted from the other end")
    yield _draw("lowest-uniform", four, 0.0, "u = 0 has no rank")
    yield _draw("lowest-uniform-zero-first", (0.0, 0.75, 0.0, 0.25), 0.0, "u = 0 picks a rank of probability 0")
    yield _draw("highest-uniform", four, ALMOST_ONE, "the last rank is out of reach")
    yield _draw("highest-uniform-certain", (1.0, 0.0, 0.0), ALMOST_ONE, "a certain token is missed")
    middle = (0.25, 0.0, 0.0, 0.75)
    yield _draw("zero-in-the-middle", middle, 0.25, "a rank of probability 0 is drawn at the edge before it")
    yield _draw("below-zero-in-the-middle", middle, 0.25 - 2.0**-24, "a rank of probability 0 is drawn")
    short = "where no sum exceeds u the first rank, or one of probability 0, is drawn"
    yield _draw("sum-stays-below", (0.0, 0.5), 0.75, short)
    yield _draw("sum-stays-below-zero-last", (0.5, 0.0), 0.75, short)
    yield _draw("sum-stays-below-by-one-tick", (0.5, 0.25, 0.25 - 2.0**-24, 0.0), ALMOST_ONE, short)
    yield _draw("sum-stays-below-at-equality", (0.25, 0.5, 0.0, 0.125), 0.875, short)
    coarse = "probabilities are rounded to half precision before the draw"
    up, down = 314573 * 2.0**-20, 681575 * 2.0**-20
    tick = 2.0**-21
    yield _draw("just-past-a-fine-edge", (up, 1 - up), up + tick, coarse)
    yield _draw("just-before-a-fine-edge", (down, 1 - down), down - tick, coarse)
    yield _draw("just-past-the-sum-of-two", (0.125, up, 0.875 - up), 0.125 + up + tick, coarse)
    yield Case(
        "padded-support", ("PROC-005",),
        {
            "support": np.array([[40, 12, -1, -1], [7, -1, -1, -1], [3, 2, 1, 8]]),
            "p": np.array([[0.5, 0.4375, 0.0, 0.0], [0.9375, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]),
            "u": np.array([ALMOST_ONE, 0.96875, 0.8125]),
        },
        catches="the padding of a short support is drawn, or rows of the batch are mixed",
        effect="crash", tags=("tie",),
    )  # fmt: skip


def _draw(slug: str, p: tuple[float, ...], u: float, why: str) -> Case:
    """One row; the ids are in no order."""
    inputs_ = {"support": np.array([(17, 5, 29, 2)[: len(p)]]), "p": np.array([p]), "u": np.array([u])}
    return Case(slug, ("PROC-005",), inputs_, catches=why, effect="output", tags=("tie",))
