"""The grouped dynamic convolution: each rule on rows of ±1 and lattice weights, where every sum is exact in FP32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

INPUT, OUTPUT = range(2)
HIDDEN, GROUP = tiny.HIDDEN, 4
GROUPS = HIDDEN // GROUP
PREPARED = ("prepared", "finish_delta")


def _signs(key: str, rows: int, block_rows: int, taps: int = 2) -> dict[str, Any]:
    """Rows of ±1, whose norm is the row itself: 1 + 3 = 4, and the weights are 2. Base and projection are zero."""
    return {
        "x": tiny.signs(f"conv/{key}/x", (rows, HIDDEN)),
        "norm": np.full(HIDDEN, 2.0),
        "base": np.zeros((2, taps, HIDDEN)),
        "projection": np.zeros((2 * taps * GROUPS, HIDDEN)),
        "group": GROUP,
        "block_rows": block_rows,
        "eps": 3.0,
    }


def _based(key: str, rows: int, block_rows: int, taps: int = 2) -> dict[str, Any]:
    """A base for every channel, and no increments."""
    given = _signs(key, rows, block_rows, taps)
    given["base"] = inputs.lattice(f"conv/{key}/base", given["base"].shape, 0.25, 4.0)
    return given


def _ordinary(key: str, profile: Profile, rows: int, block_rows: int, eps: float, taps: int = 2) -> dict[str, Any]:
    """Rows, weights and increments of ordinary size."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    return {
        "x": inputs.telling(f"conv/{key}/x", (rows, HIDDEN), act),
        "norm": tiny.bold_norm(f"conv/{key}/norm", HIDDEN, weight),
        "base": inputs.uniform(f"conv/{key}/base", (2, taps, HIDDEN), -1.0, 1.0, weight),
        "projection": inputs.weights(f"conv/{key}/projection", (2 * taps * GROUPS, HIDDEN), weight, 0.5),
        "group": GROUP,
        "block_rows": block_rows,
        "eps": inputs.fp32(eps),
    }


@suite("conv.prepare")
def rows(profile: Profile) -> Iterator[Case]:
    """Which rows a row is mixed with."""
    for slug, clauses, given, catches in (
        ("taps", ("CONV-003",), _based("taps", 5, 5), "the taps are reversed, or the convolution looks forward"),
        ("three-taps", ("CONV-003",), _based("three-taps", 6, 6, 3), "a tap past the first reads the row before it"),
        ("blocks-in-one-array", ("CONV-004",), _based("blocks", 12, 4),
         "the first row of a block reads the last row of the block before it, or of its own"),
        ("blocks-of-one-row", ("CONV-004",), _based("ones", 3, 1), "rows of several requests are taken for one block"),
        ("blocks-shorter-than-the-taps", ("CONV-004",), _based("short", 4, 2, 3),
         "the last tap reaches over a whole block"),
    ):  # fmt: skip
        yield Case(slug, clauses, given, catches=catches, effect="acceptance", exact=PREPARED)


@suite("conv.prepare")
def coefficients(profile: Profile) -> Iterator[Case]:
    """Which coefficient a channel takes."""
    groups = _based("groups", 7, 7)
    groups["projection"] = inputs.lattice("conv/groups/projection", groups["projection"].shape, 0.25, 0.25)
    yield Case(
        "increments-of-a-group", ("CONV-001", "CONV-002"), groups,
        catches="increments go to every sixth channel, base coefficients are shared by a group, or the two multiply",
        effect="acceptance", exact=PREPARED,
    )  # fmt: skip
    identity = _ordinary("identity", profile, 5, 5, 0.5)
    identity["projection"] = np.zeros_like(identity["projection"])
    identity["base"][INPUT] = np.array([[1.0], [0.0]])
    yield Case(
        "identity", ("DRAFT-002", "CONV-001"), identity,
        catches="a convolution as it is initialised changes the normed row, or eps is outside the root",
        effect="acceptance",
    )  # fmt: skip
    counted = _signs("layout", 3, 3)
    counted["x"] = np.ones((3, HIDDEN)) * np.array([[1.0], [-1.0], [1.0]])
    places = np.arange(len(counted["projection"]))
    counted["projection"][places, places * 7 % HIDDEN] = places + 1.0
    yield Case(
        "rows-of-the-projection", ("CONV-002",), counted,
        catches="tap and group, side and tap, or rows and channels of the increments are exchanged",
        effect="acceptance", exact=PREPARED,
    )  # fmt: skip
    yield Case(
        "increments-of-the-normed-row", ("CONV-005", "CONV-002"), _scaled(),
        catches="the increments are projected from the row before the norm",
        effect="acceptance", exact=PREPARED,
    )  # fmt: skip
    for slug, count, width, eps, taps in (("ordinary", 8, 4, 1e-6, 2), ("ordinary-three-taps", 10, 5, 0.25, 3)):
        yield Case(
            slug, ("CONV-001", "CONV-002", "CONV-003"), _ordinary(slug, profile, count, width, eps, taps),
            catches="increments and base are added with the wrong sign, side or tap",
            effect="acceptance",
        )  # fmt: skip


def _scaled() -> dict[str, Any]:
    """Rows of ±8 whose norm is ±2: 64 + 192 = 256, weights 4. Only the output side has increments."""
    given = _based("scaled", 4, 4)
    given["x"] = 8.0 * given["x"]
    given["projection"][len(given["projection"]) // 2 :] = inputs.lattice(
        "conv/scaled/projection", (2 * GROUPS, HIDDEN), 0.25, 0.25
    )
    return given | {"norm": np.full(HIDDEN, 4.0), "eps": 192.0}


@suite("conv.prepare", profiles=("ninfer",))
def roundings(profile: Profile) -> Iterator[Case]:
    """Sums that BF16 does not hold, rounded where the engine rounds them and nowhere else."""
    yield Case(
        "output-increments-rounded", ("CONV-006",), _tied_increments(OUTPUT),
        catches="the output side's increments are kept in FP32, or cut instead of rounded",
        effect="acceptance", exact=PREPARED,
    )  # fmt: skip
    inner = "is rounded to BF16 on the way to the prepared row"
    for slug, given, catches in (
        ("norm-not-rounded", _fine_rows(), f"the norm {inner}"),
        ("input-increments-not-rounded", _tied_increments(INPUT), f"an increment of the input side {inner}"),
        ("coefficients-not-rounded", _fine_coefficients(), f"the sum of base and increment {inner}"),
        ("prepared-rounded", _tied_rows(), "the prepared row is kept in FP32, or cut instead of rounded"),
    ):
        yield Case(slug, ("CONV-007",), given, catches=catches, effect="acceptance", exact=PREPARED)


def _ones(key: str) -> dict[str, Any]:
    """Rows of ones in a block of three."""
    given = _signs(key, 3, 3)
    return given | {"x": np.ones_like(given["x"])}


def _tied_increments(side: int) -> dict[str, Any]:
    """Increments 1 + 2^-8, 1 + 3 · 2^-8 and so on, of one side; on the input side the base takes the 1 away again."""
    given = _ones(f"tied/{side}")
    half = len(given["projection"]) // 2
    own = slice(side * half, (side + 1) * half)
    odd = 2.0 * (np.arange(half) % 6) + 1.0
    given["projection"][own, 3] = np.where(np.arange(half) % 5 == 4, -1.0, 1.0)
    given["projection"][own, 7] = given["projection"][own, 3] * odd * 2.0**-8
    if side == INPUT:
        ones = given["projection"][own, 3].reshape(2, GROUPS)
        given["base"][INPUT] = -np.repeat(ones, GROUP, axis=1)
    return given


def _fine_rows() -> dict[str, Any]:
    """Rows whose norm is 1 + 2^-7 or 1 + 2^-6 + 2^-14 in turn, and a convolution that takes their difference."""
    given = _signs("fine", 4, 4)
    fine = (np.arange(4)[:, None] + np.arange(HIDDEN)) % 2
    given["x"] = 1.0 + fine * 2.0**-7
    given["norm"] = np.full(HIDDEN, 2.0 + 2.0**-6)
    given["base"][INPUT] = np.array([[1.0], [-1.0]])
    return given | {"eps": 3.0 - 2.0**-7 - 2.0**-15}


def _fine_coefficients() -> dict[str, Any]:
    """Coefficients 1 + 2^-9 and -1 of equal rows."""
    given = _ones("coefficients")
    given["base"][INPUT] = np.array([[1.0], [-1.0]])
    given["projection"][:GROUPS, 5] = np.array([1.0, -3.0, 5.0, 1.0, -1.0, 3.0]) * 2.0**-9
    return given


def _tied_rows() -> dict[str, Any]:
    """Prepared rows of ±257/256, ±259/256 and so on, each halfway between two BF16 values."""
    given, sign = _ones("prepared"), np.where(np.arange(HIDDEN) % 3 == 1, -1.0, 1.0)
    odd = 2.0 * (np.arange(HIDDEN) % 7) + 1.0
    given["base"][INPUT] = sign * np.array([np.ones(HIDDEN), odd * 2.0**-8])
    return given


def _finish(key: str, count: int, block_rows: int, inner: int = 10, taps: int = 2) -> dict[str, Any]:
    """Lattice rows; base and increments of the output side are zero, those of the input side are large."""
    base = np.zeros((2, taps, HIDDEN))
    base[INPUT] = inputs.lattice(f"conv/{key}/other", (taps, HIDDEN), 16.0, 64.0)
    return {
        "branch": inputs.lattice(f"conv/{key}/branch", (count, inner), 0.5, 1.0),
        "weight": inputs.lattice(f"conv/{key}/weight", (HIDDEN, inner), 0.5, 0.5),
        "base": base,
        "finish_delta": np.zeros((count, taps, GROUPS)),
        "residual": inputs.lattice(f"conv/{key}/residual", (count, HIDDEN), 0.5, 16.0),
        "group": GROUP,
        "block_rows": block_rows,
    }


def _finish_based(key: str, count: int, block_rows: int, taps: int = 2) -> dict[str, Any]:
    given = _finish(key, count, block_rows, taps=taps)
    given["base"][OUTPUT] = inputs.lattice(f"conv/{key}/base", (taps, HIDDEN), 0.5, 1.0)
    return given


@suite("conv.finish")
def finish(profile: Profile) -> Iterator[Case]:
    """The output side, exact but for one case of ordinary values."""
    plain = _finish("residual", 4, 4)
    plain["base"][OUTPUT] = np.array([[1.0], [-0.5]])
    grouped = _finish("finish-groups", 4, 4)
    grouped["finish_delta"] = inputs.lattice("conv/finish-groups/delta", grouped["finish_delta"].shape, 0.5, 1.0)
    for slug, clauses, given, catches in (
        ("residual-added", ("CONV-008",), plain, "the residual is left out, or is convolved too"),
        ("output-sides-base", ("CONV-005",), _finish_based("sides", 5, 5), "the input side's base is used again"),
        ("taps", ("CONV-003",), _finish_based("finish-taps", 5, 5), "the taps are reversed, or look forward"),
        ("blocks-in-one-array", ("CONV-004",), _finish_based("finish-blocks", 6, 3),
         "the first row of a block reads the last row of the block before it"),
        ("blocks-of-one-row", ("CONV-004",), _finish_based("finish-ones", 2, 1),
         "rows of several requests are taken for one block"),
        ("increments-of-a-group", ("CONV-001",), grouped, "increments go to every sixth channel"),
    ):  # fmt: skip
        yield Case(slug, clauses, given, catches=catches, effect="acceptance", exact=("residual_next",))
    yield Case(
        "ordinary", ("CONV-001", "CONV-005", "CONV-003"), _finish_ordinary(profile),
        catches="the output side takes another base, increment, row or order of taps",
        effect="acceptance",
    )  # fmt: skip


def _finish_ordinary(profile: Profile) -> dict[str, Any]:
    act, weight, count, inner = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], 9, tiny.HEADS * tiny.HEAD_DIM
    delta: Array = inputs.normal_like("conv/finish/delta", (count, 2, GROUPS), 0.5, act)
    return {
        "branch": inputs.telling("conv/finish/branch", (count, inner), act),
        "weight": inputs.weights("conv/finish/weight", (HIDDEN, inner), weight),
        "base": inputs.uniform("conv/finish/base", (2, 2, HIDDEN), -1.0, 1.0, weight),
        "finish_delta": delta,
        "residual": inputs.telling("conv/finish/residual", (count, HIDDEN), act) * 4.0,
        "group": GROUP,
        "block_rows": 3,
    }
