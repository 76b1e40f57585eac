"""From adjusted logits to a distribution: greedy or not, top-k, min-p and top-p, alone and together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

INF, NAN = float("inf"), float("nan")
OLD = ("zlab-2026-04",)
BOTH = ("ninfer", "zlab")


SPREADS = np.array([1.0, 1.5, 0.75, 1.25])
"""Of the rows of a case, so that filters leave another count in each."""


def _rows(key: str, rows: int, width: int, step: float = 0.1875) -> Array:
    """Logits of which no two in a row are equal."""
    order = np.argsort(inputs.hashes(key, (rows, width)), axis=1, kind="stable").argsort(axis=1, kind="stable")
    spread: Array = (order - width // 2) * step * SPREADS[:rows, np.newaxis]
    return spread


WARM = 1.3


def _logs(*masses: float, temperature: float = WARM) -> Array:
    """One row whose softmax at `temperature` is `masses` at every third id from 3 on, the rest far below."""
    row = -200.0 - 0.5 * np.arange(37)[np.newaxis]
    row[0, 3 : 3 + 3 * len(masses) : 3] = inputs.represent(temperature * np.log(np.array(masses)), "F32")
    return row


@suite("proc.choose", profiles=(*BOTH, *OLD))
def choose(profile: Profile) -> Iterator[Case]:
    """Which requests are greedy, and what their token is."""
    clause = "PROC-021" if profile.name in OLD else "PROC-002"
    rows = _rows("choose/rows", 4, 37)

    def one(slug: str, temperature: float, why: str, logits: Array = rows, tags: tuple[str, ...] = ()) -> Case:
        return Case(
            slug, (clause,), {"adjusted": logits, "temperature": temperature}, catches=why, effect="output", tags=tags
        )

    sampled = "a request above temperature 0 gets the argmax"
    yield one("temperature-0", 0.0, "a request at temperature 0 divides by it")
    yield one("temperature-0-7", inputs.fp32(0.7), sampled)
    yield one("temperature-1-7", inputs.fp32(1.7), sampled)
    if profile.name in OLD:
        edge = "the threshold of greedy decoding is another"
        yield one("just-below-the-threshold", inputs.fp32(0.99999e-5), edge)
        yield one("just-above-the-threshold", inputs.fp32(1.00001e-5), edge)
        yield one("far-below-the-threshold", inputs.fp32(3e-9), edge)
        return
    yield one("smallest-temperature", 2.0**-126, "a low temperature is taken for 0")
    yield one("temperature-minus-0", -0.0, "a zero with a sign is taken for a temperature")
    for slug, row in (
        ("tie-apart", [1.0, 6.5, -2.0, 6.5, 6.5]),
        ("tie-all-equal", [-0.75] * 39),
        ("tie-zero-signs", [-1.0, -0.0, 0.0, -0.0]),
    ):
        yield one(slug, 0.0, "an exact tie goes to a higher id", np.array([row]), ("tie",))
    lonely = np.array([[-INF] * 34 + [-77.0, -INF]])
    yield one("only-one-finite", 0.0, "idle lanes that carry index 0 win over a finite logit", lonely)


@suite("proc.choose", profiles=("ninfer",))
def adjusted(profile: Profile) -> Iterator[Case]:
    """Greedy requests whose masks and penalties decide."""
    raw = _rows("choose/raw", 3, 53)
    masked = raw.copy()
    masked[np.arange(3), raw.argmax(axis=1)] = -INF
    yield Case(
        "largest-forbidden", ("PROC-010",), {"adjusted": masked, "temperature": 0.0},
        catches="a forbidden token is emitted, being the raw argmax", effect="output",
    )  # fmt: skip
    close = np.full((2, 37), -4.0)
    close[0, [9, 30]] = inputs.represent([2.70001, 2.7001], "F32")
    close[1, [4, 22]] = inputs.represent([-0.30001, -0.3], "F32")
    yield Case(
        "penalised-logits-that-bf16-merges", ("PROC-010",), {"adjusted": close, "temperature": 0.0},
        catches="penalised logits are rounded to BF16 before the argmax, and tie", effect="output",
    )  # fmt: skip
    for slug, temperature in (("negative-temperature", -1.0), ("greedy-whatever-the-sign", -(2.0**-20))):
        yield Case(
            slug, ("PROC-002",), {"adjusted": raw, "temperature": temperature},
            catches="a temperature below 0 is divided by, and the least likely token wins", effect="output",
        )  # fmt: skip


def _broken(rows: Array) -> Iterator[tuple[str, Array]]:
    """Rows that no token can come of, one of each kind among sound ones."""
    for slug, where, value in (
        ("one-nan", (1, 30), NAN), ("nan-row", (0, slice(None)), NAN), ("plus-infinity", (2, 0), INF),
        ("nothing-finite", (1, slice(None)), -INF),
    ):  # fmt: skip
        broken = rows.copy()
        broken[where] = value
        yield slug, broken


REFUSED = "a row without a token yields a sentinel, an index past the vocabulary, or id 0"


@suite("proc.choose", profiles=BOTH)
def choose_refuses(profile: Profile) -> Iterator[Case]:
    """Rows without a token."""
    for slug, broken in _broken(_rows("choose/broken", 3, 37)):
        yield Case(
            slug, ("PROC-022",), {"adjusted": broken, "temperature": 0.0}, catches=REFUSED, effect="crash"
        )  # fmt: skip


@suite("proc.filter", profiles=BOTH)
def filter_refuses(profile: Profile) -> Iterator[Case]:
    """Rows without a token."""
    for slug, broken in _broken(_rows("filter/broken", 3, 37)):
        yield _case(slug, ("PROC-022",), REFUSED, broken, effect="crash")


def _case(
    slug: str, clauses: tuple[str, ...], why: str, logits: Array, temperature: float = 0.7, top_k: int = 0,
    min_p: float = 0.0, top_p: float = 1.0, tags: tuple[str, ...] = (), **more: Any,
) -> Case:  # fmt: skip
    """A case of proc.filter. Probabilities that are wrong over the right support break PROC-016, weights PROC-003."""
    given = {
        "adjusted": logits, "temperature": inputs.fp32(temperature), "top_k": top_k, "min_p": inputs.fp32(min_p),
        "top_p": inputs.fp32(top_p),
    }  # fmt: skip
    return Case(slug, clauses, given, catches=why, **{"effect": "output", "tags": tags, **more})


@suite("proc.filter", profiles=BOTH)
def temperatures(profile: Profile) -> Iterator[Case]:
    """No filter but the temperature; and weights that underflow."""
    rows = _rows("filter/temperatures", 2, 53)
    why = "the temperature is ignored, inverted, or kept within limits that nobody asked for"
    for slug, temperature, step in (
        ("0-3", 0.3, 1.0), ("1-7", 1.7, 1.0), ("0-001", 0.001, 2.0**-9), ("100", 100.0, 64.0),
    ):  # fmt: skip
        yield _case(f"temperature-{slug}", ("PROC-003", "PROC-016"), why, rows * step, temperature)
    for slug, scale in (("1e-6", 2.0**-20), ("1e-30", 2.0**-100)):
        cold = "the temperature is kept above 1e-5, or some other floor"
        yield _case(f"temperature-{slug}", ("PROC-003", "PROC-016"), cold, rows * scale, float(slug))
    yield _case(
        "weights-that-underflow", ("PROC-003",), "a weight of 0 leaves the support, or becomes NaN",
        _rows("filter/peaked", 2, 37, 24.0), 0.3,
    )  # fmt: skip
    few = np.full((2, 37), -INF)
    few[0, [30, 4, 17]], few[1, 36] = [2.0, 1.25, -0.5], -3.0
    yield _case("few-finite", ("PROC-016",), "a forbidden id takes probability, or NaN comes of it", few, 1.3)


@suite("proc.filter", profiles=("ninfer",))
def capped(profile: Profile) -> Iterator[Case]:
    """Every kind of top-k under the hard cap of twenty."""
    rows = _rows("filter/top-k", 2, 53)
    hard = "top_k is not cut at 20, is off by one, or 0 keeps everything"
    for top_k in (0, 1, 7, 19, 20, 21, 56, -3):
        slug = f"top-k-{top_k}" if top_k >= 0 else "top-k-below-0"
        yield _case(slug, ("PROC-011",), hard, rows, top_k=top_k, temperature=1.7)
    small = _rows("filter/small", 2, 13)
    for top_k in (0, 13, 14, 19):
        yield _case(f"thirteen-ids-top-k-{top_k}", ("PROC-011",), "a small vocabulary is filled up", small, top_k=top_k)
    tied = _rows("filter/tied", 1, 47)
    order = np.argsort(-tied[0], kind="stable")
    tied[0, order[3:9]] = tied[0, order[4]]
    for top_k in (5, 7):
        yield _case(
            f"ties-at-the-edge-of-top-k-{top_k}", ("PROC-004", "PROC-011"),
            "equal logits at the edge are cut by a sort that does not keep the lower id", tied, top_k=top_k,
            tags=("tie",),
        )  # fmt: skip
    close = np.full((1, 37), -4.0) - np.arange(37) * 0.25
    close[0, [31, 20, 9]] = inputs.represent([2.7, 2.7 - 2.0**-20, 2.7 - 2.0**-19], "F32")
    yield _case(
        "logits-that-bf16-merges", ("PROC-004",), "penalised logits are rounded to BF16 before they are ranked", close,
        top_k=2,
    )  # fmt: skip
    holes = _rows("filter/holes", 2, 37)
    holes[0, 5:35], holes[1, 0:34] = -INF, -INF
    yield _case("fewer-finite-than-top-k", ("PROC-011",), "forbidden ids fill the support up", holes, top_k=11)


@suite("proc.filter", profiles=("zlab",))
def every_id(profile: Profile) -> Iterator[Case]:
    """Top-k without a cap, over a support of every id."""
    rows = _rows("filter/every", 2, 53)
    why = "0 keeps nothing or twenty, top_k is off by one, or one above the vocabulary is an error"
    for top_k in (0, 1, 7, 19, 20, 21, 52, 53, 56):
        yield _case(f"top-k-{top_k}", ("PROC-012",), why, rows, top_k=top_k, temperature=1.7)
    wide = _rows("filter/wide", 1, 131, 2.0**-6)
    yield _case("long-tail", ("PROC-012", "PROC-016"), "the tail beyond the first candidates is lost", wide)
    # Which of the equal ones stay is open. How many do decides the mass that top-p refers to, and with it what is kept.
    more = "all that equal the last candidate of top-k are kept, as a comparison with it does"
    for slug, top_k, top_p, shares in (
        ("three", 3, 0.8, (0.5, 0.3, 0.1, 0.1, 0.1, 0.1)), ("two", 2, 0.7, (0.6, 0.2, 0.2, 0.2)),
    ):  # fmt: skip
        yield _case(
            f"ties-at-the-edge-of-{slug}-and-their-mass", ("PROC-012",), more, _logs(*shares), WARM, top_k=top_k,
            top_p=top_p, tags=("tie",),
        )  # fmt: skip
    holes = _rows("filter/holes", 2, 37)
    holes[0, 5:25], holes[1, 0:20] = -INF, -INF
    yield _case("minus-infinity-beside-top-k", ("PROC-012",), "an id without a chance is kept", holes, top_k=11)


@suite("proc.filter", profiles=("ninfer",))
def minima(profile: Profile) -> Iterator[Case]:
    """Min-p: relative to the best candidate, strict, and before top-p counts."""
    rows = _rows("filter/min-p", 3, 53)
    relative = "the limit is a probability, and not a share of the best candidate's"
    for slug, min_p, temperature in (("0-1", 0.1, 0.7), ("0-02", 0.02, 0.6), ("0-6", 0.6, 1.1), ("low", 1e-6, 0.15)):
        yield _case(f"min-p-{slug}", ("PROC-013",), relative, rows, temperature, min_p=min_p)
    tied = _rows("filter/min-p-tied", 1, 37)
    tied[0, [6, 19, 33]] = tied.max() + 1.0
    strict = "a candidate exactly on the limit is dropped"
    yield _case("min-p-exactly-on-a-weight", ("PROC-013",), strict, tied, min_p=1.0, tags=("tie",))
    yield _case("min-p-of-1", ("PROC-013",), "the best candidate falls to its own limit", rows, min_p=1.0)
    flat = _logs(0.3, 0.25, 0.2, 0.15, 0.1)
    yield _case("min-p-on-a-flat-row", ("PROC-013",), relative, flat, WARM, min_p=0.4)
    yield _case("min-p-with-top-k", ("PROC-013", "PROC-011"), relative, rows, 1.3, top_k=6, min_p=0.55)
    yield _case("min-p-beyond-top-k", ("PROC-011", "PROC-013"), "min-p takes the place of top-k", rows, 1.3, top_k=4,
                min_p=0.01)  # fmt: skip


@suite("proc.filter", profiles=BOTH)
def nuclei(profile: Profile) -> Iterator[Case]:
    """Top-p: the candidate that crosses is kept, and at least one is."""
    rows = _rows("filter/top-p", 3, 53)
    crossing = "the candidate at which the mass is reached is dropped"
    for slug, top_p, temperature in (("0-9", 0.9, 0.7), ("0-5", 0.5, 1.7), ("0-97", 0.97, 1.1), ("0-2", 0.2, 0.3)):
        yield _case(f"top-p-{slug}", ("PROC-014",), crossing, rows, temperature, top_p=top_p)
    peaked = _logs(0.9, 0.06, 0.04)
    yield _case("top-p-below-the-first", ("PROC-014",), "a peaked row keeps nothing", peaked, WARM, top_p=0.3)
    yield _case("top-p-of-almost-nothing", ("PROC-014",), "a peaked row keeps nothing", rows, WARM, top_p=1e-6)
    near = _logs(0.4, 0.3, 0.2, 0.1)
    for slug, top_p in (("just-below", 0.69999), ("just-above", 0.70001)):
        yield _case(f"top-p-{slug}-a-cumulative-weight", ("PROC-014",), crossing, near, WARM, top_p=top_p)
    yield _case(
        "top-p-renormalises", ("PROC-016", "PROC-014"), "what the filter took away is missing from the row",
        _logs(0.5, 0.3, 0.15, 0.05), WARM, top_p=0.75,
    )  # fmt: skip


@suite("proc.filter", profiles=("ninfer",))
def nuclei_on_edges(profile: Profile) -> Iterator[Case]:
    """Cumulative weights that are exactly top_p times the total: equal logits, whose weights are all 1."""
    edge = "a cumulative weight exactly on the mass goes on by one candidate"
    for count, top_p in ((4, 0.5), (4, 0.75), (8, 0.375), (16, 0.0625)):
        row = np.full((1, 37), -300.0)
        row[0, 2 : 2 + 2 * count : 2] = -1.25
        yield _case(
            f"top-p-exactly-on-a-cumulative-weight-of-{count}-{int(count * top_p)}", ("PROC-014",), edge, row, 1.3,
            top_p=top_p, tags=("tie",),
        )  # fmt: skip
    yield _case(
        "top-p-of-0", ("PROC-014",), "a mass of 0 keeps nothing", _rows("filter/zero", 2, 37), top_p=0.0
    )  # fmt: skip


@suite("proc.filter", profiles=BOTH)
def mass(profile: Profile) -> Iterator[Case]:
    """Top-k and top-p together: whose mass it is."""
    whose = "the mass is that of the whole vocabulary, not of what top-k left"
    apart = _logs(0.35, 0.25, 0.20, 0.05, 0.04, 0.04, 0.04, 0.03)
    yield _case("mass-after-top-k", ("PROC-015",), whose, apart, WARM, top_k=4, top_p=0.82)
    rows = _rows("filter/mass", 2, 131, 2.0**-5)
    for slug, top_k, top_p in (("of-twelve", 12, 0.6), ("of-nineteen", 19, 0.35), ("of-three", 3, 0.6)):
        yield _case(f"mass-{slug}", ("PROC-015", "PROC-014"), whose, rows, 1.7, top_k=top_k, top_p=top_p)
    hot, ranked = "the mass is measured at temperature 1", _logs(0.5, 0.25, 0.15, 0.1, temperature=1.0)
    for slug, temperature in (("hot", 2.5), ("cold", 0.4)):
        yield _case(f"mass-when-{slug}", ("PROC-015",), hot, ranked, temperature, top_p=0.7)


@suite("proc.filter", profiles=("ninfer",))
def mass_of_twenty(profile: Profile) -> Iterator[Case]:
    """Top-p under the hard cap, and beside min-p."""
    rows = _rows("filter/cap-mass", 2, 131, 2.0**-5)
    yield _case(
        "mass-of-the-cap", ("PROC-015",), "the mass is that of the whole vocabulary, not of the twenty best", rows,
        1.7, top_p=0.55,
    )  # fmt: skip
    before = "the mass is what min-p left, not what top-k left"
    tail = _logs(1.0, 0.5, 0.3, *([0.05] * 6))
    tail[0, 12:30:3] += inputs.represent(np.arange(6) * -(2.0**-6), "F32")
    yield _case("mass-before-min-p", ("PROC-015", "PROC-013"), before, tail, WARM, min_p=0.1, top_p=0.8)
    yield _case(
        "min-p-before-top-p-counts", ("PROC-013", "PROC-014"), "a candidate below min-p is counted, and kept", tail,
        WARM, min_p=0.4, top_p=0.84,
    )  # fmt: skip
    everything = _rows("filter/all", 3, 53)
    yield _case(
        "top-k-min-p-and-top-p", ("PROC-011", "PROC-013", "PROC-014"), "one of three filters is left out", everything,
        2.3, top_k=13, min_p=0.35, top_p=0.9,
    )  # fmt: skip


@suite("proc.filter", profiles=OLD)
def only_the_temperature(profile: Profile) -> Iterator[Case]:
    """The authors' loop of April 2026."""
    rows = _rows("filter/old", 2, 53)
    for slug, temperature in (("0-3", 0.3), ("1-7", 1.7), ("just-above-the-threshold", 1.00001e-5)):
        yield _case(
            f"temperature-{slug}", ("PROC-021", "PROC-003"), "a filter is applied that this revision does not have",
            rows if temperature > 0.1 else rows * 2.0**-12, temperature,
        )  # fmt: skip
    for slug, filters in (("top-k", {"top_k": 5}), ("top-p", {"top_p": 0.9}), ("min-p", {"min_p": 0.1})):
        yield _case(
            f"{slug}-refused", ("PROC-021",), "a filter that this revision does not have is ignored in silence", rows,
            **filters,
        )  # fmt: skip
