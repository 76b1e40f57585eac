"""Transactions of a batch: rows that may start a round, and commits of all rows or of none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dflash_spec.registry import Profile
from dflash_spec.tensors import Array

from dflash_vectors import inputs
from dflash_vectors.suite import Case, suite

NINFER = ("ninfer",)
GOES_ON, ENDS, CANCELLED = range(3)
CAPACITY, PUBLIC = 640, 251

READY = [[517, 518, 517, 512], [43, 44, 43, 43], [640 - 1, 640, 639, 634], [205, 206, 205, 204]]
"""Frontiers of four rows that lack 5, 0, 5 and 1 context rows."""


def _ready(rows: list[list[int]], active: int = 0b1111, remaining: tuple[int, ...] = (9, 1, 3, 70)) -> dict[str, Any]:
    return {
        "active": np.array([active >> row & 1 for row in range(len(rows))]),
        "frontiers": np.array(rows),
        "remaining": np.array(remaining[: len(rows)]),
        "capacity": CAPACITY,
        "widest": 5,
    }


def _moved(row: int, column: int, by: int) -> list[list[int]]:
    """READY with one frontier of one row elsewhere."""
    rows = [list(line) for line in READY]
    rows[row][column] += by
    return rows


@suite("commit.ready", profiles=NINFER)
def ready(profile: Profile) -> Iterator[Case]:
    """Rows that lack none, one and all of the widest block's rows, on every edge that still lets them start."""
    padding = "padding is written past the frontier, or over the row before the first pending one"
    yield Case("ragged", ("COMMIT-013",), _ready(READY), catches=padding, effect="acceptance")
    yield Case(
        "nothing-pending", ("COMMIT-013",), _ready([[43, 44, 43, 43], [1, 2, 1, 1]]), catches=padding,
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "first-rows", ("COMMIT-013",), _ready([[3, 4, 3, 0]]),
        catches="the rows of positions 0 to 2 are appended from position 1 on", effect="acceptance",
    )  # fmt: skip
    why = "a row starts a round from a state whose parts disagree, or a sound batch is refused"
    yield Case("last-position", ("COMMIT-012",), _ready([READY[2]], remaining=(1,)), catches=why, effect="output")
    refused = {
        "inactive": _ready(READY, active=0b1011),
        "budget-used-up": _ready(READY, remaining=(9, 0, 3, 70)),
        "cache-full": _ready([READY[0], [640, 641, 640, 637]]),
        "target-rows-ahead": _ready(_moved(3, 2, 1)),
        "target-rows-behind": _ready(_moved(0, 2, -1)),
        "ledger-without-the-anchor": _ready(_moved(1, 1, -1)),
        "ledger-one-token-ahead": _ready(_moved(2, 1, 1)),
        "context-ahead": _ready(_moved(1, 3, 1)),
        "context-six-rows-behind": _ready(_moved(0, 3, -1)),
    }
    for slug, given in refused.items():
        yield Case(f"refused-{slug}", ("COMMIT-012",), given, catches=why, effect="output")


class Batch:
    """Four rows of width 5: one goes on after rejecting all, one ends inside, one ends whole, one is cancelled."""

    base = ((96, 97, 96, 96), (41, 42, 41, 41), (230, 231, 230, 230), (17, 18, 17, 17))
    anchors = (89, 101, 127, 139)
    licensed = ((181,), (83, 79, 73, 71, 67), (61, 59, 53), (47, 43))
    kept = (1, 2, 3, 0)
    ends = (GOES_ON, ENDS, ENDS, CANCELLED)
    extents = (4, 4, 3, 4)
    remaining = (7, 5, 3, 2)

    def inputs(self, **other: Any) -> dict[str, Any]:
        """The inputs of commit.resolve, with other values where they are given."""
        given = {name: other.pop(name, getattr(self, name)) for name in ("base", "licensed", "kept", "ends")}
        counts = [len(tokens) for tokens in given["licensed"]]
        width = 5
        plain = {
            "base": given["base"], "present": given["base"], "anchors": self.anchors[: len(counts)],
            "widths": (width,) * len(counts), "extents": self.extents[: len(counts)],
            "accepted": [count - 1 for count in counts], "counts": counts,
            "licensed": [[*tokens, *[-1] * width][:width] for tokens in given["licensed"]],
            "kept": given["kept"], "ends": given["ends"], "remaining": self.remaining[: len(counts)],
            "capacity": CAPACITY, "public": PUBLIC, "consumed": 0,
        }  # fmt: skip
        return {name: np.array(value) if np.ndim(value) else value for name, value in (plain | other).items()}

    def with_row(self, row: int, **other: Any) -> dict[str, Any]:
        """The batch with other values in one row; a whole other tensor is given by what it should be in that row."""
        given = self.inputs()
        for name, value in other.items():
            given[name] = given[name].copy()
            given[name][row] = value
        return given


BATCH = Batch()
ALL_ACCEPTED = {"licensed": ((83, 79, 73, 71, 67), (61,)), "kept": (5, 1), "ends": (0, 0), "base": Batch.base[:2]}


def _resolve(slug: str, clause: str, given: dict[str, Any], catches: str, effect: str = "output") -> Case:
    return Case(slug, (clause,), given, catches=catches, effect=effect)


@suite("commit.resolve", profiles=NINFER)
def committed(profile: Profile) -> Iterator[Case]:
    """Batches that are committed: every end, every count, and every limit reached but not passed."""
    moves = "a frontier of one row moves by another row's count, or by another count than its siblings"
    whole = {name: np.array(value) for name, value in ALL_ACCEPTED.items() if name in ("kept", "ends")}
    for slug, given in (
        ("every-end", BATCH.inputs()),
        ("all-and-none-accepted", BATCH.inputs(**{**ALL_ACCEPTED, **whole}, remaining=np.array([5, 9]))),
    ):
        yield _resolve(f"{slug}-frontiers", "COMMIT-010", given, moves)
        yield _resolve(
            f"{slug}-context", "COMMIT-011", given,
            "the context of a row that ends stays behind, or that of a row that goes on runs ahead", "acceptance",
        )  # fmt: skip
        yield Case(
            f"{slug}-anchors", ("COMMIT-001",), given,
            catches="the next anchor is another row's, or that of the uncut round", effect="output",
        )  # fmt: skip
    yield _resolve(
        "cancelled-rows-alone", "COMMIT-010", BATCH.inputs(kept=(0,) * 4, ends=(CANCELLED,) * 4),
        "a cancelled batch commits its anchors",
    )  # fmt: skip
    yield _resolve(
        "whole-block-accepted", "COMMIT-005", BATCH.inputs(**{**ALL_ACCEPTED, **whole}, remaining=np.array([5, 9])),
        "a round that accepts its whole block is refused", "liveness",
    )  # fmt: skip
    yield _resolve(
        "on-every-limit", "COMMIT-006", BATCH.with_row(1, base=(635, 636, 635, 635), present=(635, 636, 635, 635)),
        "a row that just fits its budget and its cache is refused", "liveness",
    )  # fmt: skip
    yield _resolve(
        "last-public-id", "COMMIT-007", BATCH.inputs(licensed=((250,), (0, 79, 73, 71, 250), (61, 59, 53), (47, 43))),
        "the last public id, or id 0, is taken for none", "liveness",
    )  # fmt: skip


@suite("commit.resolve", profiles=NINFER)
def refused(profile: Profile) -> Iterator[Case]:
    """Batches with one bad row among sound ones, which are refused whole."""
    decided = "a row keeps another count than its end allows, or its sound neighbours are committed"
    for slug, row, kept, end in (
        ("goes-on-after-a-cut", 2, 2, GOES_ON), ("goes-on-without-tokens", 0, 0, GOES_ON),
        ("ends-without-tokens", 1, 0, ENDS), ("ends-with-more-than-licensed", 2, 4, ENDS),
        ("cancelled-with-a-token", 3, 1, CANCELLED), ("cancelled-with-all", 3, 2, CANCELLED),
    ):  # fmt: skip
        yield _resolve(f"refused-{slug}", "COMMIT-004", BATCH.with_row(row, kept=kept, ends=end), decided)
    counted = "a round licenses tokens of columns that were not verified, or loses its last one"
    for slug, row, other in (
        ("without-its-bonus", 1, {"counts": 4, "accepted": 4}), ("two-more-than-accepted", 2, {"accepted": 1}),
        ("past-its-extent", 2, {"extents": 1}), ("that-licenses-nothing", 0, {"counts": 0, "accepted": -1}),
        ("wider-than-the-block", 1, {"counts": 6, "accepted": 5, "extents": 5, "remaining": 9}),
    ):  # fmt: skip
        yield _resolve(f"refused-row-{slug}", "COMMIT-005", BATCH.with_row(row, **other), counted)
    limits = "a row goes past its budget or its cache"
    yield _resolve("refused-past-the-budget", "COMMIT-006", BATCH.with_row(2, remaining=2), limits)
    at = (636, 637, 636, 636)
    yield _resolve("refused-past-the-cache", "COMMIT-006", BATCH.with_row(1, base=at, present=at), limits, "crash")
    for slug, row, tokens in (
        ("first-padding-id", 0, (251,)), ("sentinel", 2, (61, -1, 53)),
        ("padding-id-that-is-cut", 1, (83, 79, 73, 71, 999)),
    ):  # fmt: skip
        licensed = (*Batch.licensed[:row], tokens, *Batch.licensed[row + 1 :])
        yield _resolve(
            f"refused-{slug}", "COMMIT-007", BATCH.inputs(licensed=licensed),
            "a token that no text can hold becomes an anchor", "crash",
        )  # fmt: skip
    yield _resolve(
        "refused-second-time", "COMMIT-008", BATCH.inputs(consumed=1), "a round is committed twice"
    )  # fmt: skip
    for column, name in enumerate(("execution", "ledger", "target", "context")):
        present = np.array(Batch.base)
        present[column, column] += 1 if column % 2 else -1
        yield _resolve(
            f"refused-moved-{name}", "COMMIT-009", BATCH.inputs(present=present),
            "a late result is committed onto a state that has moved on",
        )  # fmt: skip
    yield _resolve(
        "refused-two-widths", "COMMIT-009", BATCH.inputs(widths=np.array([5, 5, 4, 5])),
        "rows of two verify passes are committed as one batch",
    )  # fmt: skip


@suite("commit.effects", profiles=NINFER)
def effects(profile: Profile) -> Iterator[Case]:
    """Commits of rows with every end, for both kinds of draft, and one that fails."""
    batch = {name: np.array(getattr(Batch, name)) for name in ("kept", "ends")}
    batch["counts"] = np.array([len(tokens) for tokens in Batch.licensed])
    order = "effects come row by row, or the frontiers move before what is appended from them"
    for slug, own_law in (("drawn-proposals", 1), ("certain-proposals", 0)):
        given = {**batch, "own_law": own_law, "failed": 0}
        yield Case(f"{slug}-state", ("COMMIT-014",), given, catches=order, effect="acceptance")
        yield Case(
            f"{slug}-published", ("COMMIT-015",), given, catches="tokens are published before the state holds them",
            effect="output",
        )  # fmt: skip
    yield Case(
        "model-failed", ("COMMIT-015",), {**batch, "own_law": 1, "failed": 1},
        catches="tokens of a commit that failed are published", effect="output",
    )  # fmt: skip
    nothing = {"kept": np.zeros(2, int), "ends": np.full(2, CANCELLED), "counts": np.array([3, 1])}
    yield Case(
        "all-cancelled", ("COMMIT-014",), {**nothing, "own_law": 1, "failed": 0},
        catches="a cancelled row folds, is counted or is published", effect="output",
    )  # fmt: skip


def _hidden(key: str, kept: tuple[int, ...], poison: bool, width: int = 5, hidden: int = 3) -> dict[str, Array]:
    """Verify columns of B rows; with `poison`, NaN in all those that no request may go on from."""
    rows = inputs.telling(f"commit/{key}/hidden", (len(kept), width, hidden), "BF16")
    for row, count in enumerate(kept):
        if poison:
            rows[row, max(count, 0) :] = np.nan
    previous = inputs.telling(f"commit/{key}/previous", (len(kept), hidden), "BF16") + 4.0
    return {"hidden": rows, "previous": inputs.represent(previous, "BF16"), "kept": np.array(kept)}


@suite("commit.hidden", profiles=NINFER)
def hidden(profile: Profile) -> Iterator[Case]:
    """Rows that keep nothing, one, some and all of their columns."""
    yield Case(
        "one-some-all-none", ("COMMIT-016",), _hidden("mixed", (1, 3, 5, 0), poison=False),
        catches="the hidden row is that of the last verified column, of a neighbour, or of column N",
        effect="acceptance",
    )  # fmt: skip
    yield Case(
        "dropped-columns-poisoned", ("COMMIT-016",), _hidden("poisoned", (2, 0, 4), poison=True),
        catches="columns that were dropped are blended in", effect="output",
    )  # fmt: skip
    yield Case(
        "one-row", ("COMMIT-016",), _hidden("single", (4,), poison=True, width=7),
        catches="the column is counted from the end", effect="output",
    )  # fmt: skip


def _features(key: str, kept: tuple[int, ...], frontiers: tuple[int, ...], width: int) -> dict[str, Any]:
    rows = inputs.telling(f"commit/{key}/captured", (len(kept) * width, 3), "BF16")
    for row, count in enumerate(kept):
        rows[row * width + count : (row + 1) * width] = np.nan
    return {"captured": rows, "width": width, "kept": np.array(kept), "frontiers": np.array(frontiers)}


@suite("commit.features", profiles=NINFER)
def features(profile: Profile) -> Iterator[Case]:
    """Batch rows that keep different counts; rejected rows are NaN."""
    for slug, kept, frontiers, width in (
        ("three-and-one", (3, 1), (40, 9), 4), ("all-none-one", (5, 0, 1), (96, 41, 230), 5),
        ("none-then-all", (0, 4), (7, 262140), 4), ("one-row", (2,), (11,), 6), ("nothing-kept", (0, 0), (5, 8), 2),
    ):  # fmt: skip
        yield Case(
            slug, ("COMMIT-017",), _features(slug, kept, frontiers, width),
            catches="rows are taken from the front of the whole batch, so a request gets its neighbour's",
            effect="acceptance",
        )  # fmt: skip
