"""The kill matrix tells a dead fault from one that survives, is not reached, or dies of the wrong clause."""

import json
from dataclasses import replace

import dflash_reference.engine
import dflash_reference.law
import pytest
from dflash_spec.errors import SpecDataError
from dflash_spec.registry import PROFILES
from dflash_vectors import kill as killing
from dflash_vectors.build import build
from dflash_vectors.cases import default_folder
from dflash_vectors.commands import kill_faults
from dflash_vectors.errors import BuildError
from dflash_vectors.faults import Fault, all_faults, applied, fault, patched, resolve
from dflash_vectors.index import write_set
from dflash_vectors.suite import all_cases
from dflash_vectors.verdict import Divergence, Element

GREEDY = Fault(
    "prefix-one-longer", "dflash_reference.law.matching_prefix", lambda true: lambda proposals, target: 0,
    ("LAW-001",), "a test", "output", "Nothing is ever accepted.",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("set") / "golden"
    write_set(path, [build(case) for case in all_cases("ninfer", op="law.greedy")])
    return path


def death(folder, fault):
    reached = killing.reach(folder, list(killing.load_set(folder)), {fault.target})
    return killing.kill(folder, fault, killing.candidates(folder, fault, reached))


def test_a_broken_rule_is_killed_by_a_vector_of_its_clause(folder):
    found = death(folder, GREEDY)
    assert found.killer.startswith("ninfer-law-greedy-")
    assert (found.blamed, found.problem) == ("LAW-001", "")


def test_a_fault_that_changes_nothing_survives(folder):
    found = death(folder, replace(GREEDY, replacement=lambda true: lambda *given: true(*given)))
    assert not found.killer
    assert found.problem == f"survives all {found.reached} vectors that reach dflash_reference.law.matching_prefix"


def test_a_fault_in_a_function_that_no_vector_runs_is_not_reached(folder):
    found = death(folder, replace(GREEDY, target="dflash_reference.law.bonus"))
    assert found.problem == "no vector reaches dflash_reference.law.bonus"


def test_a_fault_that_dies_of_another_clause_is_a_problem(folder):
    found = death(folder, replace(GREEDY, clauses=("LAW-003",)))
    assert found.killer
    assert found.problem.endswith("expected LAW-003")


def test_a_fault_that_crashes_is_dead(folder):
    found = death(folder, replace(GREEDY, replacement=lambda true: lambda *given: 1 // 0))
    assert (found.blamed, found.at, found.problem) == ("LAW-001", "ZeroDivisionError", "")


def test_a_fault_that_never_returns_is_dead(folder, monkeypatch):
    def forever(*given):
        while True:
            pass

    monkeypatch.setattr(killing, "PATIENCE_SECONDS", 0.05)
    found = death(folder, replace(GREEDY, replacement=lambda true: forever))
    assert (found.at, found.problem) == ("nothing within 0.05 s", "")


def test_a_bounded_value_must_be_more_than_two_bounds_away():
    def divergence(bound, bounds):
        element = Element((0,), "1", "2", 5, bound, bounds)
        return Divergence("out.y", "", element, element, 1, 1)

    assert not killing.decisive(divergence(0.5, 2.0))
    assert killing.decisive(divergence(0.5, 2.001))
    assert killing.decisive(divergence(None, None))
    assert killing.decisive(Divergence("out.y", "missing from the answer"))


def test_a_set_that_the_reference_itself_fails_is_an_error(folder):
    id_ = death(folder, GREEDY).killer
    with applied(GREEDY), pytest.raises(BuildError, match=f"{id_}: the reference without a fault fails at out"):
        killing.reach(folder, [id_], {GREEDY.target})


def test_a_patch_reaches_every_name_of_the_function_and_is_undone():
    true = dflash_reference.law.matching_prefix
    with patched("dflash_reference.law.matching_prefix", lambda given: abs):
        assert dflash_reference.engine.law.matching_prefix is abs  # type: ignore[attr-defined]
    assert dflash_reference.law.matching_prefix is true
    with pytest.raises(SpecDataError, match="no such function"):
        resolve("dflash_reference.law.no_such_rule")


def test_every_registered_fault_names_a_function_that_exists_and_tells_its_story():
    for found in all_faults():
        assert callable(resolve(found.target)[2]), found.name
        assert found.story.endswith("."), found.name
        assert found.report, found.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"effect": "sad"}, "effect"), ({"clauses": ()}, "clauses"), ({"clauses": ("LAW-777",)}, "no clause LAW-777")],
)
def test_a_fault_that_is_badly_described_is_refused(changes, message):
    described = {"clauses": ("LAW-001",), "report": "a test", "effect": "output"} | changes

    def badly_described(true):
        """A story."""
        return true

    with pytest.raises(SpecDataError, match=message):
        fault("dflash_reference.law.greedy", **described)(badly_described)


def test_a_composite_blames_a_layer_on_the_layer_and_on_the_context_only_where_it_tests_that():
    cases = all_cases(op="draft.block")
    own = {case.id for case in cases if "CTX-004" in (*case.clauses, *case.blame.values())}
    assert own == {f"{profile}-draft-block-context-rows-not-normed" for profile in ("ninfer", "zlab")}
    rest = [case for case in cases if case.id not in own]
    assert all(case.blame["layer.*"].startswith("DRAFT-") for case in rest)
    assert all(case.blame["c"].startswith("CTX-") for case in rest)


@pytest.mark.parametrize(("name", "chapter"), [("rope-interleaved", "DRAFT"), ("context-norm-without-weight", "CTX")])
def test_the_first_stage_that_a_fault_moves_in_a_whole_block_names_its_chapter(name, chapter):
    fault_ = next(one for one in all_faults() if one.name == name)
    cases = killing.load_set(default_folder())
    blamed = {
        killing.attack(cases[f"{profile}-draft-block-local-and-full-by-stage"], fault_)[0] for profile in PROFILES
    }
    assert {clause.split("-")[0] for clause in blamed} == {chapter}


def test_the_command_prints_a_table_or_json_and_fails_for_an_unknown_fault(folder, capsys):
    known = next(one.name for one in all_faults() if one.target == GREEDY.target)
    arguments = ["--vectors", str(folder), "--fault", known]
    assert kill_faults.main(arguments) == 0
    assert "1 of 1 faults die of the right clause" in capsys.readouterr().out
    assert kill_faults.main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["faults"][0]
    assert (record["fault"], record["problem"], record["blamed"] in record["clauses"]) == (known, "", True)
    assert kill_faults.main(["--vectors", str(folder), "--fault", "no-such"]) == 2
    assert "fault 'no-such', expected one of" in capsys.readouterr().err
