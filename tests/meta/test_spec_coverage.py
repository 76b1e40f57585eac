"""Every rule is computed once, tested by a vector, broken by a fault; and nothing cites a rule that is not there.

A rule of kind `law` is about draws of an implementation's own. No vector can hold such a draw: its law is judged, and
an engine that is wrong on purpose breaks it.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from dflash_spec.registry import load_clauses, load_ops, load_profile
from dflash_vectors.faults import all_faults
from dflash_vectors.law.controls import CONTROLS
from dflash_vectors.suite import all_cases

ROOT = Path(__file__).resolve().parents[2]
CITATION = re.compile(r"Clause: ([A-Z]+-\d{3})")
CHAPTERS = sorted({clause.chapter for clause in load_clauses().values()})
ID = re.compile(rf"\b(?:{'|'.join(CHAPTERS)})-\d{{3}}\b")
MUST = [clause for clause in load_clauses().values() if clause.level == "must"]
LAWS = [clause for clause in MUST if clause.kind == "law"]
VECTORED = [clause for clause in MUST if clause.kind != "law"]
JUDGED_OPS = {name for name, op in load_ops().items() if any(spec.compare == "law" for spec in op.outputs)}
COMPUTED = ("reference/dflash_reference", "spec/dflash_spec/config", "spec/dflash_spec/checkpoint.py")
JUDGED = ("vectors/dflash_vectors/law",)


def citations(folders):
    """clause id -> the functions and classes whose docstrings cite it."""
    found = defaultdict(list)
    for folder in folders:
        root = ROOT / folder
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    for id_ in CITATION.findall(ast.get_docstring(node) or ""):
                        found[id_].append(f"{path.stem}.{node.name}")
    return found


CITED = citations((*COMPUTED, *JUDGED))


def ids(clauses):
    return pytest.mark.parametrize("clause", clauses, ids=lambda clause: clause.id)


@ids(MUST)
def test_every_must_clause_is_cited_by_exactly_one_function(clause):
    assert len(CITED[clause.id]) == 1, f"{clause.id} is cited by {CITED[clause.id] or 'nothing'}: {clause.statement}"


def test_a_law_is_cited_where_it_is_judged_and_every_other_rule_where_it_is_computed():
    laws = {clause.id for clause in LAWS}
    assert set(citations(JUDGED)) == laws
    assert not laws & set(citations(COMPUTED))


@ids(LAWS)
def test_every_law_is_judged_by_ops_whose_every_output_is_judged_by_its_law(clause):
    assert clause.ops
    for name in clause.ops:
        assert {spec.compare for spec in load_ops()[name].outputs} == {"law"}, name


@ids(LAWS)
def test_no_vector_claims_to_hold_a_law(clause):
    assert not [case.id for case in all_cases() if clause.id in case.clauses or case.op in clause.ops]


@ids(LAWS)
def test_every_law_is_broken_by_an_engine_that_is_wrong_on_purpose(clause):
    breaking = [control for control in CONTROLS.values() if clause.id in control.clauses]
    assert breaking, f"no control breaks {clause.id}: {clause.statement}"
    assert any(set(control.ops) & set(clause.ops) for control in breaking)


@ids(VECTORED)
def test_every_must_clause_is_exercised_by_a_vector_in_each_of_its_profiles(clause):
    tested = {case.profile for case in all_cases() if clause.id in case.clauses}
    assert set(clause.profiles) <= tested, f"{clause.id} has vectors in {sorted(tested)}: {clause.statement}"
    assert all(clause.holds_in(load_profile(name)) for name in tested)


@ids(VECTORED)
def test_every_must_clause_is_exercised_through_an_op_that_it_names(clause):
    assert any(case.op in clause.ops for case in all_cases() if clause.id in case.clauses), clause.ops


@ids(VECTORED)
def test_every_must_clause_is_broken_by_a_fault(clause):
    assert any(clause.id in fault.clauses for fault in all_faults()), f"nothing breaks {clause.id}: {clause.statement}"


def test_every_op_that_a_clause_names_exists_and_every_op_is_named_by_a_clause():
    named = {op for clause in load_clauses().values() for op in clause.ops}
    assert named <= set(load_ops()), named - set(load_ops())
    assert set(load_ops()) <= named, set(load_ops()) - named


def test_every_op_has_vectors_but_those_that_a_law_judges():
    assert {case.op for case in all_cases()} == set(load_ops()) - JUDGED_OPS
    assert {op for clause in LAWS for op in clause.ops} == JUDGED_OPS


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
