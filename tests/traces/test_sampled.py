"""Sampled requests with keyed draws: every draw is repeated, and the first that its uniform does not give is a bug.

A fault that holds from the beginning changes nothing until its first other draw, which the clean trace of the same seed
shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dflash_vectors import faults
from dflash_vectors.replay import BUG
from dflash_vectors.replay.recording import record_reference
from dflash_vectors.trace import Trace

from .conftest import Make

NEW_TOKENS = 70
TEMPERATURE, SEED = 6.0, 23

WRONG: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ninfer", "dflash", "accept-test-keyed-at-the-input", {"seed": 20}),
    ("ninfer", "dflash", "correction-drawn-from-p", {}),
    ("ninfer", "dflash", "terminal-keyed-at-the-last-accepted", {}),
    ("ninfer", "dflash", "verify-rows-unpenalised", {"presence": 9.0, "seed": 29}),
    ("ninfer", "dflash2", "proposal-keyed-at-its-token", {}),
    ("ninfer", "dflash2", "residual-drawn-from-p", {}),
    ("ninfer", "dflash2", "one-uniform-for-the-walk", {}),
    ("zlab", "dflash2", "drawn-proposals-judged-by-the-row-after", {}),
    ("zlab", "dflash", "proposals-of-a-round-share-a-uniform", {}),
    ("zlab", "dflash", "top-p-not-applied-in-verification", {"top_p": 0.6}),
]


def first_difference(left: Path, right: Path) -> int:
    """The first round whose proposals or tokens differ; -1 where the first token does."""
    one, other = Trace.open(left), Trace.open(right)
    assert one.prefill is not None
    assert other.prefill is not None
    if one.prefill.first != other.prefill.first:
        return -1
    for a, b in zip(one.rounds(), other.rounds(), strict=False):
        if a.proposals.tolist() != b.proposals.tolist() or a.licensed.tolist() != b.licensed.tolist():
            return a.number
    raise AssertionError("the fault draws nothing else with this seed")


@pytest.mark.parametrize(("profile", "backend", "name", "more"), WRONG, ids=[f"{p}-{n}" for p, _, n, _ in WRONG])
def test_the_first_wrong_draw_is_found(
    profile: str, backend: str, name: str, more: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    made = make(backend, "F32" if profile == "zlab" else "BF16")
    (fault,) = [fault for fault in faults.all_faults() if fault.name == name]
    pair, settings = (
        made.reference(profile),
        made.settings(NEW_TOKENS, **{"temperature": TEMPERATURE, "seed": SEED, **more}),
    )
    record_reference(tmp_path / "clean", pair, made.texts, made.pair.prompts[0], settings)
    assert made.replayed(tmp_path / "clean").findings == []
    record_reference(
        tmp_path / "trace", pair, made.texts, made.pair.prompts[0], settings,
        spoil=lambda _watcher: faults.applied(fault),
    )  # fmt: skip
    first = first_difference(tmp_path / "trace", tmp_path / "clean")
    bug = made.replayed(tmp_path / "trace").bug
    assert bug is not None
    assert (bug.round, bug.verdict) == (first, BUG)
    print(f"\n{bug.round} {bug.place} {bug.clause} {bug.problem} {[guess.name for guess in bug.guesses]}")
    blamed = {bug.clause, *(clause for guess in bug.guesses for clause in guess.clauses)}
    assert blamed & set(fault.clauses), (bug.clause, bug.guesses)
