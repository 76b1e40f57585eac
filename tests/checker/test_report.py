"""The order of the report: the clause that is broken itself stands before those that suffer from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dflash_spec.registry import load_ops, load_profile
from dflash_spec.tensors import Tensor
from dflash_vectors.cases import Entry, GoldenCase, default_folder, read_index
from dflash_vectors.checker import judge
from dflash_vectors.faults import all_faults, applied
from dflash_vectors.report import clause_ranks, failures
from dflash_vectors.runners import open_runner
from dflash_vectors.runners.protocol import Description
from dflash_vectors.style import Style
from dflash_vectors.verdict import FAILED, PASSED, Column, Divergence, Result, Run


def result(op: str, own: str, blamed: str = "", reason: str = "") -> Result:
    """A vector of `op` whose first clause is `own`; failed if a clause is blamed."""
    path = Path(f"zlab-{op.replace('.', '-')}-{own.lower()}-{blamed.lower()}")
    entry = Entry(path.name, load_ops()[op], load_profile("zlab"), (own,), (), path, "", 1)
    wrong = () if reason else (Divergence("out.x", "shape [1], expected [2]"),)
    return Result(entry, FAILED, reason, blamed, wrong) if blamed else Result(entry, PASSED)


def report(*results: Result) -> str:
    """What is printed of an implementation with these results."""

    def load(entry: Entry) -> GoldenCase:
        return GoldenCase(entry, {}, {"x": Tensor.of("F32", np.zeros(1))}, ())

    column = Column("python:made:port", Description("made", "1", "zlab"), list(results))
    return failures(Run("vectors", tuple(r.entry for r in results), [column]), Style(), load=load)


def clauses_of(text: str) -> list[str]:
    """The clauses that are explained, in order."""
    return [line.split()[0] for line in text.splitlines() if line[:1].isupper() and line.split()[0][-4] == "-"]


def test_what_a_single_op_blames_is_told_and_composites_follow_in_one_line() -> None:
    told = report(
        result("engine.generate", "RNG-001", "RNG-001"),
        result("draft.block", "CTX-001", "CTX-001"),
        result("law.greedy", "LAW-001", "LAW-001"),
    )
    assert clauses_of(told) == ["LAW-001"]
    (line,) = [line for line in told.splitlines() if "also fails these composites, which follow from it: " in line]
    assert "zlab-engine-generate-rng-001-rng-001" in told.split(line[:20])[1]
    assert "zlab-draft-block-ctx-001-ctx-001" in told.split(line[:20])[1]


def test_where_no_single_op_fails_composites_are_told_in_full() -> None:
    told = report(result("engine.generate", "COMMIT-002", "COMMIT-002"), result("law.greedy", "LAW-001"))
    assert clauses_of(told) == ["COMMIT-002"]
    assert "which follow from it" not in told


def test_a_composite_that_does_not_answer_follows_from_nothing() -> None:
    told = report(
        result("engine.generate", "RNG-001", "RNG-001", reason="raised KeyError"),
        result("law.greedy", "LAW-001", "LAW-001"),
    )
    assert clauses_of(told) == ["LAW-001", "RNG-001"]


def test_the_clause_whose_own_vectors_fail_most_stands_first_and_then_the_order_of_the_round() -> None:
    told = report(
        result("law.greedy", "LAW-001", "LAW-001"),
        result("rng.uniform", "RNG-001", "RNG-001"),
        result("rng.uniform", "RNG-001"),
        result("tap.concat", "TAP-002", "TAP-002"),
    )
    assert clauses_of(told) == ["TAP-002", "LAW-001", "RNG-001"]


def test_a_clause_without_vectors_of_its_own_stands_behind_those_that_have_some() -> None:
    told = report(result("law.greedy", "LAW-001", "LAW-001"), result("law.greedy", "LAW-001", "RNG-001"))
    assert clauses_of(told) == ["LAW-001", "RNG-001"]


@pytest.mark.parametrize("name", ["query-heads-dealt-out-in-turn", "angles-in-bf16", "logits-kept-in-fp32"])
def test_a_known_fault_opens_its_report_with_the_clause_that_it_breaks(name: str) -> None:
    (fault,) = [fault for fault in all_faults() if fault.name == name]
    profile = fault.profiles[0]
    runner = open_runner("python:dflash_vectors.implementations.reference:create", 60.0)
    column = Column(runner.spec, runner.start(profile))
    with applied(fault), np.errstate(all="ignore"):
        column.results += [judge(runner, column.description, entry) for entry in _single_ops(profile)]
    ranks: Any = clause_ranks(column, column.of(FAILED))
    assert len(ranks) > 1
    assert min(ranks, key=ranks.get) in fault.clauses


def _single_ops(profile: str) -> Iterable[Entry]:
    return (e for e in read_index(default_folder()) if e.profile.name == profile and not e.op.composite)
