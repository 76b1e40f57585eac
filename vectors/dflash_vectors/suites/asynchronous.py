"""Asynchronous steps: what the previous step rejected, by request; blocks, and which rows give drafts.

Vocabulary 50. Samples of a request all differ, so that a row or a column taken for another shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

NEURON = ("vllm-neuron",)
VOCABULARY = 50
NONE = -1
AHEAD = "positions run ahead of the sequence, and every key is injected at another token's place"
Rows = Sequence[Sequence[int]]


def _table(rows: Rows, columns: int) -> Any:
    return np.array(rows, dtype=np.int64).reshape(len(rows), columns)


@suite("async.valid", profiles=NEURON)
def valid(profile: Profile) -> Iterator[Case]:
    """All accepted, all rejected, ids at the vocabulary's end, and a placeholder in the middle."""
    for slug, sampled in (
        ("all-accepted", [[4, 11, 23, 7], [0, 1, 2, 3]]),
        ("all-rejected", [[4, NONE, NONE, NONE], [0, NONE, NONE, NONE]]),
        ("at-the-vocabulary", [[4, 50, NONE, NONE], [7, 49, NONE, NONE], [50, 49, 51, 48]]),
        ("placeholder-in-the-middle", [[4, NONE, 23, NONE], [NONE, 11, NONE, 7]]),
        ("no-sample", [[NONE] * 4, [8, NONE, NONE, NONE]]),
        ("one-column", [[49], [50], [NONE]]),
    ):
        yield Case(
            slug, ("ASYNC-001",), {"sampled": np.array(sampled), "vocabulary": VOCABULARY},
            catches="samples are counted up to the first placeholder, or an id past the vocabulary counts as a token",
            effect="acceptance",
        )  # fmt: skip


class Before(NamedTuple):
    """A request's row of the previous step: its id, how many drafts it had and how many tokens it got."""

    id: int
    drafts: int
    valid: int


def _before(rows: Sequence[Before], width: int = 5) -> dict[str, Any]:
    """The previous step; a row's tokens come first, placeholders after."""
    sampled = [[(7 * row.id + at) % VOCABULARY if at < row.valid else NONE for at in range(width)] for row in rows]
    return {
        "previous_ids": np.array([row.id for row in rows], dtype=np.int64),
        "previous_sampled": _table(sampled, width),
        "previous_drafts": np.array([row.drafts for row in rows], dtype=np.int64),
    }


@suite("async.remap", profiles=NEURON)
def remap(profile: Profile) -> Iterator[Case]:
    """The same batch, rows swapped, requests that join and leave."""
    a, b, c = Before(31, 4, 2), Before(12, 4, 5), Before(77, 4, 1)
    for slug, rows, ids in (
        ("two-rows-swapped", [a, b], [12, 31]),
        ("three-rows-rotated", [a, b, c], [77, 31, 12]),
        ("rows-condensed", [a, b, c], [31, 77]),
    ):
        yield Case(
            slug, ("ASYNC-002",), {**_before(rows), "ids": np.array(ids), "vocabulary": VOCABULARY},
            catches="after a change of the batch a request is corrected by what its row's last owner lost",
            effect="output",
        )  # fmt: skip
    for slug, rows in (
        ("all-rejected", [Before(31, 4, 1), Before(12, 4, 1)]),
        ("all-accepted", [Before(31, 4, 5), Before(12, 4, 5)]),
        ("drafts-of-their-own", [Before(31, 4, 3), Before(12, 2, 3), Before(5, 0, 1), Before(8, 3, 1)]),
    ):
        own = np.array([row.id for row in rows])
        yield Case(
            slug, ("ASYNC-003",), {**_before(rows), "ids": own, "vocabulary": VOCABULARY},
            catches="the correction or bonus is not counted, or K stands for a request's own drafts",
            effect="acceptance",
        )  # fmt: skip
    for slug, rows, ids in (
        ("one-joins", [a, b], [31, 12, 9]),
        ("one-joins-in-front", [c, a], [9, 77, 31]),
        ("one-leaves-and-one-joins", [c, b], [12, 9]),
        ("first-step", [], [31, 12]),
        ("all-are-new", [c, a], [9, 10]),
    ):
        yield Case(
            slug, ("ASYNC-004",), {**_before(rows), "ids": np.array(ids), "vocabulary": VOCABULARY},
            catches="a request that joins is corrected by the rejections of the one whose row it gets",
            effect="output",
        )  # fmt: skip
    mixed = _before([Before(31, 4, 4), Before(12, 4, 4)])
    mixed["previous_sampled"] = np.array([[4, NONE, 9, NONE, NONE], [50, 49, 3, 51, NONE]])
    yield Case(
        "ids-that-are-no-tokens", ("ASYNC-001",), {**mixed, "ids": np.array([12, 31]), "vocabulary": VOCABULARY},
        catches="placeholders in the middle end the count, or ids past the vocabulary are counted",
        effect="acceptance",
    )  # fmt: skip


@suite("async.rows", profiles=NEURON)
def rows(profile: Profile) -> Iterator[Case]:
    """Requests of several rows and of one, with padding behind them and without."""
    for slug, last, count in (
        ("trailing-padding", [3, 4, 9], 13),
        ("no-padding", [3, 4, 9], 10),
        ("one-row-each", [0, 1, 2, 3], 6),
        ("one-request", [4], 5),
        ("padding-of-one-row", [1, 6], 8),
        ("long-prompt-between", [0, 11, 12], 16),
    ):
        yield Case(
            slug, ("ASYNC-005",), {"last_token_indices": np.array(last), "rows": count},
            catches="padding rows belong to the last request, or a request's last row to the next",
            effect="output",
        )  # fmt: skip


@suite("async.positions", profiles=NEURON)
def positions(profile: Profile) -> Iterator[Case]:
    """Rows of requests that lost nothing, some and all of their drafts."""
    for slug, at, requests, rejected in (
        ("one-lost-two", [11, 12, 13, 40, 41], [0, 0, 0, 1, 1], [2, 0]),
        ("nothing-lost", [5, 6, 9, 10], [0, 0, 1, 1], [0, 0]),
        ("each-lost-its-own", [20, 21, 30, 31, 44], [0, 0, 1, 1, 2], [3, 1, 4]),
        ("second-request-first", [30, 31, 20], [1, 1, 0], [4, 1]),
    ):
        yield Case(
            slug, ("ASYNC-006",),
            {"positions": np.array(at), "requests": np.array(requests), "rejected": np.array(rejected)},
            catches=AHEAD, effect="acceptance",
        )  # fmt: skip


@suite("async.lengths", profiles=NEURON)
def lengths(profile: Profile) -> Iterator[Case]:
    """All accepted, all rejected, with the step's own draft counts and without."""
    accepted, rejected = [4, 11, 23, 7], [9, NONE, NONE, NONE]
    some, one = [8, 15, NONE, NONE], [6, NONE, NONE, NONE]
    for slug, clause, before, sampled, drafts in (
        ("all-accepted", "ASYNC-007", [14, 30], [accepted, accepted], [3, 3]),
        ("all-rejected", "ASYNC-007", [14, 30], [rejected, one], [3, 3]),
        ("some-rejected", "ASYNC-007", [14, 30, 9], [some, rejected, accepted], [3, 3, 3]),
        ("at-the-vocabulary", "ASYNC-001", [14, 30], [[4, 49, 50, 3], [4, NONE, 3, NONE]], [3, 3]),
        ("counts-of-their-own", "ASYNC-008", [14, 30, 9], [some, one, one], [1, 0, 2]),
        ("prefill-beside-decode", "ASYNC-008", [40, 30], [one, some], [0, 3]),
        ("counts-not-given", "ASYNC-008", [14, 30], [some, accepted], []),
    ):
        yield Case(
            slug, (clause,),
            {"lengths": np.array(before), "sampled": np.array(sampled), "drafts": 3, "vocabulary": VOCABULARY,
             "current_drafts": np.array(drafts, dtype=np.int64)},
            catches="the block begins behind rejected rows, or before tokens that the request has",
            effect="acceptance",
        )  # fmt: skip


@suite("async.bonus", profiles=NEURON)
def bonus(profile: Profile) -> Iterator[Case]:
    """Which of a row's samples anchors the next block."""
    for slug, sampled in (
        ("all-rejected", [[4, NONE, NONE, NONE], [7, NONE, NONE, NONE]]),
        ("all-accepted", [[4, 11, 23, 7], [9, 8, 6, 5]]),
        ("some-accepted", [[4, 11, NONE, NONE], [9, 8, 6, NONE]]),
        ("placeholder-in-the-middle", [[4, NONE, 23, NONE], [9, NONE, NONE, 5]]),
        ("at-the-vocabulary", [[4, 49, NONE, NONE], [9, 8, 50, NONE], [3, 51, 50, 50]]),
        ("token-zero", [[4, 0, NONE, NONE], [0, NONE, NONE, NONE]]),
    ):
        yield Case(
            slug, ("ASYNC-009",), {"sampled": np.array(sampled), "vocabulary": VOCABULARY},
            catches="the last column, a placeholder or an id past the vocabulary becomes the anchor",
            effect="crash",
        )  # fmt: skip


@suite("async.block", profiles=NEURON)
def block(profile: Profile) -> Iterator[Case]:
    """One request and several, the guide's width and the narrowest."""
    for what, clause, words in (
        ("ids", "ASYNC-010", "a mask stands in the bonus slot, or blocks of two requests are interleaved"),
        ("positions", "ASYNC-011", "block rows begin one position early or late, or all requests begin where one does"),
        ("kept-rows", "ASYNC-012", "the bonus row's prediction is taken for a draft"),
    ):
        blame = {"ids": "ASYNC-010", "positions": "ASYNC-011", "keep_index": "ASYNC-012"}
        for slug, anchors, before, drafts in (
            ("of-two-requests", [23, 7], [14, 30], 3),
            ("of-one-draft", [8, 9, 10], [5, 6, 90], 1),
            ("of-nine-drafts", [41], [128], 9),
        ):
            yield Case(
                f"{what}-{slug}", (clause,),
                {"bonus": np.array(anchors), "lengths": np.array(before), "drafts": drafts, "mask_id": 49},
                catches=words, effect="acceptance", blame=blame,
            )  # fmt: skip


@suite("async.outputs", profiles=NEURON)
def outputs(profile: Profile) -> Iterator[Case]:
    """Two requests, three, and one."""
    for slug, anchors, proposals in (
        ("two-requests", [23, 7], [1, 2, 3, 4, 5, 6]),
        ("three-requests-of-one-draft", [23, 7, 9], [1, 2, 3]),
        ("one-request", [5], [10, 11, 12, 13, 14, 15, 16, 17, 18]),
        ("as-many-requests-as-drafts", [5, 6, 7], list(range(20, 29))),
    ):
        yield Case(
            slug, ("ASYNC-013",), {"bonus": np.array(anchors), "proposals": np.array(proposals)},
            catches="proposals are dealt out in turn, or the bonus is put behind its drafts",
            effect="acceptance",
        )  # fmt: skip


class Now(NamedTuple):
    """A request of this step: where its rows begin in truth, how many there are, how many tokens it gets."""

    id: int
    begins: int
    rows: int
    valid: int


def _prepare(
    now: Sequence[Now], before: Sequence[Before], table: Rows, padding: int = 2, given: bool = True,
    max_length: int = 64, drafts: int = 3, block_size: int = 4,
) -> dict[str, Any]:  # fmt: skip
    """A step as the scheduler wrote it, every request ahead by what its previous step lost."""
    lost = {row.id: 1 + row.drafts - row.valid for row in before}
    places = [at + lost.get(row.id, 0) for row in now for at in range(row.begins, row.begins + row.rows)]
    sampled = [[(5 * row.id + at) % VOCABULARY if at < row.valid else NONE for at in range(drafts + 1)] for row in now]
    counts = [row.rows - 1 if row.rows <= drafts + 1 else 0 for row in now]
    return {
        "positions": np.array(places + [0] * padding),
        "last_token_indices": np.cumsum([row.rows for row in now]) - 1,
        "sampled": _table(sampled, drafts + 1),
        "current_drafts": np.array(counts if given else [], dtype=np.int64),
        "ids": np.array([row.id for row in now]),
        **_before(before, drafts + 1),
        "table": np.array(table), "block_size": block_size, "max_length": max_length, "drafts": drafts, "mask_id": 49,
        "vocabulary": VOCABULARY,
    }  # fmt: skip


@suite("async.prepare", profiles=NEURON)
def prepare(profile: Profile) -> Iterator[Case]:
    """Whole preparations: steady batches, swaps, joins, ends of pages, tables and sequences."""
    table = [[7, 3, 12, 8, 1, 10], [4, 9, 5, 16, 2, 11]]
    a, b = Before(31, 3, 2), Before(12, 3, 4)
    third = [13, 14, 15, 17, 18, 19]
    for slug, given in (
        ("steady", _prepare([Now(31, 9, 4, 3), Now(12, 14, 4, 1)], [a, b], table)),
        ("rows-swapped", _prepare([Now(12, 14, 4, 4), Now(31, 9, 4, 2)], [a, b], table)),
        ("one-joins-with-its-prompt", _prepare([Now(31, 9, 4, 3), Now(5, 0, 7, 1)], [a, b], table)),
        ("one-leaves-and-one-joins", _prepare([Now(5, 0, 6, 1), Now(12, 14, 4, 2)], [a, b], table, padding=5)),
        ("first-step-of-all", _prepare([Now(31, 0, 8, 1), Now(12, 0, 5, 1)], [], table)),
        (
            "all-rejected-twice",
            _prepare([Now(31, 9, 4, 1), Now(12, 14, 4, 1)], [Before(31, 3, 1), Before(12, 3, 1)], table),
        ),
        (
            "all-accepted-twice",
            _prepare([Now(31, 9, 4, 4), Now(12, 14, 4, 4)], [Before(31, 3, 4), Before(12, 3, 4)], table, padding=0),
        ),
        ("block-ends-with-a-page", _prepare([Now(31, 9, 4, 3), Now(12, 15, 4, 1)], [a, b], table)),
        ("block-past-the-table", _prepare([Now(31, 19, 4, 2), Now(12, 20, 4, 4)], [a, b], table)),
        (
            "block-past-the-longest-sequence",
            _prepare([Now(31, 9, 4, 4), Now(12, 14, 4, 4)], [a, b], table, max_length=16),
        ),
        (
            "evicted-pages",
            _prepare([Now(31, 9, 4, 2), Now(12, 14, 4, 3)], [a, b], [[0, 0, 12, 8, 0, 0], [4, 9, 5, 16, 2, 0]]),
        ),
        ("counts-not-given", _prepare([Now(31, 9, 4, 3), Now(12, 14, 4, 2)], [a, b], table, given=False)),
        (
            "three-requests-rotated",
            _prepare([Now(5, 3, 4, 2), Now(31, 9, 4, 4), Now(12, 14, 4, 1)], [a, b, Before(5, 3, 3)], [*table, third]),
        ),
    ):
        yield Case(
            slug, ("ASYNC-014",), given,
            catches="the two corrections are made in the other order, on the wrong request, or after the slots",
            effect="acceptance",
            blame={"requests": "ASYNC-005", "rejected": "ASYNC-002", "bonus": "ASYNC-009"},
        )  # fmt: skip
