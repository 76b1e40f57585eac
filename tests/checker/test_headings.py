"""A whole report opens with a clause that the fault behind it breaks, though its neighbours' vectors fail as well."""

from __future__ import annotations

import re

import pytest
from dflash_vectors import faults
from dflash_vectors.cases import default_folder, read_index
from dflash_vectors.checker import check
from dflash_vectors.lookalikes import Guesser
from dflash_vectors.report import failures
from dflash_vectors.runners import open_runner
from dflash_vectors.style import Style
from dflash_vectors.verdict import Run

REFERENCE = "python:dflash_vectors.implementations.reference:create"
FAULTS = {
    "tap-on-entering-the-block", "window-includes-distance-s", "rope-interleaved", "anchor-in-every-slot",
    "accepted-if-it-is-the-argmax", "correction-drawn-from-p", "context-keys-not-normed", "head-norm-over-all-heads",
}  # fmt: skip
"""Faults whose neighbours' vectors fail too, one or more of a chapter."""
CHOSEN = [
    (fault, profile) for fault in faults.all_faults() if fault.name in FAULTS for profile in fault.profiles
]  # fmt: skip


def heading(fault: faults.Fault, profile: str, guesser: Guesser | None) -> str:
    """The first clause of the report about the reference with `fault` in it."""
    entries = tuple(
        entry for entry in read_index(default_folder())
        if entry.profile.name == profile and not entry.op.composite and not entry.op.name.startswith("config.")
    )  # fmt: skip
    run = Run(str(default_folder()), entries)
    with faults.applied(fault):
        check(run, [open_runner(REFERENCE, 60.0)], [], lambda column, result: None)
    found = re.search(r"^([A-Z]+-\d{3})  ", failures(run, Style(), guesser), re.MULTILINE)
    assert found, f"nothing fails under {fault.name}"
    return found[1]


@pytest.mark.parametrize(("fault", "profile"), CHOSEN, ids=lambda value: getattr(value, "name", value))
def test_the_report_opens_with_a_clause_of_the_fault(fault: faults.Fault, profile: str) -> None:
    assert heading(fault, profile, Guesser()) in fault.clauses


def test_without_a_guess_a_neighbour_would_head_some_report() -> None:
    assert any(heading(fault, profile, None) not in fault.clauses for fault, profile in CHOSEN)
