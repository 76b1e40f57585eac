"""Every rule is computed once, tested by a vector, broken by a fault; and nothing cites a rule that is not there."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from dflash_spec.registry import load_clauses, load_ops, load_profile
from dflash_vectors.faults import all_faults
from dflash_vectors.suite import all_cases

ROOT = Path(__file__).resolve().parents[2]
CITATION = re.compile(r"Clause: ([A-Z]+-\d{3})")
CHAPTERS = sorted({clause.chapter for clause in load_clauses().values()})
ID = re.compile(rf"\b(?:{'|'.join(CHAPTERS)})-\d{{3}}\b")
MUST = [clause for clause in load_clauses().values() if clause.level == "must"]


def citations():
    """clause id -> the functions and classes whose docstrings cite it."""
    found = defaultdict(list)
    for folder in ("reference/dflash_reference", "spec/dflash_spec/config", "spec/dflash_spec/checkpoint.py"):
        root = ROOT / folder
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    for id_ in CITATION.findall(ast.get_docstring(node) or ""):
                        found[id_].append(f"{path.stem}.{node.name}")
    return found


CITED = citations()


def ids(clauses):
    return pytest.mark.parametrize("clause", clauses, ids=lambda clause: clause.id)


@ids(MUST)
def test_every_must_clause_is_cited_by_exactly_one_function(clause):
    assert len(CITED[clause.id]) == 1, f"{clause.id} is cited by {CITED[clause.id] or 'nothing'}: {clause.statement}"


@ids(MUST)
def test_every_must_clause_is_exercised_by_a_vector_in_each_of_its_profiles(clause):
    tested = {case.profile for case in all_cases() if clause.id in case.clauses}
    assert set(clause.profiles) <= tested, f"{clause.id} has vectors in {sorted(tested)}: {clause.statement}"
    assert all(clause.holds_in(load_profile(name)) for name in tested)


@ids(MUST)
def test_every_must_clause_is_exercised_through_an_op_that_it_names(clause):
    assert any(case.op in clause.ops for case in all_cases() if clause.id in case.clauses), clause.ops


@ids(MUST)
def test_every_must_clause_is_broken_by_a_fault(clause):
    assert any(clause.id in fault.clauses for fault in all_faults()), f"nothing breaks {clause.id}: {clause.statement}"


def test_every_op_that_a_clause_names_exists_and_every_op_is_named_by_a_clause():
    named = {op for clause in load_clauses().values() for op in clause.ops}
    assert named <= set(load_ops()), named - set(load_ops())
    assert set(load_ops()) <= named, set(load_ops()) - named


def test_every_op_has_vectors():
    assert {case.op for case in all_cases()} == set(load_ops())


def test_every_fault_breaks_a_clause_of_a_profile_in_which_it_runs():
    for fault in all_faults():
        for id_ in fault.clauses:
            assert set(load_clauses()[id_].profiles) & set(fault.profiles), f"{fault.name}: {id_}"


def test_every_clause_that_anything_cites_exists():
    texts = [
        path
        for folder in (
            "spec",
            "reference",
            "accelerated",
            "vectors/dflash_vectors",
            "tools",
            "docs",
            "tests/conformance",
        )
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".yaml")
    ] + [ROOT / "README.md"]
    assert len(texts) > 50
    for path in texts:
        for id_ in ID.findall(path.read_text("utf-8")):
            assert id_ in load_clauses(), f"{path} cites {id_}, which is no clause"
