"""What sampling sees of the target's logits: masks and penalties, and the counts that penalties go by.

Logits lie on a lattice on which penalties are exact in FP32, unless a case says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF, NAN = float("inf"), float("nan")
V = 53
KEYED = ("ninfer",)
EXACT = ("adjusted",)
STEP = 0.1875


def _rows(key: str, rows: int, width: int = V) -> Array:
    """Logits [rows, width] around 0 of which no two in a row are equal; three fraction bits more are left free."""
    order = np.argsort(inputs.hashes(key, (rows, width)), axis=1, kind="stable").argsort(axis=1, kind="stable")
    return (order - width // 2) * STEP


def _given(logits: Array, **changes: Any) -> dict[str, Any]:
    """Everything is public and allowed, and nothing is counted, unless `changes` says otherwise."""
    rows, width = logits.shape
    given: dict[str, Any] = {
        "logits": logits,
        "public": width,
        "allowed": np.ones((rows, width), dtype=np.int64),
        "counts": np.zeros(width, dtype=np.int64),
        "overlay": np.zeros((rows, 0), dtype=np.int64),
        "presence": 0.0,
        "frequency": 0.0,
    }
    return given | changes


def _some(key: str, rows: int, width: int = V) -> Array:
    """A mask that forbids about half, another half in each row."""
    return (inputs.hashes(key, (rows, width)) >> np.uint64(63)).astype(np.int64)


def _counts(width: int = V, **held: int) -> Array:
    """Counts by id, given as `t7=2`."""
    counts = np.zeros(width, dtype=np.int64)
    for name, count in held.items():
        counts[int(name[1:])] = count
    return counts


def _only(slots: tuple[int, ...], rows: int, width: int = V) -> Array:
    """One id allowed in each row."""
    allowed = np.zeros((rows, width), dtype=np.int64)
    allowed[np.arange(rows), list(slots)] = 1
    return allowed


@suite("proc.adjust", profiles=KEYED)
def masks(profile: Profile) -> Iterator[Case]:
    """Forbidden ids: in every row, in one row alone, all but one, and beside padding."""
    rows = _rows("adjust/masks", 4)
    yield Case(
        "mask-of-each-row", ("PROC-006",), _given(rows, allowed=_some("adjust/mask", 4)),
        catches="rows of the mask are mixed, or a set bit forbids", effect="output", exact=EXACT,
    )  # fmt: skip
    bonus = np.ones((4, V), dtype=np.int64)
    bonus[3] = _some("adjust/bonus", 1)[0]
    yield Case(
        "mask-on-the-bonus-row-alone", ("PROC-006",), _given(rows, allowed=bonus),
        catches="the row after the last proposal is not masked", effect="output", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "mask-on-all-but-the-bonus-row", ("PROC-006",), _given(rows, allowed=1 - _only((5, 11, 17, 23), 4)),
        catches="mask rows are shifted by one, as a placeholder of -1 does", effect="output", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "all-forbidden-but-one", ("PROC-006",), _given(rows, allowed=_only((0, 17, V - 1, 31), 4)),
        catches="the only allowed token is lost at the mask's edge, or the others compete", effect="output",
        exact=EXACT,
    )  # fmt: skip
    low = np.where(_some("adjust/low", 1) > 0, -(2.0**33), 5.0)
    yield Case(
        "forbidden-above-far-below", ("PROC-006",), _given(low, allowed=_some("adjust/low", 1)),
        catches="a forbidden logit is lowered by a number instead of to minus infinity", effect="output", exact=EXACT,
    )  # fmt: skip
    padded = rows.copy()
    padded[:, 47:] = 40.0
    yield Case(
        "mask-beside-padding", ("PROC-006", "PROC-001"),
        _given(padded, public=47, allowed=_some("adjust/padding", 4)),
        catches="padding rows of the vocabulary stay, or the mask is read with the public count as its stride",
        effect="output", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "mask-before-negative-penalties", ("PROC-006", "PROC-007"),
        _given(rows, allowed=_some("adjust/raised", 4), counts=_counts(t3=2, t17=9, t40=1, t52=4), presence=-2.0,
               frequency=-1.5),
        catches="a penalty below 0 raises a forbidden token again", effect="output", exact=EXACT,
    )  # fmt: skip


SEEN = {"t0": 1, "t7": 2, "t19": 5, "t33": 1, "t52": 11}
"""Ids that a request has emitted, and how often: the first and the last id among them."""


@suite("proc.adjust", profiles=KEYED)
def penalties(profile: Profile) -> Iterator[Case]:
    """Presence and frequency alone, together, below 0, and in their order."""
    rows, counts = _rows("adjust/penalties", 3), _counts(**SEEN)
    for slug, presence, frequency, why in (
        ("presence-alone", 0.75, 0.0, "presence is multiplied by the count, or not subtracted at all"),
        ("frequency-alone", 0.0, 0.375, "frequency is subtracted once, whatever the count"),
        ("presence-and-frequency", 1.25, 0.0625, "only one of the two penalties is subtracted"),
        ("negative-penalties", -0.625, -0.25, "penalties below 0 are taken for none, or for their magnitude"),
        ("penalties-of-both-signs", 1.5, -0.4375, "a penalty below 0 is dropped beside one above it"),
        ("largest-penalties", 2.0, 2.0, "the sum of penalties is kept within the range of one"),
    ):
        yield Case(
            slug, ("PROC-007",), _given(rows, counts=counts, presence=presence, frequency=frequency),
            catches=why, effect="output", exact=EXACT,
        )  # fmt: skip
    yield Case(
        "counts-without-penalties", ("PROC-007",), _given(rows, counts=counts),
        catches="counted tokens are lowered though no penalty was asked for", effect="output", exact=EXACT,
    )  # fmt: skip
    order = "frequency is subtracted before presence, or their sum is"
    tiny = np.full((1, 37), 2.0**-24)
    yield Case(
        "presence-before-frequency", ("PROC-007",),
        _given(tiny, counts=_counts(37, t5=1, t36=1), presence=1.0, frequency=-1.0),
        catches=order, effect="output", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "frequency-after-presence-leaves-little", ("PROC-007",),
        _given(np.full((1, 37), 1.0), counts=_counts(37, t5=1, t36=1), presence=1.0, frequency=2.0**-24),
        catches=order, effect="output", exact=EXACT,
    )  # fmt: skip
    narrow = "the penalised logit is rounded to BF16 again"
    yield Case(
        "penalties-off-the-lattice", ("PROC-007",),
        _given(inputs.normal_like("adjust/off", (3, V), 2.5, "BF16"), counts=counts + _counts(t21=3, t44=7),
               presence=inputs.fp32(0.7), frequency=inputs.fp32(0.3)),
        catches=narrow, effect="output",
    )  # fmt: skip
    yield Case(
        "long-request", ("PROC-008", "PROC-007"),
        _given(inputs.normal_like("adjust/long", (1, V), 2.5, "BF16"),
               counts=_counts(t7=262143, t19=65537, t30=40961), presence=inputs.fp32(-0.1),
               frequency=inputs.fp32(0.001)),
        catches="counts are held in a byte or in sixteen bits", effect="output",
    )  # fmt: skip


@suite("proc.adjust", profiles=KEYED)
def overlays(profile: Profile) -> Iterator[Case]:
    """Proposals that count beside the tokens emitted before them: once for each time they occur."""
    rows = _rows("adjust/overlays", 5)
    growing = np.full((5, 4), -1)
    for row, ids in enumerate(((), (7,), (7, 7), (7, 7, 12), (7, 7, 12, 7))):
        growing[row, : len(ids)] = ids
    each = "a token that was proposed twice is punished once"
    for slug, presence, frequency in (("presence", 0.875, 0.0), ("frequency", 0.0, 0.5625), ("both", -0.375, 1.125)):
        yield Case(
            f"repeated-proposals-{slug}", ("PROC-008", "PROC-007"),
            _given(rows, overlay=growing, presence=presence, frequency=frequency),
            catches=each, effect="output", exact=EXACT,
        )  # fmt: skip
    yield Case(
        "proposals-seen-before", ("PROC-008",),
        _given(rows, overlay=growing, counts=_counts(t7=3, t12=1, t30=2), presence=0.5, frequency=0.3125),
        catches="the overlay replaces the counts, or the counts hide the overlay", effect="output", exact=EXACT,
    )  # fmt: skip
    yield Case(
        "empty-slots-of-an-overlay", ("PROC-008",),
        _given(rows, overlay=np.full((5, 3), -1), counts=_counts(t30=2), presence=1.0, frequency=0.25),
        catches="an empty slot of -1 counts the last token of the vocabulary", effect="output", exact=EXACT,
    )  # fmt: skip
    last = np.full((5, 2), -1)
    last[1:, 0], last[3:, 1] = 46, 0
    padded = rows.copy()
    padded[:, 47:] = 30.0
    yield Case(
        "first-and-last-public-token-proposed", ("PROC-008", "PROC-001"),
        _given(padded, public=47, overlay=last, counts=_counts(t46=1), presence=0.75, frequency=0.75),
        catches="the edges of the public vocabulary are not counted, or padding rows are", effect="output",
        exact=EXACT,
    )  # fmt: skip
    forbidden = np.ones((5, V), dtype=np.int64)
    forbidden[2:, 7] = 0
    yield Case(
        "forbidden-proposal", ("PROC-006", "PROC-008"),
        _given(rows, overlay=growing, allowed=forbidden, presence=-1.0, frequency=-0.125),
        catches="a proposal that the mask forbids comes back by a penalty below 0", effect="output", exact=EXACT,
    )  # fmt: skip


@suite("proc.adjust", profiles=KEYED)
def refusals(profile: Profile) -> Iterator[Case]:
    """Rows that no token can come of, and rows that only look so."""
    rows = _rows("adjust/refused", 3, 37)

    def bad(where: tuple[int, int], value: float) -> Array:
        changed = rows.copy()
        changed[where] = value
        return changed

    sentinel = "a sentinel of the reduction is taken for a token id"
    whole = rows.copy()
    whole[1] = NAN
    for slug, logits in (("nan-row", whole), ("one-nan", bad((2, 36), NAN)), ("plus-infinity", bad((0, 11), INF))):
        yield Case(slug, ("PROC-022",), _given(logits), catches=sentinel, effect="crash")
    none = np.ones((3, 37), dtype=np.int64)
    none[2] = 0
    yield Case(
        "everything-forbidden", ("PROC-022", "PROC-006"), _given(rows, allowed=none), catches=sentinel, effect="crash"
    )
    nothing = rows.copy()
    nothing[0] = -INF
    yield Case("nothing-finite", ("PROC-022",), _given(nothing), catches=sentinel, effect="crash")
    allowed = np.ones((3, 37), dtype=np.int64)
    allowed[1, :30] = 0
    hidden = rows.copy()
    hidden[1, 30:] = -INF
    yield Case(
        "nothing-finite-is-allowed", ("PROC-022", "PROC-006"), _given(hidden, allowed=allowed),
        catches=sentinel, effect="crash",
    )  # fmt: skip
    dead = rows.copy()
    dead[:, 31:] = np.where(np.arange(6) % 2, NAN, INF)
    yield Case(
        "nan-in-padding", ("PROC-022", "PROC-001"), _given(dead, public=31),
        catches="padding that nobody reads ends the request, or spreads", effect="crash", exact=EXACT,
    )  # fmt: skip
    few = rows.copy()
    few[:, 3:] = -INF
    yield Case(
        "minus-infinity-beside-penalties", ("PROC-007",),
        _given(few, counts=_counts(37, t1=1, t20=2), presence=1.0, frequency=-0.5),
        catches="a logit of minus infinity is taken for an error, or becomes NaN", effect="crash", exact=EXACT,
    )  # fmt: skip


@suite("proc.overlay", profiles=KEYED)
def overlay(profile: Profile) -> Iterator[Case]:
    """Which proposals count in which row of a verify pass."""
    growing = "one penalty row serves the whole block, or the history grows a row early or late"
    for slug, anchor, proposals, why in (
        ("three", 41, (5, 9, 2), growing),
        ("repeated", 41, (7, 7, 12, 7), "a token that was proposed twice is held once"),
        ("anchor-proposed-again", 9, (9, 31, 9), "the anchor, which the counts hold already, is counted with them"),
        ("one", 3, (0,), "token 0 is taken for an empty slot"),
        ("none", 17, (), "a round without proposals counts its anchor"),
        ("widest", 248076, tuple(248000 + 5 * slot for slot in range(15)), growing),
    ):
        yield Case(
            slug, ("PROC-009",), {"anchor": anchor, "proposals": np.array(proposals, dtype=np.int64)},
            catches=why, effect="output",
        )  # fmt: skip


@suite("proc.count", profiles=KEYED)
def count(profile: Profile) -> Iterator[Case]:
    """The counts after a round: what was emitted before it, and what of it counts."""

    def one(
        slug: str, clause: str, why: str, emitted: tuple[int, ...], licensed: tuple[int, ...], kept: int,
        own_law: int, prompt: tuple[int, ...] = (2, 3, 2, 30, 36), public: int = 37,
    ) -> Case:  # fmt: skip
        given = {"prompt": prompt, "emitted": emitted, "licensed": licensed}
        return Case(
            slug, (clause,),
            {name: np.array(ids, dtype=np.int64) for name, ids in given.items()}
            | {"kept": kept, "own_law": own_law, "public": public},
            catches=why, effect="output",
        )  # fmt: skip

    prompt = "words of the prompt are counted"
    yield one("prompt-is-not-counted", "PROC-017", prompt, (7,), (9, 2, 30), 3, 0)
    yield one("prompt-repeats-what-is-emitted", "PROC-017", prompt, (30, 5), (30,), 1, 1)
    first = "the token of the prefill is not counted"
    yield one("first-token-counts", "PROC-017", first, (11,), (12,), 1, 1)
    yield one("first-token-comes-again", "PROC-017", first, (11, 12, 11), (11, 13), 2, 0)
    edges = "the first or the last token of the vocabulary is not counted"
    yield one("edges-of-the-vocabulary", "PROC-017", edges, (0, 36, 36), (0, 36), 2, 1)
    own = "a token emitted twice is counted once"
    yield one("repeated-in-a-round", "PROC-018", own, (4,), (8, 8, 4, 8), 4, 0)
    cut = "a stop takes the tokens after it out of the counts, though each proposal was certain"
    yield one("certain-and-cut", "PROC-018", cut, (4, 5), (8, 21, 8, 6), 2, 0)
    yield one("certain-and-cut-at-once", "PROC-018", cut, (4,), (21, 21, 21, 22, 23), 1, 0)
    dropped = "tokens after a stop are counted, though nobody received them"
    yield one("own-law-and-cut", "PROC-019", dropped, (4, 5), (8, 21, 8, 6), 2, 1)
    yield one("own-law-and-cut-at-once", "PROC-019", dropped, (4,), (21, 21, 21, 22, 23), 1, 1)
    yield one("own-law-whole", "PROC-019", "the terminal token is not counted", (4, 5), (8, 21, 8, 6), 4, 1)
    yield one("own-law-cancelled", "PROC-019", "a cancelled round is counted", (4, 5, 8), (8, 21), 0, 1)
