"""Which laws an implementation is asked about, and the run that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dflash_spec.errors import SpecDataError, UnsupportedError
from dflash_spec.registry import ALL_PROFILES, Profile, load_profile

from dflash_vectors.checker import started
from dflash_vectors.differences import Difference
from dflash_vectors.law import families, filtering, samplers, statistics, uniforms
from dflash_vectors.law.verdicts import HOLDS, UNANSWERED, Finding, Judged, LawRun
from dflash_vectors.runners.protocol import Description, Runner
from dflash_vectors.style import printable

UNIFORM_OPS = ("proc.filter", "proc.draw", "proc.propose", "law.one_hot", "law.sparse", "law.match")
"""Their randomness is an input, so their law can be measured."""
SAMPLED_OPS = ("proc.sample_tokens", "law.sample_rounds")
"""They draw with randomness of their own, so their law can only be counted."""
OPS = (*UNIFORM_OPS, *SAMPLED_OPS)
PROPOSED = ("temperature 1", "top-k 4, top-p")
"""The settings of proposals; filters are asked about all of them."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class Law:
    """One law of one op, and what judges it."""

    op: str
    name: str
    steps: int
    judge: Callable[[Runner, Step], Finding]


def profiles(only: str | None) -> list[Profile]:
    """Every profile in which some law is asked about, or the one named."""
    found = []
    for name in ALL_PROFILES if only is None else (only,):
        try:
            profile = load_profile(name)
        except SpecDataError:  # a difference that has no page yet
            continue
        if ops_of(profile):
            found.append(profile)
    return found


def ops_of(profile: Profile) -> tuple[str, ...]:
    """The ops whose laws are asked about in a profile; those of a difference are the ones that it is stated on."""
    lacks = {"law.match"} if profile.axes["accept_test"] != "match" else {"law.one_hot", "law.sparse"}
    if profile.axes["proposal"] != "sampled":
        lacks.add("proc.propose")
    return tuple(op for op in OPS if op not in lacks and (not profile.base or op in profile.ops))


def laws(op: str, profile: Profile, samples: int, seed: int) -> Iterator[Law]:
    """The laws of an op, small ones first."""
    if op == "proc.filter":
        for name, asked in filtering.settings(profile).items():
            yield _law(op, name, partial(filtering.judge_filter, name=name, asked=asked, profile=profile))
    elif op == "proc.propose":
        for name, asked in filtering.settings(profile).items():
            if name in PROPOSED:
                yield _law(op, name, partial(filtering.judge_propose, name=name, asked=asked, profile=profile))
    elif op == "proc.draw":
        for name, row in families.rows(profile).items():
            yield _law(op, name, partial(uniforms.judge_draw, name=name, row=row, profile=profile))
    elif op in UNIFORM_OPS:
        given_ = {"law.sparse": families.drawn_rounds, "law.match": families.matched_rounds}
        for given in given_.get(op, families.certain_rounds)(profile):
            yield _law(op, given.name, partial(uniforms.judge_round, op=op, given=given, profile=profile))
    else:
        chunks = -(-samples // samplers.CHUNK)
        tokens = partial(samplers.judge_tokens, profile=profile, samples=samples, seed=seed)
        rounds = partial(samplers.judge_rounds, profile=profile, samples=samples, seed=seed)
        if op == "proc.sample_tokens":
            for name, row in samplers.token_rows(profile).items():
                yield Law(op, name, chunks, partial(tokens, name=name, row=row))
        else:
            for given in samplers.sampled_rounds(profile):
                yield Law(op, given.name, chunks, partial(rounds, given=given))


def _law(op: str, name: str, judge: Callable[[Runner], Finding]) -> Law:
    def told(runner: Runner, step: Step) -> Finding:
        finding = judge(runner)
        step(f"{op} {name}")
        return finding

    return Law(op, name, 1, told)


@dataclass(frozen=True)
class Options:
    """What a run asks. No `ops` are all of them."""

    profile: str | None = None
    ops: tuple[str, ...] = ()
    samples: int = 100_000
    seed: int = 0


def asked_of(description: Description, profile: Profile, options: Options) -> list[Law]:
    """The laws that an implementation is asked about in a profile: those of ops that it declares."""
    return [
        law
        for op in ops_of(profile)
        if (description.ops is None or op in description.ops) and (not options.ops or op in options.ops)
        for law in laws(op, profile, options.samples, options.seed)
    ]


class Begin:
    """Told before the first law of an implementation and profile, with all of them; `step` follows each part."""

    def begin(self, runner: Runner, description: Description, asked: Sequence[Law]) -> None:
        """Nothing by default."""

    def step(self, label: str) -> None:
        """Nothing by default."""


NOTHING_TO_JUDGE = (
    "declares no op whose law can be judged: declare law.one_hot, law.sparse, proc.draw or law.match, which take "
    "uniforms, or proc.sample_tokens and law.sample_rounds, which use your own randomness (docs/protocol.md)"
)


def check(
    run: LawRun,
    runners: Sequence[Runner],
    options: Options,
    known: Sequence[Difference] = (),
    watch: Begin | None = None,
) -> None:
    """Judge every law of every implementation; an interrupt ends the run and is noted in it."""
    watch = watch or Begin()
    try:
        for runner in runners:
            _check_one(run, runner, options, watch)
    except KeyboardInterrupt:
        run.interrupted = True
    run.settle()
    for judged in run.judged:
        judged.findings = [_explained(finding, judged.description, known) for finding in judged.findings]


def _check_one(run: LawRun, runner: Runner, options: Options, watch: Begin) -> None:
    silent, told, before = list[str](), False, len(run.broken)
    try:
        for profile in profiles(options.profile):
            description = started(runner, profile, silent, run.broken)
            if description is None:
                continue
            asked = asked_of(description, profile, options)
            if not asked:
                silent.append(printable(f"{runner.spec} in profile {profile.name} {NOTHING_TO_JUDGE}"))
                continue
            if any(law.op in SAMPLED_OPS for law in asked):
                try:
                    statistics.library()
                except UnsupportedError as error:  # what can be measured is measured all the same
                    run.broken.append(str(error))
                    asked = [law for law in asked if law.op not in SAMPLED_OPS]
            judged = Judged(runner.spec, description)
            run.judged.append(judged)
            told = True
            watch.begin(runner, description, asked)
            lost: set[str] = set()
            for law in asked:
                if law.op in lost:  # a program that hangs is waited for once, not once for every law
                    continue
                judged.findings.append(law.judge(runner, watch.step))
                if judged.findings[-1].status == UNANSWERED:
                    lost.add(law.op)
    finally:
        runner.close()
    told = told or len(run.broken) > before
    run.silent.extend(silent if told else [])
    run.broken.extend([] if told else silent)


def _explained(finding: Finding, description: Description, known: Sequence[Difference]) -> Finding:
    """The finding with the record that explains it, if it is broken and there is one."""
    names = {"op": finding.op, "case": finding.law, "clause": finding.clause}
    for difference in known if finding.status != HOLDS else ():
        if difference.explains(description.name, description.version, description.profile, **names):
            return replace(finding, difference=difference)
    return finding
