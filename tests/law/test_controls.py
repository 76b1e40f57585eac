"""Engines that are wrong on purpose are caught, right ones are not, and the power that is printed is what there is."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from dflash_spec.registry import load_clauses, load_profile
from dflash_vectors.law import controls, families, judging, report, samplers
from dflash_vectors.law.controls import CONTROLS, Control, tried
from dflash_vectors.law.engines import Engine
from dflash_vectors.law.seeds import hashes
from dflash_vectors.law.statistics import FALSE_ALARM, Test, binomial_power, compared
from dflash_vectors.law.verdicts import BROKEN, HOLDS, SAMPLING, Finding, Judged, LawRun
from dflash_vectors.runners import open_runner
from dflash_vectors.runners.protocol import Description
from dflash_vectors.style import Style

WRONG = [name for name, control in CONTROLS.items() if control.clauses]
RIGHT = [name for name, control in CONTROLS.items() if not control.clauses]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_engine_is_caught_by_a_clause_that_it_breaks(name: str) -> None:
    found = tried(CONTROLS[name])
    assert found.finding is not None
    assert found.finding.status == BROKEN
    assert found.finding.clause in CONTROLS[name].clauses
    assert found.right


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_engine_is_not(name: str) -> None:
    found = tried(CONTROLS[name], samples=20_000)
    assert found.finding is None
    assert found.laws > 5


def test_every_law_clause_and_every_clause_that_a_breakpoint_shows_has_a_control() -> None:
    broken = {clause for control in CONTROLS.values() for clause in control.clauses}
    laws = {id_ for id_, clause in load_clauses().items() if clause.kind == "law"}
    assert broken >= laws | {"LAW-003", "LAW-004", "LAW-007", "LAW-009", "LAW-010", "LAW-011", "LAW-012", "PROC-005"}


def test_every_control_says_what_it_does() -> None:
    assert len({control.story for control in CONTROLS.values() if control.clauses}) > 10
    told = controls.table([controls.Tried(control, None, 7) for control in CONTROLS.values()], 1.0, Style(), False)
    assert all(control.story in told for control in CONTROLS.values())


def test_each_way_of_judging_has_controls_and_a_right_engine() -> None:
    for sampled in (True, False):
        for names in (WRONG, RIGHT):
            assert any((CONTROLS[name].ops[0] in judging.SAMPLED_OPS) == sampled for name in names)


def test_a_control_that_is_right_or_wrong_where_it_should_not_be_is_told() -> None:
    wrong_unnoticed = Control("x", Engine, "zlab", ("proc.draw",), ("PROC-005",))
    finding = Finding("proc.draw", "dyadic", "breakpoints", "PROC-005", BROKEN)
    assert not controls.Tried(wrong_unnoticed, None, 7).right
    assert controls.Tried(wrong_unnoticed, finding, 7).right
    assert not controls.Tried(Control("y", Engine, "zlab", ("proc.draw",)), finding, 7).right
    other = Finding("law.one_hot", "dyadic", "breakpoints", "LAW-003", BROKEN)
    assert not controls.Tried(wrong_unnoticed, other, 7).right


@pytest.mark.parametrize("profile", ["ninfer", "zlab"])
def test_a_right_sampler_passes_for_any_seed(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Control("right_here", Engine, profile, ("proc.sample_tokens", "law.sample_rounds"))
    monkeypatch.setitem(CONTROLS, right.name, right)
    runner = open_runner(f"python:{controls.__name__}:{right.name}", 60.0)
    least = 1.0
    for seed in range(60):
        run = LawRun()
        judging.check(run, [runner], judging.Options(profile, samples=600, seed=seed))
        assert all(finding.status == HOLDS for finding in run.findings()), seed
        least = min(least, *(test.p for test in run.tests))
    assert least < 0.02  # so the seeds do give other draws, and the tests do look at them


def test_the_power_that_is_told_is_how_often_the_fault_is_found() -> None:
    samples, runs, level = 12_000, 200, FALSE_ALARM / 14
    given = samplers.sampled_rounds(load_profile("zlab"))[0]
    engine = controls.InflatedByOnePercent("zlab", controls.ROUNDS)
    proposals = np.array([slot[0] for slot in given.proposals])
    inputs = {
        "own_law": np.array(0), "proposals": proposals, "candidates": proposals[:, None],
        "q": np.ones((len(proposals), 1), np.float32), "support": np.array([row.ids for row in given.p]),
        "p": np.array([row.weights for row in given.p], np.float32),
    }  # fmt: skip
    chance = float(given.p[0].law[int(proposals[0])])
    power = binomial_power(samples, chance, chance + report.RISE, level)
    found = 0
    for number in range(runs):
        answer = engine.run("law.sample_rounds", inputs | {"seeds": hashes(f"power/{number}", samples)})
        passed = int((answer["accepted"] > 0).sum())
        found += compared("slot 1", (passed, samples - passed), (chance, 1 - chance)).p <= level
    assert 0.2 < power < 0.8
    assert abs(found - runs * power) < 4.5 * (runs * power * (1 - power)) ** 0.5


def test_a_rise_of_one_percent_is_seen_almost_surely_at_the_default_size() -> None:
    """By the same figure that the command prints: at the level of 100 tests, more than a run of one profile has."""
    chances = [
        float(samplers.slot_law(given.p[0].law, row.law)[id_, True, id_])
        for given in samplers.sampled_rounds(load_profile("zlab"))
        for row in (given.q[:1] or [families.Row(given.proposals[0], (1.0,))])
        for id_ in row.ids[:1]
    ]
    samples = judging.Options().samples
    assert max(binomial_power(samples, p, p + report.RISE, FALSE_ALARM / 100) for p in chances) > 0.9999


def test_a_run_settles_all_its_tests_together() -> None:
    def finding(p: float) -> Finding:
        made = Finding("proc.sample_tokens", f"p {p}", SAMPLING, "LAW-015", samples=100)
        made.tests = [Test("tokens", "", 100, 4, p), Test("pairs", "", 100, 4, 0.5)]
        made.outcomes = {"tokens": (), "pairs": ()}
        return made

    few = LawRun([Judged("x", Description("x", "1", "zlab"), [finding(4e-7)])])
    few.settle()
    assert [one.status for one in few.findings()] == [BROKEN]  # 1e-6 / 2
    many = LawRun([Judged("x", Description("x", "1", "zlab"), [finding(4e-7), finding(0.3), finding(0.4)])])
    many.settle()
    assert [one.status for one in many.findings()] == [HOLDS] * 3  # 1e-6 / 6


def test_an_outcome_that_cannot_be_is_broken_by_one_occurrence_and_named() -> None:
    law = {7: Fraction(1), 8: Fraction(0)}
    counted = samplers.Table("tokens", {7: 9_999, 8: 1}, law)
    made = Finding("proc.sample_tokens", "x", SAMPLING, "LAW-015", tests=[counted.test()])
    made.outcomes = {"tokens": counted.told()}
    run = LawRun([Judged("x", Description("x", "1", "zlab"), [made])])
    run.settle()
    assert made.status == BROKEN
    assert made.reason == "tokens: 8 has probability 0, and occurs"
