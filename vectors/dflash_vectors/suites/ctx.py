"""Context: the common row of each position, its keys and values, and which captured rows become context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

FEATURE_BLAME = {"projected": "CTX-001"}
KEY_BLAME = {"raw": "CTX-005", "normed": "CTX-005"}


def _features(key: str, profile: Profile, eps: float, taps: int = 3, scale: float = 1.0) -> dict[str, Any]:
    """Features whose slices differ tenfold in scale, as taps of different depth do."""
    act, weight, width = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], tiny.HIDDEN
    own = inputs.telling(f"ctx/{key}/features", (5, taps * width), "F32")
    depth = np.repeat(10.0 ** np.arange(taps) / 10, width)
    return {
        "features": inputs.represent(own * depth * scale, act),
        "fc": inputs.weights(f"ctx/{key}/fc", (width, taps * width), weight),
        "hidden_norm": tiny.bold_norm(f"ctx/{key}/norm", width, weight),
        "eps": inputs.fp32(eps),
    }


@suite("context.feature")
def feature(profile: Profile) -> Iterator[Case]:
    """Projection first, then a norm with weights far from 1; eps as large as the mean square in one case."""
    yield Case(
        "project-then-norm", ("CTX-001", "CTX-002"), _features("project-then-norm", profile, 1e-6),
        catches="each tap is normed before the projection, so that deep taps no longer outweigh shallow ones",
        effect="acceptance", blame={"c": "CTX-002"},
    )  # fmt: skip
    yield Case(
        "weights-far-from-one", ("CTX-002", "CTX-001"), _features("weights-far-from-one", profile, 1e-6, taps=2),
        catches="the norm is left out, or multiplies by 1 or by 1 + weight",
        effect="acceptance", blame=FEATURE_BLAME,
    )  # fmt: skip
    yield Case(
        "eps-within-root", ("CTX-002", "CTX-001"), _features("eps-within-root", profile, 0.5, taps=1, scale=4.0),
        catches="eps is added outside the root, or left out",
        effect="acceptance", blame=FEATURE_BLAME,
    )  # fmt: skip
    yield Case(
        "small-rows", ("CTX-002", "CTX-001"), _features("small-rows", profile, 1e-6, taps=1, scale=0.01),
        catches="rows with a mean square near eps are scaled up to 1",
        effect="acceptance", blame=FEATURE_BLAME,
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "projection-rounded", ("CTX-003",), _tied_projection(),
            catches="the norm reads the projection before it is rounded to BF16",
            effect="acceptance", exact=("projected", "c"),
        )  # fmt: skip


def _tied_projection() -> dict[str, Any]:
    """Projections of 257 and 255.5, which round to 256, among 256 of both signs: the norm then divides by 256.

    The weights have the largest significand, so a projection that stayed at 257 ends one BF16 step higher.
    """
    width, rows = 16, 3
    fc = np.zeros((width, width))
    fc[:, 0] = 256.0 * np.where(inputs.hashes("ctx/tied/signs", (width,)) & np.uint64(1), 1.0, -1.0)
    features = np.zeros((rows, width))
    features[:, 0] = 1.0
    for row, (channel, extra) in enumerate([(3, 1.0), (7, -0.5), (12, 1.0)]):
        fc[channel, 1 + row] = np.copysign(extra, extra * fc[channel, 0])
        features[row, 1 + row] = 1.0
    weights = np.where(np.arange(width) % 3 == 0, 1.9921875, 0.99609375)
    return {"features": features, "fc": fc, "hidden_norm": weights, "eps": 2.0**-20}


def _key(key: str, profile: Profile, positions: list[int], kv: int, size: int, **other: Any) -> dict[str, Any]:
    """Raw heads of one magnitude and keyed signs (tiny.signs), so that no rounding of a stage matters to the next."""
    rows = tiny.signs(f"ctx/{key}/c", (len(positions), 8))
    weight = profile.dtypes["WEIGHT"]
    return {
        "c": rows,
        "k_proj": tiny.picking(f"ctx/{key}/k_proj", kv * size, 8, [0.5] * kv),
        "k_norm": inputs.represent(other.get("norm", np.full(size, 1.5)), weight),
        "positions": np.array(positions),
        "theta": other.get("theta", 100.0),
        "eps": inputs.fp32(1e-6),
    }


def _key_apart(profile: Profile) -> dict[str, Any]:
    """Heads whose scales differ eightfold, a norm weight for each channel, and no turn at position 0."""
    act, weight, size = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], 6
    scale = np.repeat([0.125, 1.0, 8.0], size)[:, None]
    return {
        "c": inputs.telling("ctx/apart/c", (1, tiny.HIDDEN), act),
        "k_proj": inputs.represent(inputs.weights("ctx/apart/k_proj", (18, tiny.HIDDEN), "F32") * scale, weight),
        "k_norm": tiny.bold_norm("ctx/apart/k_norm", size, weight),
        "positions": np.zeros(1, dtype=np.int64),
        "theta": 10000.0,
        "eps": inputs.fp32(1e-6),
    }


MIDDLE = [262143 - 5 * step for step in range(24)]
"""Far positions for a head of 64 channels: a frequency of about 1/2 makes angles whose FP32 step is 1/128."""


@suite("context.key", profiles=("ninfer",))
def far(profile: Profile) -> Iterator[Case]:
    """Angles near 2^18 at frequencies between 1 and 2^-6, where FP32 holds no more than 8 bits of the fraction."""
    yield Case(
        "middle-frequencies-far", ("DRAFT-005", "CTX-005"),
        _key("middle", profile, MIDDLE, 1, 64, theta=1e7),
        catches="angles are FP32 products of position and frequency",
        effect="acceptance", blame={**KEY_BLAME, "key": "DRAFT-005"},
    )  # fmt: skip


@suite("context.key")
def key(profile: Profile) -> Iterator[Case]:
    """One rule a case: sizes, weights and positions of each are such that faults of the other rules cannot show.

    A head of one pair is turned alike by every pairing, a constant weight commutes with the rotation, and positions
    that count from 0 are their own index.
    """
    yield Case(
        "after-norm-rotated", ("CTX-005",), _key("both", profile, [0, 1, 2], 1, 2, norm=np.array([2.5, 2.5])),
        catches="context keys are cached raw: the head norm or the rotation is for block rows only",
        effect="acceptance",
    )  # fmt: skip
    rope = {**KEY_BLAME, "key": "DRAFT-005"}
    yield Case(
        "all-channels", ("DRAFT-005", "CTX-005"),
        tiny.mirrored(_key("all", profile, [0, 1, 2], 1, 4, theta=1.0), "k_proj"),
        catches="only the first half of the head's channels is rotated",
        effect="acceptance", blame=rope,
    )  # fmt: skip
    yield Case(
        "halves", ("DRAFT-004", "CTX-005"), _key("halves", profile, [0, 1, 2, 3], 2, 6),
        catches="channel j is paired with channel j + 1 instead of j + D/2",
        effect="acceptance", blame={**KEY_BLAME, "key": "DRAFT-004"},
    )  # fmt: skip
    yield Case(
        "heads-apart", ("DRAFT-003", "CTX-005"), _key_apart(profile),
        catches="the root mean square is taken over all heads together",
        effect="acceptance", blame={"raw": "CTX-005"},
    )  # fmt: skip
    ramp = np.array([0.25, 3.0, -1.5, 4.0, 0.5, 2.0])
    yield Case(
        "norm-first", ("DRAFT-006", "CTX-005"), _key("norm-first", profile, [0, 1, 2, 3], 1, 6, norm=ramp),
        catches="keys are rotated before the head norm, so that a channel's weight meets another channel",
        effect="acceptance", blame=KEY_BLAME | {"key": "DRAFT-006"},
    )  # fmt: skip
    positions = {**KEY_BLAME, "key": "CTX-006"}
    yield Case(
        "position-of-the-token", ("CTX-006", "CTX-005"), _key("position", profile, [4093, 4094, 4095, 4096], 2, 2),
        catches="a key is rotated by its index in the window or in the chunk",
        effect="acceptance", blame=positions,
    )  # fmt: skip
    yield Case(
        "position-zero", ("CTX-006", "CTX-005"), _key("zero", profile, [0, 1, 2], 3, 2),
        catches="positions count from 1",
        effect="acceptance", blame=positions,
    )  # fmt: skip
    yield Case(
        "positions-of-a-ring", ("CTX-006", "CTX-005"), _key("ring", profile, [36, 37, 30, 31, 32], 1, 2),
        catches="rows are taken to lie in the order of their positions",
        effect="acceptance", blame=positions,
    )  # fmt: skip
    yield Case(
        "whole-head-far", ("DRAFT-005", "CTX-005"), _key("far", profile, [262100, 262143], 2, 10, theta=1e7),
        catches="the angle loses its fraction at large positions, or positions are cut",
        effect="acceptance", blame=rope,
    )  # fmt: skip
    yield Case(
        "whole-head-frequencies", ("DRAFT-005", "CTX-005"), _key("angles", profile, [0, 1, 2, 3, 4, 5], 2, 10),
        catches="pair j turns by theta^(-j/D), or by a frequency of another head size",
        effect="acceptance", blame=rope,
    )  # fmt: skip


def _value(key: str, kv: int, size: int, rows: int = 4, width: int = 10) -> dict[str, Any]:
    """Products on a lattice of quarters below 64: both BF16 and FP16 hold them."""
    return {
        "c": inputs.lattice(f"ctx/value/{key}/c", (rows, width), 0.5, 2.0),
        "v_proj": inputs.lattice(f"ctx/value/{key}/v", (kv * size, width), 0.5, 2.0),
        "kv_heads": kv,
    }


def _rounded_twice() -> dict[str, Any]:
    """Products that BF16 and then FP16 take elsewhere than FP16 alone: 65519, ties of BF16, small magnitudes."""
    pairs = [
        (65280.0, 239.0), (-65280.0, -239.0), (32768.0, 129.0), (1024.0, 5.0), (1.0, 2.0**-8), (1.0, 2.0**-10),
        (3.0, 2.0**-7), (2.0**-12, 3 * 2.0**-21), (65024.0, 0.0), (65280.0, 128.0),
    ]  # fmt: skip
    weights = np.array(pairs)
    return {"c": np.array([[1.0, 1.0], [0.5, 0.5], [-1.0, -1.0]]), "v_proj": weights, "kv_heads": 2}


@suite("context.value")
def value(profile: Profile) -> Iterator[Case]:
    """Lattice products, exact in every profile, and the double rounding of the FP16 cache."""
    for slug, kv, size, catches in (
        ("heads-in-columns", 3, 5, "head h is read from every third column instead of a block of columns"),
        ("projection-alone", 2, 6, "values are normed or rotated as keys are"),
        ("single-head", 1, 10, "one KV head is split or repeated"),
    ):
        yield Case(
            slug, ("CTX-008",), _value(slug, kv, size), catches=catches, effect="acceptance", exact=("raw", "value")
        )
    if profile.name == "ninfer":
        yield Case(
            "two-roundings", ("CTX-007",), _rounded_twice(),
            catches="values are rounded to FP16 directly: 65519 stays finite, and ties of BF16 fall elsewhere",
            effect="acceptance", exact=("raw", "value"),
        )  # fmt: skip


def _pending(key: str, profile: Profile, rows: int, frontier: int, committed: int) -> Mapping[str, Any]:
    """Rows of rejected proposals hold numbers that no later layer could take for small."""
    captured: Array = inputs.telling(f"ctx/pending/{key}", (rows, 20), profile.dtypes["ACT"])
    captured[committed:] *= 2.0**20
    return {"captured": captured, "frontier": frontier, "committed": committed}


@suite("context.pending")
def pending(profile: Profile) -> Iterator[Case]:
    """Commits that keep the anchor alone, a part, and everything."""
    rounds = [
        ("anchor-alone", 5, 17, 1, "nothing is pending after a round that rejects every proposal"),
        ("part", 6, 262130, 4, "rows of rejected proposals become context"),
        ("everything", 4, 0, 4, "the last row is left out, because its token is the next anchor"),
        ("nothing", 5, 97, 0, "a cancelled round leaves a row, or moves the context on"),
        ("all-but-one", 16, 31, 15, "one rejected row stays visible behind the kept ones"),
    ]
    if profile.axes["extent"] == "remaining_minus_one":
        rounds.append(("plain-step", 1, 4095, 1, "the single row of a round without proposals is not captured"))
    for slug, rows, frontier, committed, catches in rounds:
        yield Case(
            slug, ("CTX-009",), _pending(slug, profile, rows, frontier, committed), catches=catches, effect="acceptance"
        )
