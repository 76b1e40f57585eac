"""Cases and suites: what a golden vector is made of, before anything is computed."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from dflash_spec.errors import SpecDataError
from dflash_spec.registry import ALL_PROFILES, PROFILES, Profile, load_clauses, load_ops, load_profile

EFFECTS = ("output", "acceptance", "crash", "liveness")
CLAUSES_PER_CASE = 3
SLUG = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")


@dataclass(frozen=True, eq=False)
class Case:
    """One vector before it is computed: inputs, and the rules that its outputs test.

    `inputs` maps the op's input names to arrays or scalars that are already representable in the declared
    dtype; a starred input is given by its full names (`draft.layers.0.mlp.up_proj.weight`). `clauses` is
    written before the case is run and has at most three ids, except for a composite op. `catches` says
    which bug the case finds, `effect` what that bug does to people (EFFECTS). `exact` names the float stages
    and outputs whose inputs lie on a lattice so coarse that FP32 sums are exact in any order: these get no
    bound. The tag `tie` allows decisions without margin. `blame` names the clause that a first divergence at a
    stage or output breaks (`layer.*` for all layers); elsewhere it is the first of `clauses`. Use it for the stages
    before the rule under test, too: these break other clauses than the case's own.
    `op` and `profile` are filled in by the registry.
    """

    slug: str
    clauses: tuple[str, ...]
    inputs: Mapping[str, Any]
    catches: str
    effect: str
    tags: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    blame: Mapping[str, str] = field(default_factory=dict)
    geometry: str = "tiny"
    seed: int = 0
    op: str = ""
    profile: str = ""

    @property
    def id(self) -> str:
        return f"{self.profile}-{re.sub('[._]', '-', self.op)}-{self.slug}"

    @property
    def chapter(self) -> str:
        return load_ops()[self.op].chapter


SuiteFunction = Callable[[Profile], Iterator[Case]]
_SUITES: list[tuple[str, tuple[str, ...], SuiteFunction]] = []


def suite(op: str, profiles: tuple[str, ...] = PROFILES) -> Callable[[SuiteFunction], SuiteFunction]:
    """Register a function that yields the cases of `op`, once for each of `profiles`."""

    def register(function: SuiteFunction) -> SuiteFunction:
        where = f"suite {function.__module__}.{function.__name__}"
        if op not in load_ops():
            raise SpecDataError(f"{where}: there is no op {op!r}")
        for name in profiles:
            if name not in ALL_PROFILES or (load_profile(name).base and op not in load_profile(name).ops):
                raise SpecDataError(f"{where}: profile {name} is not stated on op {op}")
        _SUITES.append((op, profiles, function))
        return function

    return register


def check_case(case: Case) -> None:
    """Raise SpecDataError that names the case, if its own description breaks a rule of Case."""
    where = f"case {case.id}"
    if not SLUG.match(case.slug):
        raise SpecDataError(f"{where}: slug {case.slug!r}, expected lower-case words joined by single dashes")
    if case.effect not in EFFECTS:
        raise SpecDataError(f"{where}: effect {case.effect!r}, expected one of {', '.join(EFFECTS)}")
    if not case.clauses or (len(case.clauses) > CLAUSES_PER_CASE and not load_ops()[case.op].composite):
        raise SpecDataError(f"{where}: {len(case.clauses)} clauses, expected 1 to {CLAUSES_PER_CASE}")
    clauses = load_clauses()
    for name in case.blame:
        if load_ops()[case.op].find("stages", name) is None and load_ops()[case.op].find("outputs", name) is None:
            raise SpecDataError(f"{where}: blame names {name!r}, which op {case.op} does not return")
    for clause in (*case.clauses, *case.blame.values()):
        if clause not in clauses:
            raise SpecDataError(f"{where}: there is no clause {clause}")
        if not clauses[clause].holds_in(load_profile(case.profile)):
            raise SpecDataError(f"{where}: clause {clause} does not hold in profile {case.profile}")


@cache
def _collect() -> tuple[Case, ...]:
    package = importlib.import_module("dflash_vectors.suites")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    cases: dict[str, Case] = {}
    for op, profiles, function in _SUITES:
        for profile in profiles:
            for bare in function(load_profile(profile)):
                case = replace(bare, op=op, profile=profile)
                check_case(case)
                if case.id in cases:
                    raise SpecDataError(f"case {case.id}: two cases have this id")
                cases[case.id] = case
    return tuple(cases[id_] for id_ in sorted(cases))


def all_cases(profile: str | None = None, op: str | None = None, chapter: str | None = None) -> list[Case]:
    """Every registered case in id order, or those of one profile, op or chapter. Raises SpecDataError."""
    return [
        case
        for case in _collect()
        if profile in (None, case.profile) and op in (None, case.op) and chapter in (None, case.chapter)
    ]
