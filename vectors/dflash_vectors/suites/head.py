"""The proposal head: logits through the target's head, and the argmax over its public rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF = float("inf")


@suite("head.logits")
def logits(profile: Profile) -> Iterator[Case]:
    """Rows of ordinary scale, rows on a lattice, and rows whose logits meet after rounding."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    small = {"hidden": np.array([[3.0, -1.0]]), "head": np.array([[2.0, 1.0], [0.5, 4.0]])}
    yield Case(
        "two-by-two", ("HEAD-001",), small,
        catches="the hidden row is normed again, or the head's rows are shifted",
        effect="acceptance", exact=("logits",),
    )  # fmt: skip
    yield Case(
        "rows-far-from-norm-one", ("HEAD-001",),
        {
            "hidden": inputs.telling("head/hidden", (5, 48), act) * 4.0,
            "head": inputs.weights("head/rows", (83, 48), weight),
        },
        catches="the hidden rows are normed again before the head",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "one-row", ("HEAD-001",),
        {
            "hidden": inputs.normal_like("head/one", (1, 33), 3.0, act),
            "head": inputs.weights("head/one/rows", (19, 33), weight),
        },
        catches="the row of the anchor, or no row, reaches the head of a one-proposal block",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "lattice", ("HEAD-001",),
        {
            "hidden": inputs.lattice("head/lattice", (3, 40), 1.0, 3.0),
            "head": inputs.lattice("head/lattice/rows", (29, 40), 0.25, 0.5),
        },
        catches="another table than the head is used, its rows are permuted, or terms are added in BF16",
        effect="acceptance", exact=("logits",),
    )  # fmt: skip
    yield Case(
        "long-sum", ("HEAD-001",), _long_sum(),
        catches="the accumulator is BF16 and swallows the small terms after the large one",
        effect="acceptance", exact=("logits",),
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "logits-meet-in-bf16", ("HEAD-004",), _meeting_logits(),
            catches="the argmax reads FP32 logits, where BF16 logits tie",
            effect="acceptance", exact=("logits",),
        )  # fmt: skip


def _long_sum() -> dict[str, Array]:
    """Row 0: 256 and then 96 ones. A BF16 sum stays at 256, since 257 ties to 256; the true sum is 352."""
    hidden = np.ones((2, 97))
    head = np.ones((7, 97))
    hidden[0, 0] = 256.0
    hidden[1] = -0.5
    head[3, 1:] = -1.0
    head[5, ::2] = 0.0
    return {"hidden": hidden, "head": head}


def _meeting_logits() -> dict[str, Array]:
    """Logits 513, 514, 515, 516, 511 and their negatives; BF16 has steps of 4 above 512 and of 2 below."""
    head = np.zeros((11, 3))
    head[:5, 0] = 512.0
    head[:5, 1] = [1.0, 2.0, 3.0, 4.0, -1.0]
    head[6:, :] = -head[:5, :]
    return {"hidden": np.array([[1.0, 1.0, 0.0], [0.5, 1.0, 9.0]]), "head": head}


def _distinct(key: str, rows: int, width: int, dtype: str) -> Array:
    """Logits of which no two in a row are equal."""
    order = np.argsort(inputs.hashes(key, (rows, width)), axis=1, kind="stable").argsort(axis=1, kind="stable")
    return inputs.represent(0.125 * order - 5.0, dtype)


@suite("head.argmax")
def argmax(profile: Profile) -> Iterator[Case]:
    """Padding, ties, signed zeros and infinities; every row decides by itself."""
    dtype = profile.dtypes["LOGIT"]
    plain = _distinct("head/plain", 4, 67, dtype)
    yield Case(
        "all-public", ("HEAD-002",), {"logits": plain, "public": 67},
        catches="the last row of the vocabulary is left out, or rows of the batch are mixed",
        effect="acceptance",
    )  # fmt: skip
    padded = plain.copy()
    padded[:, 61:] = [90.0, 91.0, 92.0, INF, 94.0, 95.0]
    yield Case(
        "padding-wins", ("HEAD-002",), {"logits": padded, "public": 61},
        catches="padding rows of the vocabulary take part",
        effect="output",
    )  # fmt: skip
    yield Case(
        "last-public-row", ("HEAD-002",), {"logits": np.array([[-2.0, 3.0, 4.0]]), "public": 2},
        catches="the public count is off by one",
        effect="output",
    )  # fmt: skip
    for slug, rows, why in _tied_rows():
        yield Case(
            slug, ("HEAD-003",), {"logits": np.array(rows), "public": len(rows[0])},
            catches=why, effect="acceptance", tags=("tie",),
        )  # fmt: skip
    yield Case(
        "tie-with-padding", ("HEAD-002", "HEAD-003"),
        {"logits": np.array([[1.0, 2.5, 0.0, 2.5, 2.5, 2.5]]), "public": 4},
        catches="a padding row that ties with the best public row is proposed",
        effect="output", tags=("tie",),
    )  # fmt: skip


@suite("head.argmax")
def extremes(profile: Profile) -> Iterator[Case]:
    """Ids past two bytes, logits far below every usual floor, and in FP32 logits that half precision cannot tell."""
    dtype = profile.dtypes["LOGIT"]
    wide = inputs.represent(-4.0 - (inputs.hashes("head/wide", (1, 40000)) % np.uint64(64)).astype(np.float64), dtype)
    wide[0, 39876], wide[0, 39876 - 32768] = 3.0, 2.5
    yield Case(
        "ids-past-two-bytes", ("HEAD-002",), {"logits": wide, "public": 40000},
        catches="an id is held in 16 bits with a sign, or only 32,768 rows are searched",
        effect="output",
    )  # fmt: skip
    low = -(2.0 ** np.array([[33.0, 34.0, 31.0, 32.0, 35.0], [100.0, 90.0, 120.0, 60.0, 70.0]]))
    yield Case(
        "far-below", ("HEAD-002",), {"logits": low, "public": 5},
        catches="the running maximum starts at -1e9 or another finite floor",
        effect="output",
    )  # fmt: skip
    padded = np.concatenate([low, np.full((2, 2), 6.0)], axis=1)
    yield Case(
        "padding-above-far-below", ("HEAD-002",), {"logits": padded, "public": 5},
        catches="padding rows are given -1e9 instead of being left out, and win over logits below that",
        effect="output",
    )  # fmt: skip
    if profile.name == "zlab":
        step, fine = 2.0**-23, 2.0**-14
        rows = [
            [1.0, 1.0 + step, 1.0 - step, 0.5], [-3.0 - 2 * step, -3.0, -3.0 - 4 * step, -3.25],
            [512.0, 512.0 + fine, 512.0 + 2 * fine, 512.0 - fine], [1.0, 1.0 + 2.0**-9, 1.0 + 2.0**-12, 1.0],
        ]  # fmt: skip
        yield Case(
            "closer-than-half-precision", ("HEAD-002",), {"logits": np.array(rows), "public": 4},
            catches="FP32 logits are compared as BF16 or FP16, where they tie",
            effect="acceptance",
        )  # fmt: skip


def _tied_rows() -> Iterator[tuple[str, list[list[float]], str]]:
    yield "tie-apart", [[0.0, 7.0, 1.0, -2.0, 7.0, 3.0, 7.0]], "the last of equal maxima wins"
    yield "tie-all-equal", [[-1.5] * 37, [4.0] * 37], "a lane of a parallel reduction wins a tie over lower ids"
    yield "tie-zero-signs", [[-0.0, 0.0, -1.0], [-3.0, -0.0, 0.0]], "an integer sort key puts +0 above -0"
    yield "only-last-finite", [[-INF] * 40 + [-1000.0]], "idle lanes that carry index 0 win over a finite logit"
    yield "nothing-finite", [[-INF] * 29], "a row without a finite logit yields a sentinel instead of an id"
    yield "all-negative", [[-9.0, -8.0, -8.0, -10.0]], "the running maximum starts at 0"
