"""Rounding to each format, and contractions whose partial sums no BF16 can hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF, NAN = float("inf"), float("nan")
ODD = (1, 2, 3, 7, 42, 126, 127)
"""Significand steps above a power of two; odd and even ones tie in different directions."""


def _pairs(*pairs: tuple[float, float]) -> dict[str, Array]:
    hi, lo = zip(*pairs, strict=True)
    return {"hi": np.array(hi), "lo": np.array(lo)}


def _ties(step: float, scales: tuple[float, ...]) -> list[tuple[float, float]]:
    """Midpoints between neighbours of a format whose steps above 1 are `step`, of both signs."""
    points = [(1 + (k + 0.5) * step) * scale for k in ODD for scale in scales]
    return [(sign * point, 0.0) for point in points for sign in (1.0, -1.0)]


def _specks(step: float, speck: float) -> list[tuple[float, float]]:
    """Midpoints that a summand far below their own precision decides, towards and away from the even neighbour."""
    points = [1 + (k + 0.5) * step for k in ODD]
    return [(sign * point, way * speck) for point in points for sign in (1.0, -1.0) for way in (1.0, -1.0)]


@suite("num.round_bf16")
def bf16(profile: Profile) -> Iterator[Case]:
    """Ties, specks beside ties, both ends of the range, and signs of zero."""
    yield Case(
        "ties", ("NUM-001",), _pairs(*_ties(2.0**-7, (1.0, 2.0**60, 2.0**-90))),
        catches="ties go up, or away from zero, or the low half is cut off",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "specks-beside-ties", ("NUM-001",), _pairs(*_specks(2.0**-7, 2.0**-40), *_specks(2.0**-7, 2.0**-100)),
        catches="the value is rounded to FP32 first, which turns a value beside a tie into the tie",
        effect="acceptance",
    )  # fmt: skip
    far = inputs.uniform("num/bf16/far", (40,), -300.0, 300.0, "F32")
    near = inputs.uniform("num/bf16/near", (40,), -(2.0**-9), 2.0**-9, "F32")
    yield Case(
        "spread", ("NUM-001",), {"hi": far, "lo": near},
        catches="the significand has another width than 8 bits",
        effect="acceptance",
    )  # fmt: skip
    top = 255 * 2.0**120
    yield Case(
        "overflow", ("NUM-002",),
        _pairs((top, 0), (-top, 0), (511 * 2.0**119, 0), (-511 * 2.0**119, 0), (511 * 2.0**119, -(2.0**100)),
               (top, 2.0**118), (INF, 1.0), (-INF, -1.0)),
        catches="values above the greatest are clipped to it, or infinity begins at another magnitude",
        effect="output",
    )  # fmt: skip
    yield Case(
        "subnormals", ("NUM-002",),
        _pairs((2.0**-133, 0), (-(2.0**-134), 0), (1.5 * 2.0**-133, 0), (2.5 * 2.0**-133, 0), (-3.5 * 2.0**-133, 0),
               (2.0**-134, 2.0**-149), (127.5 * 2.0**-133, 0), (-(2.0**-126), 0), (2.0**-126, -(2.0**-136))),
        catches="magnitudes below 2^-126 are flushed to zero, or cut",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "zeros-and-nan", ("NUM-002",), _pairs((0.0, 0.0), (-0.0, -0.0), (-(2.0**-140), 0.0), (NAN, 0.0), (1.0, NAN)),
        catches="the sign of a zero is lost, or NaN becomes a number",
        effect="output",
    )  # fmt: skip


@suite("num.round_fp16")
def fp16(profile: Profile) -> Iterator[Case]:
    """Ties and specks at 11 bits, the edge at 65520, and the subnormals."""
    yield Case(
        "ties", ("NUM-003",), _pairs(*_ties(2.0**-10, (1.0, 4096.0, 2.0**-13))),
        catches="ties go up, or away from zero, or low bits are cut off",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "specks-beside-ties", ("NUM-003",), _pairs(*_specks(2.0**-10, 2.0**-40)),
        catches="the value is rounded to FP32 first, which turns a value beside a tie into the tie",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "overflow", ("NUM-003",),
        _pairs((65504, 0), (65519, 0.5), (65520, -(2.0**-10)), (65520, 0), (-65520, 0), (-65520, 2.0**-10),
               (65536, 0), (2.0**127, 2.0**126), (-INF, 0)),
        catches="65520 and more are clipped to 65504",
        effect="output",
    )  # fmt: skip
    yield Case(
        "subnormals", ("NUM-004",),
        _pairs((2.0**-24, 0), (2.0**-25, 0), (2.0**-25, 2.0**-60), (-(2.0**-25), 0), (1.5 * 2.0**-24, 0),
               (2.5 * 2.0**-24, 0), (-1022.5 * 2.0**-24, 0), (1023.5 * 2.0**-24, 0), (2.0**-14, 0),
               (2.0**-14, -(2.0**-26)), (777 * 2.0**-24, 2.0**-26)),
        catches="magnitudes below 2^-14 are flushed to zero",
        effect="acceptance",
    )  # fmt: skip


@suite("num.round_fp32")
def fp32(profile: Profile) -> Iterator[Case]:
    """Ties at 24 bits, and sums that float64 cannot hold."""
    half = 2.0**-24
    ties = [(s * (1 + k * 2 * half), s * half) for k in (0, 1, 2, 3, 4194303, 8388607) for s in (1.0, -1.0)]
    beside = [(hi, lo * (1 + way * 2.0**-23)) for hi, lo in ties for way in (1.0, -1.0)]
    yield Case(
        "ties", ("NUM-005",), _pairs(*ties),
        catches="sums are cut instead of rounded, or ties go away from zero",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "beside-ties", ("NUM-005",), _pairs(*beside),
        catches="the low summand is rounded before it is added",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "beyond-float64", ("NUM-005",),
        _pairs((1.0, -(2.0**-100)), (-1.0, 2.0**-100), (1.0, 2.0**-100), (2.0**100, -1.0), (1 + 2.0**-23, -(2.0**-80))),
        catches="a cut of the sum instead of a rounding falls below the power of two",
        effect="acceptance",
    )  # fmt: skip


@suite("num.round_fp32")
def fp32_subnormals(profile: Profile) -> Iterator[Case]:
    """Sums below 2^-126, which FP32 holds exactly."""
    least = 2.0**-149
    yield Case(
        "subnormals", ("NUM-005",),
        _pairs((least, 0), (-least, 0), (3 * least, least), (2.0**-126, -least), (-(2.0**-126), least),
               (2.0**-127, 2.0**-128), (2.0**-130, -5 * least), (2.0**-126, 0), (least, -least), (1.0, least)),
        catches="magnitudes below 2^-126 are flushed to zero, before or after the addition",
        effect="acceptance",
    )  # fmt: skip


def _swallowed() -> dict[str, Array]:
    """Sums that start large: a BF16 accumulator loses every later term, and the order does not matter in FP32."""
    x = np.ones((3, 65))
    x[0, 0] = 512.0
    x[1, 32] = -1024.0
    x[2] = -0.5
    w = np.ones((7, 65))
    w[:, 1:] *= (np.arange(7)[:, None] - 3) / 4
    w[5, ::3] = 0.0
    return {"x": x, "w": w}


def _long_products() -> dict[str, Array]:
    """Products of two full 8-bit significands, none of which BF16 holds."""
    x = 1 + (2 * inputs.lattice("num/products/x", (4, 9), 1.0, 31.0) + 63) / 128
    w = 1 + (2 * inputs.lattice("num/products/w", (5, 9), 1.0, 31.0) + 63) / 128
    return {"x": x, "w": w * np.where(np.arange(9) % 2, -1.0, 1.0)}


@suite("num.contract")
def contract(profile: Profile) -> Iterator[Case]:
    """Exact sums on lattices, then ordinary values under a bound."""
    yield Case(
        "long-sum", ("NUM-006",), _swallowed(),
        catches="partial sums are held in BF16 and swallow small terms",
        effect="acceptance", exact=("y",),
    )  # fmt: skip
    yield Case(
        "long-products", ("NUM-006",), _long_products(),
        catches="products are rounded to BF16 before they are added",
        effect="acceptance", exact=("y",),
    )  # fmt: skip
    yield Case(
        "lattice", ("NUM-006",),
        {
            "x": inputs.lattice("num/lattice/x", (5, 24), 0.25, 2.0),
            "w": inputs.lattice("num/lattice/w", (20, 24), 0.125, 1.0),
        },
        catches="the weight is read transposed, or a term is left out",
        effect="output", exact=("y",),
    )  # fmt: skip
    yield Case(
        "ordinary", ("NUM-006",),
        {
            "x": inputs.telling("num/ordinary/x", (5, 129), profile.dtypes["ACT"]),
            "w": inputs.weights("num/ordinary/w", (7, 129), profile.dtypes["WEIGHT"]),
        },
        catches="the sum loses more than FP32 accumulation may lose",
        effect="acceptance",
    )  # fmt: skip
