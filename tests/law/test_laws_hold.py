"""The laws of the implementations at hand hold, judged as anybody's. `make law` asks all of them, with more draws."""

from __future__ import annotations

import pytest
from dflash_spec.registry import load_profile
from dflash_vectors.law import judging
from dflash_vectors.law.uniforms import STEP
from dflash_vectors.law.verdicts import BREAKPOINTS, HOLDS, SAMPLING, VALUES, LawRun
from dflash_vectors.runners import open_runner

REFERENCE = "python:dflash_vectors.implementations.reference:create"
ENGINE = "python:dflash_accelerated.conformance:create"
SLOW = "law.one_hot"
"""What the engine answers with the code of law.sparse too."""


def run(spec: str, profile: str, ops: tuple[str, ...]) -> LawRun:
    made = LawRun()
    judging.check(made, [open_runner(spec, 60.0)], judging.Options(profile, ops, samples=3_000))
    assert made.broken == []
    assert [f"{one.op}, {one.law}: {one.reason}" for one in made.findings() if one.status != HOLDS] == []
    return made


@pytest.mark.parametrize("profile", ["ninfer", "zlab", "zlab-2026-04"])
def test_every_law_of_the_reference_holds(profile: str) -> None:
    made = run(REFERENCE, profile, ())
    own = [law for op in judging.ops_of(load_profile(profile)) for law in judging.laws(op, load_profile(profile), 1, 0)]
    assert len(list(made.findings())) == sum(law.op in judging.UNIFORM_OPS for law in own)
    assert {one.method for one in made.findings()} == {BREAKPOINTS, VALUES}
    assert max(one.deviation for one in made.findings()) <= 2 * STEP  # each end of a piece is off by less than a step


@pytest.mark.parametrize("profile", ["ninfer", "zlab", "zlab-2026-04"])
def test_the_laws_of_the_engine_hold(profile: str) -> None:
    ops = tuple(op for op in judging.ops_of(load_profile(profile)) if op != SLOW)
    made = run(ENGINE, profile, ops)
    assert {one.op for one in made.findings()} == set(ops)
    assert ({one.method for one in made.findings()} >= {SAMPLING}) == (profile != "zlab-2026-04")
