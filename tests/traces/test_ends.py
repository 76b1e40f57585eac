"""Why a run ended: each reason where it is right, and each wrong one with the rule of STOP that it breaks.

Written by hand, in numbers alone: one prompt, K = 4, and rounds that accept everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from dflash_vectors import planted
from dflash_vectors.replay import Replay
from dflash_vectors.replay.ledger import Ledger
from dflash_vectors.trace import Recorder, Trace

STOP, DRAFTS = 9, 4
PAIR = planted.pair("small")
MASK = int(PAIR.options.mask_id)
PROMPT = [3, 5, 7, 11, 13]
ROUND = [2, 3, 4, 5, 6]
"""What a round licenses: K accepted proposals and the target's own token."""


def play(folder: Path, rounds: Sequence[Sequence[int]], reason: str, first: int = 1, **asked: Any) -> Any:
    """The bug of a trace whose rounds keep these tokens and which ended for `reason`; None if there is none.

    A round that keeps fewer tokens than it licenses has licensed those of ROUND after them. `given` are the tokens that
    were given out, `late` what the extent of a round is too large by.
    """
    given, late, profile = asked.pop("given", None), asked.pop("late", 0), asked.pop("profile", "zlab")
    texts = [(folder / name / "config.json").read_bytes() for name in ("target", "draft")]
    recorder = Recorder(
        folder / "trace", name="hand", version="", profile=profile, target=texts[0], draft=texts[1], prompt=PROMPT,
        drafts=DRAFTS, **{"max_new": 60, "stop_ids": [STOP], **asked},
    )  # fmt: skip
    recorder.prefill(first)
    ledger = Ledger(recorder.configuration)
    ledger.tokens.append(first)
    for tokens in rounds:
        extent = ledger.extent() + late if ledger.remaining > 0 else DRAFTS
        licensed = [*tokens, *ROUND][: max(extent + 1, len(tokens))]
        recorder.round(frontier=ledger.frontier, anchor=ledger.tokens[-1], proposals=licensed[:extent], accepted=extent,
            licensed=licensed, kept=len(tokens))  # fmt: skip
        ledger.tokens += tokens
        ledger.frontier += len(tokens)
    recorder.end(reason, given)
    return Replay(Trace.open(folder / "trace"), None).run(lambda number: None).bug


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    planted.write(tmp_path, PAIR)
    return tmp_path


STOPPED = [ROUND, [7, STOP]]
FULL = {"max_new": 8}
"""The first token, a whole round and the two that are left."""
TIGHT = {"capacity": len(PROMPT) + 7}
"""As many positions as the same eight tokens take: the last token kept is never read."""
RIGHT: dict[str, tuple[Sequence[Sequence[int]], dict[str, Any]]] = {
    "stop": (STOPPED, {}),
    "stop at the first token": ([], {"first": STOP}),
    "stop with the budget": ([ROUND, [7, STOP]], FULL),
    "length": ([ROUND, [7, 8]], FULL),
    "length at the first token": ([], {"max_new": 1}),
    "capacity": ([ROUND, [7, 8]], TIGHT),
    "cancelled": ([ROUND, []], {}),
    "cancelled between rounds": ([ROUND], {}),
    "error": ([ROUND, []], {}),
}


@pytest.mark.parametrize("profile", ["zlab", "ninfer"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_end_is_no_bug(name: str, profile: str, folder: Path) -> None:
    rounds, asked = RIGHT[name]
    assert play(folder, rounds, name.split()[0], profile=profile, **asked) is None


@pytest.mark.parametrize("said", ["stop", "length", "capacity", "cancelled", "error"])
@pytest.mark.parametrize("name", RIGHT)
def test_every_other_reason_is_blamed_on_the_rule_of_the_end(name: str, said: str, folder: Path) -> None:
    rounds, asked = RIGHT[name]
    right = name.split()[0]
    ends = {"stop": "STOP-001", "length": "STOP-003", "capacity": "STOP-003"}
    bug = play(folder, rounds, said, **asked)
    if said == right or {said, right} == {"cancelled", "error"}:
        assert bug is None
        return
    assert (bug.round, bug.place) == (len(rounds) - 1, "end.reason")
    assert bug.clause == ends.get(right, "STOP-002" if rounds[-1:] != [[]] else "COMMIT-003")
    assert f"{said!r}, expected " in bug.problem


def test_a_full_cache_that_is_called_the_length_that_was_asked_for_breaks_the_rule_of_reasons(folder: Path) -> None:
    bug = play(folder, [ROUND, [7, 8]], "length", profile="ninfer", **TIGHT)
    assert (bug.place, bug.clause) == ("end.reason", "STOP-010")


@pytest.mark.parametrize(
    ("rounds", "asked", "place", "clause"),
    [
        ([[7, STOP], ROUND], {}, "in.frontier", "STOP-001"),
        ([ROUND, [7, 8], ROUND], FULL, "in.frontier", "STOP-003"),
        ([ROUND], {"first": STOP}, "in.frontier", "STOP-004"),
        ([[7, STOP, 8]], {}, "decision.kept", "STOP-001"),
        ([ROUND, [7, 8, 10]], {**FULL, "late": 1}, "in.extent", "BLK-005"),
        ([[7, 8, 10]], {}, "decision.kept", "STOP-002"),
        ([[7, MASK, 10]], {"stop_ids": [STOP, MASK]}, "decision.kept", "STOP-001"),
        ([[7, 8, 10]], {"stop_ids": [STOP, MASK]}, "decision.kept", "STOP-012"),
        (STOPPED, {"given": [1, *ROUND, 7]}, "end.tokens", "STOP-001"),
        ([[7, MASK, STOP]], {"given": [1, 7, STOP]}, "end.tokens", "STOP-013"),
    ],
)
def test_an_end_that_comes_late_early_or_not_is_blamed_on_its_rule(
    rounds: Sequence[Sequence[int]], asked: dict[str, Any], place: str, clause: str, folder: Path
) -> None:
    bug = play(folder, rounds, "stop", **asked)
    assert (bug.place, bug.clause) == (place, clause)
