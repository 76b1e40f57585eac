"""The candidate path: scores, the conditional walk, and the law that it draws from.

But for one case the scores lie on a lattice: they are exact in FP32 in any order. Candidates differ in every slot and
rank. Where only one step is walked, a wrong predecessor cannot show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs, tiny
from dflash_vectors.suite import Case, suite

VOCABULARY, RANK, TOP = 47, 10, 16
TICK = 2.0**-24
THREE_PATHS = 2095
"""Found by search: the walk, the best path and the best unary scores are three answers, and no edge ties."""

LAW = {"scores": "SEL-001"}


def _plain(key: str, steps: int, count: int, vocabulary: int = VOCABULARY, rank: int = RANK) -> dict[str, Any]:
    """Distinct candidates, falling unary scores, and codebooks that say nothing: a greedy walk without a selector."""
    order = np.argsort(inputs.hashes(f"sel/{key}/ids", (vocabulary,)), kind="stable")
    assert steps * count < vocabulary
    return {
        "candidates": order[: steps * count].reshape(steps, count),
        "unary": 0.5 * np.arange(count, 0, -1) + np.zeros((steps, 1)),
        "g": inputs.lattice(f"sel/{key}/g", (steps, rank), 0.5, 1.0),
        "predecessor": np.zeros((vocabulary, rank)),
        "successor": np.zeros((vocabulary, rank)),
        "anchor": int(order[steps * count]),
        "temperature": 0.0,
        "u": np.full(steps, 0.5),
    }


def _lifted(key: str, rank_: int, dimension: int, ranks: int, **shape: int) -> dict[str, Any]:
    """One step, in which one dimension of the selector lifts candidate `rank_` to the top. The others add little."""
    given = _plain(key, 1, TOP, rank=ranks, **shape)
    given["g"] = tiny.signs(f"sel/{key}/g", (1, ranks))
    for side in ("predecessor", "successor"):
        given[side] = inputs.lattice(f"sel/{key}/{side}", given[side].shape, 0.125, 0.125)
        given[side][:, dimension] = 0.0
    given["g"][0, dimension] = 2.0
    given["predecessor"][given["anchor"], dimension] = -4.0
    given["successor"][given["candidates"][0, rank_], dimension] = -2.0
    return given


@suite("selector.walk")
def scores(profile: Profile) -> Iterator[Case]:
    """One step each: what a score is made of."""
    for slug, given, catches in (
        ("winner-at-rank-12", _lifted("rank-12", 12, 4, RANK), "only the first candidates are scored"),
        ("winner-at-the-last-rank", _lifted("rank-15", 15, 9, RANK), "the last candidate is not scored"),
        (
            "decided-by-dimension-200",
            _lifted("dimension-200", 6, 200, 256, vocabulary=41),
            "the product of the codebooks stops after the first dimensions",
        ),
        ("scores-of-both-signs", _signed(), "the order of positive scores, or of negative ones, is inverted"),
        ("scores-that-bf16-merges", _close(), "scores are held in BF16, where close ones tie and change places"),
        ("codebooks-apart", _apart(), "predecessor and successor codebooks are exchanged"),
    ):
        yield Case(
            slug, ("SEL-001",), given, catches=catches, effect="acceptance", exact=("scores", "q"),
        )  # fmt: skip
    yield Case(
        "ordinary", ("SEL-001", "SEL-002"), _ordinary(profile),
        catches="a score leaves out a term, or multiplies what it should add",
        effect="acceptance",
    )  # fmt: skip


def _signed() -> dict[str, Any]:
    """Unary scores from 3 down to -4.5, of which the selector lifts none above the first and some below the last."""
    given = _plain("signs", 1, TOP)
    given["unary"] = given["unary"] - 5.0
    return given


def _close() -> dict[str, Any]:
    """Scores 516 and 517 at ranks 5 and 9: BF16 holds only multiples of 4 there, so that they tie at 516."""
    given = _plain("close", 1, TOP)
    given["unary"] = np.full((1, TOP), 500.0)
    given["unary"][0, [2, 5, 9, 11]] = [514.0, 516.0, 517.0, 513.0]
    return given


def _apart() -> dict[str, Any]:
    """Two codebooks that differ in scale: which one is read by the anchor decides."""
    given = _plain("apart", 1, 8)
    given["predecessor"] = inputs.lattice("sel/apart/predecessor", given["predecessor"].shape, 1.0, 3.0)
    given["successor"] = inputs.lattice("sel/apart/successor", given["successor"].shape, 0.25, 0.5)
    return given


def _ordinary(profile: Profile) -> dict[str, Any]:
    act, weight, given = profile.dtypes["ACT"], profile.dtypes["WEIGHT"], _plain("ordinary", 2, TOP)
    given["unary"] = inputs.normal_like("sel/ordinary/unary", (2, TOP), 2.0, "F32")
    given["g"] = inputs.telling("sel/ordinary/g", (2, RANK), act)
    for side in ("predecessor", "successor"):
        given[side] = inputs.normal_like(f"sel/ordinary/{side}", (VOCABULARY, RANK), 1.0, weight)
    return given


def _three_paths() -> dict[str, Any]:
    """Four steps of four candidates; the walk goes through ranks 2, 2, 1, 0 and the best path through 3, 1, 0, 0."""
    key, steps, count, rank, vocabulary = f"sel/paths/{THREE_PATHS}", 4, 4, 3, 23
    order = np.argsort(inputs.hashes(f"{key}/ids", (vocabulary,)), kind="stable")
    return {
        "candidates": order[: steps * count].reshape(steps, count),
        "unary": np.sort(inputs.lattice(f"{key}/unary", (steps, count), 0.5, 4.0), axis=1)[:, ::-1],
        "g": inputs.lattice(f"{key}/g", (steps, rank), 0.5, 1.0),
        "predecessor": inputs.lattice(f"{key}/a", (vocabulary, rank), 0.5, 2.0),
        "successor": inputs.lattice(f"{key}/b", (vocabulary, rank), 0.5, 2.0),
        "anchor": int(order[steps * count]),
        "temperature": 0.0,
        "u": np.full(steps, 0.5),
    }


def _chained(key: str, steps: int, count: int, chosen: list[int]) -> dict[str, Any]:
    """A walk through the ranks `chosen`, each lifted after the token chosen before it and after no other.

    After any other token the selector lifts the next rank instead.
    """
    given = _plain(key, steps, count, rank=count)
    given["g"] = np.ones((steps, count))
    for step in range(steps):
        given["successor"][given["candidates"][step], np.arange(count)] = 2.0
        others = given["candidates"][step - 1] if step else np.arange(VOCABULARY)
        following = np.zeros(count)
        following[(chosen[step] + 1) % count] = 8.0
        given["predecessor"][others] = following
        before = given["candidates"][step - 1, chosen[step - 1]] if step else given["anchor"]
        given["predecessor"][before] = np.roll(following, -1)
    return given


@suite("selector.walk")
def conditioned(profile: Profile) -> Iterator[Case]:
    """What each step is conditioned on."""
    for slug, given, catches in (
        ("three-answers", _three_paths(), "the best path is proposed, or the best unary score of each step"),
        ("anchor-first", _chained("anchor", 1, 6, [3]), "the first step has no predecessor, or token 0"),
        ("chosen-before", _chained("chosen", 5, 6, [4, 2, 5, 1, 3]),
         "a step is conditioned on the best unary score before it, or on the anchor"),
        ("slots-and-ranks-apart", _chained("major", 3, 15, [7, 11, 14]),
         "the token before is looked up in an array of ranks by slots"),
    ):  # fmt: skip
        yield Case(
            slug, ("SEL-002",), given, catches=catches, effect="acceptance", exact=("scores", "q"),
        )  # fmt: skip


@suite("selector.walk")
def greedy(profile: Profile) -> Iterator[Case]:
    """Ties of the greedy walk, and the law that it claims."""
    tied = _plain("tied", 2, TOP)
    tied["unary"] = np.zeros((2, TOP))
    tied["candidates"] = np.sort(tied["candidates"], axis=1)[:, ::-1]
    later = _plain("later", 1, TOP)
    later["unary"][0, [3, 7, 11]] = 40.0
    cases = [
        ("all-tied", tied, "a tie goes to the lowest id or to the last rank"),
        ("three-tied", later, "a tie goes to another rank than the lowest"),
    ]
    for slug, given, catches in cases:
        yield Case(
            slug, ("SEL-003",), given,
            catches=catches, effect="acceptance", tags=("tie",), exact=("scores", "q"),
        )  # fmt: skip
    certain = _plain("certain", 3, 8) | {"u": np.array([0.0, 1.0 - TICK, 0.625])}
    yield Case(
        "certain-law", ("SEL-003",), certain,
        catches="a greedy walk draws, or claims a softmax",
        effect="output", exact=("scores", "q"),
    )  # fmt: skip
    if profile.name == "ninfer":
        yield Case(
            "temperature-below-zero", ("SEL-003",), certain | {"temperature": -0.5},
            catches="a temperature below 0 turns the scores around",
            effect="output", exact=("scores", "q"),
        )  # fmt: skip


def _softened(temperature: float, scale: float = 1.0) -> dict[str, Any]:
    """One step of eight candidates; unary scores and the selector's part differ, so that it matters what is divided."""
    given = _plain(f"softened/{temperature}", 1, 8)
    given["unary"] = scale * given["unary"]
    for side in ("predecessor", "successor"):
        given[side] = inputs.lattice(f"sel/softened/{side}", given[side].shape, 0.5, 1.0)
    given["g"] = scale * given["g"]
    return given | {"temperature": temperature, "u": np.array([0.4375])}


@suite("selector.walk")
def softened(profile: Profile) -> Iterator[Case]:
    """The law at temperatures on both sides of 1."""
    for slug, given, catches in (
        ("temperature-halved", _softened(0.5), "the unary part alone is divided, or scores are multiplied"),
        ("temperature-raised", _softened(2.5), "the temperature is not applied, or twice"),
        ("temperature-cold", _softened(2.0**-7, 0.25), "scores are not taken from the largest before the exponential"),
    ):
        yield Case(
            slug, ("SEL-004", "SEL-001"), given, catches=catches, effect="output", exact=("scores",), blame=LAW
        )  # fmt: skip


def _level(u: list[float], count: int = 4) -> dict[str, Any]:
    """One step for each uniform, each among `count` candidates of one score."""
    given = _plain(f"level/{count}", len(u), count)
    given["unary"] = np.full((len(u), count), -2.5)
    return given | {"temperature": 1.0, "u": np.array(u)}


def _steep(u: list[float], rows: list[list[float]]) -> dict[str, Any]:
    """One step for each uniform, with unary scores so far apart that all but the largest have probability 0."""
    given = _plain(f"steep/{len(u)}", len(u), len(rows[0]))
    return given | {"unary": np.array(rows), "temperature": 1.0, "u": np.array(u)}


@suite("selector.walk")
def drawn(profile: Profile) -> Iterator[Case]:
    """The draw: at the edges of ranks, from the start of a law that begins with zeros, and past its end."""
    edges = [0.0, 0.25 - TICK, 0.25, 0.5 - TICK, 0.5, 0.75, 1.0 - TICK]
    sixteenths = [0.0625, 0.9375]
    for slug, given, catches in (
        ("draw-at-edges", _level(edges), "the cumulative sum is compared with <=, or all steps share one uniform"),
        ("draw-at-sixteenths", _level(sixteenths, TOP), "the draw ends a rank early or late"),
        ("draw-past-zeros", _steep([0.0], [[-900.0, -800.0, 7.0, -700.0]]),
         "a uniform of 0 draws a candidate of probability 0"),
        ("draw-without-a-rank", _steep([1.0, 1.0], [[7.0, -800.0, -900.0], [-900.0, 7.0, -800.0]]),
         "where FP32 sums end below the uniform, the draw ends past the last rank or in the other profile's"),
    ):  # fmt: skip
        yield Case(
            slug, ("SEL-005",), given,
            catches=catches, effect="output", tags=("tie",), exact=("scores", "q"),
        )  # fmt: skip
    yield Case(
        "law-of-the-draw", ("SEL-005", "SEL-002"), _retained(),
        catches="the law that is kept is not the law that drew: cut and renormalised, or of another predecessor",
        effect="output", exact=("scores",), blame={"scores": "SEL-002"},
    )  # fmt: skip


def _retained() -> dict[str, Any]:
    """Three sampled steps whose laws differ after every predecessor."""
    given = _three_paths()
    return given | {"temperature": 1.5, "u": np.full(4, 0.71875)}


def _rows(key: str, dtype: str, width: int = tiny.HIDDEN) -> Array:
    return inputs.telling(f"sel/{key}/hidden", (5, width), dtype) * 4.0


@suite("selector.project")
def project(profile: Profile) -> Iterator[Case]:
    """The selector's rows: ordinary ones, exact ones, and in BF16 sums that lie between two of its values."""
    act, weight = profile.dtypes["ACT"], profile.dtypes["WEIGHT"]
    yield Case(
        "ordinary", ("SEL-006",),
        {
            "hidden": _rows("ordinary", act),
            "projection": inputs.weights("sel/ordinary/projection", (RANK, tiny.HIDDEN), weight),
        },
        catches="the hidden row is normed again, or the projection is read column by column",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "lattice", ("SEL-006",),
        {
            "hidden": inputs.lattice("sel/lattice/hidden", (3, 12), 0.5, 4.0),
            "projection": inputs.lattice("sel/lattice/projection", (12, 12), 0.5, 0.5),
        },
        catches="the hidden row is normed again, or the projection is read column by column",
        effect="acceptance", exact=("g",),
    )  # fmt: skip
    if profile.name == "ninfer":
        odd = 2.0 * np.arange(6) + 1.0
        yield Case(
            "rounded", ("SEL-007",),
            {
                "hidden": np.array([[1.0, 2.0**-8], [-2.0, -(2.0**-7)], [1.0, 2.0**-9]]),
                "projection": np.stack([np.ones(6), odd], axis=1),
            },
            catches="the selector's row stays in FP32, or is cut instead of rounded",
            effect="acceptance", exact=("g",),
        )  # fmt: skip


@suite("rng.proposal_keys", profiles=("ninfer",))
def keys(profile: Profile) -> Iterator[Case]:
    """The key of each step's draw."""
    for slug, frontier, drafts in (("whole", 41, 7), ("one-draft", 1, 1), ("widest-far", 262127, 15)):
        yield Case(
            slug, ("SEL-008",), {"frontier": frontier, "drafts": drafts},
            catches="a step draws at its token's position, with another purpose, or with the step as its sub-index",
            effect="output",
        )  # fmt: skip
