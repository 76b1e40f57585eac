"""DFlash2's candidates: which rows of the head they are, in which order, and with which scores.

Head and hidden rows of most cases lie on a lattice, so that scores are exact in FP32 in any order, and tie or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

ROWS, TOP = 43, 16
EXACT = ("unary",)


def _scored(scores: Array, top: int = TOP, **other: Any) -> dict[str, Any]:
    """A head whose row v scores scores[v]: in channel 0 what BF16 holds of it, in channel 1 the rest."""
    head = np.zeros((len(scores), 3))
    head[:, 0] = inputs.represent(scores, "BF16")
    head[:, 1] = scores - head[:, 0]
    return {
        "hidden": np.array([[1.0, 1.0, 5.0]]),
        "head": head,
        "global_ids": np.arange(len(scores)),
        "public": len(scores),
        "multiplier": 1.0,
        "softcap": 0.0,
        "top": top,
        **other,
    }


def _shuffled(key: str, rows: int = ROWS, step: float = 0.5, first: float = -12.0) -> Array:
    """Scores `first`, `first` + step and so on, in keyed order."""
    order = np.argsort(inputs.hashes(f"head/top/{key}", (rows,)), kind="stable").argsort(kind="stable")
    return first + step * order


def _several(key: str, rows: int, top: int) -> dict[str, Any]:
    """Three hidden rows that pick one channel each: every row has scores, and candidates, of its own."""
    head = np.stack([_shuffled(f"{key}/{slot}", rows, 0.25, -5.0) for slot in range(3)], axis=1)
    return _scored(np.zeros(rows), top) | {"hidden": np.eye(3) * [[1.0], [2.0], [-1.0]], "head": head}


@suite("head.top")
def order(profile: Profile) -> Iterator[Case]:
    """Rank by score, with scores of both signs."""
    for slug, given, catches in (
        ("three-rows", _several("rows", ROWS, TOP), "candidates of one row are those of another"),
        ("scores-of-both-signs", _scored(_shuffled("signs", first=-14.5)),
         "the order of positive scores, or of negative ones, is inverted"),
        ("all-negative", _scored(_shuffled("negative", 29, first=-40.0)), "the running maximum starts at 0"),
        ("one-candidate", _scored(_shuffled("one", 19), 1), "the best candidate alone is not the argmax"),
        ("every-row", _scored(_shuffled("every", TOP)), "a head of as many rows as candidates loses one"),
    ):  # fmt: skip
        yield Case(slug, ("HEAD-005",), given, catches=catches, effect="acceptance", exact=EXACT)
    yield Case(
        "ordinary", ("HEAD-005", "HEAD-006"), _ordinary(profile),
        catches="the hidden row is normed again, or the head's rows are shifted",
        effect="acceptance",
    )  # fmt: skip


def _ordinary(profile: Profile) -> dict[str, Any]:
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    return _scored(np.zeros(61), 8) | {
        "hidden": inputs.telling("head/top/hidden", (3, tiny.HIDDEN), act) * 4.0,
        "head": inputs.weights("head/top/head", (61, tiny.HIDDEN), weight),
    }


@suite("head.top")
def ties(profile: Profile) -> Iterator[Case]:
    """Equal scores: at the last rank, in the middle, everywhere, and zeros of both signs."""
    edge = _shuffled("edge")
    edge[np.argsort(-edge)[13:20]] = np.sort(edge)[-14]
    middle = _shuffled("middle", step=1.0)
    middle[np.argsort(-middle)[4:9]] = np.sort(middle)[-5]
    zero = _scored(np.where(np.arange(ROWS) % 3, 1.0, -1.0) * 2.0) | {"hidden": np.zeros((2, 3))}
    for slug, given, catches in (
        ("tie-at-the-last-rank", _scored(edge), "of the rows that tie for the last ranks, higher ids are kept"),
        ("tie-in-the-middle", _scored(middle), "equal scores are in the order in which a heap gives them up"),
        ("nothing-but-ties", zero, "a row of zeros has other candidates than the lowest ids, since -0 is below +0"),
    ):
        yield Case(
            slug, ("HEAD-005",), given, catches=catches, effect="acceptance", tags=("tie",), exact=EXACT
        )  # fmt: skip


@suite("head.top")
def precision(profile: Profile) -> Iterator[Case]:
    """Scores that BF16 would merge, and turn around by the tie rule."""
    close = _shuffled("close", 31, 1.0, 500.0)
    finer = 1.0 + _shuffled("finer", 37, 2.0**-12, 0.0)
    long_sum = _scored(np.zeros(7), 3) | {"hidden": np.array([[256.0, *[1.0] * 96]]), "head": np.ones((7, 97))}
    long_sum["head"][:, 1:] = (np.arange(96) < np.array([[7], [93], [11], [95], [3], [81], [96]])) * 1.0
    for slug, given, catches in (
        ("steps-of-one-above-512", _scored(close), "scores are rounded to BF16 before they are ranked"),
        ("steps-of-2-12", _scored(finer), "scores are rounded to BF16 or FP16 before they are ranked"),
        ("long-sum", long_sum, "the accumulator is BF16 and swallows the small terms after the large one"),
    ):
        yield Case(slug, ("HEAD-006",), given, catches=catches, effect="acceptance", exact=EXACT)


@suite("head.top")
def heads(profile: Profile) -> Iterator[Case]:
    """A head with padding, and an indexed head, whose rows stand for other ids."""
    padded = _scored(_shuffled("padded", 37), public=31)
    padded["head"][31:, 0] = 1000.0
    yield Case(
        "padding", ("HEAD-002", "HEAD-005"), padded,
        catches="padding rows of the vocabulary take part",
        effect="output", exact=EXACT, blame={"unary": "HEAD-002"},
    )  # fmt: skip
    ids = 1000 - 7 * np.arange(ROWS) + 150 * (np.arange(ROWS) % 2)
    yield Case(
        "indexed", ("HEAD-007",), _scored(_shuffled("indexed"), global_ids=ids),
        catches="rows of an indexed head are taken for ids",
        effect="output", exact=EXACT,
    )  # fmt: skip
    levels = np.floor(_shuffled("levels", step=0.25, first=0.0))
    for slug, scores in (("indexed-ties", levels), ("indexed-nothing-but-ties", np.zeros(ROWS))):
        yield Case(
            slug, ("HEAD-007",), _scored(scores, global_ids=ids),
            catches="ties go by the head's row instead of by global id",
            effect="acceptance", tags=("tie",), exact=EXACT,
        )  # fmt: skip


@suite("head.top", profiles=("zlab",))
def scalars(profile: Profile) -> Iterator[Case]:
    """Multiplier and cap: alone, together, and a cap that makes large scores equal."""
    given, factor = _ordinary(profile), inputs.fp32(26.0**-0.5)
    for slug, multiplier, softcap, catches in (
        ("multiplied", factor, 0.0, "the multiplier is left out, or a cap of 0 divides by 0"),
        ("capped", 1.0, 2.5, "the cap is left out, or clips"),
        ("multiplied-and-capped", factor, 1.25, "the cap comes before the multiplier, or counts from its product"),
    ):
        yield Case(
            slug, ("HEAD-009", "HEAD-005"), given | {"multiplier": multiplier, "softcap": softcap},
            catches=catches, effect="acceptance",
        )  # fmt: skip
    steep = _scored(np.array([640.0, -640.0, 960.0, 12.0, 800.0, -12.0, 704.0]), 6)
    yield Case(
        "capped-scores-tie", ("HEAD-009", "HEAD-005"), steep | {"softcap": 20.0, "top": 3},
        catches="candidates are chosen before the cap, which makes large scores equal",
        effect="acceptance", tags=("tie",), exact=EXACT,
    )  # fmt: skip


@suite("head.indexed_argmax")
def indexed_argmax(profile: Profile) -> Iterator[Case]:
    """DFlash's own rule for an indexed head: rows first, ids afterwards."""
    logits = np.array(
        [[1.0, 7.5, -3.0, 7.5, 2.0, 7.5], [9.0, -1.0, 9.0, 9.0, 0.0, 1.0], [-0.0, -2.0, 0.0, 0.0, -1.0, 0.0]]
    )
    ids = np.array([83, 61, 7, 47, 29, 11])
    yield Case(
        "distinct", ("HEAD-008",), {"logits": logits + np.arange(6) * 0.125, "global_ids": ids},
        catches="rows of an indexed head are taken for ids",
        effect="output",
    )  # fmt: skip
    yield Case(
        "tie-by-row", ("HEAD-008",), {"logits": logits, "global_ids": ids},
        catches="ties go by global id, as DFlash2's do",
        effect="acceptance", tags=("tie",),
    )  # fmt: skip
    yield Case(
        "one-row", ("HEAD-008",), {"logits": np.array([[-5.0]]), "global_ids": np.array([512])},
        catches="an index of one row yields row 0",
        effect="output",
    )  # fmt: skip
