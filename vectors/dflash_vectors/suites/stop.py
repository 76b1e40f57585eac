"""Ends: which licensed tokens are kept, and whether the request goes on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dflash_spec.registry import Profile

from dflash_vectors.suite import Case, suite

EOS, SECOND = 151645, 151643
LICENSED = (31, 37, 41, 43, 47)


def _preview(licensed: tuple[int, ...], stop_ids: tuple[int, ...], remaining: int) -> dict[str, object]:
    return {
        "licensed": np.array(licensed, dtype=np.int64),
        "stop_ids": np.array(stop_ids, dtype=np.int64),
        "remaining": remaining,
    }


def _with(*stops: tuple[int, int]) -> tuple[int, ...]:
    """The licensed tokens with other ids at some slots."""
    tokens = list(LICENSED)
    for slot, token in stops:
        tokens[slot] = token
    return tuple(tokens)


@suite("stop.preview")
def preview(profile: Profile) -> Iterator[Case]:
    """Stop ids at every kind of slot, several of them, and budgets that end before, with and after them."""
    after = "tokens after the stop are kept"
    stops: tuple[tuple[str, tuple[int, ...], tuple[int, ...], str], ...] = (
        ("stop-first", _with((0, EOS)), (EOS,), after),
        ("stop-middle", _with((2, EOS)), (EOS,), "the stop token itself is dropped, or what follows it is kept"),
        ("stop-last", _with((4, EOS)), (EOS,), "a stop in the correction's or bonus's slot is not seen"),
        ("two-stops", _with((1, EOS), (3, EOS)), (EOS,), "the last of two stops ends the text"),
        ("two-kinds-of-stop", _with((1, SECOND), (2, EOS)), (EOS, SECOND), "only the first stop id of the list ends"),
        ("stop-id-zero", _with((3, 0)), (0,), "token 0 as a stop id is taken for an empty list entry"),
        ("stop-alone", (EOS,), (EOS, SECOND), "a round of one token is not scanned"),
    )
    for slug, licensed, stop_ids, why in stops:
        yield Case(slug, ("STOP-001",), _preview(licensed, stop_ids, 97), catches=why, effect="output")
    six = (SECOND, 7, 11, 13, EOS, 17)
    many = "only the first few ids of a longer list of stops end the text"
    for slug, licensed in (
        ("sixth-of-six", _with((2, 17))), ("fifth-of-six", _with((4, EOS))), ("two-of-six", _with((1, 17), (3, 7)))
    ):  # fmt: skip
        yield Case(slug, ("STOP-001",), _preview(licensed, six, 97), catches=many, effect="output")
    for slug, stop_ids in (("no-stop-here", (EOS, SECOND)), ("no-stop-ids", ())):
        yield Case(
            slug, ("STOP-001",), _preview(LICENSED, stop_ids, 97),
            catches="a round without a stop ends the request or loses tokens",
            effect="output",
        )  # fmt: skip
    exact = "keeping the last token of the budget does not end the request, or costs a token"
    yield Case("budget-exact", ("STOP-003",), _preview(LICENSED, (EOS,), 5), catches=exact, effect="output")
    yield Case("budget-one", ("STOP-003",), _preview((8,), (EOS,), 1), catches=exact, effect="output")
    yield Case(
        "budget-one-spare", ("STOP-003",), _preview(LICENSED, (EOS,), 6),
        catches="the request ends one token before its budget",
        effect="output",
    )  # fmt: skip
    yield Case(
        "stop-with-budget", ("STOP-001", "STOP-003"), _preview(_with((2, EOS)), (EOS,), 5),
        catches="the budget's end hides the stop before it",
        effect="output",
    )  # fmt: skip


@suite("stop.preview", profiles=("zlab",))
def overshoot(profile: Profile) -> Iterator[Case]:
    """A round may license one token more than the budget holds."""
    yield Case(
        "overshoot", ("STOP-003",), _preview(LICENSED, (EOS,), 4),
        catches="the last round emits past the budget",
        effect="output",
    )  # fmt: skip
    yield Case(
        "stop-past-the-budget", ("STOP-003",), _preview(_with((4, EOS)), (EOS,), 4),
        catches="a stop id beyond the budget is scanned and kept",
        effect="output",
    )  # fmt: skip
    yield Case(
        "stop-at-the-budget", ("STOP-001", "STOP-003"), _preview(_with((3, EOS)), (EOS,), 4),
        catches="the budget is applied before the stop and drops it",
        effect="output",
    )  # fmt: skip
